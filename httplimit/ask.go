package httplimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// result is what one policy says of a request.
type result struct {
	policy   *policy
	state    state
	next     limit.Limiter  // to be asked, if any is left
	decision limit.Decision // where granted or refused
	giveBack func(context.Context) error
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

// ask asks all policies at the same time, so that the wait it tells of is the
// longest, and then the fallbacks of those that failed.
func (m *middleware) ask(ctx context.Context, key string, n int64) []result {
	results := make([]result, len(m.policies))
	for i, p := range m.policies {
		results[i] = result{policy: p, next: p.limiter}
	}
	for m.askNext(ctx, results, key, n) {
	}
	return results
}

// askNext asks the limiters that are next, and tells whether there are more.
func (m *middleware) askNext(ctx context.Context, results []result, key string, n int64) (more bool) {
	bounded, cancel := m.bound(ctx)
	defer cancel()
	takes := make([]*take, len(results))
	for i := range results {
		if r := &results[i]; r.next != nil {
			takes[i] = m.take(bounded, r.next, r.policy.key(m.prefix, key), n)
		}
	}
	for i, t := range takes {
		if t == nil {
			continue
		}
		o := t.await(bounded)
		if o.panicked != nil {
			panic(o.panicked)
		}
		results[i].settle(ctx, o, m.failure)
		more = more || results[i].next != nil
	}
	return more
}

// settle makes what a limiter said the policy's result, or its fallback the next
// to be asked.
func (r *result) settle(ctx context.Context, o outcome, common Failure) {
	r.next = nil
	switch {
	case failed(o.err) && r.failure != nil:
		r.failure = errors.Join(r.failure, fmt.Errorf("fallback: %w", o.err))
		r.state = stateClosed
	case errors.Is(o.err, limit.ErrInvalidConfig):
		r.failure = o.err
		r.state = stateClosed
	case failed(o.err):
		r.failure = o.err
		switch how := r.policy.failure(common); {
		case how.open:
			r.state = stateOpen
		case how.fallback != nil && ctx.Err() == nil:
			r.next = how.fallback
		default:
			r.state = stateClosed
		}
	case o.err != nil:
		r.state = stateTooCostly
	default:
		r.decision, r.giveBack = o.decision, o.giveBack
		if !o.decision.Granted {
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

func (m *middleware) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if m.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, m.timeout)
}

// outcome is how a call of Take ended.
type outcome struct {
	decision limit.Decision
	giveBack func(context.Context) error
	err      error
	panicked any
}

// take is a call of Take in a goroutine of its own: that is what bounds one which
// does not heed its context.
type take struct {
	done    chan outcome // has room for it
	claimed atomic.Bool  // by the one who sends the outcome, or who gave up on it
}

// take begins to ask limiter. The outcome is to be awaited with the same ctx.
func (m *middleware) take(ctx context.Context, limiter limit.Limiter, key string, n int64) *take {
	returnable := len(m.policies) > 1
	t := &take{done: make(chan outcome, 1)}
	go func() {
		o := call(ctx, limiter, key, n, returnable)
		if t.claimed.CompareAndSwap(false, true) {
			t.done <- o
			return
		}
		if o.giveBack != nil {
			giving, cancel := m.afterwards(ctx)
			defer cancel()
			// There is no one left to tell a failure: it leaves the limit tighter,
			// not wider.
			_ = o.giveBack(giving)
		}
	}()
	return t
}

// call makes a panic part of the outcome, to happen where net/http expects it.
func call(ctx context.Context, limiter limit.Limiter, key string, n int64, returnable bool) (o outcome) {
	defer func() {
		if v := recover(); v != nil {
			o = outcome{panicked: v}
		}
	}()
	if returner, ok := limiter.(limit.Returner); ok && returnable {
		o.decision, o.giveBack, o.err = returner.TakeReturnable(ctx, key, n)
	} else {
		o.decision, o.err = limiter.Take(ctx, key, n)
	}
	return o
}

// await returns the outcome, or ctx's end if that comes first. What is granted
// after that is given back.
func (t *take) await(ctx context.Context) outcome {
	select {
	case o := <-t.done:
		return o
	case <-ctx.Done():
		if !t.claimed.CompareAndSwap(false, true) {
			return <-t.done
		}
		return outcome{err: fmt.Errorf("no decision in time: %w", ctx.Err())}
	}
}

// giveBackTimeout bounds giving back where WithTimeout does not.
const giveBackTimeout = time.Second

// afterwards is a context for what must happen even if the request has ended.
func (m *middleware) afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	d := m.timeout
	if d == 0 {
		d = giveBackTimeout
	}
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// giveBack undoes the grants among results, all at the same time, and brings
// their figures up to date.
func (m *middleware) giveBack(ctx context.Context, results []result, n int64) error {
	giving, cancel := m.afterwards(ctx)
	defer cancel()
	given := make([]chan error, len(results))
	for i := range results {
		if results[i].giveBack == nil {
			continue
		}
		given[i] = make(chan error, 1)
		go func() { given[i] <- results[i].giveBack(giving) }()
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
		d := &results[i].decision
		d.Remaining = min(d.Remaining+n, d.Limit)
		if d.Remaining == d.Limit {
			d.ResetAfter = 0
		}
	}
	return errors.Join(failures...)
}
