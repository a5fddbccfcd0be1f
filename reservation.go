package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/outage"
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
	var o reserveOptions
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if o.err != nil {
		return nil, l.fail(op, o.err)
	}
	r, err := l.reserve(ctx, op, permits, timeout, o.hold)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// ReserveOption configures Reserve.
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
// d is rounded up to milliseconds; below one, Reserve returns ErrInvalidConfig. A hold that is not shorter
// than the interval changes nothing. If the interval is changed, a hold ends earlier or later by as much.
// Beside a Redisson before 3.13.3 that shares the window, what a hold gives back is free at the window's end.
func Hold(d time.Duration) ReserveOption {
	return func(o *reserveOptions) {
		o.err = cmp.Or(o.err, invalid(d < time.Millisecond, "Hold: %v is less than 1ms", d))
		o.hold = min(d, math.MaxInt64-time.Millisecond)
		o.hold = (o.hold + time.Millisecond - 1).Truncate(time.Millisecond)
	}
}

// reserve is Reserve, and returns figures even with some errors.
func (l *RateLimiter) reserve(ctx context.Context, op string, permits int64, timeout, hold time.Duration) (*Reservation, error) {
	q := outage.Ask{Call: op, Permits: permits, Waits: timeout > 0, Timeout: timeout, Figures: true, Reserve: true, Hold: hold}
	var a outage.Answer
	err := l.decide(ctx, &q, &a)
	return l.reservation(permits, a), err
}

func (l *RateLimiter) reservation(permits int64, a outage.Answer) *Reservation {
	return &Reservation{Decision: a.Decision, parts: []*outage.Reservation{l.reserved(l.policy, permits, a)}}
}

// reserved returns what a limiter has of a Reservation.
func (l *RateLimiter) reserved(p *outage.Policy, permits int64, a outage.Answer) *outage.Reservation {
	return &outage.Reservation{
		Limiter: l.facts.Observed, Observer: p.Observer, Fail: l.fail, Permits: permits, Most: MaxPermits, Granted: a,
	}
}

// reservation is the answer to ReserveAll.
func (c *Client) reservation(claims []Claim, a outage.Answer) *Reservation {
	r := &Reservation{Decision: limit.Decision{Granted: a.Granted, RetryAfter: a.RetryAfter}, Decisions: decisions(a)}
	for i, claim := range claims {
		one := a.Each[i]
		one.Granted = a.Granted // it may have had enough, though another refused
		r.parts = append(r.parts, claim.limiter.reserved(c.policy, claim.permits, one))
	}
	return r
}

// Reservation is the answer to [RateLimiter.Reserve] and [Client.ReserveAll]. If it is Granted, settle it once
// with [Reservation.Settle]. It is safe for concurrent use.
type Reservation struct {
	limit.Decision // of ReserveAll only whether it is Granted, and otherwise RetryAfter

	Decisions []limit.Decision // of ReserveAll, one for each claim: see TakeAll

	parts []*outage.Reservation // one for each limiter

	mu     sync.Mutex
	actual []int64 // the numbers of the first call, if there are several limiters
}

// Settle sets what the reservation costs to actual permits, from 0 to MaxPermits, one number for each limiter in
// the order of the claims. If that is less than was reserved, the rest is free at once, and waiting callers ask
// again. If it is more, the difference is charged for an interval from now on, even beyond the rate; the
// limiter then refuses until enough has come back. What was reserved comes back an interval after Reserve,
// settled or not. A later Settle charges only what exceeds it, or with [Hold] all that was used.
//
// A Reservation is settled once; later calls return ErrSettled and change nothing. If ctx ends, Settle
// returns at once and finishes in the background. A Settle that returned ErrUnavailable may be repeated with
// the same actual, and charges once. With another actual it returns ErrSettled.
//
// Settle does nothing if the Reservation is not Granted, and nothing in Redis if [WithFailure] or
// [WithShadow] let the caller through. docs/reference.md says what it does if the limiter has changed since.
func (r *Reservation) Settle(ctx context.Context, actual ...int64) error {
	if len(actual) != len(r.parts) {
		return fmt.Errorf("rratelimiter: Settle: %w: %s for %s", ErrInvalidPermits,
			words.Plural(int64(len(actual)), "number"), words.Plural(int64(len(r.parts)), "limiter"))
	}
	if len(r.parts) == 1 {
		return r.parts[0].Settle(ctx, actual[0])
	}
	for i, p := range r.parts {
		if err := p.Check(actual[i]); err != nil {
			return err
		}
	}
	switch {
	case !r.Granted:
		return nil
	case !r.settles(actual):
		return fmt.Errorf("rratelimiter: Settle: %w: with other numbers", ErrSettled)
	}
	// If a part failed before, those that did not are settled already.
	before := make([]bool, len(r.parts))
	for i, p := range r.parts {
		before[i] = p.SettledFor(actual[i])
	}
	if !slices.Contains(before, false) {
		return r.parts[0].Settle(ctx, actual[0])
	}
	return r.each(func(i int, p *outage.Reservation) error {
		if before[i] {
			return nil
		}
		return p.Settle(ctx, actual[i])
	})
}

// settleOne is Settle for one limiter.
func (r *Reservation) settleOne(ctx context.Context, actual int64) error {
	return r.Settle(ctx, actual)
}

// Cancel is Settle with 0 for each limiter, for work that was not done. Once Settle was called with other
// numbers it does nothing and returns nil, so it can be deferred.
func (r *Reservation) Cancel(ctx context.Context) error {
	if len(r.parts) > 1 && !r.settles(make([]int64, len(r.parts))) {
		return nil
	}
	return r.each(func(_ int, p *outage.Reservation) error { return p.Cancel(ctx) })
}

// settles reports whether several limiters are settled with these numbers: those of the first call.
func (r *Reservation) settles(actual []int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.actual == nil {
		r.actual = slices.Clone(actual)
	}
	return slices.Equal(r.actual, actual)
}

// each settles what each limiter has, all at once.
func (r *Reservation) each(settle func(i int, p *outage.Reservation) error) error {
	if len(r.parts) == 1 {
		return settle(0, r.parts[0])
	}
	errs := make([]error, len(r.parts))
	outage.AtOnce(len(r.parts), func(i int) { errs[i] = settle(i, r.parts[i]) })
	return errors.Join(errs...)
}
