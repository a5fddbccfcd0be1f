package engine

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Migrate rewrites all members of the limiter once, and returns how many it wrote.
// While a batch is in doubt, its members must stay as they were written.
func (e *Engine) Migrate(ctx context.Context, l *Limiter, page int) (int64, error) {
	var written int64
	err := e.takeTurn(ctx, l, &turn{run: func(ctx context.Context, t *turn) (err error) {
		written, err = e.migrate(ctx, l, page, t.since)
		return err
	}})
	if err != nil {
		return 0, err // it may still be under way
	}
	return written, nil
}

func (e *Engine) migrate(ctx context.Context, l *Limiter, page int, since time.Time) (int64, error) {
	c := script.Call{Script: lua.Migrate, Keys: l.Keys, Repeat: true, Since: since}
	c.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		member := e.ids.NextIn(nil, redisson.NewestRules.Layout, page)
		member[1] ^= 0xff // these are not this client's, and don't bear its mark
		return append(all, member, a.Token)
	})
	reply, err := c.Run(ctx, e.conn)
	if err != nil {
		return 0, err
	}
	return Integer(reply)
}
