package outage

import (
	"context"
	"errors"
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
}

// Answer is what the caller is told.
type Answer struct {
	limit.Decision

	By    limit.Source
	Taken int64                       // permits that the caller has
	Undo  func(context.Context) error // undoes a grant; may be nil
	// Unanswered says that ctx ended before Redis had said anything, a refusal included.
	Unanswered bool
}

// Limiter is one of which permits are asked.
type Limiter struct {
	Observed string // its name, for observers
	Account  Account
	Rule     local.Rule // zero if it is not known
}

// Asker puts questions to Redis, about one limiter or about several that grant together.
type Asker interface {
	// Check returns why Redis need not be asked.
	Check(ctx context.Context, q Question) (limit.Decision, error)
	Ask(ctx context.Context, q Question) (Answer, error)
	// Fail returns err with the call and the limiter that it speaks of.
	Fail(q Question, err error) error
	// Server returns the server's breaker, and what asks the server whether it decides.
	Server(ctx context.Context, q Question) (*Breaker, func() bool)
	// Learn receives what Redis decided.
	Learn(q Question, a Answer)
	Limiters(q Question) []Limiter
}

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
	Host     Host           // nil if nobody waits
}

// Decide answers a question and tells the observer.
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
	case InShadow(ctx, a.Granted, err):
		a.Granted, a.RetryAfter, a.Taken, err = true, 0, q.Permits, nil
		a.Undo = p.LetThrough(of, q, q.Permits)
	case err == nil && q.UpTo:
		p.LetThrough(of, q, q.Permits-a.Taken)
		a.Taken = q.Permits
	}
	return a, err
}

// Tell tells the observer of a limiter's answer to a question put at start.
func (p *Policy) Tell(ctx context.Context, limiter string, q Question, a Answer, err error, start time.Time) {
	p.Observer.Decided(ctx, limit.Decided{
		Limiter: limiter, Call: q.Call, Permits: q.Permits, Source: a.By, Start: start, Shadow: p.Shadow,
	}, a.Granted, err)
}

// LetThrough notes permits that a caller has and Redis was not charged for, and returns
// what undoes that.
func (p *Policy) LetThrough(of Asker, q Question, permits int64) (undo func(context.Context) error) {
	if p.Guard == nil || permits == 0 {
		return func(context.Context) error { return nil }
	}
	all := of.Limiters(q)
	for _, l := range all {
		p.Guard.Uncharged.Add(l.Account, permits, l.Rule.Window)
	}
	return func(context.Context) error {
		for _, l := range all {
			p.Guard.Uncharged.Take(l.Account, permits)
		}
		return nil
	}
}

func (p *Policy) decide(ctx context.Context, of Asker, q Question) (Answer, error) {
	if d, err := of.Check(ctx, q); err != nil {
		return Answer{Decision: d}, err
	}
	if p.Failure == nil {
		return of.Ask(ctx, q)
	}
	return p.guarded(ctx, of, q)
}

// guarded asks Redis, or what answers instead, until the caller need not wait any more.
func (p *Policy) guarded(ctx context.Context, of Asker, q Question) (a Answer, err error) {
	start, timeout := p.Guard.clock.Now(), q.Timeout
	defer p.Guard.Enter()()
	for {
		if p.Host != nil {
			if err := p.Host.Closed(); err != nil {
				return Answer{}, err
			}
		}
		breaker, answers := of.Server(ctx, q)
		undecided, err := p.Guard.Ask(breaker, answers, func() (bool, error) {
			var err error
			a, err = of.Ask(ctx, q)
			return a.Unanswered, err
		})
		if !undecided {
			if err == nil {
				of.Learn(q, a)
			}
			return a, err
		}
		if a, err = p.instead(of, q, err); err != nil || a.Granted || !q.Waits {
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

// instead has Failure decide. Of several limiters all grant, or none does.
func (p *Policy) instead(of Asker, q Question, cause error) (a Answer, err error) {
	all := of.Limiters(q)
	if q.UpTo {
		l := all[0]
		a.Taken, a.Decision, a.By, err = p.Guard.UpToInstead(*p.Failure, l.Account, q.Permits, l.Rule, cause)
		return a, err
	}
	var undo []func(context.Context) error
	a.Undo = func(ctx context.Context) (err error) {
		for _, giveBack := range undo {
			err = errors.Join(err, giveBack(ctx))
		}
		return err
	}
	for _, l := range all {
		var giveBack func(context.Context) error
		if a.Decision, a.By, giveBack, err = p.Guard.Instead(*p.Failure, l.Account, q.Permits, l.Rule, cause); err != nil || !a.Granted {
			_ = a.Undo(context.Background()) // takes back what is in memory only
			a.Undo = nil
			return a, err
		}
		undo = append(undo, giveBack)
	}
	a.Taken = q.Permits
	return a, nil
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
	err = p.Guard.Wait(ctx, wait)
	return err == nil, err
}
