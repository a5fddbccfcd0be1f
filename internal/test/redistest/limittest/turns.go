package limittest

import (
	"context"
	"flag"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

var (
	turns = flag.Int("turns", 600, "requests that take turns on shared keys, of each limiter and server")
	seed  = flag.Uint64("turns-seed", 0, "seed of the turns; 0 draws one")
)

// History plays a history on a new key. It returns how many requests it made,
// and which answer was not as it should, or "".
type History func(t *testing.T, draw *rand.Rand, key string) (requests int, mismatch string)

// TakeTurns plays histories until so many requests were made as the flag -turns
// says. It records how many there were, and the mismatches, of which there must
// be none.
func TakeTurns(t *testing.T, limiter string, play History) {
	t.Helper()
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	requests, mismatches := 0, 0
	for i := uint64(0); requests < *turns; i++ {
		n, mismatch := play(t, rand.New(rand.NewPCG(first, i)), Key(t))
		requests += n
		if mismatch != "" {
			mismatches++
			if mismatches <= 3 {
				t.Errorf("-turns-seed %d, history %d, request %d: %s", first, i, n, mismatch)
			}
		}
	}
	t.Logf("-turns-seed %d: %d requests took turns, %d mismatches", first, requests, mismatches)
	redistest.Record(t, "turns-other", limiter, requests, mismatches)
}

// Either draws one of the forms of an article's rule.
func Either(draw *rand.Rand, take, eval func(context.Context) (int64, error)) func(context.Context) (int64, error) {
	if draw.IntN(2) == 0 {
		return eval
	}
	return take
}

// Pause draws a pause of at most the length: in whole units where those are
// minutes, else in milliseconds.
func Pause(draw *rand.Rand, length, unit time.Duration) time.Duration {
	step := time.Millisecond
	if unit == time.Minute {
		step = unit
	}
	return time.Duration(draw.Int64N(int64(length/step)+1)) * step
}

// Together has callers of a limiter and of articles' rules, which answer above 0
// where a request may pass, ask for one key at the same time. It returns how many
// permits were granted.
func Together(t *testing.T, l limit.Limiter, key string, rules ...func(context.Context) (int64, error)) int64 {
	t.Helper()
	var granted atomic.Int64
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 30 {
				if i < 6 {
					d, err := l.Take(t.Context(), key, 1)
					if assert.NoError(t, err) && d.Granted {
						granted.Add(1)
					}
				} else if answer, err := rules[i%len(rules)](t.Context()); assert.NoError(t, err) && answer > 0 {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return granted.Load()
}
