package rratelimiter

import (
	"context"
	"fmt"
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
	r, err := l.reserve(ctx, permits, timeout)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// reserve is Reserve, and returns figures even with some errors.
func (l *RateLimiter) reserve(ctx context.Context, permits int64, timeout time.Duration) (*Reservation, error) {
	q := outage.Question{Call: "Reserve", Permits: permits, Waits: timeout > 0, Timeout: timeout, Figures: true, Settled: true}
	a, err := l.decide(ctx, q)
	return l.reservation(permits, a), err
}

func (l *RateLimiter) reservation(permits int64, a outage.Answer) *Reservation {
	return &Reservation{Decision: a.Decision, limiter: l, permits: permits, granted: a}
}

// Reservation is the answer to [RateLimiter.Reserve]. If it is Granted, settle it once with
// [Reservation.Settle]. It is safe for concurrent use.
type Reservation struct {
	limit.Decision

	limiter *RateLimiter
	permits int64
	granted outage.Answer

	mu     sync.Mutex
	state  settling
	actual int64 // the permits of the first Settle
}

// settling is the state of settling a Reservation.
type settling int

const (
	open settling = iota
	underWay
	failed
	settled
)

// Settle sets what the reservation costs to actual permits, from 0 to MaxPermits. If that is less than was
// reserved, the rest is free at once, and waiting callers ask again. If it is more, the difference is charged
// for an interval from now on, even beyond the rate; the limiter then refuses until enough has come back.
// What was reserved comes back an interval after Reserve, settled or not. A later Settle charges only what
// exceeds it.
//
// A Reservation is settled once; later calls return ErrSettled and change nothing. If ctx ends, Settle
// returns at once and finishes in the background. A Settle that returned ErrUnavailable may be repeated with
// the same actual, and charges once. With another actual it returns ErrSettled.
//
// Settle does nothing if the Reservation is not Granted, and nothing in Redis if [WithFailure] or
// [WithShadow] let the caller through. docs/reference.md says what it does if the limiter has changed since.
func (r *Reservation) Settle(ctx context.Context, actual int64) error {
	const op = "Settle"
	if actual < 0 || actual > MaxPermits {
		return r.limiter.fail(op, fmt.Errorf("%w: %d is not between 0 and %d", ErrInvalidPermits, actual, int64(MaxPermits)))
	}
	if !r.Granted {
		return nil
	}
	if err := r.begin(actual); err != nil {
		return r.limiter.fail(op, err)
	}
	return r.limiter.fail(op, r.settle(ctx))
}

// Cancel is Settle(ctx, 0), for work that was not done. Once Settle was called with another number it does
// nothing and returns nil, so it can be deferred.
func (r *Reservation) Cancel(ctx context.Context) error {
	if !r.Granted || r.begin(0) != nil {
		return nil //nolint:nilerr // it is settled, which is no fault of a deferred call
	}
	return r.limiter.fail("Cancel", r.settle(ctx))
}

// begin returns an error if the reservation can't be settled with that many permits.
func (r *Reservation) begin(actual int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.state == underWay:
		return fmt.Errorf("%w: with %s, just now", ErrSettled, words.Plural(r.actual, "permit"))
	case r.state == settled:
		return fmt.Errorf("%w: with %s, before", ErrSettled, words.Plural(r.actual, "permit"))
	case r.state == failed && actual != r.actual:
		return fmt.Errorf("%w: the first call, for %s, failed; repeat it with the same number", ErrSettled, words.Plural(r.actual, "permit"))
	}
	r.state, r.actual = underWay, actual
	return nil
}

// settle does the settling that begin has admitted.
func (r *Reservation) settle(ctx context.Context) error {
	charged := r.granted.Settle != nil
	done := func(err error) {
		r.mu.Lock()
		r.state = settled
		if err != nil {
			r.state = failed
		}
		r.mu.Unlock()
		r.limiter.policy.Observer.Settled(limit.Settled{
			Limiter: r.limiter.facts.Observed, Reserved: r.permits, Actual: r.actual, Charged: charged, Err: r.limiter.fail("Settle", err),
		})
	}
	switch {
	case charged && r.actual != r.permits:
		return r.granted.Settle(ctx, r.actual, done)
	case !charged && r.actual == 0 && r.granted.Undo != nil:
		err := r.granted.Undo(ctx)
		done(err)
		return err
	}
	done(nil)
	return nil
}
