package outage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Question is what a caller asks of a limiter.
type Question struct {
	Call    string // the method's name
	Key     string // of a limiter of keys
	Permits int64
	UpTo    bool          // as many as are free, at most Permits
	Waits   bool          // until the permits are granted or the timeout is over
	Timeout time.Duration // 0 with Waits: none
	Figures bool          // the figures of the Decision are wanted
	Undo    bool          // a grant is to be undone, perhaps
	Settled bool          // a grant is settled later, so it needs a member of its own
}

// Answer is the caller's answer.
type Answer struct {
	limit.Decision

	By    limit.Source
	Taken int64                       // permits that the caller has
	Undo  func(context.Context) error // undoes a grant; may be nil
	// Settle corrects a grant to the permits that were used, and calls then with the result,
	// also if ctx ended before. It is nil if Redis was not charged.
	Settle func(ctx context.Context, used int64, then func(error)) error
	// Unanswered says that ctx ended before Redis had said anything, a refusal included.
	Unanswered bool
}

// Limiter is a limiter that is asked for permits.
type Limiter struct {
	Observed string // its name, for observers
	Account  Account
	Rule     local.Rule // zero if it is not known
}

// Asker puts questions to Redis, about one limiter or about several that grant together.
type Asker interface {
	// AtHand returns the answer if it is known without asking, an error for what can't be asked.
	AtHand(ctx context.Context, q Question) (a Answer, known bool, err error)
	Ask(ctx context.Context, q Question) (Answer, error)
	// Fail returns err with the call and the limiter that it speaks of.
	Fail(q Question, err error) error
	// Server returns the server's breaker, and what asks the server whether it decides.
	Server(ctx context.Context, q Question) (*Breaker, func() bool)
	Limiters(q Question) []Limiter
}

// FromMemory returns what a limiter of keys answers a request without asking Redis, if it can. Package
// rratelimiter sets it.
var FromMemory = func(context.Context, limit.Limiter, string, int64) (a Answer, known bool) { return a, false }

// Host is the program that callers wait in.
type Host interface {
	Closed() error
	Begin() error // counts a caller in
	End()
}

// Policy is what answers callers: Redis, and while it does not decide what Failure says.
type Policy struct {
	Guard    *Guard // nil if there is no Failure, and nothing counts what is not charged
	Observer *observe.Observer
	Failure  *limit.Failure // nil: errors stay errors
	Shadow   bool           // limiters only watch
	Host     Host           // nil if no one waits
}

// errOpen says why a call was not sent.
var errOpen = fmt.Errorf("%w: the last calls were not decided, and this one was not sent", limit.ErrUnavailable)

// Decide answers a question and reports the answer to the observer.
func (p *Policy) Decide(ctx context.Context, of Asker, q Question) (Answer, error) {
	if !p.Observer.Watches() && !p.Shadow {
		a, err := p.decide(ctx, of, q)
		return a, of.Fail(q, err)
	}
	if p.Shadow {
		q.Waits, q.Timeout = false, 0
	}
	start := time.Now()
	a, err := p.decide(ctx, of, q)
	err = of.Fail(q, err)
	if p.Observer.Watches() {
		for _, l := range of.Limiters(q) {
			p.Tell(ctx, l.Observed, q, a, err, start)
		}
	}
	switch {
	case !p.Shadow:
	case inShadow(ctx, a.Granted, err):
		a.Granted, a.RetryAfter, a.Taken, err = true, 0, q.Permits, nil
		a.Undo = p.LetThrough(of, q, q.Permits)
	case err == nil && q.UpTo:
		p.LetThrough(of, q, q.Permits-a.Taken)
		a.Taken = q.Permits
	}
	return a, err
}

// AtHand is Decide for an answer that is known without asking. It returns no errors and, of limiters that
// only watch, no answers: Decide has both.
func (p *Policy) AtHand(ctx context.Context, of Asker, q Question) (a Answer, known bool) {
	if p.Shadow {
		return a, false
	}
	if a, known, _ = of.AtHand(ctx, q); known && p.Observer.Watches() {
		for _, l := range of.Limiters(q) {
			p.Tell(ctx, l.Observed, q, a, nil, time.Now())
		}
	}
	return a, known
}

// Tell reports to the observer a limiter's answer to a question put at start.
func (p *Policy) Tell(ctx context.Context, limiter string, q Question, a Answer, err error, start time.Time) {
	p.Observer.Decided(ctx, limit.Decided{
		Limiter: limiter, Call: q.Call, Permits: q.Permits, Source: a.By, Start: start, Shadow: p.Shadow,
	}, a.Granted, err)
}

// inShadow reports whether a limiter that only watches grants what it would have refused,
// or failed to decide because of err: anything but the caller's mistake or its context's end.
func inShadow(ctx context.Context, granted bool, err error) bool {
	if errors.Is(err, limit.ErrUnavailable) {
		return ctx.Err() == nil // a deadline in err may be an attempt's
	}
	for _, stays := range []error{limit.ErrInvalidPermits, limit.ErrInvalidConfig, limit.ErrUnsupported, limit.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, stays) {
			return false
		}
	}
	return !granted
}

// LetThrough notes permits that a caller has and Redis was not charged for, and returns
// what undoes that.
func (p *Policy) LetThrough(of Asker, q Question, permits int64) (undo func(context.Context) error) {
	if p.Guard == nil || permits == 0 {
		return func(context.Context) error { return nil }
	}
	all := of.Limiters(q)
	for _, l := range all {
		p.Guard.AddUncharged(l.Account, permits, l.Rule.Window)
	}
	return func(context.Context) error {
		for _, l := range all {
			p.Guard.TakeUncharged(l.Account, permits)
		}
		return nil
	}
}

func (p *Policy) decide(ctx context.Context, of Asker, q Question) (Answer, error) {
	if a, known, err := of.AtHand(ctx, q); known || err != nil {
		return a, err
	}
	if p.Failure == nil {
		return of.Ask(ctx, q)
	}
	return p.guarded(ctx, of, q)
}

// guarded asks Redis, or what answers instead, until the caller need not wait any more.
func (p *Policy) guarded(ctx context.Context, of Asker, q Question) (Answer, error) {
	start, timeout := p.Guard.clock.Now(), q.Timeout
	if c := p.Guard.clock; c != nil && p.Host != nil {
		defer c.Test.Enter()()
	}
	for {
		if p.Host != nil {
			if err := p.Host.Closed(); err != nil {
				return Answer{}, err
			}
		}
		a, undecided, err := p.ask(ctx, of, q)
		if !undecided {
			return a, err
		}
		if a, err = p.instead(of.Limiters(q), q, err); err != nil || a.Granted || !q.Waits {
			return a, err
		}
		if more, err := p.pause(ctx, a.RetryAfter, start, timeout); !more || err != nil {
			return a, err
		}
		if q.Timeout = timeout - p.Guard.clock.Since(start); timeout > 0 && q.Timeout <= 0 {
			q.Waits, q.Timeout = false, 0
		}
	}
}

// ask asks Redis, if its server is not known to leave calls undecided, and reports whether
// it left this one so.
func (p *Policy) ask(ctx context.Context, of Asker, q Question) (a Answer, undecided bool, err error) {
	b, answers := of.Server(ctx, q)
	if !b.Allows(answers, p.changed) {
		return Answer{}, true, errOpen
	}
	start := p.Guard.clock.Now()
	a, err = of.Ask(ctx, q)
	switch {
	case errors.Is(err, limit.ErrUnavailable):
		undecided = true
	case errors.Is(err, context.DeadlineExceeded) && a.Unanswered && b.Left(start):
		// The caller has gone, but the server is silent.
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return a, false, err
	default:
		b.Decided()
		return a, false, err
	}
	if b.Failed(start) {
		p.changed(true)
	}
	return a, undecided, err
}

// changed reports that a server is asked no more, or again.
func (p *Policy) changed(open bool) {
	kind := limit.AskedAgain
	if open {
		kind = limit.AskedNoMore
	}
	p.Observer.Happened(limit.Event{Kind: kind})
}

// instead lets Failure decide. What it grants is not charged: it goes to the accounts. Of
// several limiters all grant, or none does.
func (p *Policy) instead(all []Limiter, q Question, cause error) (a Answer, err error) {
	var undo []func()
	takeBack := func() {
		for _, f := range undo {
			f()
		}
	}
	for _, l := range all {
		var giveBack func()
		if a, giveBack, err = p.insteadOf(l, q, cause); !a.Granted {
			takeBack()
			return a, err
		}
		taken := a.Taken
		p.Guard.AddUncharged(l.Account, taken, l.Rule.Window)
		undo = append(undo, giveBack, func() { p.Guard.TakeUncharged(l.Account, taken) })
	}
	a.Undo = func(context.Context) error { takeBack(); return nil }
	return a, nil
}

// insteadOf is instead for one limiter. If its rule is zero, its rate is not known.
func (p *Policy) insteadOf(l Limiter, q Question, cause error) (a Answer, giveBack func(), err error) {
	share, isLocal := p.Failure.Local()
	switch {
	case p.Failure.Open():
		return Answer{Decision: limit.Decision{Granted: true}, By: limit.FromOpen, Taken: q.Permits}, func() {}, nil
	case !isLocal || l.Rule.Permits < 1:
		return Answer{}, nil, cause
	}
	least := q.Permits
	if q.UpTo {
		least = 1
	}
	a.By = limit.FromLocal
	a.Decision, a.Taken, giveBack = p.Guard.locals.TakeUpTo(l.Account.Limiter, least, q.Permits, Share(l.Rule, share))
	return a, giveBack, nil
}

// Share returns a part of a rule: fewer permits, and if that would be less than one, one
// in a longer window.
func Share(rule local.Rule, share float64) local.Rule {
	part := float64(rule.Permits) * share
	if part >= 1 {
		rule.Permits = int64(part)
		return rule
	}
	window := float64(rule.Window) / part
	return local.Rule{Permits: 1, Window: time.Duration(min(window, float64(math.MaxInt64/2)))}
}

// longestWait is how long a caller that waits lets pass before it looks whether Redis
// is back.
const longestWait = 500 * time.Millisecond

// pause waits for a local limiter's permits, or to look for Redis. It reports whether
// the caller is to ask again: not if its timeout, 0 for none, is over.
func (p *Policy) pause(ctx context.Context, wait time.Duration, start time.Time, timeout time.Duration) (more bool, err error) {
	if wait <= 0 || wait > longestWait {
		wait = longestWait
	}
	if timeout > 0 {
		left := timeout - p.Guard.clock.Since(start)
		if left <= 0 {
			return false, nil
		}
		wait = min(wait, left)
	}
	if err := p.Host.Begin(); err != nil {
		return false, err
	}
	defer p.Host.End()
	err = p.Guard.wait(ctx, wait)
	return err == nil, err
}
