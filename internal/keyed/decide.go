package keyed

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Take asks for permits of q.Key: for q.Permits, or with q.UpTo for as many as are free. If ctx ends
// while the request waits for others, Take returns ctx.Err() at once; a later grant is given back.
func (g *Queues) Take(ctx context.Context, q outage.Ask) (outage.Answer, error) {
	if most := g.rule.Limit; q.UpTo && most > 0 {
		q.Permits = min(q.Permits, most)
	}
	a, err := g.policy.Decide(ctx, g, q)
	if !a.Granted {
		a.Taken = 0
	}
	return a, err
}

// FromMemory implements [outage.Asker], as do the following methods. It knows only errors.
func (g *Queues) FromMemory(ctx context.Context, q outage.Ask) (a outage.Answer, known bool, err error) {
	a.Decision, err = g.check(ctx, q.Key, 1, q.Permits)
	return a, false, err
}

// Ask sends a request and waits for its answer.
func (g *Queues) Ask(ctx context.Context, q outage.Ask) (outage.Answer, error) {
	a, err := g.send(ctx, q.Key, &request{permits: q.Permits, upTo: q.UpTo, settled: q.Reserve}, q.Within)
	a.By, a.Unanswered = limit.FromRedis, true // a refusal makes no caller wait here
	return a, err
}

// Fail adds the package and the call to an error.
func (g *Queues) Fail(q outage.Ask, err error) error {
	return Fail(g.rule.Package, q.Call, q.Key, err)
}

// Server returns the breaker of the key's server.
func (g *Queues) Server(ctx context.Context, q outage.Ask) (*outage.Breaker, func() bool) {
	return g.lanes.Breaker(ctx, q.Key), func() bool { return g.lanes.Answers(script.KeysOf(q.Key), cmp.Or(g.rule.Write, "SET")) }
}

// Limiters returns the one of the key.
func (g *Queues) Limiters(q outage.Ask) []outage.Limiter {
	l := outage.Limiter{
		Of: g, Observed: g.name(), Name: q.Key, Permits: q.Permits, Rule: g.rule.Local(), Most: g.rule.Most, Once: true,
	}
	most, known, _ := g.rates.Of(q.Key)
	switch {
	case known:
		l.Rule.Permits = most
	case l.Rule.Permits == 0:
		l.Rule = local.Rule{} // only Redis knows it
	}
	return []outage.Limiter{l}
}

// Learn notes the limit of a key that may differ from others'.
func (g *Queues) Learn(q outage.Ask, a outage.Answer) {
	if g.rule.Limit == 0 {
		g.rates.Learn(q.Key, a.Limit)
	}
}

// Policy implements [outage.Keyed], as do the following methods.
func (g *Queues) Policy() outage.Policy {
	p := g.policy
	if p.Guard == nil {
		p.Guard = outage.NewGuard()
	}
	return p
}

// Asker returns the Queues, which read the key from the ask.
func (g *Queues) Asker(string) outage.Asker { return g }

// name is the limiter's name for observers.
func (g *Queues) name() string { return cmp.Or(g.rule.Options.Name, g.rule.Package) }

// givenUp reports permits that, if they were taken, come back only by themselves.
func (g *Queues) givenUp(permits int64, err error) {
	g.lanes.Observer().Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: g.name(), Permits: permits, Err: err})
}

// Peek returns what Take would return, and takes nothing. With 0 permits it returns the figures of what is free.
func (g *Queues) Peek(ctx context.Context, op, key string, permits int64) (limit.Decision, error) {
	d, err := g.peek(ctx, key, permits)
	return d, Fail(g.rule.Package, op, key, err)
}

func (g *Queues) peek(ctx context.Context, key string, permits int64) (limit.Decision, error) {
	if d, err := g.check(ctx, key, 0, permits); err != nil {
		return d, err
	}
	b := lane.NewPeek(permits)
	o, err := g.look(ctx, g.rule.Ask(key, b))
	if err != nil {
		return limit.Decision{}, err
	}
	a := b.Answers(nil, o)[0]
	if a.Exceeds {
		err = exceeds(permits, a.Decision.Limit)
	}
	return a.Decision, err
}

// look makes the calls of a try, one after another. They change nothing.
func (g *Queues) look(ctx context.Context, q *Try) (lane.Outcome, error) {
	for {
		q.Repeat, q.Reads = true, true
		reply, err := g.lanes.Run(ctx, &q.Call.Call)
		if ended := Ended(ctx, err); ended != nil {
			return lane.Outcome{}, ended
		}
		o, err := q.Read(reply, err)
		if q.Next == nil {
			return o, err
		}
		q = q.Next
	}
}

// Ended returns the error of a call that failed and whose caller's ctx has ended; nil if that is not so. It is no
// outage, though the end of a deadline is a net.Error.
func Ended(ctx context.Context, err error) error {
	ended := ctx.Err()
	switch {
	case err == nil || ended == nil:
		return nil
	case errors.Is(err, script.ErrLost):
		return lane.UnderWay(ended)
	default:
		return ended
	}
}

// check returns an error if asking Redis for so many permits, which are to be least or more, makes no sense.
func (g *Queues) check(ctx context.Context, key string, least, permits int64) (limit.Decision, error) {
	switch most := g.rule.Limit; {
	case g.rule.Err != nil || key == "":
		return limit.Decision{}, g.checkKey(ctx, key)
	case permits < least || permits > g.rule.Most:
		return limit.Decision{}, fmt.Errorf("%w: %d is not between %d and %d", limit.ErrInvalidPermits, permits, least, g.rule.Most)
	case most > 0 && permits > most:
		return limit.Decision{Limit: most}, exceeds(permits, most)
	}
	return limit.Decision{}, g.checkKey(ctx, key)
}

// checkKey returns an error if asking Redis about a key makes no sense.
func (g *Queues) checkKey(ctx context.Context, key string) error {
	switch {
	case g.rule.Err != nil:
		return g.rule.Err
	case key == "":
		return fmt.Errorf("%w: the key is empty", limit.ErrInvalidConfig)
	case ctx.Err() != nil:
		return ctx.Err()
	case g.rule.Check != nil:
		return g.rule.Check(key)
	}
	return nil
}

// Reset removes what Redis keeps of a key.
func (g *Queues) Reset(ctx context.Context, op, key string) error {
	return Fail(g.rule.Package, op, key, g.reset(ctx, key))
}

func (g *Queues) reset(ctx context.Context, key string) error {
	if err := g.checkKey(ctx, key); err != nil {
		return err
	}
	keys := []string{key}
	if second := g.rule.Second; second != "" {
		keys = append(keys, key+second)
	}
	_, err := g.lanes.Once(ctx, lua.Delete, script.KeysOf(keys...))
	if ended := Ended(ctx, err); ended != nil {
		return ended
	}
	return script.Explain(err, keys, "", fmt.Sprintf("give the key one hash tag, as in %q", "{"+key+"}"))
}
