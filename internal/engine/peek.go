package engine

import (
	"context"
	"strconv"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Available returns how many permits are free; below 0 while more are in use than a lowered rate has.
func (e *Engine) Available(ctx context.Context, l *Limiter) (int64, error) {
	args := func(all []any, a script.Attempt) []any { return append(all, a.Token, e.rules.Flags()) }
	reply, err := e.Read(ctx, l, script.Call{Script: lua.Available, Args: script.ArgumentsFunc(args)})
	if err != nil {
		return 0, err
	}
	if text, mended := reply.(string); mended {
		free, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, script.Unexpected(reply)
		}
		e.found(l, repaired)
		return free, nil
	}
	return script.Integer(reply)
}

// Peek returns the figures that a request would get, and takes nothing.
func (e *Engine) Peek(ctx context.Context, l *Limiter, permits int64) (limit.Decision, error) {
	b := &batch{rules: e.rules}
	b.Add(permits, false, 0)
	letters := e.rules.Flags()
	if l.auditDue(e.clock.Now()) {
		letters += "a"
	}
	reply, err := e.Read(ctx, l, script.Call{Script: lua.Peek, Args: script.Paged{script.Number(permits), l.Fallback, letters}})
	if err != nil {
		return limit.Decision{}, err
	}
	o, err := b.parseFigures(reply)
	if err != nil {
		return limit.Decision{}, err
	}
	a := b.Answers(nil, o.Outcome)[0]
	switch {
	case a.Exceeds:
		return a.Decision, errExceeds(permits, a.Decision.Limit)
	case !a.AtLeast:
		return a.Decision, nil
	}
	wait, err := e.wait(ctx, l, permits)
	if wait > 0 {
		a.Decision.RetryAfter = wait
	}
	return a.Decision, err
}
