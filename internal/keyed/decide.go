package keyed

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Take asks for permits of q.Key: for q.Permits, or with q.UpTo for as many as are free. If ctx ends
// while the request waits for others, Take returns ctx.Err() at once; a later grant is given back.
func (g *Queues) Take(ctx context.Context, q decide.Ask) (decide.Answer, error) {
	if most := g.rule.Limit; q.UpTo && most > 0 {
		q.Permits = min(q.Permits, most)
	}
	a, err := g.policy.Decide(ctx, g, q)
	if !a.Granted {
		a.Taken = 0
	}
	return a, err
}

// Settler returns what settles a grant, for which Reserve was asked.
func (g *Queues) Settler(q decide.Ask, a decide.Answer) func(context.Context, int64) error {
	return g.policy.Settler(g, q, a)
}

// FromMemory implements [outage.Asker], as do the following methods. It knows only errors.
func (g *Queues) FromMemory(ctx context.Context, q decide.Ask) (a decide.Answer, known bool, err error) {
	a.Decision, err = g.check(ctx, q.Key, 1, q.Permits)
	return a, false, err
}

// Ask sends a request and waits for its answer.
func (g *Queues) Ask(ctx context.Context, q decide.Ask) (a decide.Answer, err error) {
	a.By, a.Unanswered = limit.FromRedis, true // a refusal makes no caller wait here
	timed, timeout := q.Within > 0, g.Lanes.Conn.Timeout
	r := &request{ctx: ctx, permits: q.Permits, upTo: q.UpTo}
	r.Asked = time.Now()
	if timed {
		r.Last = r.Asked.Add(q.Within)
	}
	look := lane.Sooner(r.Asked.Add(timeout), r.Last)
	if err := g.send(q.Key, r, timed); err != nil {
		return a, err
	}
	if answered, err := r.Await(ctx, g.Lanes, r, look, g.Lanes.Conn.Inline); !answered {
		g.cancel(r)
		return a, err
	}
	giveBack, charge, taken := r.batch.outcome.GiveBack, r.batch.outcome.Charge, r.answer.Taken
	a.Decision = r.answer.Decision
	if q.Reserve && charge != nil { // also of a refusal: what was used can be charged all the same
		a.Settle = func(ctx context.Context, used int64, then func(error)) error {
			if used == taken {
				then(nil)
				return nil
			}
			return g.detached(ctx, func(ctx context.Context) error { return charge(ctx, used-taken) }, then)
		}
	}
	switch {
	case r.batch.err != nil:
		return a, r.batch.err
	case r.answer.Exceeds:
		return a, exceeds(r.permits, a.Limit)
	case !a.Granted:
		return a, nil
	case r.batch.short != nil:
		return decide.Answer{By: a.By}, r.batch.short
	}
	a.Taken = taken
	a.Undo = func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return g.detached(ctx, func(ctx context.Context) error { return giveBack(ctx, taken) }, func(error) {})
	}
	return a, nil
}

// detached runs f, unless the Client is closed, and then calls then with the error. It goes on in the background if ctx
// ends.
func (g *Queues) detached(ctx context.Context, f func(context.Context) error, then func(error)) error {
	if err := g.Lanes.Begin(); err != nil {
		then(err)
		return err
	}
	return lane.Detached(ctx, 0, func(ctx context.Context) error {
		defer g.Lanes.End()
		err := f(ctx)
		then(err)
		return err
	})
}

// Fail adds the package and the call to an error.
func (g *Queues) Fail(q decide.Ask, err error) error {
	return Fail(g.rule.Package, q.Call, q.Key, err)
}

// Breaker returns the breaker of the key's server.
func (g *Queues) Breaker(ctx context.Context, q decide.Ask) *outage.Breaker {
	return g.Lanes.Breaker(ctx, q.Key)
}

// Probe returns what asks the key's server whether it decides.
func (g *Queues) Probe(_ context.Context, q decide.Ask) func() bool {
	return func() bool { return g.Lanes.Answers(script.KeysOf(q.Key), cmp.Or(g.rule.Write, "SET")) }
}

// Limiters returns the one of the key.
func (g *Queues) Limiters(q decide.Ask) []decide.Limiter {
	l := decide.Limiter{
		Of: g, Observed: g.name, Name: q.Key, Permits: q.Permits, Rule: g.rule.Local(), Most: g.rule.Most, Once: true,
	}
	most, known, _ := g.rates.Of(q.Key)
	switch {
	case known:
		l.Rule.Permits = most
	case l.Rule.Permits == 0:
		l.Rule = local.Rule{} // only Redis knows it
	}
	return []decide.Limiter{l}
}

// Learn notes the limit of a key that may differ from others'.
func (g *Queues) Learn(q decide.Ask, a decide.Answer) {
	if g.rule.Limit == 0 {
		g.rates.Learn(q.Key, a.Limit)
	}
}

// Policy implements [outage.Keyed], as do the following methods.
func (g *Queues) Policy() outage.Policy { return *g.policy }

// Suffix returns the rule's.
func (g *Queues) Suffix() string { return g.rule.Second }

// Holds returns false.
func (g *Queues) Holds() bool { return false }

// Asker returns the Queues, which read the key from the ask.
func (g *Queues) Asker(decide.Ask) outage.Asker { return g }

// givenUp reports permits that, if they were taken, come back only by themselves.
func (g *Queues) givenUp(permits int64, err error) {
	g.Lanes.Observer.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: g.name, Permits: permits, Err: err})
}

// Peek returns what Take would return, and takes nothing. With 0 permits it returns the figures of what is free.
func (g *Queues) Peek(ctx context.Context, op, key string, permits int64) (d limit.Decision, err error) {
	defer func() { err = Fail(g.rule.Package, op, key, err) }()
	if d, err = g.check(ctx, key, 0, permits); err != nil {
		return d, err
	}
	b := lane.NewPeek(permits)
	var o lane.Outcome
	for q := g.rule.Ask(key, b); q != nil; q = q.Next {
		q.Repeat, q.Reads = true, true // it changes nothing
		reply, err := g.Run(ctx, &q.Call)
		if o, err = q.Read(reply, err); err != nil && q.Next == nil {
			return d, err
		}
	}
	a := b.Results(nil, o)[0]
	if a.Exceeds {
		err = exceeds(permits, a.Decision.Limit)
	}
	return a.Decision, err
}

// check returns an error if asking Redis about a key makes no sense, or for so many permits, which are to be least
// or more.
func (g *Queues) check(ctx context.Context, key string, least, permits int64) (d limit.Decision, err error) {
	switch most := g.rule.Limit; {
	case g.rule.Err != nil:
		err = g.rule.Err
	case key == "":
		err = fmt.Errorf("%w: the key is empty", limit.ErrInvalidConfig)
	case permits < least || permits > g.rule.Most:
		err = fmt.Errorf("%w: %d is not between %d and %d", limit.ErrInvalidPermits, permits, least, g.rule.Most)
	case most > 0 && permits > most:
		d.Limit, err = most, exceeds(permits, most)
	case ctx.Err() != nil:
		err = ctx.Err()
	case g.rule.Check != nil:
		err = g.rule.Check(key)
	}
	return d, err
}

// Reset removes what Redis keeps of a key.
func (g *Queues) Reset(ctx context.Context, op, key string) (err error) {
	defer func() { err = Fail(g.rule.Package, op, key, err) }()
	if _, err := g.check(ctx, key, 0, 0); err != nil {
		return err
	}
	keys := []string{key}
	if second := g.rule.Second; second != "" {
		keys = append(keys, key+second)
	}
	_, err = g.Run(ctx, &script.Call{Script: lua.Delete, Keys: script.KeysOf(keys...), Args: script.Constant{}})
	return script.Explain(err, keys, "", fmt.Sprintf("give the key one hash tag, as in %q", "{"+key+"}"))
}
