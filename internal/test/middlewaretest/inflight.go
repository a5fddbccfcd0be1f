package middlewaretest

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// inFlight returns a policy that limits how many requests there are at the same time.
func (k Kind[O, K]) inFlight(l limit.Limiter) limit.Limiter {
	return k.Policy(Policy{Limiter: l, InFlight: true})
}

// handling makes a request whose handler does f.
func (r *rig) handling(f func(context.Context)) {
	r.t.Helper()
	assert.Equal(r.t, Passed, r.handle(Handled(r.t.Context(), f), "").Verdict)
}

// What a request took comes back once when it has ended, if it was charged.
func (k Kind[O, K]) testInFlight(t *testing.T) {
	reserver := func() *Reserver { return &Reserver{Fake: Grants()} }
	down := Says(limit.Decision{}, errDown)
	fallback, returner := reserver(), &Returner{Fake: Grants()}
	for name, c := range map[string]struct {
		limiter *Reserver
		opts    []O // besides that it is in flight
		want    Verdict
		settled []int64
		heard   error
	}{
		"passed":       {reserver(), nil, Passed, []int64{0}, nil},
		"refused":      {&Reserver{Fake: Says(limit.Decision{Limit: 5, RetryAfter: time.Hour}, nil)}, nil, Refused, nil, nil},
		"too costly":   {&Reserver{Fake: Says(limit.Decision{Limit: 5}, limit.ErrPermitsExceedRate)}, []O{k.WithCost(6, nil)}, Refused, nil, nil},
		"skipped":      {reserver(), []O{k.WithSkip(true)}, Passed, nil, nil},
		"free":         {reserver(), []O{k.WithCost(0, nil)}, Passed, nil, nil},
		"in shadow":    {reserver(), []O{k.WithShadow()}, Passed, []int64{0}, nil},
		"open":         {&Reserver{Fake: down}, []O{k.WithFailure(limit.FailOpen())}, Passed, nil, errDown},
		"fallback":     {&Reserver{Fake: down}, []O{k.WithFallback(fallback)}, Passed, nil, errDown},
		"gives back":   {&Reserver{Fake: down}, []O{k.WithFallback(returner)}, Passed, nil, errDown},
		"can't now":    {&Reserver{Fake: Grants(), Cannot: limit.ErrUnsupported}, nil, Passed, nil, nil},
		"fails at end": {&Reserver{Fake: Grants(), Fails: limit.ErrUnavailable}, nil, Passed, nil, limit.ErrUnavailable},
	} {
		r := k.rig(t, k.inFlight(c.limiter), c.opts...)
		got := r.handle(Handled(t.Context(), func(ctx context.Context) {
			require.ErrorIs(t, k.Settle(ctx, 3), limit.ErrInvalidConfig, "it is no estimate")
			assert.Empty(t, c.limiter.Settled, name)
		}), "")
		assert.Equal(t, c.want, got.Verdict, name)
		if name == "refused" {
			assert.Equal(t, time.Second, got.RetryAfter, "a request may end soon")
		}
		assert.Equal(t, c.settled, c.limiter.Settled, name)
		if c.heard == nil {
			r.errs.Check(t)
		} else {
			r.errs.Check(t, c.heard)
		}
	}
	assert.Equal(t, []int64{0}, fallback.Settled)
	assert.Len(t, returner.GivenBack(), 1)

	panics := reserver()
	ctx := Handled(t.Context(), func(context.Context) { panic("oops") })
	assert.PanicsWithValue(t, "oops", func() { k.rig(t, k.inFlight(panics)).handle(ctx, "") })
	assert.Equal(t, []int64{0}, panics.Settled)

	for _, limiter := range []limit.Limiter{Grants(), fixedwindow.New(rratelimiter.New(nil), fixedwindow.Config{Limit: 1, Window: time.Hour})} {
		require.ErrorIs(t, k.Check(k.inFlight(limiter)), limit.ErrUnsupported)
	}
	require.ErrorIs(t, k.Check(k.Policy(Policy{Limiter: reserver(), InFlight: true, Settle: true})), limit.ErrInvalidConfig)
	require.NoError(t, k.Check(k.inFlight(reserver())))
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
