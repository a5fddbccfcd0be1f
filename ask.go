package rratelimiter

import (
	"context"
	"errors"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// asker is a RateLimiter in the role of outage.Joint.
type asker RateLimiter

func (l *asker) FromMemory(ctx context.Context, q outage.Ask) (a outage.Answer, known bool, err error) {
	if err = (*RateLimiter)(l).check(ctx, &q); err == nil {
		known = l.client.engine.FromMemory(ctx, &l.facts, &q, &a)
	}
	return a, known, err
}

func (l *asker) Ask(ctx context.Context, q outage.Ask) (a outage.Answer, err error) {
	err = l.client.engine.Acquire(ctx, &l.facts, &q, &a)
	return a, err
}

func (l *asker) Fail(q outage.Ask, err error) error { return (*RateLimiter)(l).fail(q.Call, err) }

func (l *asker) Server(ctx context.Context, _ outage.Ask) (*outage.Breaker, func() bool) {
	return l.client.engine.Server(ctx, &l.facts)
}

func (l *asker) Limiters(q outage.Ask) []outage.Limiter {
	return []outage.Limiter{l.limiter(q.Permits)}
}

func (l *asker) limiter(permits int64) outage.Limiter {
	return outage.Limiter{
		Asker: l, Observed: l.facts.Observed, Name: l.facts.Config, Rule: l.rule(), Permits: permits, Most: MaxPermits,
	}
}

// group is what limiters that middleware asks together have in common.
type group struct {
	client *Client
	tag    string
}

// Group returns nil for a limiter that only watches, which must not refuse for others, and for one that answers
// from memory, which learns only from its own answers.
func (l *asker) Group(q outage.Ask) any {
	if l.policy.Shadow || !q.Reserve && (l.facts.Lease != nil || l.facts.Refusals != nil) {
		return nil
	}
	return group{l.client, script.HashTag(l.facts.Config)}
}

func (l *asker) Together(parts []outage.Part) outage.Asker {
	claims := make([]Claim, len(parts))
	for i, p := range parts {
		one, _ := p.Asker.(*asker)
		claims[i] = (*RateLimiter)(one).Claim(p.Ask.Permits)
	}
	return &jointAsker{l.client, claims}
}

// jointAsker is limiters that grant together or not at all.
type jointAsker struct {
	*Client

	claims []Claim
}

func (j *jointAsker) FromMemory(ctx context.Context, q outage.Ask) (a outage.Answer, known bool, err error) {
	err = j.checkAll(j.claims)
	switch {
	case err != nil:
	case j.rules.KeepsNoMembers():
		err = j.rules.Unsupported(q.Call)
	case len(j.claims) == 1:
		a, known, err = (*asker)(j.claims[0].limiter).FromMemory(ctx, q)
		a.Each = []outage.Answer{a}
	default:
		err = ctx.Err()
	}
	return a, known, err
}

func (j *jointAsker) Ask(ctx context.Context, q outage.Ask) (a outage.Answer, err error) {
	if len(j.claims) == 1 {
		l := j.claims[0].limiter
		err = j.engine.Acquire(ctx, &l.facts, &q, &a)
		a.Each = []outage.Answer{a}
		return a, l.blame(err)
	}
	facts, permits := make([]*engine.Limiter, len(j.claims)), make([]int64, len(j.claims))
	for i, claim := range j.claims {
		facts[i], permits[i] = &claim.limiter.facts, claim.permits
	}
	return j.engine.AcquireAll(ctx, facts, permits, q)
}

func (j *jointAsker) Learn(q outage.Ask, a outage.Answer) {
	for i, claim := range j.claims {
		one := a
		if len(a.Each) > 0 {
			one = a.Each[i]
		}
		(*asker)(claim.limiter).Learn(q, one)
	}
}

// Fail adds to an error of the call which limiter caused it, if one did.
func (j *jointAsker) Fail(q outage.Ask, err error) error {
	if err == nil {
		return nil
	}
	if of, known := errors.AsType[*engine.Error](err); known {
		return &engine.Error{Op: q.Call, Name: of.Name, Err: of.Err}
	}
	return fmt.Errorf("rratelimiter: %s: %w", q.Call, err)
}

func (j *jointAsker) Server(ctx context.Context, _ outage.Ask) (*outage.Breaker, func() bool) {
	return j.engine.Server(ctx, &j.claims[0].limiter.facts)
}

func (j *jointAsker) Limiters(outage.Ask) (all []outage.Limiter) {
	for _, claim := range j.claims {
		if claim.limiter != nil {
			all = append(all, (*asker)(claim.limiter).limiter(claim.permits))
		}
	}
	return all
}
