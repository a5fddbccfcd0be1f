package lane

import (
	"cmp"
	"context"

	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Take asks for permits of q.Key: for q.Permits, or with q.UpTo for as many as are free. If ctx ends
// while the request waits for others, Take returns ctx.Err() at once; a later grant is given back.
func (g *Queues) Take(ctx context.Context, q outage.Question) (outage.Answer, error) {
	if most := g.rule.Limit; q.UpTo && most > 0 {
		q.Permits = min(q.Permits, most)
	}
	a, err := g.policy.Decide(ctx, g, q)
	if !a.Granted {
		a.Taken = 0
	}
	return a, err
}

// Check implements [outage.Asker], as do the following methods.
func (g *Queues) Check(ctx context.Context, q outage.Question) (limit.Decision, error) {
	return g.check(ctx, q.Key, q.Permits)
}

// AtHand knows nothing.
func (g *Queues) AtHand(context.Context, outage.Question) (a outage.Answer, known bool) {
	return a, false
}

// Ask sends a request and waits for its answer.
func (g *Queues) Ask(ctx context.Context, q outage.Question) (outage.Answer, error) {
	a, err := g.send(ctx, q.Key, &request{permits: q.Permits, upTo: q.UpTo})
	a.By, a.Unanswered = limit.FromRedis, true // a refusal makes no caller wait here
	return a, err
}

// Fail adds the package and the call to an error.
func (g *Queues) Fail(q outage.Question, err error) error {
	return Fail(g.rule.Package, q.Call, q.Key, err)
}

// Server returns the breaker of the key's server.
func (g *Queues) Server(ctx context.Context, q outage.Question) (*outage.Breaker, func() bool) {
	return g.lanes.Breaker(ctx, q.Key), func() bool { return script.Answers(g.lanes, script.KeysOf(q.Key), cmp.Or(g.rule.Write, "SET")) }
}

// Learn does nothing: the rule says what is usual.
func (g *Queues) Learn(outage.Question, outage.Answer) {}

// Limiters returns the one of the key.
func (g *Queues) Limiters(q outage.Question) []outage.Limiter {
	return []outage.Limiter{{
		Observed: g.name(), Account: outage.Account{Limiter: q.Key}, Rule: local.Rule{Permits: g.rule.Usual, Window: g.rule.Window},
	}}
}

// name is the limiter's name for observers.
func (g *Queues) name() string { return cmp.Or(g.rule.Options.Name, g.rule.Package) }

// givenUp reports permits that, if they were taken, come back only by themselves.
func (g *Queues) givenUp(permits int64, err error) {
	g.lanes.observer.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: g.name(), Permits: permits, Err: err})
}
