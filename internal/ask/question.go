package ask

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Question is a question to one limit about one request: to its limiter and, if that fails, to its
// fallback.
type Question struct {
	Limit    *Limit
	Key      string
	Next     limit.Limiter // to be asked; nil once the question is settled
	Asked    limit.Limiter // the last
	State    State
	Decision limit.Decision              // if granted or refused; only the Limit if too costly
	GiveBack func(context.Context) error // nil if nothing can be given back
	Failure  error                       // of the limiter, even if another answered
	Start    time.Time

	settle settle       // nil if nothing can be settled
	by     limit.Source // who is asked
	costly error        // the error if too costly
}

// State is the answer of a limit.
type State int

// The answers of a limit.
const (
	Unsettled State = iota
	Granted
	Refused   // for now
	TooCostly // forever: the request costs more than the limit
	Closed    // no answer: the request must not pass
	Open      // no answer: the limit is left out
)

// FromMemory settles the question if the limiter knows the answer without asking Redis, and reports
// whether it does. It runs on the caller's goroutine, since nothing is waited for.
func (q *Question) FromMemory(ctx context.Context, n int64) bool {
	if q.Limit.settled {
		return false
	}
	a, known := outage.FromMemory(ctx, q.Next, q.Key, n)
	if known {
		q.Asked = q.Next
		q.record(ctx, Outcome{Decision: a.Decision, GiveBack: a.Undo})
	}
	return known
}

// Begin asks the next limiter. Await the outcome with the same ctx.
func (q *Question) Begin(ctx context.Context, n int64, timeout time.Duration) *Call {
	q.Asked = q.Next
	a := attempt{limiter: q.Next, key: q.Key, n: n, settled: q.Limit.settled, timeout: timeout}
	if q.by == limit.FromLimiter {
		return q.Limit.begin(ctx, a)
	}
	if _, can := q.Next.(limit.Reserver); !can {
		a.settled = false // Settle must not fail because of an outage
	}
	return a.begin(ctx, nil)
}

// Await waits for the call until bounded ends, the context that it was begun with. The limiter's
// outcome then becomes the answer, or another limiter is next. ctx is the request's, which outlasts
// bounded. If the limiter panicked, Await returns the value of the panic.
func (q *Question) Await(ctx, bounded context.Context, c *Call) (panicked any) {
	o := c.await(bounded)
	if c.counts {
		q.Limit.count(ctx, o, q.Start)
	}
	if o.Panicked == nil {
		q.record(ctx, o)
	}
	return o.Panicked
}

// Wait waits for the permits at w, which is the limiter, until ctx ends, and makes the outcome the
// answer.
func (q *Question) Wait(ctx context.Context, w Waiter, n int64) {
	q.Asked = q.Next
	key := escaped(w, q.Key)
	o := Outcome{Err: w.Acquire(ctx, key, n)}
	if o.Err == nil {
		o.Decision.Granted = true
		o.GiveBack = func(ctx context.Context) error { return w.Release(ctx, key, n) }
	}
	q.record(ctx, o)
}

func (q *Question) record(ctx context.Context, o Outcome) {
	q.Next = nil
	switch {
	case o.Err == nil && o.Decision.Granted && o.Decision.Limit == 0:
		q.State, q.GiveBack, q.settle = Open, o.GiveBack, o.Settle // the limiter's own policy lets all pass for now
	case o.Err == nil:
		q.Decision, q.GiveBack, q.State = o.Decision, o.GiveBack, Refused
		if o.Decision.Granted {
			q.State, q.settle = Granted, o.Settle
		}
		if s := q.Limit.share; s != nil && q.by == limit.FromLimiter {
			s.learn(q.Key, o.Decision.Limit)
		}
	case tooCostly(o.Err):
		q.State, q.costly = TooCostly, o.Err
		q.Decision.Limit = o.Decision.Limit // the rest may be unknown
	case q.Failure != nil:
		q.Failure = errors.Join(q.Failure, fmt.Errorf("fallback: %w", o.Err))
		q.State = Closed
	default:
		q.Failure = o.Err
		q.fail(ctx)
	}
}

// fail lets the policy answer if there is no decision. It does not for a mistake, which passing would
// hide.
func (q *Question) fail(ctx context.Context) {
	l := q.Limit
	q.State = Closed
	if errors.Is(q.Failure, errNotAsked) {
		q.by = ""
	}
	if !undecided(q.Failure) {
		return
	}
	switch {
	case l.open:
		q.State, q.by = Open, limit.FromOpen
	case ctx.Err() != nil:
	case l.fallback != nil:
		q.Next, q.State, q.by = l.fallback, Unsettled, limit.FromFallback
	case l.share != nil:
		if next := l.share.of(q.Key); next != nil {
			q.Next, q.State, q.by = next, Unsettled, limit.FromLocal
		} else {
			q.Failure = errors.Join(q.Failure, errors.New("FailLocal: the limiter has not reported its limit yet"))
		}
	}
}

// tooCostly reports whether waiting can't make a request pass: if n is above 0, too many permits is the
// only possible mistake.
func tooCostly(err error) bool {
	return errors.Is(err, limit.ErrPermitsExceedRate) || errors.Is(err, limit.ErrInvalidPermits)
}

// Never reports whether no waiting turns a refusal into a grant.
func Never(d limit.Decision) bool { return d.Limit <= 0 || d.RetryAfter == math.MaxInt64 }

// Report reports the outcome of the question to the observer, for the middleware of that name.
func (q *Question) Report(ctx context.Context, middleware string, n int64) {
	if !q.Limit.observer.Watches() {
		return
	}
	err := q.costly
	if q.State == Closed {
		err = q.Failure
	}
	q.Limit.observer.Decided(ctx, limit.Decided{
		Limiter: q.Limit.Name, Call: middleware, Permits: n, Source: q.by, Shadow: q.Limit.shadow, Start: q.Start,
	}, q.State == Granted || q.State == Open, err)
}
