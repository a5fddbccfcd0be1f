package limittest

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

var (
	atLeast = flag.Int("turns", 600, "requests that take turns on shared keys, of each limiter and server")
	seed    = flag.Uint64("turns-seed", 0, "seed of the turns; 0 draws one")
)

// Turns are histories of a limiter and of articles' rules that share keys.
type Turns struct {
	Limiter string
	Keys    func(key string) []string

	// WholeSeconds tells that the histories start at one in virtual time.
	WholeSeconds bool

	// Play plays a history. It returns how many requests it made, and which answer was
	// not as it should, or "".
	Play func(t *testing.T, h History) (requests int, mismatch string)
}

// A History is what a limiter and articles' rules do with a new key.
type History struct {
	Clock

	Redis redis.UniversalClient
	Key   string
	Draw  *rand.Rand

	unit time.Duration // of spans of time
}

// Span draws a span of time of at most so many units.
func (h History) Span(most int) time.Duration { return time.Duration(1+h.Draw.IntN(most)) * h.unit }

// MayPause lets at most so much time pass, now and then: in whole minutes where units
// are, else in milliseconds.
func (h History) MayPause(most time.Duration) {
	if h.Draw.IntN(3) > 0 {
		return
	}
	step := time.Millisecond
	if h.unit == time.Minute {
		step = h.unit
	}
	h.Pause(time.Duration(h.Draw.Int64N(int64(most/step)+1)) * step)
}

// Either draws one of the forms of an article's rule.
func (h History) Either(take, eval Rule) Rule {
	if h.Draw.IntN(2) == 0 {
		return eval
	}
	return take
}

// Take plays histories in virtual time, whose pauses count in milliseconds, and on
// servers, where they count in minutes.
func (turns Turns) Take(t *testing.T) {
	t.Helper()
	t.Run("virtual time", func(t *testing.T) {
		t.Parallel()
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			turns.play(t, rdb, time.Second, func(string) Clock {
				if turns.WholeSeconds {
					time.Sleep(time.Second - time.Duration(time.Now().Nanosecond()))
				}
				return bubble{time.Now()}
			})
		})
	})
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		turns.play(t, rdb, time.Minute, func(key string) Clock { return &aged{t: t, rdb: rdb, keys: turns.Keys(key)} })
	})
}

// play plays histories until so many requests were made as the flag -turns says. It
// records how many there were, and the mismatches, of which there must be none.
func (turns Turns) play(t *testing.T, rdb redis.UniversalClient, unit time.Duration, clock func(key string) Clock) {
	t.Helper()
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	requests, mismatches := 0, 0
	for i := uint64(0); requests < *atLeast; i++ {
		key := Key(t)
		h := History{Clock: clock(key), Redis: rdb, Key: key, Draw: rand.New(rand.NewPCG(first, i)), unit: unit}
		n, mismatch := turns.Play(t, h)
		requests += n
		if mismatch != "" {
			mismatches++
			if mismatches <= 3 {
				t.Errorf("-turns-seed %d, history %d, request %d: %s", first, i, n, mismatch)
			}
		}
	}
	t.Logf("-turns-seed %d: %d requests took turns, %d mismatches", first, requests, mismatches)
	redistest.Record(t, "turns-other", turns.Limiter, requests, mismatches)
}
