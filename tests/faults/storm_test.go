package faults_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A storm has callers ask in random batches, go away and release, while random
// calls of the scripts meet random faults, and counts the permits after each
// round.
func storm(t *testing.T, kinds []limitertest.Fault) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for lane := range uint64(8) {
		wg.Go(func() {
			draw := rand.New(rand.NewPCG(seed, lane))
			cfg := limitertest.Hourly(10 + draw.Int64N(30))
			if lane%4 == 3 {
				cfg.Type = rratelimiter.PerClient
			}
			versions := slices.Sorted(maps.Values(limitertest.MembersOf))
			version := versions[draw.IntN(len(versions))]
			w := limitertest.NewWire(t, redistest.Shared(t), cfg, lane%4 == 2, rratelimiter.WithRedissonVersion(version))
			var mu sync.Mutex // of draw, for the proxy's goroutines
			var held int64
			for round := range 25 {
				if !w.StormRound(t, draw, &mu, &held, kinds) {
					t.Errorf("lane %d, round %d of seed %d", lane, round, seed)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestStormOfLostAnswers(t *testing.T) {
	t.Parallel()
	storm(t, []limitertest.Fault{
		func(<-chan struct{}) redistest.Action { return redistest.DropAnswer },
		func(<-chan struct{}) redistest.Action { return redistest.DropAnswer },
		func(<-chan struct{}) redistest.Action { return redistest.Cut },
		func(<-chan struct{}) redistest.Action { return redistest.Cut },
		func(<-chan struct{}) redistest.Action { return redistest.Swallow },
		func(held <-chan struct{}) redistest.Action { return redistest.Pass.When(held) },
	})
}

func TestStormOfLateRequests(t *testing.T) {
	t.Parallel()
	storm(t, []limitertest.Fault{
		func(<-chan struct{}) redistest.Action { return redistest.DropAnswer },
		func(<-chan struct{}) redistest.Action { return redistest.Cut },
		func(held <-chan struct{}) redistest.Action { return redistest.Late.When(held) },
		func(held <-chan struct{}) redistest.Action { return redistest.Late.When(held) },
	})
}
