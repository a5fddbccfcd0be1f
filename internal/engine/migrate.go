package engine

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Migrate rewrites all members of the limiter once, and returns how many it wrote. While a batch is in
// doubt, its members must stay as they were written. Each page is a job of its own, so that other
// callers need not wait for all of them.
func (e *Engine) Migrate(ctx context.Context, l *Limiter, page int) (written int64, err error) {
	for token, first := "", true; first || token != ""; first = false {
		var next string
		var n int64
		err := e.runJob(ctx, l, &job{since: time.Now(), run: func(ctx context.Context, t *job) (err error) {
			n, next, err = e.migratePage(ctx, l, page, token, t)
			return err
		}})
		if err != nil {
			return 0, err // the job may still run
		}
		written, token = n, next
	}
	return written, nil
}

// migratePage rewrites the members from token on. It returns the token for the members that are
// left, or "" and how many were written in all.
func (e *Engine) migratePage(ctx context.Context, l *Limiter, page int, token string, t *job) (written int64, next string, err error) {
	c := script.Call{Script: lua.Migrate, Keys: l.Keys(), Repeat: true, Since: t.since}
	c.Wanted = func() bool {
		_, wanted := t.begin()
		return wanted
	}
	c.Args = script.ArgumentsFunc(func(all []any, _ script.Attempt) []any {
		member := e.ids.NextIn(nil, redisson.NewestRules.Layout, page)
		member[1] ^= 0xff // these are not this client's, and don't bear its mark
		return append(all, member, token)
	})
	c.Continued = func(token string, _ []any) (more bool, err error) {
		next = token
		return false, nil
	}
	reply, err := e.lanes.Run(ctx, &c)
	if err == nil && next != "" {
		return 0, next, nil
	}
	written, err = script.Integer(reply, err)
	return written, "", err
}
