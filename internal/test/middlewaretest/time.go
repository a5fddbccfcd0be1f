package middlewaretest

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

var (
	errDown    = errors.New("secret: connection refused")
	errDownToo = errors.New("secret: no route to host")
)

// Ending returns a context with a deadline, or if that is below 0, one whose caller goes then.
func Ending(ctx context.Context, in time.Duration) (context.Context, context.CancelFunc) {
	if in > 0 {
		return context.WithTimeout(ctx, in)
	}
	ctx, cancel := context.WithCancel(ctx)
	if in < 0 {
		time.AfterFunc(-in, cancel)
	}
	return ctx, cancel
}

// A limiter has the timeout, and its fallback has it again. A caller who leaves is no failure of the limiter, which is not replaced
// then. What it grants too late is given back, once.
func (k Kind[O, K]) testTime(t *testing.T) {
	const short, second = 10 * time.Millisecond, time.Second
	fallback, late := Grants(), k.Late
	open := k.WithFailure(limit.FailOpen())
	if late == Unavailable {
		late = Passed
	}
	for name, c := range map[string]struct {
		opt  O
		in   time.Duration // the request's deadline; below 0, when its caller goes
		took time.Duration
		want Verdict
	}{
		"default":          {k.WithFailure(limit.FailClosed()), 0, second, Unavailable},
		"option":           {k.WithTimeout(2 * short), 0, 2 * short, Unavailable},
		"hanging fallback": {k.WithFallback(Hangs()), 0, 2 * second, Unavailable},
		"deaf fallback":    {k.WithFallback(Deaf(time.Minute)), 0, 2 * second, Unavailable},
		"no bound":         {k.WithTimeout(0), 0, time.Minute, Passed},
		"gone, closed":     {k.WithFailure(limit.FailClosed()), -short, short, Gone},
		"gone, open":       {open, -short, short, Gone},
		"gone, fallback":   {k.WithFallback(fallback), -short, short, Gone},
		"gone, no bound":   {k.WithTimeout(0), -short, short, Gone},
		"late, fallback":   {k.WithFallback(fallback), short, short, k.Late},
		"late, open":       {open, short, short, late},
	} {
		for _, deaf := range []bool{true, false} {
			if !deaf && name == "no bound" {
				continue // it would never answer
			}
			synctest.Test(t, func(t *testing.T) {
				limiter, givenBack := &Returner{Fake: Hangs()}, 0
				if deaf {
					limiter.Fake = Deaf(time.Minute)
				}
				if deaf && c.want != Passed || deaf && c.in != 0 {
					givenBack = 1
				}
				r := k.rig(t, limiter, c.opt)
				ctx, cancel := Ending(t.Context(), c.in)
				defer cancel()
				start := time.Now()
				assert.Equal(t, c.want, r.handle(ctx, "").Verdict, name)
				assert.Equal(t, c.took, time.Since(start), name)
				if c.want == Unavailable || name == "late, open" && late == Passed {
					r.errs.Check(t, context.DeadlineExceeded)
				}
				r.errs.Check(t)
				assert.Empty(t, limiter.GivenBack(), name)
				time.Sleep(time.Hour)
				assert.Len(t, limiter.GivenBack(), givenBack, name)
			})
		}
	}
	assert.Empty(t, fallback.Asked(), "it is too late for that")
}

func (k Kind[O, K]) testPanic(t *testing.T) {
	panics := &Fake{Answer: func(context.Context, int64) (limit.Decision, error) { panic("oops") }}
	r := k.rig(t, panics)
	assert.PanicsWithValue(t, "oops", func() { r.ask(Passed) })
}

// A request waits as long as its context allows, and fails at once if that is known not to suffice. One that waits is one
// decision.
func (k Kind[O, K]) testWaits(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		says limit.Decision // until three seconds are over
		err  error
		in   time.Duration // the request's deadline; below 0, when its caller goes
		opts []O
		took time.Duration
		want Verdict
	}{
		"for ever":        {says: limit.Decision{Limit: 1, RetryAfter: second}, took: 3 * second, want: Passed},
		"names no time":   {says: limit.Decision{Limit: 1}, took: 3 * second, want: Passed},
		"long enough":     {says: limit.Decision{Limit: 1, RetryAfter: second}, in: 5 * second, took: 3 * second, want: Passed},
		"too short":       {says: limit.Decision{Limit: 1, RetryAfter: second}, in: 2500 * time.Millisecond, took: 2 * second, want: Refused},
		"the caller goes": {says: limit.Decision{Limit: 1, RetryAfter: second}, in: -1500 * time.Millisecond, took: 1500 * time.Millisecond, want: Gone},
		"never":           {says: limit.Decision{Limit: 1, RetryAfter: math.MaxInt64}, want: Refused},
		"a limit of 0":    {says: limit.Decision{RetryAfter: time.Minute}, want: Refused},
		"too costly":      {err: limit.ErrPermitsExceedRate, want: Refused},
		"in shadow":       {says: limit.Decision{Limit: 1, RetryAfter: second}, opts: []O{k.WithShadow()}, want: Passed},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			limiter := &Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
				if time.Since(start) >= 3*second {
					return limit.Decision{Granted: true, Limit: 1}, nil
				}
				return c.says, c.err
			}}
			r := k.rig(t, limiter, append(c.opts, k.WithWait())...)
			ctx, cancel := Ending(t.Context(), c.in)
			defer cancel()
			got := r.handle(ctx, "")
			assert.Equal(t, c.want, got.Verdict, name)
			assert.Equal(t, c.took, time.Since(start), name)
			if c.want == Refused {
				assert.Equal(t, name == "too short", got.RetryAfter == second, name)
			}
			if name == "names no time" {
				assert.Len(t, limiter.Asked(), 31, "it is asked a few times a second")
			}
			decisions := r.told.Decisions()
			require.Len(t, decisions, 1, name)
			if c.want == Passed {
				assert.Equal(t, map[bool]limit.Outcome{true: limit.Refused, false: limit.Granted}[name == "in shadow"], decisions[0].Outcome)
				assert.Equal(t, c.took, decisions[0].Waited)
			}
		})
	}
}

// A KeyedLimiter waits by itself: in order, and woken by a release. A request whose deadline comes too early ends at once,
// with what a refusal says.
func (k Kind[O, K]) testWaitsInOrder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		keyed := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(1))
		policy := k.planned(Grants(), func(string) limit.Limiter { return keyed }) // also if the request has chosen it
		handle := k.Wrap(t, policy, k.WithWait(), k.WithKey(k.Text("a", nil)))
		require.NoError(t, keyed.Acquire(t.Context(), k.Prefix+"a", 1))
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				assert.Equal(t, Passed, handle(t.Context(), "").Verdict)
				order <- i
			}()
			time.Sleep(time.Second)
		}
		start := time.Now()
		require.NoError(t, keyed.Release(t.Context(), k.Prefix+"a", 1))
		assert.Equal(t, 0, <-order)
		assert.Zero(t, time.Since(start), "at once")
		assert.Equal(t, 1, <-order)
		assert.Equal(t, 2, <-order)
		assert.Equal(t, 2*time.Minute, time.Since(start).Round(time.Second))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		assert.Equal(t, time.Minute, handle(ctx, "").RetryAfter.Round(time.Second))
		assert.Zero(t, time.Since(start), "it is known")
	})
}
