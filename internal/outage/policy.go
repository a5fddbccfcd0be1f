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

// Policy is what answers callers: Redis, and while it does not decide Fallback or what Failure says.
type Policy struct {
	Guard    *Guard // nil if there is no Failure, and nothing counts what is not charged
	Observer *observe.Observer
	Failure  *limit.Failure                             // nil: errors stay errors
	Fallback func(context.Context, Ask) (Answer, error) // takes the place of Failure; nil: none
	Shadow   bool                                       // limiters only watch
	Outer    Watcher                                    // the middleware that callers come through, if it has an observer
}

// Given returns the policy by which a limiter of policy p answers middleware: p, with what the middleware
// has of a policy unless the limiter has one itself.
func (p *Policy) Given(middleware Policy) *Policy {
	both := *p
	both.Outer = middleware.Outer
	if p.Failure == nil {
		both.Failure, both.Fallback = middleware.Failure, middleware.Fallback
	}
	return &both
}

// watchers returns who learns when a server is asked no more.
func (p *Policy) watchers() []Watcher {
	if p.Outer.Observer == nil {
		return []Watcher{{Observer: p.Observer}}
	}
	return []Watcher{{Observer: p.Observer}, p.Outer}
}

// Open reports whether all calls are granted that Redis does not decide.
func (p *Policy) Open() bool { return p.Fallback == nil && p.Failure != nil && p.Failure.Open() }

// Local returns the share of the rate that a local limiter has, and whether one answers.
func (p *Policy) Local() (share float64, ok bool) {
	if p.Failure == nil || p.Fallback != nil {
		return 0, false
	}
	return p.Failure.Local()
}

// Account returns where the permits of a limiter are counted that this policy let through.
func (p *Policy) Account(limiter string) Account {
	a := Account{Limiter: limiter, Shadow: p.Shadow}
	if p.Failure != nil {
		a.Failure = *p.Failure
	}
	return a
}

// Plain reports whether the policy leaves all to Redis, and reports nothing.
func (p *Policy) Plain() bool {
	return p.Failure == nil && p.Fallback == nil && !p.Shadow && !p.Observer.Watches()
}

// Decide answers an ask and reports the answer to the observer.
func (p *Policy) Decide(ctx context.Context, of Asker, q Ask) (Answer, error) {
	if !p.Observer.Watches() && !p.Shadow {
		a, err := p.decide(ctx, of, q)
		return named(of, q, a), of.Fail(q, err)
	}
	if p.Shadow {
		q.Waits, q.Timeout = false, 0
	}
	start := time.Now()
	a, err := p.decide(ctx, of, q)
	a, err = named(of, q, a), of.Fail(q, err)
	p.report(ctx, of, q, a, err, start)
	switch {
	case !p.Shadow:
	case inShadow(ctx, a.Granted, err):
		a.Granted, a.RetryAfter, a.Taken, err = true, 0, q.Permits, nil
		each := p.AllowUncharged(of, q, 0)
		for i, one := range a.Each {
			d := &each[i].Decision
			d.Limit, d.Remaining, d.ResetAfter = one.Limit, one.Remaining, one.ResetAfter
		}
		a.Each, a.Undo = each, undoOf(each)
	case err == nil && q.UpTo:
		p.AllowUncharged(of, q, a.Taken)
		a.Taken = q.Permits
	}
	return a, err
}

// FromMemory is Decide for an answer that is known without asking. It returns no errors and, of limiters that
// only watch, no answers: Decide has both.
func (p *Policy) FromMemory(ctx context.Context, of Asker, q Ask) (a Answer, known bool) {
	if p.Shadow {
		return a, false
	}
	if a, known, _ = of.FromMemory(ctx, q); known {
		p.report(ctx, of, q, a, nil, time.Now())
	}
	return named(of, q, a), known
}

// named makes errors of an answer name the call and the limiter.
func named(of Asker, q Ask, a Answer) Answer {
	if undo := a.Undo; q.Undo && undo != nil {
		a.Undo = func(ctx context.Context) error { return of.Fail(q, undo(ctx)) }
	}
	if a.Cause != nil {
		a.Cause = of.Fail(q, a.Cause)
	}
	return a
}

// report is Tell for each of the limiters.
func (p *Policy) report(ctx context.Context, of Asker, q Ask, a Answer, err error, start time.Time) {
	if !p.Observer.Watches() {
		return
	}
	for _, l := range of.Limiters(q) {
		q.Permits = l.Permits
		p.Tell(ctx, l.Observed, q, a, err, start)
	}
}

// Tell reports to the observer a limiter's answer to an ask that began at start.
func (p *Policy) Tell(ctx context.Context, limiter string, q Ask, a Answer, err error, start time.Time) {
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

// AllowUncharged notes the permits that a caller has and Redis was not charged for, all but those charged, and
// returns them as grants of each of the limiters.
func (p *Policy) AllowUncharged(of Asker, q Ask, charged int64) (each []Answer) {
	for _, l := range of.Limiters(q) {
		a := Answer{Taken: l.Permits - charged}
		a.Granted, a.Undo = true, p.uncharged(l, a.Taken)
		each = append(each, a)
	}
	return each
}

// uncharged notes permits of a limiter that Redis was not charged for, and returns what undoes that.
func (p *Policy) uncharged(l Limiter, permits int64) (undo func(context.Context) error) {
	if p.Guard == nil || permits == 0 {
		return func(context.Context) error { return nil }
	}
	account := p.Account(l.Name)
	p.Guard.AddUncharged(account, permits, l.Rule.Window)
	return func(context.Context) error {
		p.Guard.TakeUncharged(account, permits)
		return nil
	}
}

// undoOf returns what undoes each of some grants that Redis was not charged for, which does not fail.
func undoOf(each []Answer) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, one := range each {
			_ = one.Undo(ctx)
		}
		return nil
	}
}

func (p *Policy) decide(ctx context.Context, of Asker, q Ask) (Answer, error) {
	if a, known, err := of.FromMemory(ctx, q); known || err != nil {
		return a, err
	}
	if !p.guards() {
		return of.Ask(ctx, q)
	}
	return p.guarded(ctx, of, q)
}

// guards reports whether something answers while Redis does not decide, if only that it does not.
func (p *Policy) guards() bool { return p.Failure != nil || p.Fallback != nil }

// guarded asks Redis, or what answers instead, until the caller need not wait any more.
func (p *Policy) guarded(ctx context.Context, of Asker, q Ask) (Answer, error) {
	start, timeout := time.Now(), q.Timeout
	for {
		if err := p.Guard.ended(); err != nil {
			return Answer{}, err
		}
		a, undecided, err := p.ask(ctx, of, q, p.watchers)
		if !undecided {
			return a, err
		}
		if a, err = p.instead(ctx, of, q, err); err != nil || a.Granted || !q.Waits {
			return a, err
		}
		if more, err := p.pause(ctx, a.RetryAfter, start, timeout); !more || err != nil {
			return a, err
		}
		if q.Timeout = timeout - time.Since(start); timeout > 0 && q.Timeout <= 0 {
			q.Waits, q.Timeout = false, 0
		}
	}
}

// ask asks Redis, if its server is not known to leave calls undecided, and reports whether
// it left this one so.
func (p *Policy) ask(ctx context.Context, of Asker, q Ask, watchers func() []Watcher) (a Answer, undecided bool, err error) {
	b, decides := of.Server(ctx, q)
	if !b.Allows(decides, watchers) {
		return Answer{}, true, ErrNotSent
	}
	start := time.Now()
	a, err = of.Ask(ctx, q)
	switch {
	case IsUndecided(err):
		undecided = true
	case errors.Is(err, context.DeadlineExceeded) && a.Unanswered && b.CallerGaveUp(start):
		// The caller has gone, but the server is silent.
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return a, false, err
	default:
		b.Decided()
		if _, isLocal := p.Local(); isLocal && err == nil {
			of.Learn(q, a)
		}
		return a, false, err
	}
	if b.Failed(start, err, watchers) {
		err = known{err}
	}
	return a, undecided, err
}

// instead answers in place of Redis. What Failure grants is not charged: it goes to the accounts. Of
// several limiters all grant, or none does.
func (p *Policy) instead(ctx context.Context, of Asker, q Ask, cause error) (a Answer, err error) {
	if p.Fallback != nil {
		if ctx.Err() != nil {
			return a, cause
		}
		if a, err = p.Fallback(ctx, q); err != nil {
			err = errors.Join(cause, fmt.Errorf("fallback: %w", err))
		}
		a.By, a.Cause = limit.FromFallback, cause
		return a, err
	}
	var each []Answer
	all := of.Limiters(q)
	for i, l := range all {
		one := q
		one.Permits = l.Permits
		if a, err = p.decideLocally(l, one, cause); !a.Granted {
			_ = undoOf(each)(ctx)
			each = append(each, a)
			for range all[i+1:] { // not asked
				each = append(each, Answer{Decision: limit.Decision{Granted: true}})
			}
			a.Each = each
			return a, err
		}
		each = append(each, a)
	}
	a.Each, a.Undo = each, undoOf(each)
	return a, nil
}

// decideLocally is instead for one limiter.
func (p *Policy) decideLocally(l Limiter, q Ask, cause error) (a Answer, err error) {
	share, isLocal := p.Local()
	giveBack := func() {}
	defer func() {
		if a.Granted {
			undo := p.uncharged(l, a.Taken)
			a.Undo = func(ctx context.Context) error {
				giveBack()
				return undo(ctx)
			}
		}
	}()
	switch {
	case p.Open():
		return Answer{Decision: limit.Decision{Granted: true}, By: limit.FromOpen, Taken: q.Permits, Cause: cause}, nil
	case !isLocal:
		return Answer{}, cause
	case l.Rule.Window <= 0:
		return Answer{}, fmt.Errorf("%w: FailLocal: the limiter has not told its rate yet", cause)
	}
	least, rule := q.Permits, Share(l.Rule, share)
	if q.UpTo {
		least = 1
	}
	a = Answer{By: limit.FromLocal, Cause: cause, Window: rule.Window}
	a.Decision, a.Taken, giveBack = p.Guard.locals.TakeUpTo(l.Name, least, q.Permits, rule)
	if least > rule.Permits {
		a.RetryAfter = lastPace // Redis may be back by then, and has more
	}
	return a, nil
}

// Share returns a part of a rule: fewer permits, and if that would be less than one, one
// in a longer window.
func Share(rule local.Rule, share float64) local.Rule {
	part := float64(rule.Permits) * share
	if part >= 1 || part == 0 {
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
		left := timeout - time.Since(start)
		if left <= 0 {
			return false, nil
		}
		wait = min(wait, left)
	}
	err = p.Guard.wait(ctx, wait)
	return err == nil, err
}
