package middlewaretest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
