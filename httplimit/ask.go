package httplimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// result is what one policy says of a request.
type result struct {
	policy   *policy
	key      string
	state    state
	next     limit.Limiter  // to be asked, if any is left
	asked    limit.Limiter  // the last
	decision limit.Decision // where granted or refused; the Limit alone where too costly
	giveBack func(context.Context) error
	returned bool  // the grant was given back
	failure  error // of the policy's limiter, even if a fallback answered
}

type state int

const (
	stateGranted   state = iota
	stateRefused         // for now
	stateTooCostly       // for ever: the request costs more than the limit
	stateClosed          // no answer: the request must not pass
	stateOpen            // no answer: the policy is left out
)

func (r *result) refused() bool { return r.state == stateRefused || r.state == stateTooCostly }

// ask asks all policies at the same time, so that the wait they tell of is the
// longest, and then the fallbacks of those that failed.
func (m *middleware) ask(ctx context.Context, results []result, n int64) {
	for m.askNext(ctx, results, n) {
	}
}

// askNext asks the limiters that are next, and tells whether there are more.
func (m *middleware) askNext(ctx context.Context, results []result, n int64) (more bool) {
	bounded, cancel := ask.Bound(ctx, m.timeout)
	defer cancel()
	calls := make([]*ask.Call, len(results))
	for i := range results {
		if r := &results[i]; r.next != nil {
			r.asked = r.next
			calls[i] = ask.Begin(bounded, r.next, r.key, n, m.timeout)
		}
	}
	var panicked any
	for i, call := range calls {
		if call == nil {
			continue
		}
		o := call.Await(bounded)
		if o.Panicked != nil {
			panicked = o.Panicked
			continue
		}
		results[i].settle(ctx, o, m.failure)
		more = more || results[i].next != nil
	}
	if panicked != nil {
		// It goes on where net/http expects it. What fails here leaves the limits
		// tighter, not wider.
		_ = m.giveBack(ctx, results, n)
		panic(panicked)
	}
	return more
}

// settle makes what a limiter said the policy's result, or its fallback the next
// to be asked.
func (r *result) settle(ctx context.Context, o ask.Outcome, common Failure) {
	r.next = nil
	switch {
	case failed(o.Err) && r.failure != nil:
		r.failure = errors.Join(r.failure, fmt.Errorf("fallback: %w", o.Err))
		r.state = stateClosed
	case errors.Is(o.Err, limit.ErrInvalidConfig):
		r.failure = o.Err
		r.state = stateClosed
	case failed(o.Err):
		r.failure = o.Err
		switch how := r.policy.failure(common); {
		case how.open:
			r.state = stateOpen
		case how.fallback != nil && ctx.Err() == nil:
			r.next = how.fallback
		default:
			r.state = stateClosed
		}
	case o.Err != nil:
		r.state = stateTooCostly
		r.decision.Limit = o.Decision.Limit // more it may not know
	default:
		r.decision, r.giveBack = o.Decision, o.GiveBack
		if !o.Decision.Granted {
			r.state = stateRefused
		}
	}
}

// failed tells whether err leaves open what the limiter would say. It does not
// where a request costs too much: with n above 0 that is the only number of
// permits that can be out of range.
func failed(err error) bool {
	return err != nil && !errors.Is(err, limit.ErrPermitsExceedRate) && !errors.Is(err, limit.ErrInvalidPermits)
}

// giveBack undoes the grants among results, all at the same time, and brings
// their figures up to date.
func (m *middleware) giveBack(ctx context.Context, results []result, n int64) error {
	giving, cancel := ask.Afterwards(ctx, m.timeout)
	defer cancel()
	given := make([]chan error, len(results))
	for i := range results {
		if results[i].giveBack == nil {
			continue
		}
		given[i] = make(chan error, 1)
		go func() { given[i] <- ask.Safely(giving, results[i].giveBack) }()
	}
	var failures []error
	for i := range results {
		if given[i] == nil {
			continue
		}
		var err error
		select {
		case err = <-given[i]:
		case <-giving.Done():
			err = giving.Err()
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("httplimit: policy %q: giving back: %w", results[i].policy.name, err))
			continue
		}
		results[i].returned = true
		d := &results[i].decision
		d.Remaining = min(d.Remaining+n, d.Limit)
		if d.Remaining == d.Limit {
			d.ResetAfter = 0
		}
	}
	return errors.Join(failures...)
}
