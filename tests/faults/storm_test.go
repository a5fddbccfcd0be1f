package faults_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// source is a source of random numbers for several goroutines.
type source struct {
	mu  sync.Mutex
	pcg *rand.PCG
}

func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}

// storm plays rounds on several lanes at once. A lane begins with a draw of its own, and
// of a release of Redisson.
func storm(t *testing.T, lanes uint64, rounds int, begin func(lane uint64, draw *rand.Rand, version string) (round func() bool)) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	versions := slices.Sorted(maps.Values(limitertest.MembersOf))
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			draw := rand.New(&source{pcg: rand.NewPCG(seed, lane)})
			round := begin(lane, draw, versions[draw.IntN(len(versions))])
			for n := range rounds {
				if !round() {
					t.Errorf("lane %d, round %d of seed %d", lane, n, seed)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Callers ask in random batches, go away and release, while random calls of the scripts
// meet random faults. After each round permits in use are those that callers hold.
func TestStorm(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]string{
		"of lost answers":  "drop drop cut cut swallow hold",
		"of late requests": "drop cut late late",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var kinds []limitertest.Fault
			for fault := range strings.FieldsSeq(faults) {
				kinds = append(kinds, func(held <-chan struct{}) redistest.Action { return actions(fault, held)[0] })
			}
			storm(t, 8, 10, func(lane uint64, draw *rand.Rand, version string) func() bool {
				cfg := limitertest.Hourly(10 + draw.Int64N(30))
				if lane%4 == 3 {
					cfg.Type = rratelimiter.PerClient
				}
				w := limitertest.NewWire(t, redistest.Shared(t), cfg, lane%4 == 2, rratelimiter.WithRedissonVersion(version))
				var mu sync.Mutex
				var held int64
				return func() bool { return w.StormRound(t, draw, &mu, &held, kinds) }
			})
		})
	}
}

func TestStormOfAll(t *testing.T) {
	t.Parallel()
	storm(t, 6, 8, func(_ uint64, draw *rand.Rand, version string) func() bool {
		w := newBundle(t, 10+draw.Int64N(30), version)
		var held three
		return func() bool { return w.stormRound(t, draw, &held) }
	})
}

func (w *bundle) stormRound(t *testing.T, draw *rand.Rand, holding *three) bool {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(held) })
	defer letGo()
	left := 4 // so that no attempt meets five
	w.OnScript(func(s *lua.Script, _ int) redistest.Action {
		if draw.IntN(8) == 0 {
			cancel()
		}
		if s != lua.AcquireAll && s != lua.Acquire && s != lua.GiveBack || left == 0 || draw.IntN(3) != 0 {
			return redistest.Pass
		}
		left--
		return actions("drop drop cut swallow late hold", held)[draw.IntN(6)]
	})
	got := make([]three, 1+draw.IntN(8))
	var wg sync.WaitGroup
	for i := range got {
		permits, one, kind := 1+draw.Int64N(6), draw.IntN(3), draw.IntN(4)
		wg.Go(func() {
			var all int64
			var err error
			switch kind {
			case 0:
				all, err = w.tryAll(ctx, permits, 0)
			case 1:
				all, err = w.tryAll(context.Background(), permits, limitertest.Outlasts)
			case 2:
				all, err = w.tryAll(context.Background(), permits, 0)
			default:
				ok, tryErr := w.own[one].TryAcquire(ctx, permits, 0)
				got[i][one], err = limitertest.Counted(permits, ok, tryErr)
			}
			if !errors.Is(err, context.Canceled) {
				assert.NoError(t, err)
			}
			got[i] = got[i].plus(all)
		})
	}
	wg.Wait()
	for _, granted := range got {
		*holding = holding.minus(three{}.minus(granted))
	}
	if draw.IntN(2) == 0 {
		letGo()
	}
	back := draw.IntN(2) == 0
	for i, l := range w.own {
		if !back || holding[i] == 0 {
			continue
		}
		n := 1 + draw.Int64N(holding[i])
		if !assert.NoError(t, l.Release(t.Context(), n)) {
			return false
		}
		holding[i] -= n
	}
	letGo()
	return w.checkAll(t, *holding, "a round")
}
