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
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

var (
	errDown    = errors.New("secret: connection refused")
	errDownToo = errors.New("secret: no route to host")
)

// failure is what a limiter's error comes to.
type failure[O any] struct {
	err     error
	opts    []O
	want    Verdict
	figures []int64
	also    error // what the error handler hears besides err
}

// failures are those of all kinds of errors, by what answers in the limiter's place.
func (k Kind[O, K]) failures() map[string]failure[O] {
	open, closed := []O{k.WithFailure(limit.FailOpen())}, []O{k.WithFailure(limit.FailClosed())}
	fallback := func(d limit.Decision, err error) []O { return []O{k.WithFallback(Says(d, err))} }
	granted, refused := limit.Decision{Granted: true, Limit: 5, Remaining: 4}, limit.Decision{Limit: 5, RetryAfter: time.Second}
	invalid := limit.ErrInvalidConfig
	return map[string]failure[O]{
		"by default":            {errDown, nil, Unavailable, nil, nil},
		"closed":                {errDown, closed, Unavailable, nil, nil},
		"open":                  {errDown, open, Passed, nil, nil},
		"unavailable":           {limit.ErrUnavailable, open, Passed, nil, nil},
		"perhaps taken":         {errors.Join(limit.ErrUnknownOutcome, limit.ErrUnavailable), open, Passed, nil, nil},
		"too slow":              {context.DeadlineExceeded, open, Passed, nil, nil},
		"fallback":              {errDown, fallback(granted, nil), Passed, k.figures(5, 4), nil},
		"fallback refuses":      {errDown, fallback(refused, nil), Refused, k.figures(5, 0), nil},
		"fallback fails":        {errDown, fallback(granted, errDownToo), Unavailable, nil, errDownToo},
		"too costly for it":     {errDown, fallback(refused, limit.ErrPermitsExceedRate), Refused, nil, nil},
		"fallback is invalid":   {errDown, fallback(granted, invalid), Misconfigured, nil, invalid},
		"invalid":               {invalid, closed, Misconfigured, nil, nil},
		"invalid, open":         {invalid, open, Misconfigured, nil, nil},
		"invalid, and fallback": {invalid, fallback(granted, nil), Misconfigured, nil, nil},
		"corrupt":               {limit.ErrCorrupt, open, Unavailable, nil, nil},
		"unsupported":           {limit.ErrUnsupported, open, Unavailable, nil, nil},
		"no rate":               {limit.ErrNotInitialized, open, Unavailable, nil, nil},
		"closed Client":         {limit.ErrClosed, open, Unavailable, nil, nil},
	}
}

// What a limiter says beside an error counts for nothing, and callers don't read why.
func (k Kind[O, K]) testFailures(t *testing.T) {
	for name, f := range k.failures() {
		t.Run(name, func(t *testing.T) {
			heard := []error{f.err}
			if f.also != nil {
				heard = append(heard, f.also)
			}
			limiter := Says(limit.Decision{Granted: true, Limit: 3}, f.err)

			r := k.rig(t, limiter, f.opts...)
			got := r.ask(f.want, heard...)
			assert.Equal(t, f.figures, got.Figures)
			assert.NotContains(t, got.Text, "secret")
			want := map[Verdict]limit.Outcome{Passed: limit.Granted, Refused: limit.Refused}[f.want]
			switch {
			case want == "":
				want = limit.Failed
			case name == "too costly for it":
				want = limit.TooCostly
			}
			assert.Equal(t, []limit.Outcome{want}, r.outcomes(k.Name, "default", false))

			r = k.rig(t, limiter, append(f.opts, k.WithShadow())...)
			assert.Nil(t, r.ask(Passed, heard...).Figures)
			assert.Equal(t, []limit.Outcome{want}, r.outcomes(k.Name, "default", true))
		})
	}
}

func (k Kind[O, K]) testTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		limiter *Fake
		opts    []O
		took    time.Duration
		want    Verdict
	}{
		"default":            {Hangs(), nil, time.Second, Unavailable},
		"option":             {Hangs(), []O{k.WithTimeout(20 * time.Millisecond)}, 20 * time.Millisecond, Unavailable},
		"fallback":           {Hangs(), []O{k.WithFallback(Hangs())}, 2 * time.Second, Unavailable},
		"deaf":               {Deaf(time.Minute), nil, time.Second, Unavailable},
		"deaf, option":       {Deaf(time.Minute), []O{k.WithTimeout(20 * time.Millisecond)}, 20 * time.Millisecond, Unavailable},
		"deaf, and fallback": {Deaf(time.Minute), []O{k.WithFallback(Deaf(time.Minute))}, 2 * time.Second, Unavailable},
		"deaf, no bound":     {Deaf(time.Minute), []O{k.WithTimeout(0)}, time.Minute, Passed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := &Returner{Fake: c.limiter}
				r := k.rig(t, limiter, c.opts...)
				start := time.Now()
				if c.want == Passed {
					r.ask(Passed)
				} else {
					r.ask(c.want, context.DeadlineExceeded)
				}
				assert.Equal(t, c.took, time.Since(start))
				assert.Empty(t, limiter.GivenBack())
				time.Sleep(time.Hour)
				late := c.took < time.Minute && name[:4] == "deaf"
				assert.Equal(t, late, len(limiter.GivenBack()) == 1, "what came too late is given back")
			})
		})
	}
}

// A caller who leaves is no failure of the limiter. What it grants him is given back.
func (k Kind[O, K]) testCallerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := Grants()
		policies := []O{k.WithFailure(limit.FailClosed()), k.WithFailure(limit.FailOpen()), k.WithFallback(fallback), k.WithTimeout(0)}
		deaf := &Returner{Fake: Deaf(time.Minute)}
		for _, limiter := range []limit.Limiter{Hangs(), deaf} {
			for _, policy := range policies {
				r := k.rig(t, limiter, policy)
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(10*time.Millisecond, cancel)
				start := time.Now()
				assert.Equal(t, Gone, r.handle(ctx, "").Verdict)
				assert.Equal(t, 10*time.Millisecond, time.Since(start))
				r.errs.Check(t)
			}
		}
		assert.Empty(t, deaf.GivenBack())
		time.Sleep(time.Hour)
		assert.Len(t, deaf.GivenBack(), len(policies))
		assert.Empty(t, fallback.Asked())
	})
}

func (k Kind[O, K]) testDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := Grants()
		for _, limiter := range []*Fake{Hangs(), Deaf(time.Minute)} {
			for _, open := range []bool{false, true} {
				want, policy := k.Late, k.WithFallback(fallback)
				if open {
					policy = k.WithFailure(limit.FailOpen())
				}
				if open && k.Late == Unavailable {
					want = Passed
				}
				r := k.rig(t, limiter, policy)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				assert.Equal(t, want, r.handle(ctx, "").Verdict)
				cancel()
				if k.Late == Unavailable {
					r.errs.Check(t, context.DeadlineExceeded)
				}
				r.errs.Check(t)
			}
			time.Sleep(time.Minute)
		}
		assert.Empty(t, fallback.Asked(), "it is too late for that")
	})
}

func (k Kind[O, K]) testPanic(t *testing.T) {
	panics := &Fake{Answer: func(context.Context, int64) (limit.Decision, error) { panic("oops") }}
	r := k.rig(t, panics)
	assert.PanicsWithValue(t, "oops", func() { r.ask(Passed) })
}

// A limiter that hangs costs three requests the timeout, whatever answers for it.
func (k Kind[O, K]) testHung(t *testing.T) {
	for name, c := range map[string]struct {
		policy O
		want   Verdict
	}{
		"closed":   {k.WithFailure(limit.FailClosed()), Unavailable},
		"open":     {k.WithFailure(limit.FailOpen()), Passed},
		"fallback": {k.WithFallback(Grants()), Passed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := Hangs()
				r := k.rig(t, k.Policy(Policy{Name: "calls", Limiter: limiter}), c.policy)
				for i := range 50 {
					start := time.Now()
					if i < 3 {
						r.ask(c.want, context.DeadlineExceeded)
						assert.Equal(t, time.Second, time.Since(start))
					} else {
						r.ask(c.want) // the error handler knows it
						assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
					}
					time.Sleep(time.Millisecond)
				}
				assert.Len(t, limiter.Asked(), 3)
				assert.Len(t, r.outcomes(k.Name, "calls", false), 50)
				synctest.Wait()
				require.Len(t, r.told.Events(), 1)
				assert.Equal(t, limit.AskedNoMore, r.told.Events()[0].Kind)
				assert.Equal(t, "calls", r.told.Events()[0].Limiter)
				time.Sleep(time.Minute)
			})
		})
	}
}

// Callers choose their deadlines: with very short ones they don't open the way for others.
func (k Kind[O, K]) testShortDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := Budget(1, 0)
		late := &Fake{Answer: func(ctx context.Context, n int64) (limit.Decision, error) {
			time.Sleep(2 * time.Millisecond)
			if ctx.Err() != nil {
				return limit.Decision{}, ctx.Err()
			}
			return budget.Answer(ctx, n)
		}}
		r := k.rig(t, late, k.WithFailure(limit.FailOpen()))
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			r.handle(ctx, "")
			cancel()
		}
		r.errs.Take()
		r.ask(Passed)
		for range 10 {
			r.ask(Refused)
		}
	})
}

// This process has its share of the limit that the limiter reported.
func (k Kind[O, K]) testLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down error
		limiter := Windowed{&Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
			return limit.Decision{Granted: true, Limit: 8, Remaining: 7}, down
		}}, time.Hour}
		r := k.rig(t, limiter, k.WithFailure(limit.FailLocal(0.25)))
		assert.Equal(t, k.figures(8, 7), r.ask(Passed).Figures)
		down = errors.Join(limit.ErrUnavailable, errDown)
		assert.Equal(t, k.figures(2, 1), r.ask(Passed, errDown).Figures)
		assert.Equal(t, k.figures(2, 0), r.ask(Passed, errDown).Figures)
		assert.Equal(t, k.figures(2, 0), r.ask(Refused, errDown).Figures)
		down = nil
		time.Sleep(time.Second)
		assert.Equal(t, k.figures(8, 7), r.ask(Passed).Figures, "the probe is an answer")
	})
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
