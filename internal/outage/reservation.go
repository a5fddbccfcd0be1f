package outage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Reservation is a grant that is settled once.
type Reservation struct {
	Limiter  string // its name for observers
	Observer *observe.Observer
	Fail     func(op string, err error) error // adds the call and the limiter to an error
	Permits  int64                            // reserved
	Most     int64                            // permits that can be charged
	Granted  Answer
	Once     bool // settling is not repeated if its outcome is unknown

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

// Settle charges actual permits in place of those reserved. If ctx ends, it returns and goes on in the
// background. It does nothing if nothing was granted.
func (r *Reservation) Settle(ctx context.Context, actual int64) error {
	const op = "Settle"
	if err := r.Check(actual); err != nil {
		return err
	}
	if !r.Granted.Granted {
		return nil
	}
	if err := r.begin(actual); err != nil {
		return r.Fail(op, err)
	}
	return r.Fail(op, r.settle(ctx))
}

// Check returns an error if a reservation can't cost that many permits.
func (r *Reservation) Check(actual int64) error {
	if actual >= 0 && actual <= r.Most {
		return nil
	}
	return r.Fail("Settle", fmt.Errorf("%w: %d is not between 0 and %d", limit.ErrInvalidPermits, actual, r.Most))
}

// SettledFor reports whether it is settled, for that many permits.
func (r *Reservation) SettledFor(actual int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == settled && r.actual == actual
}

// Cancel is Settle(ctx, 0), and does nothing once Settle was called with another number.
func (r *Reservation) Cancel(ctx context.Context) error {
	if !r.Granted.Granted || r.begin(0) != nil {
		return nil //nolint:nilerr // it is settled, which is no fault of a deferred call
	}
	return r.Fail("Cancel", r.settle(ctx))
}

// settle does the settling that begin has admitted.
func (r *Reservation) settle(ctx context.Context) error {
	charged := r.Granted.Settle != nil
	switch {
	case charged && (r.actual != r.Permits || r.Granted.Held):
		return r.Granted.Settle(ctx, r.actual, r.end)
	case !charged && r.actual == 0 && r.Granted.Undo != nil:
		err := r.Granted.Undo(ctx)
		r.end(err)
		return err
	}
	r.end(nil)
	return nil
}

// begin returns an error if the reservation can't be settled with that many permits.
func (r *Reservation) begin(actual int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.state == underWay:
		return fmt.Errorf("%w: with %s, just now", limit.ErrSettled, words.Plural(r.actual, "permit"))
	case r.state == settled:
		return fmt.Errorf("%w: with %s, before", limit.ErrSettled, words.Plural(r.actual, "permit"))
	case r.state == failed && actual != r.actual:
		return fmt.Errorf("%w: the first call, for %s, failed; repeat it with the same number", limit.ErrSettled, words.Plural(r.actual, "permit"))
	}
	r.state, r.actual = underWay, actual
	return nil
}

// end records how settling ended.
func (r *Reservation) end(err error) {
	r.mu.Lock()
	r.state = failed
	if err == nil || r.Once && errors.Is(err, limit.ErrUnknownOutcome) {
		r.state = settled
	}
	actual := r.actual
	r.mu.Unlock()
	r.Observer.Settled(limit.Settled{
		Limiter: r.Limiter, Reserved: r.Permits, Actual: actual, Charged: r.Granted.Settle != nil, Err: r.Fail("Settle", err),
	})
}
