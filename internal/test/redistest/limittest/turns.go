package limittest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

var (
	atLeast = flag.Int("turns", 600, "requests that take turns on shared keys, of each limiter and server")
	seed    = flag.Uint64("turns-seed", 0, "seed of the turns; 0 draws one")
)

// Turns are histories of a limiter and of articles' rules that share keys.
type Turns struct {
	Limiter string

	// WholeSeconds: histories start at a whole second.
	WholeSeconds bool

	// Play begins a history. The function it returns makes a request, and says which
	// answer was not as it should, or "".
	Play func(t *testing.T, h History) func() (mismatch string)
}

// A History is what a limiter and articles' rules do with a new key, in virtual time.
type History struct {
	Redis redistest.Client
	Key   string
	Draw  *rand.Rand

	start time.Time
}

// Passed returns how much time has passed in the history.
func (h History) Passed() time.Duration { return time.Since(h.start) }

// Span draws a span of time of at most that many seconds.
func (h History) Span(most int) time.Duration {
	return time.Duration(1+h.Draw.IntN(most)) * time.Second
}

// MayPause lets at most that much time pass, now and then.
func (h History) MayPause(most time.Duration) {
	if h.Draw.IntN(3) == 0 {
		time.Sleep(time.Duration(h.Draw.Int64N(most.Milliseconds()+1)) * time.Millisecond)
	}
}

// Theirs makes a request by an article's rule.
func (h History) Theirs(t *testing.T, rule Rule, want int64) (mismatch string) {
	t.Helper()
	now := h.Passed()
	if got, err := rule(t.Context()); err != nil || got != want {
		return fmt.Sprintf("theirs after %v: got %d, %v, want %d", now, got, err, want)
	}
	return ""
}

// Ours makes a request by a limiter.
func (h History) Ours(t *testing.T, l limit.Limiter, n int64, want limit.Decision, wantErr error) (mismatch string) {
	t.Helper()
	now := h.Passed()
	if got, err := l.Take(t.Context(), h.Key, n); !errors.Is(err, wantErr) || err == nil && got != want {
		return fmt.Sprintf("ours after %v: got %+v, %v, want %+v, %v", now, got, err, want, wantErr)
	}
	return ""
}

// Take plays histories on a miniredis and on a server.
func (turns Turns) Take(t *testing.T) {
	t.Helper()
	limitertest.Each(t, map[string]func(*testing.T, func(*testing.T, redistest.Client)){
		"virtual time": redistest.Virtual, "server": redistest.VirtualServer,
	}, func(t *testing.T, virtual func(*testing.T, func(*testing.T, redistest.Client))) {
		virtual(t, turns.play)
	})
}

// play plays histories until that many requests were made as the flag -turns says. It records
// how many there were, and the mismatches, of which there must be none.
func (turns Turns) play(t *testing.T, rdb redistest.Client) {
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	requests, mismatches := 0, 0
	for i := uint64(0); requests < *atLeast && mismatches < 3; i++ {
		if turns.WholeSeconds {
			time.Sleep(time.Second - time.Duration(time.Now().Nanosecond()))
		}
		request := turns.Play(t, History{Redis: rdb, Key: Key(t), Draw: rand.New(rand.NewPCG(first, i)), start: time.Now()})
		for n := 1; n <= 80; n++ {
			requests++
			if mismatch := request(); mismatch != "" {
				mismatches++
				t.Errorf("-turns-seed %d, history %d, request %d: %s", first, i, n, mismatch)
				break
			}
		}
	}
	t.Logf("-turns-seed %d: %d requests took turns, %d mismatches", first, requests, mismatches)
	redistest.Record(t, "turns-other", turns.Limiter, requests, mismatches)
}

// requireWithin checks that the times of a decision and in Redis lie within a window.
func requireWithin(t *testing.T, rdb redistest.Client, d limit.Decision) {
	t.Helper()
	require.LessOrEqual(t, d.RetryAfter, window)
	require.LessOrEqual(t, d.ResetAfter, window)
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		ttl := rdb.PTTL(t.Context(), key).Val()
		require.Positive(t, ttl, "time to live of %s", key)
		require.LessOrEqual(t, ttl, window, "time to live of %s", key)
	}
}

// A clock that goes back takes nothing away and gives nothing: from the first call on, refused
// or not, the new clock counts.
func testClockGoesBack(t *testing.T, k Kind) {
	for _, back := range []time.Duration{1001 * time.Millisecond, 2 * time.Second, time.Hour, 1000 * time.Hour} {
		for name, spent := range map[string]int64{"granted": 7, "refused": permits} {
			t.Run(name+" "+back.String(), func(t *testing.T) {
				t.Parallel()
				redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
					l := k.on(rdb, permits, window)
					require.True(t, Take(t, l, "orders", spent).Granted)
					time.Sleep(time.Second)
					step(-back)
					d := Take(t, l, "orders", 1)
					assert.Equal(t, spent < permits, d.Granted)
					requireWithin(t, rdb, d)
					assert.Equal(t, max(0, permits-spent-1), d.Remaining)

					d = Take(t, l, "orders", permits)
					assert.False(t, d.Granted)
					requireWithin(t, rdb, d)
					time.Sleep(d.RetryAfter - time.Millisecond)
					assert.False(t, Take(t, l, "orders", permits).Granted)
					time.Sleep(time.Millisecond)
					d = Take(t, l, "orders", permits)
					assert.True(t, d.Granted)
					requireWithin(t, rdb, d)
				})
			})
		}
	}
}

// However often the clock goes back and forward again, the next moment reported is at most a
// window away, and right.
func testClockGoesBackAndForth(t *testing.T, k Kind) {
	redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
		l, draw := k.on(rdb, permits, window), rand.New(rand.NewPCG(6, 7))
		refused := 0
		for range 200 {
			switch by := time.Duration(draw.Int64N(int64(time.Hour))).Truncate(time.Millisecond); draw.IntN(8) {
			case 0:
				step(-by)
			case 1:
				step(by)
			case 2:
				time.Sleep(time.Duration(draw.Int64N(int64(window))).Truncate(time.Millisecond))
			}
			n := 1 + draw.Int64N(permits)
			d := Take(t, l, "orders", n)
			requireWithin(t, rdb, d)
			if !d.Granted && draw.IntN(3) == 0 {
				refused++
				time.Sleep(d.RetryAfter)
				d = Take(t, l, "orders", n)
				require.True(t, d.Granted)
				requireWithin(t, rdb, d)
			}
		}
		assert.Greater(t, refused, 20)
	})
}

// With a clock that has gone back, a give-back returns exactly the permits taken, or nothing:
// never what others have.
func testGiveBackByAClockSetBack(t *testing.T, k Kind) {
	type row struct {
		between     func(t *testing.T, rdb redistest.Client, l limit.Limiter, step func(time.Duration))
		least, most int64 // free permits after
		writes      bool  // the give-back writes
	}
	limitertest.Stepping(t, map[string]row{
		"at once": {func(_ *testing.T, _ redistest.Client, _ limit.Limiter, step func(time.Duration)) { step(-time.Hour) }, 7, 7, true},
		"others came by": {func(t *testing.T, _ redistest.Client, l limit.Limiter, step func(time.Duration)) {
			step(-time.Hour)
			require.True(t, Take(t, l, "orders", 2).Granted)
		}, 1, 5, false},
		"all is back": {func(t *testing.T, _ redistest.Client, l limit.Limiter, step func(time.Duration)) {
			step(-time.Hour)
			require.False(t, Take(t, l, "orders", permits).Granted)
			time.Sleep(window)
			require.True(t, Take(t, l, "orders", permits).Granted)
		}, 0, 0, false},
		"all was back before": {func(t *testing.T, _ redistest.Client, l limit.Limiter, step func(time.Duration)) {
			time.Sleep(window)
			require.True(t, Take(t, l, "orders", permits).Granted)
			step(-time.Hour)
		}, 0, 0, false},
		"the same time comes again": {func(t *testing.T, rdb redistest.Client, l limit.Limiter, step func(time.Duration)) {
			const past = window + time.Millisecond
			all := rdb.Keys(t.Context(), "*").Val()
			time.Sleep(past)
			// A server drops what has run out when it meets it.
			require.Zero(t, rdb.Exists(t.Context(), all...).Val())
			step(-past)
			require.True(t, Take(t, l, "orders", permits).Granted)
		}, 0, 0, false},
	}, func(t *testing.T, rdb redistest.Client, step func(time.Duration), tc row) {
		l := k.on(rdb, permits, window)
		_, giveBack, err := l.TakeReturnable(t.Context(), "orders", 4)
		require.NoError(t, err)
		require.True(t, Take(t, l, "orders", 3).Granted)
		tc.between(t, rdb, l, step)
		require.NoError(t, giveBack(t.Context()))
		if tc.writes {
			requireWithin(t, rdb, limit.Decision{})
		}
		d := Take(t, l, "orders", permits)
		require.False(t, d.Granted)
		requireWithin(t, rdb, d)
		assert.GreaterOrEqual(t, d.Remaining, tc.least)
		assert.LessOrEqual(t, d.Remaining, tc.most)
		time.Sleep(window)
		assert.True(t, Take(t, l, "orders", permits).Granted)
		assert.False(t, Take(t, l, "orders", 1).Granted)
	})
}
