package middlewaretest

import (
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

// A Reserver is a Fake of which one grant can be settled.
type Reserver struct {
	*Fake

	Cannot, Fails error   // what it says instead of reserving, and of settling
	Settled       []int64 // with what it was
}

// TakeReserved is Take with a function that settles.
func (r *Reserver) TakeReserved(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context, int64) error, error) {
	if r.Cannot != nil {
		return limit.Decision{}, nil, r.Cannot
	}
	d, err := r.Take(ctx, key, n)
	return d, func(_ context.Context, actual int64) error {
		if len(r.Settled) > 0 {
			return limit.ErrSettled
		}
		if r.Fails == nil {
			r.Settled = append(r.Settled, actual)
		}
		return r.Fails
	}, err
}

type handlerKey struct{}

// Handle does what a test wants of a handler with that context. Handlers call it.
func Handle(ctx context.Context) {
	if f, ok := ctx.Value(handlerKey{}).(func(context.Context)); ok {
		f(ctx)
	}
}

// Handled returns a context with which Handle calls f.
func Handled(ctx context.Context, f func(context.Context)) context.Context {
	return context.WithValue(ctx, handlerKey{}, f)
}

// settling makes a request whose handler settles it with each number, and returns what it gets.
func (k Kind[O, K]) settling(t testing.TB, r *rig, numbers ...int64) (errs []error) {
	t.Helper()
	ctx := Handled(t.Context(), func(ctx context.Context) {
		for _, n := range numbers {
			errs = append(errs, k.Settle(ctx, n))
		}
	})
	assert.Equal(t, Passed, r.handle(ctx, "").Verdict)
	return errs
}

func (k Kind[O, K]) testSettle(t *testing.T) {
	reserver := func() *Reserver { return &Reserver{Fake: Grants()} }
	fallback := reserver()
	refuses, down := Says(limit.Decision{Limit: 5, RetryAfter: time.Second}, nil), Says(limit.Decision{}, errDown)
	for name, c := range map[string]struct {
		limiter limit.Limiter
		opts    []O   // besides that it is settled
		want    error // of Settle; if it is nil, the second call is ErrSettled
		settled []int64
	}{
		"reserved":     {reserver(), nil, nil, []int64{3}},
		"can't":        {&Returner{Fake: Grants()}, nil, limit.ErrUnsupported, nil},
		"can't now":    {&Reserver{Fake: Grants(), Cannot: limit.ErrUnsupported}, nil, limit.ErrUnsupported, nil},
		"fails":        {&Reserver{Fake: Grants(), Fails: limit.ErrUnavailable}, nil, limit.ErrUnavailable, nil},
		"skipped":      {reserver(), []O{k.WithSkip(true)}, nil, nil},
		"free":         {reserver(), []O{k.WithCost(0, nil)}, nil, nil},
		"shadow":       {reserver(), []O{k.WithShadow()}, nil, []int64{3}},
		"in shadow":    {&Reserver{Fake: refuses}, []O{k.WithShadow()}, nil, nil},
		"key failed":   {reserver(), []O{k.WithShadow(), k.WithKey(k.Text("", errDown))}, nil, nil},
		"open":         {&Reserver{Fake: down}, []O{k.WithFailure(limit.FailOpen())}, nil, nil},
		"fallback":     {&Reserver{Fake: down}, []O{k.WithFallback(Grants())}, nil, nil},
		"reserves too": {&Reserver{Fake: down}, []O{k.WithFallback(fallback)}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := k.rig(t, k.settled(c.limiter), c.opts...)
			errs := k.settling(t, r, -1, 3, 3)
			assert.Error(t, errs[0])
			require.ErrorIs(t, errs[1], c.want)
			if c.want == nil {
				c.want = limit.ErrSettled
			}
			require.ErrorIs(t, errs[2], c.want)
			if reserver, ok := c.limiter.(*Reserver); ok {
				assert.Equal(t, c.settled, reserver.Settled)
			}
		})
	}
	assert.Equal(t, []int64{3}, fallback.Settled)
	unasked := k.rig(t, &Reserver{Fake: Grants(), Cannot: errDown})
	for _, err := range k.settling(t, unasked, 3, 3) {
		require.ErrorIs(t, err, limit.ErrInvalidConfig, "without Policy.Settle")
	}
	panics := reserver()
	ctx := Handled(t.Context(), func(context.Context) { panic("oops") })
	assert.PanicsWithValue(t, "oops", func() { k.rig(t, k.settled(panics)).handle(ctx, "") })
	assert.Empty(t, panics.Settled, "the estimate stays")
	assert.ErrorIs(t, k.Settle(t.Context(), 1), limit.ErrInvalidConfig)
}

// A grant that comes too late is given back.
func (k Kind[O, K]) testSettleLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := &Reserver{Fake: Deaf(time.Minute)}
		k.rig(t, k.settled(late)).ask(Unavailable, context.DeadlineExceeded)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, []int64{0}, late.Settled)
	})
}

// A program learns at its start that a limiter can't be settled. Requests are limited nevertheless.
func (k Kind[O, K]) testSettleIsChecked(t *testing.T) {
	for _, limiter := range []limit.Limiter{Grants(), &Returner{Fake: Grants()}} {
		require.NoError(t, k.Check(limiter))
		err := k.Check(k.settled(limiter))
		require.ErrorIs(t, err, limit.ErrUnsupported)
		assert.ErrorContains(t, err, `"default" can't be settled`)
		k.rig(t, k.settled(limiter)).ask(Passed)
	}
	require.NoError(t, k.Check(k.settled(&Reserver{Fake: Grants()}), k.WithFallback(Grants())))
}

// An estimate above the limit takes the whole limit, whatever that is at the moment, and is settled like others.
func (k Kind[O, K]) testSettleAboveTheLimit(t *testing.T) {
	for name, c := range map[string]struct {
		cost  int64
		limit []int64 // what the limiter says it is, each time it is asked
		err   error   // what it says then; nil: it refuses
		asked []int64
		want  Verdict
	}{
		"exceeds":          {25, []int64{10}, limit.ErrPermitsExceedRate, []int64{25, 10}, Passed},
		"refused":          {25, []int64{10}, nil, []int64{25, 10}, Passed},
		"it shrinks":       {25, []int64{10, 4}, limit.ErrPermitsExceedRate, []int64{25, 10, 4}, Passed},
		"it keeps on":      {25, []int64{10, 9, 8, 7}, limit.ErrPermitsExceedRate, []int64{25, 10, 9}, Refused},
		"too many for all": {1 << 40, []int64{0, 10}, limit.ErrInvalidPermits, []int64{1 << 40, 1<<31 - 1, 10}, Passed},
		"unknown":          {25, []int64{0, 0}, limit.ErrPermitsExceedRate, []int64{25}, Refused},
	} {
		t.Run(name, func(t *testing.T) {
			limits := c.limit
			reserver := &Reserver{Fake: &Fake{Answer: func(_ context.Context, n int64) (limit.Decision, error) {
				if len(limits) == 0 {
					return limit.Decision{Granted: true, Limit: n}, nil
				}
				most := limits[0]
				limits = limits[1:]
				return limit.Decision{Limit: most, RetryAfter: time.Hour}, c.err
			}}}
			r := k.rig(t, k.settled(reserver), k.WithCost(c.cost, nil))
			if c.want == Passed {
				require.NoError(t, k.settling(t, r, 30)[0])
				assert.Equal(t, []int64{30}, reserver.Settled)
			} else {
				r.ask(c.want)
			}
			var asked []int64
			for _, call := range reserver.Asked() {
				asked = append(asked, call.N)
			}
			assert.Equal(t, c.asked, asked)
			assert.Equal(t, c.asked[len(c.asked)-1], r.told.Decisions()[0].Permits, "what was reserved is reported")
		})
	}
	k.rig(t, k.settled(Says(limit.Decision{Limit: 5}, limit.ErrPermitsExceedRate)), k.WithCost(6, nil)).ask(Refused)
	k.rig(t, &Reserver{Fake: Says(limit.Decision{Limit: 5}, limit.ErrPermitsExceedRate)}, k.WithCost(6, nil)).ask(Refused)
}

// An estimate that a slow limiter is asked for again, since it was too high or can't be reserved, has the timeout once.
// The fallback has it again, and what comes too late is given back.
func (k Kind[O, K]) testSettleInTime(t *testing.T) {
	for name, first := range map[string]error{"too high": limit.ErrPermitsExceedRate, "not reserved": limit.ErrUnsupported} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := func(took time.Duration) *Reserver {
					err := first
					return &Reserver{Fake: &Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
						time.Sleep(took)
						said := err
						err = nil
						return limit.Decision{Granted: said == nil, Limit: 10}, said
					}}}
				}
				for _, c := range []struct {
					took, want time.Duration
					verdict    Verdict
					opts       []O
				}{
					{400 * time.Millisecond, 800 * time.Millisecond, Passed, nil},
					{900 * time.Millisecond, time.Second, Unavailable, nil},
					{900 * time.Millisecond, 1900 * time.Millisecond, Passed, []O{k.WithFallback(Deaf(900 * time.Millisecond))}},
				} {
					limiter := slow(c.took)
					r := k.rig(t, k.settled(limiter), append(c.opts, k.WithCost(25, nil))...)
					start := time.Now()
					assert.Equal(t, c.verdict, r.handle(t.Context(), "").Verdict)
					assert.Equal(t, c.want, time.Since(start))
					time.Sleep(time.Minute)
					synctest.Wait()
					assert.Len(t, limiter.Asked(), 2)
					if errors.Is(first, limit.ErrPermitsExceedRate) && c.took+c.took > time.Second {
						assert.Equal(t, []int64{0}, limiter.Settled, "what came too late is given back")
					}
				}
			})
		})
	}
}

// A limiter in Redis is charged what requests have cost, and otherwise answers like Take.
func (k Kind[O, K]) testSettleInRedis(t *testing.T) {
	for name, limiter := range map[string]func(*testing.T, redistest.Client) limit.Limiter{
		"keyed": func(t *testing.T, rdb redistest.Client) limit.Limiter {
			client := rratelimiter.New(rdb, limitertest.Patient())
			t.Cleanup(func() { assert.NoError(t, client.Close(t.Context())) })
			return client.Keyed("", rratelimiter.Config{Rate: 10, Interval: 10 * time.Second})
		},
		"fixedwindow": func(_ *testing.T, rdb redistest.Client) limit.Limiter {
			return fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Window: 10 * time.Second})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { k.settleInRedis(t, limiter(t, rdb)) })
		})
	}
}

func (k Kind[O, K]) settleInRedis(t *testing.T, limiter limit.Limiter) {
	t.Helper()
	plain := k.rig(t, limiter, k.WithPrefix("plain:"), k.WithCost(4, nil))
	settled := k.rig(t, k.settled(limiter), k.WithPrefix("settled:"), k.WithCost(4, nil))
	for _, want := range []Verdict{Passed, Passed, Refused} {
		assert.Equal(t, plain.ask(want), settled.ask(want), "without Settle")
	}
	time.Sleep(10 * time.Second)
	for range 5 {
		assert.Equal(t, []error{nil}, k.settling(t, settled, 1))
	}
	assert.Equal(t, k.figures(10, 1), settled.ask(Passed).Figures)
	time.Sleep(10 * time.Second)
	require.ErrorIs(t, k.settling(t, settled, 25, 25)[1], limit.ErrSettled)
	assert.Equal(t, 10*time.Second, settled.ask(Refused).RetryAfter.Round(time.Second))
	time.Sleep(10*time.Second + k.Exact)
	settled.ask(Passed)

	large := k.rig(t, k.settled(limiter), k.WithPrefix("large:"), k.WithCost(1<<40, nil))
	for _, used := range []int64{3, 10, 12} {
		assert.Equal(t, []error{nil}, k.settling(t, large, used))
		large.ask(Refused)
		time.Sleep(10*time.Second + k.Exact)
	}
}

// A reservation comes back after its hold if its request is not settled. Settled in time it counts like others.
func (k Kind[O, K]) testSettleHeld(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		limiter := client.Keyed("", rratelimiter.PerHour(10))
		r := k.rig(t, k.Policy(Policy{Limiter: limiter, Settle: true, Hold: time.Minute}), k.WithCost(8, nil))
		r.ask(Passed)
		assert.Equal(t, time.Minute, r.ask(Refused).RetryAfter.Round(time.Second))
		time.Sleep(time.Minute + k.Exact)
		assert.Equal(t, []error{nil}, k.settling(t, r, 3))
		time.Sleep(time.Minute + k.Exact)
		assert.Equal(t, time.Hour, (r.ask(Refused).RetryAfter + time.Minute + k.Exact).Round(time.Second))
	})
	for _, limiter := range []limit.Limiter{&Reserver{Fake: Grants()}, fixedwindow.New(rratelimiter.New(nil), fixedwindow.Config{Limit: 1, Window: time.Hour})} {
		err := k.Check(k.Policy(Policy{Limiter: limiter, Settle: true, Hold: time.Minute}))
		require.ErrorIs(t, err, limit.ErrUnsupported)
		assert.ErrorContains(t, err, `"default" can't have Hold or InFlight`)
	}
	for hold, settled := range map[time.Duration]bool{time.Minute: false, -1: true, time.Microsecond: true} {
		require.ErrorIs(t, k.Check(k.Policy(Policy{Limiter: Grants(), Settle: settled, Hold: hold})), limit.ErrInvalidConfig)
	}
}
