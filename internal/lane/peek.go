package lane

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Peek answers what Take would, and takes nothing.
func (t *Groups) Peek(ctx context.Context, op, key string, permits int64) (limit.Decision, error) {
	d, err := t.peek(ctx, key, permits)
	return d, Fail(t.rule.Package, op, key, err)
}

func (t *Groups) peek(ctx context.Context, key string, permits int64) (limit.Decision, error) {
	if d, err := t.check(ctx, key, permits); err != nil {
		return d, err
	}
	b := &Batch{}
	b.Add(permits, false, 0)
	q, err := t.rule.Peek(ctx, key, b)
	if err != nil {
		return limit.Decision{}, err
	}
	q.Repeat, q.Reads = true, true
	reply, err := q.Run(ctx, t.lanes.conn)
	if ended := ctx.Err(); err != nil && ended != nil {
		return limit.Decision{}, ended
	}
	v, err := q.Read(reply, err)
	if err != nil {
		return limit.Decision{}, err
	}
	a := b.Answers(nil, v.Outcome)[0]
	if a.Exceeds {
		err = exceeds(permits, a.Decision.Limit)
	}
	return a.Decision, err
}

// check tells why nobody needs to ask Redis for so many permits.
func (t *Groups) check(ctx context.Context, key string, permits int64) (limit.Decision, error) {
	switch most := t.rule.Limit; {
	case t.rule.Err != nil || key == "":
		return limit.Decision{}, t.CheckKey(ctx, key)
	case permits < 1 || permits > t.rule.Most:
		return limit.Decision{}, fmt.Errorf("%w: %d is not between 1 and %d", limit.ErrInvalidPermits, permits, t.rule.Most)
	case most > 0 && permits > most:
		return limit.Decision{Limit: most}, exceeds(permits, most)
	}
	return limit.Decision{}, t.CheckKey(ctx, key)
}

// CheckKey tells why nobody needs to ask Redis about a key.
func (t *Groups) CheckKey(ctx context.Context, key string) error {
	switch {
	case t.rule.Err != nil:
		return t.rule.Err
	case key == "":
		return fmt.Errorf("%w: the key is empty", limit.ErrInvalidConfig)
	case ctx.Err() != nil:
		return ctx.Err()
	case t.rule.Check != nil:
		return t.rule.Check(key)
	}
	return nil
}

// Reset removes what Redis keeps of a key.
func (t *Groups) Reset(ctx context.Context, op, key string) error {
	return Fail(t.rule.Package, op, key, t.reset(ctx, key))
}

func (t *Groups) reset(ctx context.Context, key string) error {
	if err := t.CheckKey(ctx, key); err != nil {
		return err
	}
	words, keys := []any{"unlink", key}, []string{key}
	if t.rule.Beside != nil {
		beside, err := t.rule.Beside(key)
		if err != nil {
			return err
		}
		words, keys = append(words, beside), append(keys, beside)
	}
	_, err := script.Do(ctx, t.lanes.conn, false, words...)
	return script.Explain(err, keys, "", fmt.Sprintf("give the key one hash tag, as in %q", "{"+key+"}"))
}
