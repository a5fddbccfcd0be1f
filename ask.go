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

func (l *asker) AtHand(ctx context.Context, q outage.Question) (a outage.Answer, known bool, err error) {
	if err := (*RateLimiter)(l).checkPermits(ctx, q.Permits); err != nil {
		return a, false, err
	}
	if q.Settled && l.client.rules.KeepsNoMembers() {
		return a, false, l.client.rules.Unsupported(q.Call)
	}
	a, known = l.client.engine.AtHand(ctx, &l.facts, q)
	return a, known, nil
}

func (l *asker) Ask(ctx context.Context, q outage.Question) (outage.Answer, error) {
	return l.client.engine.Acquire(ctx, &l.facts, q)
}

func (l *asker) Fail(q outage.Question, err error) error { return (*RateLimiter)(l).fail(q.Call, err) }

func (l *asker) Server(ctx context.Context, _ outage.Question) (*outage.Breaker, func() bool) {
	return l.client.engine.Server(ctx, &l.facts)
}

func (l *asker) Limiters(outage.Question) []outage.Limiter {
	return []outage.Limiter{{Observed: l.facts.Observed, Name: l.facts.Config, Rule: l.rule()}}
}

// jointAsker is limiters that grant together or not at all.
type jointAsker struct {
	*Client

	limiters []*RateLimiter
}

func (j *jointAsker) AtHand(ctx context.Context, q outage.Question) (a outage.Answer, known bool, err error) {
	err = j.checkAll(j.limiters)
	switch {
	case err != nil:
	case q.Permits < 1 || q.Permits > MaxPermits:
		err = fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidPermits, q.Permits, int64(MaxPermits))
	case j.rules.KeepsNoMembers():
		err = j.rules.Unsupported("TryAcquireAll")
	case len(j.limiters) == 1:
		return (*asker)(j.limiters[0]).AtHand(ctx, q)
	default:
		err = ctx.Err()
	}
	return a, false, err
}

func (j *jointAsker) Ask(ctx context.Context, q outage.Question) (a outage.Answer, err error) {
	facts := make([]*engine.Limiter, len(j.limiters))
	for i, l := range j.limiters {
		facts[i] = &l.facts
	}
	if len(facts) == 1 {
		a, err = j.engine.Acquire(ctx, facts[0], q)
		err = j.limiters[0].blame(err)
	} else {
		a.By, a.Unanswered = limit.FromRedis, !q.Waits // one that waits may have been refused before
		a.Granted, err = j.engine.AcquireAll(ctx, facts, q.Permits, q.Timeout)
	}
	return a, err
}

func (j *jointAsker) Learn(q outage.Question, a outage.Answer) {
	for _, l := range j.limiters {
		(*asker)(l).Learn(q, a)
	}
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

func (j *jointAsker) Limiters(q outage.Question) (all []outage.Limiter) {
	for _, l := range j.limiters {
		if l != nil {
			all = append(all, (*asker)(l).Limiters(q)...)
		}
	}
	return all
}
