package middlewaretest

import (
	"cmp"
	"context"
	"errors"
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

// inFlight returns a policy that limits how many requests there are at the same time.
func (k Kind[O, K]) inFlight(l limit.Limiter) limit.Limiter {
	return k.Policy(Policy{Limiter: l, InFlight: true})
}

// handling makes a request whose handler does f.
func (r *rig) handling(f func(context.Context)) {
	r.t.Helper()
	assert.Equal(r.t, Passed, r.handle(Handled(r.t.Context(), f), "").Verdict)
}

// Never more requests are handled at the same time than the limit says, however long each takes.
func (k Kind[O, K]) testInFlightInRedis(t *testing.T) {
	for _, hold := range []time.Duration{0, 20 * time.Second} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			client := limitertest.NewClient(t, rdb)
			places := client.Keyed("", rratelimiter.PerMinute(2))
			r := k.rig(t, k.Policy(Policy{Limiter: places, InFlight: true, Hold: hold}), k.WithKey(k.Text("all", nil)))
			free := func() int64 {
				d, err := places.Peek(t.Context(), k.Prefix+"all", 0)
				require.NoError(t, err)
				return d.Remaining
			}
			for range 3 {
				r.handling(func(context.Context) {
					assert.Equal(t, k.figures(2, 0), r.ask(Passed).Figures)
					r.handling(func(context.Context) {
						assert.Equal(t, time.Second, r.ask(Refused).RetryAfter)
						time.Sleep(10*time.Minute + 7*time.Second)
						r.ask(Refused)
					})
				})
				assert.EqualValues(t, 2, free())
			}
			// The Client can renew nothing any more, as if its program had been killed.
			places = limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(2))
			start := time.Now()
			r.handling(func(context.Context) {
				assert.NoError(t, client.Close(t.Context()))
				for free() == 1 {
					time.Sleep(time.Second)
				}
				assert.Equal(t, cmp.Or(hold, time.Minute), time.Since(start).Truncate(time.Second))
			})
			r.errs.Take()
		})
	}
}
