package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
// A reservation that is never settled costs what was reserved, which comes back after an interval. Reserve
// does not use the permits of [WithLease]. Beside a Redisson before 3.13.3 it returns ErrUnsupported.
func (l *RateLimiter) Reserve(ctx context.Context, permits int64, timeout time.Duration) (*Reservation, error) {
	r, err := l.reserve(ctx, "Reserve", permits, timeout)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// reserve is Reserve, and returns figures even with some errors.
func (l *RateLimiter) reserve(ctx context.Context, op string, permits int64, timeout time.Duration) (*Reservation, error) {
	q := outage.Question{Call: op, Permits: permits, Waits: timeout > 0, Timeout: timeout, Figures: true, Settled: true}
	a, err := l.decide(ctx, q)
	return l.reservation(permits, a), err
}

func (l *RateLimiter) reservation(permits int64, a outage.Answer) *Reservation {
	return &Reservation{Decision: a.Decision, undo: a.Undo, parts: []part{{limiter: l, policy: l.policy, reserved: permits, charge: a.Settle}}}
}

// reservation is the answer to ReserveAll.
func (c *Client) reservation(claims []Claim, a outage.Answer) *Reservation {
	r := &Reservation{Decision: limit.Decision{Granted: a.Granted, RetryAfter: a.RetryAfter}, Decisions: decisions(a), undo: a.Undo}
	for i, claim := range claims {
		r.parts = append(r.parts, part{limiter: claim.limiter, policy: c.policy, reserved: claim.permits, charge: a.Each[i].Settle})
	}
	return r
}

// Reservation is the answer to [RateLimiter.Reserve] and [Client.ReserveAll]. If it is Granted, settle it once
// with [Reservation.Settle]. It is safe for concurrent use.
type Reservation struct {
	limit.Decision // of ReserveAll only whether it is Granted, and otherwise RetryAfter

	Decisions []limit.Decision // of ReserveAll, one for each claim: see TakeAll

	undo  func(context.Context) error // of what Redis was not charged for; may be nil
	parts []part                      // one for each limiter

	mu     sync.Mutex
	state  settling
	actual []int64 // the permits of the first Settle
	left   int     // parts that are being settled
}

// part is what one limiter has of a Reservation.
type part struct {
	limiter  *RateLimiter
	policy   *outage.Policy
	reserved int64
	charge   func(ctx context.Context, actual int64, then func(error)) error // nil if Redis was not charged
	settled  bool
}

// settling is the state of settling a Reservation.
type settling int

const (
	open settling = iota
	underWay
	failed
	settled
)

// Settle sets what the reservation costs to actual permits, from 0 to MaxPermits, one number for each limiter in
// the order of the claims. If that is less than was reserved, the rest is free at once, and waiting callers ask
// again. If it is more, the difference is charged for an interval from now on, even beyond the rate; the
// limiter then refuses until enough has come back. What was reserved comes back an interval after Reserve,
// settled or not. A later Settle charges only what exceeds it.
//
// A Reservation is settled once; later calls return ErrSettled and change nothing. If ctx ends, Settle
// returns at once and finishes in the background. A Settle that returned ErrUnavailable may be repeated with
// the same actual, and charges once. With another actual it returns ErrSettled.
//
// Settle does nothing if the Reservation is not Granted, and nothing in Redis if [WithFailure] or
// [WithShadow] let the caller through. docs/reference.md says what it does if the limiter has changed since.
func (r *Reservation) Settle(ctx context.Context, actual ...int64) error {
	const op = "Settle"
	if len(actual) != len(r.parts) {
		return r.fail(op, fmt.Errorf("%w: %s for %s", ErrInvalidPermits, words.Plural(int64(len(actual)), "number"), words.Plural(int64(len(r.parts)), "limiter")))
	}
	for i, n := range actual {
		if n < 0 || n > MaxPermits {
			return r.parts[i].limiter.fail(op, fmt.Errorf("%w: %d is not between 0 and %d", ErrInvalidPermits, n, int64(MaxPermits)))
		}
	}
	if !r.Granted {
		return nil
	}
	if err := r.begin(actual); err != nil {
		return r.fail(op, err)
	}
	return r.settle(ctx, op)
}

// settleOne is Settle for one limiter.
func (r *Reservation) settleOne(ctx context.Context, actual int64) error {
	return r.Settle(ctx, actual)
}

// Cancel is Settle with 0 for each limiter, for work that was not done. Once Settle was called with other
// numbers it does nothing and returns nil, so it can be deferred.
func (r *Reservation) Cancel(ctx context.Context) error {
	if !r.Granted || r.begin(make([]int64, len(r.parts))) != nil {
		return nil //nolint:nilerr // it is settled, which is no fault of a deferred call
	}
	return r.settle(ctx, "Cancel")
}

// begin returns an error if the reservation can't be settled with that many permits.
func (r *Reservation) begin(actual []int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.state == underWay:
		return fmt.Errorf("%w: with %s, just now", ErrSettled, permitsOf(r.actual))
	case r.state == settled:
		return fmt.Errorf("%w: with %s, before", ErrSettled, permitsOf(r.actual))
	case r.state == failed && !slices.Equal(actual, r.actual):
		return fmt.Errorf("%w: the first call, for %s, failed; repeat it with the same number", ErrSettled, permitsOf(r.actual))
	}
	r.state, r.actual, r.left = underWay, actual, 0
	for _, p := range r.parts {
		if !p.settled {
			r.left++
		}
	}
	return nil
}

// permitsOf says how many permits were settled.
func permitsOf(actual []int64) string {
	all := make([]string, len(actual))
	for i, n := range actual {
		all[i] = words.Plural(n, "permit")
	}
	return strings.Join(all, ", ")
}

// settle does the settling that begin has admitted, of all limiters at once.
func (r *Reservation) settle(ctx context.Context, op string) error {
	if r.undo != nil && r.parts[0].charge == nil && !slices.ContainsFunc(r.actual, func(n int64) bool { return n > 0 }) {
		err := r.undo(ctx)
		for i := range r.parts {
			r.done(i, err)
		}
		return r.fail(op, err)
	}
	if len(r.parts) == 1 {
		return r.settlePart(ctx, op, 0)
	}
	errs := make([]error, len(r.parts))
	var wg sync.WaitGroup
	for i := range r.parts {
		if !r.parts[i].settled {
			wg.Go(func() { errs[i] = r.settlePart(ctx, op, i) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *Reservation) settlePart(ctx context.Context, op string, i int) error {
	p := &r.parts[i]
	if p.charge == nil || r.actual[i] == p.reserved {
		r.done(i, nil)
		return nil
	}
	return p.limiter.fail(op, p.charge(ctx, r.actual[i], func(err error) { r.done(i, err) }))
}

// done records how the settling of one limiter ended.
func (r *Reservation) done(i int, err error) {
	r.mu.Lock()
	p := &r.parts[i]
	p.settled = err == nil
	if r.left--; r.left == 0 {
		r.state = settled
		if slices.ContainsFunc(r.parts, func(p part) bool { return !p.settled }) {
			r.state = failed
		}
	}
	r.mu.Unlock()
	p.policy.Observer.Settled(limit.Settled{
		Limiter: p.limiter.facts.Observed, Reserved: p.reserved, Actual: r.actual[i], Charged: p.charge != nil, Err: p.limiter.fail("Settle", err),
	})
}

// fail adds the call to an error, and the limiter if there is one.
func (r *Reservation) fail(op string, err error) error {
	if err == nil || len(r.parts) == 1 {
		return r.parts[0].limiter.fail(op, err)
	}
	return fmt.Errorf("rratelimiter: %s: %w", op, err)
}
