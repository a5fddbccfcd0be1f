// Package middleware is what HTTP and gRPC middleware have in common: their options, and how they ask limiters for requests.
// Limiters of this module decide by themselves when to stop waiting for Redis and what answers then. Any other
// limiter is asked for a bounded time even if it ignores its context, and what it grants too late is given back.
package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// asker is one question to a limiter that is not one of this module, in the role of outage.Asker.
type asker struct {
	*Limit

	probe *attempt // nil if there is none
}

// attempt is one call of a limiter.
type attempt struct {
	of       *Limit
	state    atomic.Int32
	over     chan struct{} // closed when the limiter has answered; then what follows is set
	answer   decide.Answer
	err      error
	panicked any
}

// The states of an attempt.
const (
	fresh int32 = iota
	underWay
	answered
	done // the caller has the answer, or wants none
)

func (l *Limit) attempt() *attempt { return &attempt{of: l, over: make(chan struct{})} }

// begin asks the limiter in a goroutine of its own. It returns false if the caller has gone.
func (a *attempt) begin(ctx context.Context, q decide.Ask) bool {
	if !a.state.CompareAndSwap(fresh, underWay) {
		return false
	}
	go func() {
		start := time.Now()
		a.take(ctx, q)
		if a.decided() {
			a.of.breaker.Heard(time.Since(start))
		}
		wanted := a.state.CompareAndSwap(underWay, answered)
		close(a.over)
		if !wanted {
			a.giveBack(ctx)
		}
	}()
	return true
}

func (a *attempt) take(ctx context.Context, q decide.Ask) {
	defer func() { a.panicked = recover() }()
	answer, limiter := &a.answer, a.of.Limiter
	if reserver, ok := limiter.(limit.Reserver); ok && q.Reserve {
		var settle func(context.Context, int64) error
		answer.Decision, settle, a.err = reserver.TakeReserved(ctx, q.Key, q.Permits)
		if a.err != nil || !answer.Granted {
			return
		}
		answer.Settle = func(ctx context.Context, used int64, then func(error)) error {
			err := safely(ctx, func(ctx context.Context) error { return settle(ctx, used) }) // so that it can be repeated
			then(err)
			return err
		}
		answer.Undo = func(ctx context.Context) error { return settle(ctx, 0) }
	} else if w, ok := limiter.(waiter); ok && q.MayWait {
		if a.err = w.Acquire(ctx, q.Key, q.Permits); a.err == nil {
			answer.Granted = true
			answer.Undo = func(ctx context.Context) error { return w.Release(ctx, q.Key, q.Permits) }
		}
	} else if returner, ok := limiter.(limit.Returner); ok {
		answer.Decision, answer.Undo, a.err = returner.TakeReturnable(ctx, q.Key, q.Permits)
	} else {
		answer.Decision, a.err = limiter.Take(ctx, q.Key, q.Permits)
	}
}

// decided reports whether the limiter's answer is a decision, or a mistake of the caller's.
func (a *attempt) decided() bool { return a.panicked == nil && !leavesOpen(a.err) }

// leavesOpen reports whether a limiter's error leaves the decision open: it had no answer in time, or the
// error is its own, of which nothing is known here.
func leavesOpen(err error) bool {
	switch limit.KindOf(err) {
	case limit.KindDeadline, limit.KindCanceled, limit.KindOther:
		return true
	default:
		return errors.Is(err, limit.ErrUnavailable)
	}
}

// giveBack gives back what no caller waits for.
func (a *attempt) giveBack(ctx context.Context) {
	if a.answer.Undo == nil {
		return
	}
	giving, cancel := afterwards(ctx, a.of.options.Timeout)
	defer cancel()
	// No caller is left for an error. It only leaves the limit tighter.
	_ = safely(giving, a.answer.Undo)
}

// leave ends a question. What a probe is granted for it, if that is not the answer, is given back.
func (a *asker) leave(ctx context.Context) {
	if a.probe != nil && a.probe.state.Swap(done) == answered {
		go a.probe.giveBack(ctx)
	}
}

// FromMemory implements outage.Asker, as do the following methods. It knows nothing.
func (a *asker) FromMemory(context.Context, decide.Ask) (decide.Answer, bool, error) {
	return decide.Answer{}, false, nil
}

// Ask asks the limiter, unless a probe has.
func (a *asker) Ask(ctx context.Context, q decide.Ask) (answer decide.Answer, err error) {
	t := a.probe
	if a.probe = nil; t == nil {
		t = a.attempt()
	}
	most := q.Within
	if q.MayWait {
		most = q.Timeout
	}
	bounded, cancel := ctx, func() {}
	if most != 0 {
		bounded, cancel = context.WithTimeout(ctx, most)
	}
	defer cancel()
	t.begin(bounded, q)
	select {
	case <-t.over:
	case <-bounded.Done():
	}
	switch {
	case t.state.Swap(done) == underWay:
		err = fmt.Errorf("no decision in time: %w", bounded.Err())
	case t.panicked != nil:
		panic(t.panicked)
	default:
		answer, err = t.answer, t.err
	}
	switch {
	case err == nil || !leavesOpen(err):
		return answer, err
	case ctx.Err() != nil: // whatever the limiter made of that
		return decide.Answer{Unanswered: true}, fmt.Errorf("no decision in time: %w", ctx.Err())
	case q.MayWait && bounded.Err() != nil:
		return decide.Answer{}, nil // it has waited for so long
	}
	return decide.Answer{Undecided: true}, err
}

// Fail returns the error, which names the limiter if it wants to.
func (a *asker) Fail(_ decide.Ask, err error) error { return err }

// Breaker returns the limiter's breaker.
func (a *asker) Breaker(ctx context.Context, _ decide.Ask) *outage.Breaker {
	a.leave(ctx)
	a.probe = a.attempt()
	return &a.breaker
}

// Probe returns the attempt itself, with its full time: its caller does not wait for long, and may be gone when the
// answer comes.
func (a *asker) Probe(ctx context.Context, q decide.Ask) func() bool {
	t := a.probe
	return func() bool {
		asking, cancel := afterwards(ctx, a.options.Timeout)
		defer cancel()
		if !t.begin(asking, q) {
			return false
		}
		select {
		case <-t.over:
			return t.decided()
		case <-asking.Done(): // the limiter may ignore that
			return false
		}
	}
}

// Limiters returns the limiter with the limit that it reported last, for the key or else for any key.
func (a *asker) Limiters(q decide.Ask) []decide.Limiter {
	l := decide.Limiter{Of: a, Name: q.Key, Permits: q.Permits, Most: math.MaxInt64}
	most, known, last := a.rates.Of(q.Key)
	if !known {
		most = last
	}
	if known || last > 0 {
		l.Rule = local.Rule{Permits: most, Window: a.Window()}
	}
	return []decide.Limiter{l}
}

// Learn notes the limit of the key, unless the limiter's own policy has let the request pass.
func (a *asker) Learn(q decide.Ask, answer decide.Answer) {
	if answer.Limit > 0 || !answer.Granted {
		a.rates.Learn(q.Key, answer.Limit)
	}
}

// afterwards returns a context for work that must happen even if the request's context has ended. It
// lasts for timeout, or for a second if that is 0.
func afterwards(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(timeout, time.Second))
}

// safely turns a panic of f into an error: on a goroutine without a caller it would end the process.
func safely(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return f(ctx)
}
