package httplimit_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestLocal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := httplimit.Local(5, time.Minute)
		check := func(after time.Duration, key string, n int64, want limit.Decision) {
			t.Helper()
			time.Sleep(after)
			got, err := l.Take(t.Context(), key, n)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		}
		const s = time.Second
		check(0, "a", 3, limit.Decision{Granted: true, Limit: 5, Remaining: 2, ResetAfter: 60 * s})
		check(10*s, "a", 1, limit.Decision{Granted: true, Limit: 5, Remaining: 1, ResetAfter: 60 * s})
		check(10*s, "a", 2, limit.Decision{Limit: 5, Remaining: 1, RetryAfter: 40 * s, ResetAfter: 50 * s})
		check(0, "a", 5, limit.Decision{Limit: 5, Remaining: 1, RetryAfter: 50 * s, ResetAfter: 50 * s})
		check(0, "b", 5, limit.Decision{Granted: true, Limit: 5, ResetAfter: 60 * s})
		check(40*s-1, "a", 2, limit.Decision{Limit: 5, Remaining: 1, RetryAfter: 1, ResetAfter: 10*s + 1})
		check(1, "a", 2, limit.Decision{Granted: true, Limit: 5, Remaining: 2, ResetAfter: 60 * s})
		check(time.Hour, "a", 1, limit.Decision{Granted: true, Limit: 5, Remaining: 4, ResetAfter: 60 * s})
		assert.Equal(t, time.Minute, l.(limit.Windowed).Window())
	})
}

func TestLocalGivesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := httplimit.Local(5, time.Minute).(limit.Returner)
		take := func(n int64) func(context.Context) error {
			d, giveBack, err := l.TakeReturnable(t.Context(), "a", n)
			require.NoError(t, err)
			require.Equal(t, d.Granted, giveBack != nil)
			return giveBack
		}
		first, second := take(2), take(3)
		assert.Nil(t, take(1))
		require.NoError(t, first(t.Context()))
		third := take(2)
		require.NotNil(t, third)
		require.NoError(t, second(t.Context()))
		require.NoError(t, third(t.Context()))
		time.Sleep(time.Second)
		last := take(5)
		time.Sleep(time.Minute)
		require.NotNil(t, take(5))
		require.NoError(t, last(t.Context()), "what has run out is not given back twice")
		assert.Nil(t, take(1))

		time.Sleep(time.Minute)
		last = take(5)
		time.Sleep(time.Minute)
		_, err := l.Take(t.Context(), "b", 1)
		require.NoError(t, err)
		require.NoError(t, last(t.Context()), "its key is forgotten")
		assert.NotNil(t, take(5))
	})
}

func TestLocalErrors(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx     context.Context
		limiter limit.Limiter
		n       int64
		want    error
	}{
		{t.Context(), httplimit.Local(0, time.Minute), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, 0), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, -1), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, time.Minute), 0, limit.ErrInvalidPermits},
		{t.Context(), httplimit.Local(1, time.Minute), -1, limit.ErrInvalidPermits},
		{t.Context(), httplimit.Local(1, time.Minute), 2, limit.ErrPermitsExceedRate},
		{t.Context(), httplimit.Local(1, time.Minute), math.MaxInt64, limit.ErrPermitsExceedRate},
		{gone, httplimit.Local(1, time.Minute), 1, context.Canceled},
	} {
		_, err := test.limiter.Take(test.ctx, "a", test.n)
		assert.ErrorIs(t, err, test.want)
	}
}

// localStep is one request of a history, so long after the one before.
type localStep struct {
	pause time.Duration
	n     int64
	back  bool // gives back what it was granted
}

// Random requests against the plainest of models: all grants of the last window. Never more
// than the limit; nothing is held back for longer than a 32nd of a window, if there are so many
// that some are kept as one; and a caller that comes back at RetryAfter gets through.
func TestLocalModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.Int64Range(1, 200).Draw(rt, "limit")
		length := rapid.SampledFrom([]int{1, 10, 100, 300}).Draw(rt, "length")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) localStep {
			return localStep{
				pause: time.Duration(rapid.IntRange(0, 60).Draw(rt, "ms")) * time.Millisecond,
				n:     rapid.Int64Range(1, min(most, 4)).Draw(rt, "n"),
				back:  rapid.IntRange(0, 9).Draw(rt, "back") == 0,
			}
		}), length, length).Draw(rt, "steps")
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = runLocal(t.Context(), most, steps) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// runLocal returns the error of the first wrong answer.
func runLocal(ctx context.Context, most int64, steps []localStep) string {
	const window = 3200 * time.Millisecond
	type grant struct {
		at time.Time
		n  int64
	}
	var log []grant
	used := func(span time.Duration) (sum int64) {
		for _, g := range log {
			if time.Since(g.at) < span {
				sum += g.n
			}
		}
		return sum
	}
	l := httplimit.Local(most, window).(limit.Returner)
	for i, step := range steps {
		time.Sleep(step.pause)
		log = slices.DeleteFunc(log, func(g grant) bool { return time.Since(g.at) > 2*window })
		for again := false; ; again = true {
			before, late := used(window), used(window+window/32)
			d, giveBack, err := l.TakeReturnable(ctx, "a", step.n)
			if err != nil {
				return err.Error()
			}
			switch {
			case d.Granted && before+step.n > most:
				return fmt.Sprintf("step %d: granted %d with %d of %d used", i, step.n, before, most)
			case !d.Granted && late+step.n <= most:
				return fmt.Sprintf("step %d: refused %d with %d of %d used", i, step.n, late, most)
			case !d.Granted && again:
				return fmt.Sprintf("step %d: refused again after RetryAfter", i)
			}
			if d.Granted {
				log = append(log, grant{time.Now(), step.n})
			}
			least, greatest := most-used(window+window/32), most-used(window)
			if d.Remaining < least || d.Remaining > greatest || d.ResetAfter <= 0 || d.ResetAfter > window {
				return fmt.Sprintf("step %d: %+v, but %d to %d remain", i, d, least, greatest)
			}
			if !d.Granted {
				time.Sleep(d.RetryAfter)
				continue
			}
			if step.back {
				if err := giveBack(ctx); err != nil {
					return err.Error()
				}
				log = log[:len(log)-1]
			}
			break
		}
	}
	return ""
}
