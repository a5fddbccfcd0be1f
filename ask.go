package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// asker is a RateLimiter in the role of outage.Joint.
type asker RateLimiter

func (l *asker) FromMemory(ctx context.Context, q decide.Ask) (a decide.Answer, known bool, err error) {
	if err = (*RateLimiter)(l).check(ctx, q.Call, q.Permits, 1, MaxPermits, q.Reserve); err == nil {
		known = l.client.engine.FromMemory(ctx, &l.facts, &q, &a)
	}
	return a, known, err
}

func (l *asker) Ask(ctx context.Context, q decide.Ask) (a decide.Answer, err error) {
	err = l.client.engine.Acquire(ctx, &l.facts, &q, &a)
	return a, err
}

func (l *asker) Fail(q decide.Ask, err error) error { return (*RateLimiter)(l).fail(q.Call, err) }

func (l *asker) Breaker(ctx context.Context, _ decide.Ask) *outage.Breaker {
	return l.client.engine.Breaker(ctx, &l.facts)
}

func (l *asker) Probe(context.Context, decide.Ask) func() bool {
	return l.client.engine.Probe(&l.facts)
}

func (l *asker) Limiters(q decide.Ask) []decide.Limiter {
	return []decide.Limiter{l.limiter(q.Permits)}
}

func (l *asker) limiter(permits int64) decide.Limiter {
	return decide.Limiter{
		Of: l, Observed: l.facts.Observed, Name: l.facts.Config, Rule: l.rule(), Permits: permits, Most: MaxPermits, Releases: true,
	}
}

// rate is what a handle knows of its limiter's rate.
type rate struct {
	last   atomic.Pointer[limit.Rate]
	heard  atomic.Int64 // when Redis last confirmed it, Unix ns
	asking atomic.Bool
}

// learnAgain is the age at which a handle in use reads its limiter's rate again: most grants
// do not report the rate, and others may change it.
const learnAgain = time.Minute

// rule is the limiter's rate for a local limiter; zero if it is not known.
func (l *asker) rule() local.Rule {
	r := l.facts.Rate
	if known := l.known.last.Load(); known != nil {
		r = *known
	}
	return local.Rule{Permits: r.Permits, Window: r.Interval}
}

// Learn makes the handle read the limiter's rate. The figures of a decision, if there are any, show
// whether the rate is another than before.
func (l *asker) Learn(q decide.Ask, a decide.Answer) {
	now, heard, rule := q.Start.UnixNano(), l.known.heard.Load(), l.rule()
	switch {
	case rule.Permits == 0, q.Figures && (a.Limit != rule.Permits || a.ResetAfter > rule.Window):
	case heard == 0 || q.Figures && a.Granted && a.ResetAfter == rule.Window:
		l.known.heard.Store(now)
		return
	case now-heard < int64(learnAgain):
		return
	}
	if l.known.asking.Swap(true) {
		return
	}
	go func() {
		defer l.known.asking.Store(false)
		defer func() { _ = recover() }() // a hook of the Redis client's may panic
		if r, err := l.client.engine.Rate(context.Background(), &l.facts); err == nil {
			l.known.last.Store(&r)
			l.known.heard.Store(now)
		}
	}()
}

// group is what limiters that middleware asks together have in common.
type group struct {
	client *Client
	tag    string
}

// Group returns nil for a limiter that only watches, which must not refuse for others, and for one that answers
// from memory, which learns only from its own answers.
func (l *asker) Group(q decide.Ask) any {
	if l.policy.Shadow || !q.Reserve && (l.facts.Lease != nil || l.facts.Refusals != nil) {
		return nil
	}
	return group{l.client, script.HashTag(l.facts.Config)}
}

func (l *asker) Together(all []outage.Asker, asks []decide.Ask) outage.Asker {
	claims := make([]Claim, len(all))
	for i, of := range all {
		one, _ := of.(*asker)
		claims[i] = Claim{(*RateLimiter)(one), asks[i].Permits, reserveOptions{hold: asks[i].Hold}, !asks[i].Reserve}
	}
	return &jointAsker{l.client, claims}
}

// jointAsker is limiters that grant together or not at all.
type jointAsker struct {
	*Client

	claims []Claim
}

func (j *jointAsker) FromMemory(ctx context.Context, q decide.Ask) (a decide.Answer, known bool, err error) {
	err = j.checkAll(j.claims, q.Reserve)
	if err == nil && j.rules.KeepsNoMembers() {
		err = j.rules.Unsupported(q.Call)
	}
	return a, false, cmp.Or(err, ctx.Err())
}

func (j *jointAsker) Ask(ctx context.Context, q decide.Ask) (decide.Answer, error) {
	claims := make([]engine.Claim, len(j.claims))
	for i, claim := range j.claims {
		claims[i] = engine.Claim{Limiter: &claim.limiter.facts, Permits: claim.permits, Hold: claim.of.hold, Undo: claim.undo}
	}
	return j.engine.AcquireAll(ctx, claims, q)
}

// Fail adds to an error of the call which limiter caused it, if one did.
func (j *jointAsker) Fail(q decide.Ask, err error) error {
	if err == nil {
		return nil
	}
	if of, known := errors.AsType[*engine.Error](err); known {
		return &engine.Error{Op: q.Call, Name: of.Name, Err: of.Err}
	}
	return fmt.Errorf("rratelimiter: %s: %w", q.Call, err)
}

func (j *jointAsker) Breaker(ctx context.Context, _ decide.Ask) *outage.Breaker {
	return j.engine.Breaker(ctx, &j.claims[0].limiter.facts)
}

func (j *jointAsker) Probe(context.Context, decide.Ask) func() bool {
	return j.engine.Probe(&j.claims[0].limiter.facts)
}

func (j *jointAsker) Learn(q decide.Ask, a decide.Answer) {
	for i, claim := range j.claims {
		(*asker)(claim.limiter).Learn(q, a.Part(i))
	}
}

func (j *jointAsker) Limiters(decide.Ask) (all []decide.Limiter) {
	for _, claim := range j.claims {
		if claim.limiter != nil {
			all = append(all, (*asker)(claim.limiter).limiter(claim.permits))
		}
	}
	return all
}
