package limitertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// A Call is of a limiter of 10 permits or more, by a Client. Its first part makes what it needs, as a reservation.
type Call func(t testing.TB, c *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error

// Calls are all Operations, and calls that ask another limiter too, or need what was granted before.
func Calls() map[string]Call {
	all := map[string]Call{
		"TryAcquireAll": ofTwo(func(ctx context.Context, c *rratelimiter.Client, both []rratelimiter.Claim) error {
			return Second(c.TryAcquireAll(ctx, Forever, both...))
		}),
		"TakeAll": ofTwo(func(ctx context.Context, c *rratelimiter.Client, both []rratelimiter.Claim) error {
			return Second(c.TakeAll(ctx, both...))
		}),
		"ReserveAll": ofTwo(func(ctx context.Context, c *rratelimiter.Client, both []rratelimiter.Claim) error {
			return Second(c.ReserveAll(ctx, 0, both...))
		}),
		"Settle": ofReservation(func(ctx context.Context, r *rratelimiter.Reservation) error { return r.Settle(ctx, 9) }),
		"Cancel": ofReservation(func(ctx context.Context, r *rratelimiter.Reservation) error { return r.Cancel(ctx) }),
		"Renew":  ofReservation(func(ctx context.Context, r *rratelimiter.Reservation) error { return r.Renew(ctx) }),
		"undo": func(t testing.TB, c *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
			_, undo, err := c.Keyed("", ConfigOf(t, l)).TakeReturnable(t.Context(), l.Name(), 1)
			require.NoError(t, err)
			return undo
		},
		"Migrate": func(_ testing.TB, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
			return func(ctx context.Context) error { return Second(l.Migrate(ctx)) }
		},
	}
	for name, do := range Operations {
		all[name] = func(_ testing.TB, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
			return func(ctx context.Context) error { return do(ctx, l) }
		}
	}
	return all
}

func ofTwo(do func(ctx context.Context, c *rratelimiter.Client, both []rratelimiter.Claim) error) Call {
	return func(t testing.TB, c *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
		both := []rratelimiter.Claim{ByDefault(c, Besides(l.Name()), ConfigOf(t, l)).Claim(1), l.Claim(1)}
		return func(ctx context.Context) error { return do(ctx, c, both) }
	}
}

func ofReservation(do func(ctx context.Context, r *rratelimiter.Reservation) error) Call {
	return func(t testing.TB, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
		r := Reserve(t, l, 4)
		return func(ctx context.Context) error { return do(ctx, r) }
	}
}

// A Request is one call. It returns the permits that it was granted.
type Request func(w *Wire) (int64, error)

// Counted is what TryAcquire answered, as permits.
func Counted(permits int64, granted bool, err error) (int64, error) {
	if !granted {
		permits = 0
	}
	return permits, err
}

// TryFor is a TryAcquire with no timeout.
func TryFor(permits int64) Request { return asks(op.Op{Name: op.Try, Permits: permits}) }

// WaitFor is a TryAcquire with that timeout.
func WaitFor(permits int64, timeout time.Duration) Request {
	return asks(op.Op{Name: op.Try, Permits: permits, Timeout: timeout})
}

// TakeFor is a Take.
func TakeFor(permits int64) Request { return asks(op.Op{Name: op.Take, Permits: permits}) }

// UpToFor is a TakeUpTo.
func UpToFor(permits int64) Request { return asks(op.Op{Name: op.UpTo, Permits: permits}) }

func asks(o op.Op) Request {
	return func(w *Wire) (int64, error) {
		a := o.Do(w.Context(context.Background()), op.On(w.RateLimiter))
		if o.Name == op.UpTo {
			return a.Taken, a.Err
		}
		return Counted(o.Permits, a.OK, a.Err)
	}
}

// ReserveFor is a Reserve.
func ReserveFor(permits int64, opts ...rratelimiter.ReserveOption) Request {
	return func(w *Wire) (int64, error) {
		r, err := w.Reserve(w.Context(context.Background()), permits, 0, opts...)
		return Counted(permits, err == nil && r.Granted, err)
	}
}
