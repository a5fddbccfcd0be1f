package lane

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Peek returns what Take would return, and takes nothing.
func (g *Queues) Peek(ctx context.Context, op, key string, permits int64) (limit.Decision, error) {
	d, err := g.peek(ctx, key, permits)
	return d, Fail(g.rule.Package, op, key, err)
}

func (g *Queues) peek(ctx context.Context, key string, permits int64) (limit.Decision, error) {
	if d, err := g.check(ctx, key, permits); err != nil {
		return d, err
	}
	b := &Batch{peeks: true}
	b.Add(permits, false, 0)
	q, err := g.rule.Ask(key, b)
	if err != nil {
		return limit.Decision{}, err
	}
	v, err := g.look(ctx, q)
	if err != nil {
		return limit.Decision{}, err
	}
	a := b.Answers(nil, v.Outcome)[0]
	if a.Exceeds {
		err = exceeds(permits, a.Decision.Limit)
	}
	return a.Decision, err
}

// look makes the calls of a question, one after another. They change nothing.
func (g *Queues) look(ctx context.Context, q *Question) (Verdict, error) {
	for {
		q.Repeat, q.Reads = true, true
		reply, err := g.lanes.Run(ctx, &q.Call.Call)
		if ended := ctx.Err(); err != nil && ended != nil {
			return Verdict{}, ended
		}
		v, err := q.Read(reply, err)
		if q.Next == nil {
			return v, err
		}
		q = q.Next
	}
}

// check returns an error if asking Redis for that many permits makes no sense.
func (g *Queues) check(ctx context.Context, key string, permits int64) (limit.Decision, error) {
	switch most := g.rule.Limit; {
	case g.rule.Err != nil || key == "":
		return limit.Decision{}, g.checkKey(ctx, key)
	case permits < 1 || permits > g.rule.Most:
		return limit.Decision{}, fmt.Errorf("%w: %d is not between 1 and %d", limit.ErrInvalidPermits, permits, g.rule.Most)
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
	if g.rule.Beside != nil {
		beside, err := g.rule.Beside(key)
		if err != nil {
			return err
		}
		keys = append(keys, beside)
	}
	_, err := script.Once(ctx, g.lanes, lua.Delete, script.KeysOf(keys...))
	return script.Explain(err, keys, "", fmt.Sprintf("give the key one hash tag, as in %q", "{"+key+"}"))
}
