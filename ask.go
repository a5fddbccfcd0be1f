package rratelimiter

import (
	"context"
	"errors"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// asker is a RateLimiter in the role of outage.Asker.
type asker RateLimiter

func (l *asker) Check(ctx context.Context, q outage.Question) (limit.Decision, error) {
	err := (*RateLimiter)(l).checkPermits(ctx, q.Permits)
	if err == nil && q.Settled && l.client.rules.KeepsNoMembers() {
		err = l.client.rules.Unsupported(q.Call)
	}
	return limit.Decision{}, err
}

func (l *asker) AtHand(ctx context.Context, q outage.Question) (outage.Answer, bool) {
	return l.client.engine.AtHand(ctx, &l.facts, q)
}

func (l *asker) Ask(ctx context.Context, q outage.Question) (outage.Answer, error) {
	return l.client.engine.Acquire(ctx, &l.facts, q)
}

func (l *asker) Fail(q outage.Question, err error) error { return (*RateLimiter)(l).fail(q.Call, err) }

func (l *asker) Server(ctx context.Context, _ outage.Question) (*outage.Breaker, func() bool) {
	return l.client.engine.Server(ctx, &l.facts)
}

func (l *asker) Learn(q outage.Question, a outage.Answer) {
	if q.Figures && a.By == limit.FromRedis {
		l.learn(*l.policy.Failure, &a.Decision)
	} else {
		l.learn(*l.policy.Failure, nil)
	}
}

func (l *asker) Limiters(outage.Question) []outage.Limiter {
	return []outage.Limiter{{Observed: l.facts.Observed, Account: l.account(), Rule: l.rule()}}
}

// account returns where the handle counts permits that Redis was not charged for.
func (l *asker) account() outage.Account {
	a := outage.Account{Limiter: l.facts.Config, Shadow: l.policy.Shadow}
	if l.policy.Failure != nil {
		a.Failure = *l.policy.Failure
	}
	return a
}

// jointAsker is limiters that grant together or not at all.
type jointAsker struct {
	*Client

	limiters []*RateLimiter
}

func (j *jointAsker) Check(ctx context.Context, q outage.Question) (limit.Decision, error) {
	err := j.checkAll(j.limiters)
	switch {
	case err != nil:
	case q.Permits < 1 || q.Permits > MaxPermits:
		err = fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidPermits, q.Permits, int64(MaxPermits))
	case j.rules.KeepsNoMembers():
		err = j.rules.Unsupported("TryAcquireAll")
	default:
		err = ctx.Err()
	}
	return limit.Decision{}, err
}

func (j *jointAsker) AtHand(ctx context.Context, q outage.Question) (a outage.Answer, known bool) {
	if len(j.limiters) > 1 {
		return a, false
	}
	return (*asker)(j.limiters[0]).AtHand(ctx, q)
}

func (j *jointAsker) Ask(ctx context.Context, q outage.Question) (outage.Answer, error) {
	if len(j.limiters) == 1 {
		l := j.limiters[0]
		a, err := j.engine.Acquire(ctx, &l.facts, q)
		return a, l.blame(err)
	}
	facts := make([]*engine.Limiter, len(j.limiters))
	for i, l := range j.limiters {
		facts[i] = &l.facts
	}
	granted, err := j.engine.AcquireAll(ctx, facts, q.Permits, q.Timeout)
	// One that waits may have been refused before.
	return outage.Answer{Decision: limit.Decision{Granted: granted}, By: limit.FromRedis, Unanswered: !q.Waits}, err
}

// Fail adds to an error of the call which limiter caused it, if one did.
func (j *jointAsker) Fail(q outage.Question, err error) error {
	if err == nil {
		return nil
	}
	if of, known := errors.AsType[*engine.Error](err); known {
		return &engine.Error{Op: q.Call, Name: of.Name, Err: of.Err}
	}
	return fmt.Errorf("rratelimiter: %s: %w", q.Call, err)
}

func (j *jointAsker) Server(ctx context.Context, _ outage.Question) (*outage.Breaker, func() bool) {
	return j.engine.Server(ctx, &j.limiters[0].facts)
}

func (j *jointAsker) Learn(outage.Question, outage.Answer) {
	for _, l := range j.limiters {
		(*asker)(l).learn(*j.options.Failure, nil)
	}
}

func (j *jointAsker) Limiters(q outage.Question) (all []outage.Limiter) {
	for _, l := range j.limiters {
		if l != nil {
			all = append(all, (*asker)(l).Limiters(q)...)
		}
	}
	return all
}
