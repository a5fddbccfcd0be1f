package outage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/failure"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Policy is what answers callers: Redis, and while it does not decide Fallback or what Failure says.
type Policy struct {
	Guard    *Guard
	Observer *observe.Observer
	Failure  *limit.Failure                                           // nil: errors stay errors
	Fallback func(context.Context, decide.Ask) (decide.Answer, error) // takes the place of Failure; nil: none
	Shadow   bool                                                     // limiters only watch
	Outer    Watcher                                                  // the middleware that callers come through, if it has an observer
}

// Open reports whether all calls are granted that Redis does not decide.
func (p *Policy) Open() bool {
	return p.Fallback == nil && p.Failure != nil && failure.IsOpen(*p.Failure)
}

// Local returns the share of the rate that a local limiter has, and whether one answers.
func (p *Policy) Local() (share float64, ok bool) {
	if p.Failure == nil || p.Fallback != nil {
		return 0, false
	}
	return failure.Share(*p.Failure)
}

// CheckFailure returns limit.ErrInvalidConfig for a share that is out of range.
func CheckFailure(f limit.Failure) error {
	if share, isLocal := failure.Share(f); isLocal && !(share > 0 && share <= 1) {
		return fmt.Errorf("%w: WithFailure: FailLocal: the share %v is not above 0 and at most 1", limit.ErrInvalidConfig, share)
	}
	return nil
}

// guards reports whether something answers while Redis does not decide, if only that it does not.
func (p *Policy) guards() bool { return p.Failure != nil || p.Fallback != nil }

// Plain reports whether the policy leaves all to Redis, and reports nothing.
func (p *Policy) Plain() bool { return !p.guards() && !p.Shadow && !p.Observer.Watches() }

// Decide answers an ask and reports the answer to the observer.
func (p *Policy) Decide(ctx context.Context, of Asker, q decide.Ask) (decide.Answer, error) {
	start := time.Now()
	a, err := p.Ask(ctx, of, q, start)
	return p.Complete(ctx, of, q, a, err, start)
}

// Settler returns what settles an answer of one limiter.
func (p *Policy) Settler(of Asker, q decide.Ask, a decide.Answer) func(ctx context.Context, actual int64) error {
	r := &decide.Reservation{}
	r.Init(p.Observer, of.Limiters(q), q, a)
	return func(ctx context.Context, actual int64) error { return r.Settle(ctx, actual) }
}

// Ask asks for a caller that came at start: memory, Redis, or while that does not decide what the policy has instead. A
// caller that waits goes back to Redis from time to time.
func (p *Policy) Ask(ctx context.Context, of Asker, q decide.Ask, start time.Time) (decide.Answer, error) {
	if p.Shadow || q.Watched {
		q.MayWait, q.Timeout = false, 0
	}
	if a, known, err := of.FromMemory(ctx, q); known || err != nil {
		return a, err
	}
	timeout := q.Timeout
	for q.Start = start; ; q.Start = time.Now() {
		a, err := Send(ctx, of, q, p)
		if !a.Undecided {
			p.Learn(of, q, a, err)
			return a, err
		}
		a, err = p.Instead(ctx, of, q, a.Known, err)
		if err != nil || a.Granted || !q.MayWait {
			return a, err
		}
		wait := longestWait
		if a.RetryAfter > 0 {
			wait = min(wait, a.RetryAfter)
		}
		if timeout > 0 {
			wait = min(wait, timeout-time.Since(start))
		}
		if wait <= 0 {
			return a, nil
		}
		if err := p.Guard.wait(ctx, wait); err != nil {
			return a, err
		}
		if timeout > 0 {
			q.Timeout = max(0, timeout-time.Since(start))
			q.MayWait = q.Timeout > 0
		}
	}
}

// longestWait is how long a caller that waits lets pass before it looks whether Redis is back.
const longestWait = 500 * time.Millisecond

// Send asks Redis for callers with these policies. If one of them has something that answers instead, a server that is
// known to leave calls undecided is not asked, and the answer says whether the policies are to answer.
func Send(ctx context.Context, of Asker, q decide.Ask, by ...*Policy) (a decide.Answer, err error) {
	if !slices.ContainsFunc(by, (*Policy).guards) {
		a, err = of.Ask(ctx, q)
		a.Undecided = false
		return a, err
	}
	select {
	case <-by[0].Guard.closed:
		return a, limit.ErrClosed
	default:
	}
	b := of.Breaker(ctx, q)
	if b.Open() && !b.Allows(of.Probe(ctx, q), by...) {
		return decide.Answer{Undecided: true, Known: true}, ErrNotSent
	}
	a, err = of.Ask(ctx, q)
	canceled := errors.Is(err, context.Canceled)
	ended := errors.Is(err, context.DeadlineExceeded) || canceled && nearlyOver(ctx)
	switch {
	case a.Undecided || errors.Is(err, limit.ErrUnavailable):
		a.Undecided, a.Known = true, b.Failed(q.Start, err, by...)
	case ended && a.Unanswered && b.CallerGaveUp(q.Start): // the caller has gone, but the server is silent
		a.Known = b.Failed(q.Start, fmt.Errorf("no decision in a caller's time: %w", err), by...)
	case ended, canceled:
	default:
		b.Decided()
	}
	return a, err
}

// nearlyOver reports whether ctx's deadline is as good as over: a gRPC client cancels its call then, and the server, which
// learnt of the deadline a little later, sees that first.
func nearlyOver(ctx context.Context) bool {
	end, has := ctx.Deadline()
	return has && time.Until(end) <= 5*time.Millisecond
}

// Learn notes what an answer of Redis shows of the limiters' rates, if a local limiter may need them.
func (p *Policy) Learn(of Asker, q decide.Ask, a decide.Answer, err error) {
	if _, isLocal := p.Local(); isLocal && err == nil {
		of.Learn(q, a)
	}
}

// Instead answers in place of Redis, which has left an ask undecided because of cause; known says that others have
// met that before.
func (p *Policy) Instead(ctx context.Context, of Asker, q decide.Ask, known bool, cause error) (a decide.Answer, err error) {
	switch share, isLocal := p.Local(); {
	case p.Fallback != nil && ctx.Err() == nil:
		if a, err = p.Fallback(ctx, q); err != nil {
			err = errors.Join(cause, fmt.Errorf("fallback: %w", err))
		}
		a.By, a.Cause = limit.FromFallback, cause
	case p.Open():
		a = p.allowAll(of.Limiters(q))
		a.By, a.Cause = limit.FromOpen, cause
	case isLocal:
		a, err = p.locally(ctx, of.Limiters(q), share, q.UpTo, cause)
	default:
		err = cause
	}
	a.Known = known
	return a, err
}

// allowAll grants what is asked of each limiter, and charges it to the accounts.
func (p *Policy) allowAll(all []decide.Limiter) decide.Answer {
	each := make([]decide.Answer, len(all))
	for i, l := range all {
		each[i].Granted, each[i].Taken, each[i].Undo = true, l.Permits, p.Allow(l, l.Permits)
	}
	return decide.Answer{Decision: limit.Decision{Granted: true}, Taken: all[0].Permits, Each: each, Undo: undoOf(each)}
}

// locally lets local limiters answer. Of several all grant, or none does.
func (p *Policy) locally(ctx context.Context, all []decide.Limiter, share float64, upTo bool, cause error) (a decide.Answer, err error) {
	each := make([]decide.Answer, len(all))
	for i, l := range all {
		if a, err = p.takeLocally(l, share, upTo, cause); !a.Granted {
			_ = undoOf(each[:i])(ctx)
			for j := range all[i+1:] { // not asked
				each[i+1+j].Granted = true
			}
			each[i], a.Each = a, each
			return a, err
		}
		each[i] = a
	}
	a.Each, a.Undo = each, undoOf(each)
	return a, nil
}

// takeLocally is locally for one limiter.
func (p *Policy) takeLocally(l decide.Limiter, share float64, upTo bool, cause error) (decide.Answer, error) {
	if l.Rule.Window <= 0 {
		return decide.Answer{}, fmt.Errorf("%w: FailLocal: the limiter has not told its rate yet", cause)
	}
	least, rule := l.Permits, Share(l.Rule, share)
	if upTo {
		least = 1
	}
	a := decide.Answer{By: limit.FromLocal, Cause: cause, Window: rule.Window}
	var giveBack func()
	a.Decision, a.Taken, giveBack = p.Guard.locals.Take(l.Name, least, l.Permits, rule)
	switch {
	case a.Granted:
		undo := p.Allow(l, a.Taken)
		a.Undo = func(ctx context.Context) error {
			giveBack()
			return undo(ctx)
		}
	case least > rule.Permits:
		a.RetryAfter = lastPace // Redis may be back by then, and has more
	}
	return a, nil
}

// Share returns a part of a rule: fewer permits, and if that would be less than one, one in a longer window.
func Share(rule local.Rule, share float64) local.Rule {
	part := float64(rule.Permits) * share
	if part >= 1 || part == 0 {
		rule.Permits = int64(part)
		return rule
	}
	window := float64(rule.Window) / part
	return local.Rule{Permits: 1, Window: time.Duration(min(window, float64(math.MaxInt64/2)))}
}

// Complete reports an answer, with errors that name the call and the limiter. A limiter that only watches grants
// what it has refused.
func (p *Policy) Complete(ctx context.Context, of Asker, q decide.Ask, a decide.Answer, err error, start time.Time) (decide.Answer, error) {
	if err != nil || a.Cause != nil {
		err, a.Cause = of.Fail(q, err), of.Fail(q, a.Cause)
	}
	if q.Undo && a.Undo != nil {
		a.Undo = undoFor(of, q, a.Undo)
	}
	if p.Shadow || p.Observer.Watches() {
		return p.reported(ctx, of, q, a, err, start)
	}
	return a, err
}

// undoFor returns an undo whose errors name the call and the limiter.
func undoFor(of Asker, q decide.Ask, undo func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return of.Fail(q, undo(ctx)) }
}

// reported is the part of Complete for a policy that watches or is watched.
func (p *Policy) reported(ctx context.Context, of Asker, q decide.Ask, a decide.Answer, err error, start time.Time) (decide.Answer, error) {
	all, answered, failure := of.Limiters(q), a, err
	report := func() {
		for i, l := range all {
			d := answered.Part(i).Decision
			p.Observer.Decided(ctx, limit.Decided{
				Limiter: l.Observed, Call: q.Call, Permits: l.Permits, Source: answered.By, Start: start, Shadow: p.Shadow || q.Watched,
				Limit: d.Limit, Remaining: d.Remaining,
			}, answered.Granted, failure)
		}
	}
	if q.Watched {
		a.Report = report
		return a, err
	}
	report()
	switch {
	case !p.Shadow:
	case inShadow(ctx, a.Granted, err):
		allowed := p.allowAll(all)
		for i := range allowed.Each {
			d := a.Part(i).Decision
			d.Granted, d.RetryAfter = true, 0
			allowed.Each[i].Decision = d
		}
		a.Granted, a.RetryAfter, a.Taken, err = true, 0, q.Permits, nil
		a.Each, a.Undo = allowed.Each, allowed.Undo
	case err == nil && q.UpTo:
		p.Allow(all[0], q.Permits-a.Taken)
		a.Taken = q.Permits
	}
	return a, err
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

// undoOf returns what undoes each of some grants that Redis was not charged for, which does not fail.
func undoOf(each []decide.Answer) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, one := range each {
			_ = one.Undo(ctx)
		}
		return nil
	}
}
