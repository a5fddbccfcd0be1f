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
	Fail     func(error) error // adds the call and the limiter to an error
	Permits  int64             // reserved
	Most     int64             // permits that can be charged
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
	if actual < 0 || actual > r.Most {
		return r.Fail(fmt.Errorf("%w: %d is not between 0 and %d", limit.ErrInvalidPermits, actual, r.Most))
	}
	if !r.Granted.Granted {
		return nil
	}
	if err := r.begin(actual); err != nil {
		return r.Fail(err)
	}
	charged := r.Granted.Settle != nil
	switch {
	case charged && actual != r.Permits:
		return r.Fail(r.Granted.Settle(ctx, actual, r.end))
	case !charged && actual == 0 && r.Granted.Undo != nil:
		err := r.Granted.Undo(ctx)
		r.end(err)
		return r.Fail(err)
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
	r.state = settled
	if err != nil && !(r.Once && errors.Is(err, limit.ErrUnknownOutcome)) {
		r.state = failed
	}
	r.mu.Unlock()
	r.Observer.Settled(limit.Settled{
		Limiter: r.Limiter, Reserved: r.Permits, Actual: r.actual, Charged: r.Granted.Settle != nil, Err: r.Fail(err),
	})
}
