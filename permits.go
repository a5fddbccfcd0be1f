package rratelimiter

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
)

// TryAcquire takes permits if they are free, or become free within timeout, and reports whether it did.
// With a timeout of 0 or less it asks once. Otherwise a refused call waits in line: callers of one
// Client are served first come first served, but one that has waited an interval without success no
// longer holds up those behind it. If a request is under way when the timeout ends, TryAcquire waits up to
// 100 ms longer for the answer, and with WithReplicas twice its wait beside that.
//
// When ctx ends, TryAcquire returns ctx.Err() at once, and any later grant is given back. The exception: if
// the Redis client has ContextTimeoutEnabled, a call that shares no round trip notices a cancelled ctx only
// with the answer. Other errors: ErrInvalidPermits, ErrPermitsExceedRate, ErrNotInitialized, ErrCorrupt,
// ErrClosed, and ErrUnavailable if Redis did not decide in time. If it may have taken permits, which come
// back after an interval, that error is ErrUnknownOutcome too.
func (l *RateLimiter) TryAcquire(ctx context.Context, permits int64, timeout time.Duration) (bool, error) {
	if l.leased(ctx, permits) {
		return true, nil
	}
	var a decide.Answer
	err := l.decide(ctx, &decide.Ask{Call: "TryAcquire", Permits: permits, MayWait: timeout > 0, Timeout: timeout}, &a)
	return a.Granted, err
}

// Acquire takes permits, and waits for them until ctx ends: it is TryAcquire without a timeout. It does
// not wait longer than [WithCallTimeout] for a Redis that does not answer.
func (l *RateLimiter) Acquire(ctx context.Context, permits int64) error {
	if l.leased(ctx, permits) {
		return nil
	}
	return l.decide(ctx, &decide.Ask{Call: "Acquire", Permits: permits, MayWait: true}, &decide.Answer{})
}

// Wait is [RateLimiter.WaitN] for one permit.
func (l *RateLimiter) Wait(ctx context.Context) error { return l.wait(ctx, "Wait", 1) }

// WaitN is Acquire that gives up as soon as Redis answers that so many permits are not free before the deadline of
// ctx, like WaitN of golang.org/x/time/rate. The error then wraps context.DeadlineExceeded and says when they are.
// With [WithRefusalCache] a remembered refusal tells as much without a round trip.
func (l *RateLimiter) WaitN(ctx context.Context, permits int64) error {
	return l.wait(ctx, "WaitN", permits)
}

func (l *RateLimiter) wait(ctx context.Context, op string, permits int64) error {
	q := decide.Ask{Call: op, Permits: permits, MayWait: true}
	q.Until, _ = ctx.Deadline()
	var a decide.Answer
	err := l.decide(ctx, &q, &a)
	if err == nil && !a.Granted {
		missing, then := "no permit is", "the next one is"
		if permits > 1 {
			missing, then = "fewer than "+words.Plural(permits, "permit")+" are", "so many are"
		}
		err = l.fail(op, fmt.Errorf("%s free before the deadline, %s in %v: %w", missing, then, a.RetryAfter, context.DeadlineExceeded))
	}
	return err
}

// Take takes permits if they are free now, and returns the figures that clients may want to see. RetryAfter
// is a lower bound if more than 256 grants must come back first. The errors are those of TryAcquire.
func (l *RateLimiter) Take(ctx context.Context, permits int64) (limit.Decision, error) {
	var a decide.Answer
	err := l.decide(ctx, &decide.Ask{Call: "Take", Permits: permits, Figures: true}, &a)
	return a.Decision, err
}

// TakeUpTo takes as many permits as are free now, at most permits, and returns how many. If none is
// free it returns 0 and a Decision that is not Granted, with the RetryAfter of one permit. permits may
// exceed the rate. The errors are those of TryAcquire except ErrPermitsExceedRate.
func (l *RateLimiter) TakeUpTo(ctx context.Context, permits int64) (int64, limit.Decision, error) {
	var a decide.Answer
	err := l.decide(ctx, &decide.Ask{Call: "TakeUpTo", Permits: permits, Figures: true, UpTo: true}, &a)
	return a.Taken, a.Decision, err
}

// Peek returns what Take would return now, without taking anything; Peek(ctx, 0) answers how many permits are
// free, as Remaining, and is not Granted only if more are in use than the rate has. It changes nothing in Redis, not even
// times to live, unless an override has just ended, and a later Take may still be refused. It always asks Redis, even if
// WithRefusalCache remembers a refusal. It counts permits of a lease as in use. With WithDefault it answers for a limiter
// that has no rate as if it had been set up. Errors are those of Take, never ErrUnknownOutcome.
func (l *RateLimiter) Peek(ctx context.Context, permits int64) (limit.Decision, error) {
	const op = "Peek"
	d, err := limit.Decision{}, l.check(ctx, op, permits, 0, MaxPermits, false)
	if err == nil {
		d, err = l.client.engine.Peek(ctx, &l.facts, permits)
	}
	return d, l.fail(op, err)
}

// decide asks for permits, and reports the answer to the observer. Without options that need a policy it asks
// memory, if there is any, and then Redis.
func (l *RateLimiter) decide(ctx context.Context, q *decide.Ask, a *decide.Answer) (err error) {
	if q.Undo || !l.policy.Plain() {
		*a, err = l.policy.Decide(ctx, (*asker)(l), *q)
		return err
	}
	err = l.check(ctx, q.Call, q.Permits, 1, MaxPermits, q.Reserve)
	if err == nil {
		if l.client.engine.FromMemory(ctx, &l.facts, q, a) {
			return nil
		}
		err = l.client.engine.Acquire(ctx, &l.facts, q, a)
	}
	return l.fail(q.Call, err)
}

// leased takes permits from the handle's lease, if it has one, for a caller who wants nothing else to know.
func (l *RateLimiter) leased(ctx context.Context, permits int64) bool {
	return l.facts.Lease != nil && l.policy.Plain() && permits > 0 && permits <= MaxPermits && l.facts.Err == nil && ctx.Err() == nil &&
		l.client.engine.TakeLeased(ctx, &l.facts, permits)
}

// check returns an error if asking Redis about so many permits makes no sense. Some calls need members, which old
// Redissons don't keep.
func (l *RateLimiter) check(ctx context.Context, op string, permits, least, most int64, needsMembers bool) error {
	switch {
	case l.facts.Err != nil:
		return l.facts.Err
	case permits < least || permits > most:
		return fmt.Errorf("%w: %d is not between %d and %d", ErrInvalidPermits, permits, least, most)
	case ctx.Err() != nil:
		return ctx.Err()
	case needsMembers && l.client.rules.KeepsNoMembers():
		return l.client.rules.Unsupported(op)
	}
	return nil
}

// Release gives permits back before their interval is over: first those that this Client took last, even if
// others have taken permits since, then those that others took last. It gives back only permits in use. With 0
// permits it does nothing, with fewer it returns ErrInvalidPermits. Beside Redissons before 3.17.0 grants have
// no mark of their Client, and the newest go back; before 3.13.3 it returns ErrUnsupported. If its answer is
// lost, Release is not repeated and returns ErrUnknownOutcome.
//
// What WithShadow or WithFailure let through is not charged in Redis, so releasing it frees nothing.
// Release counts such permits first. They belong to the handle that let them through and to other handles
// of the limiter with the same WithShadow and WithFailure, such as those made for each request. Release
// of any other handle does not see them.
func (l *RateLimiter) Release(ctx context.Context, permits int64) error {
	const op = "Release"
	if err := cmp.Or(l.check(ctx, op, permits, 0, MaxRate, true), l.client.engine.Closed()); err != nil {
		return l.fail(op, err)
	}
	uncharged := l.policy.Released(l.facts.Config, permits)
	if permits == uncharged {
		return nil
	}
	err := l.client.engine.Release(ctx, &l.facts, permits-uncharged)
	if err != nil { // the caller still has all the permits
		l.policy.Allow((*asker)(l).limiter(uncharged), uncharged)
	}
	return l.fail(op, err)
}

// Reset frees all permits in use, as if none had been taken. The rate, the type, KeepAlive and the time to live
// stay. This Client's leases end. Callers that hold permits are not informed. Of a PerClient limiter it frees only
// what this Client has taken. If the limiter has no rate and no WithDefault, Reset returns ErrNotInitialized.
func (l *RateLimiter) Reset(ctx context.Context) error {
	_, err := l.change(ctx, "Reset", nil, lua.Reset, script.Constant{l.facts.Fallback})
	return err
}

// AvailablePermits returns how many permits are free now. With WithDefault, or through Keyed, a limiter that has no rate
// has all of its default's free, unless permits of it are still in use.
func (l *RateLimiter) AvailablePermits(ctx context.Context) (int64, error) {
	free, err := l.client.engine.Available(ctx, &l.facts)
	return max(0, free), l.fail("AvailablePermits", err)
}
