package rratelimiter

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Reserve takes permits for work whose cost is known only when it is done, and returns a [Reservation] to
// settle then. It waits as [RateLimiter.TryAcquire] does, and returns the same errors. If the permits did not
// become free within timeout, the Reservation is not Granted. It is nil only with an error.
//
// A reservation that is never settled costs what was reserved, which comes back after an interval, or after
// the time of [Hold]. Reserve does not use the permits of [WithLease]. Beside a Redisson before 3.13.3 it
// returns ErrUnsupported.
func (l *RateLimiter) Reserve(ctx context.Context, permits int64, timeout time.Duration, opts ...ReserveOption) (*Reservation, error) {
	const op = "Reserve"
	o := chosen(opts)
	if o.err != nil {
		return nil, l.fail(op, o.err)
	}
	q := decide.Ask{Call: op, Permits: permits, MayWait: timeout > 0, Timeout: timeout, Figures: true, Reserve: true, Hold: o.hold}
	var a decide.Answer
	if err := l.decide(ctx, &q, &a); err != nil {
		return nil, err
	}
	r := &Reservation{Decision: a.Decision}
	r.of.Init(l.policy.Observer, (*asker)(l).Limiters(q), q, a)
	return r, nil
}

// ReserveOption configures Reserve, or a [Claim] of [Client.ReserveAll].
type ReserveOption func(*reserveOptions)

type reserveOptions struct {
	hold time.Duration
	err  error
}

// Hold makes a reservation come back after d if it is not settled by then, since its program has died: a day's
// tokens need not stay reserved for a day. Settled within d, what was used counts for an interval from Reserve,
// as without Hold. Settled later, all that was used is charged from then on, whether it is free or not.
//
// The bound: permits that came back were free to others, so an interval in which reservations are settled
// late can see more than the rate, by what these used. Choose d longer than the work takes.
//
// d is rounded up to milliseconds; below one, calls return ErrInvalidConfig. A hold that is not shorter
// than the interval changes nothing. If the interval is changed, a hold ends earlier or later by as much.
// Beside a Redisson before 3.13.3 that shares the window, what a hold gives back is free at the window's end.
func Hold(d time.Duration) ReserveOption {
	return func(o *reserveOptions) {
		hold, ok := decide.RoundHold(d)
		o.hold, o.err = hold, cmp.Or(o.err, invalid(!ok, "Hold: %v is less than 1ms", d))
	}
}

// Reservation is the answer to [RateLimiter.Reserve]. If it is Granted, settle it once with [Reservation.Settle].
// It is safe for concurrent use.
type Reservation struct {
	limit.Decision

	of decide.Reservation
}

// Settle sets what the reservation costs to actual permits, from 0 to MaxPermits. If that is less than was reserved,
// the rest is free at once, and waiting callers ask again. If it is more, the difference is charged for an interval
// from now on, even beyond the rate; the limiter then refuses until enough has come back. What was reserved comes
// back an interval after Reserve, settled or not. A later Settle charges only what exceeds it, or with [Hold] all
// that was used.
//
// A Reservation is settled once; later calls return ErrSettled and change nothing. If ctx ends, Settle
// returns at once and finishes in the background. A Settle that returned ErrUnavailable may be repeated with
// the same actual, and charges once. With another actual it returns ErrSettled.
//
// Settle does nothing if the Reservation is not Granted, and nothing in Redis if [WithFailure] or
// [WithShadow] let the caller through. docs/reference.md says what it does if the limiter has changed since.
func (r *Reservation) Settle(ctx context.Context, actual int64) error {
	return r.of.Settle(ctx, actual)
}

// Cancel is Settle with 0, for work that was not done. Once Settle was called with another number it does nothing
// and returns nil, so it can be deferred.
func (r *Reservation) Cancel(ctx context.Context) error { return r.of.Cancel(ctx) }

// Renew makes the reservation count from now on for its [Hold], or for an interval without one, as if it were made
// now: work that may last longer calls it in time, for example at each third. It returns ErrSettled if the reservation
// was settled or has come back: others may have its permits, so the work should end. After any other error
// it can be repeated, and does no harm if it was done before: so after ErrNotReplicated, since it waits for [WithReplicas]
// as Reserve does. It does nothing if Redis was not charged.
func (r *Reservation) Renew(ctx context.Context) error { return r.of.Renew(ctx) }

// Reservations is the answer to [Client.ReserveAll]. If it is Granted, settle it once with [Reservations.Settle].
// It is safe for concurrent use.
type Reservations struct {
	Granted    bool             // all claims are
	RetryAfter time.Duration    // if they are not: when to ask again; 0 if it is not known
	Decisions  []limit.Decision // one for each claim, in their order: see [Client.TakeAll]; zero if the time ended before its turn

	of decide.Reservation
}

// Settle is [Reservation.Settle] for each limiter, with one number for each claim, in their order. With another
// count of numbers it returns ErrInvalidPermits. An error joins those of the limiters that could not be settled;
// a Settle repeated with the same numbers settles only these.
func (r *Reservations) Settle(ctx context.Context, actual ...int64) error {
	if len(actual) != r.of.Limiters() {
		return fmt.Errorf("rratelimiter: Settle: %w: %s for %s", ErrInvalidPermits,
			words.Plural(int64(len(actual)), "number"), words.Plural(int64(r.of.Limiters()), "limiter"))
	}
	return r.of.Settle(ctx, actual...)
}

// Renew is [Reservation.Renew] for each limiter. An error joins those of the limiters for which it failed.
func (r *Reservations) Renew(ctx context.Context) error { return r.of.Renew(ctx) }

// Cancel is [Reservation.Cancel] for each limiter.
func (r *Reservations) Cancel(ctx context.Context) error { return r.of.Cancel(ctx) }
