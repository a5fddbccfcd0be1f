package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Read makes a call that may run any number of times.
func (e *Engine) Read(ctx context.Context, l *Limiter, c script.Call) (any, error) {
	c.Keys, c.Repeat, c.Reads = cmp.Or(c.Keys, l.Keys()), true, true
	return e.call(ctx, l, c.Keys, func() (any, error) { return e.lanes.Run(ctx, &c) })
}

// Change makes a call, once, that changes the limiter. Before it leases end, and after it waiting callers ask again.
func (e *Engine) Change(ctx context.Context, l *Limiter, c script.Call) (any, error) {
	c.Keys = cmp.Or(c.Keys, l.Keys())
	return e.call(ctx, l, l.Keys(), func() (any, error) {
		defer e.changed(l.Config)
		c.Since = time.Now()
		e.recall(ctx, l, c.Since)
		call := &lane.Call{Call: c, Late: func(*lane.Call) { e.changed(l.Config) }}
		if done, err := e.lanes.Do(ctx, call); !done {
			return nil, err
		}
		return call.Outcome()
	})
}

// call runs f, which ends when ctx does.
func (e *Engine) call(ctx context.Context, l *Limiter, keys *script.Keys, f func() (any, error)) (any, error) {
	if err := cmp.Or(l.Err, ctx.Err()); err != nil {
		return nil, err
	}
	if err := e.lanes.Begin(); err != nil {
		return nil, err
	}
	defer e.lanes.End()
	reply, err := f()
	if err != nil {
		return nil, e.explain(keys.Names(), err)
	}
	return reply, nil
}

// changed says that the limiter of that config key was changed. Waiting callers ask at once, and its leases end.
func (e *Engine) changed(key string) {
	e.refusals.Changed(key)
	e.withQueue(key, func(q *queue) {
		q.endLeases()
		q.changed()
	})
}

// Look is a Peek for 0 permits that first gives the limiter the handle's default, as a request does, if it has that of a
// program that began before.
func (e *Engine) Look(ctx context.Context, l *Limiter) (limit.Decision, error) {
	d, err := e.Peek(ctx, l, 0)
	older, accepted := limit.Rate{Permits: d.Limit, Interval: l.Rate.Interval}, l.accepted.Load()
	if err != nil || l.Fallback == "" || d.Limit == l.Rate.Permits || accepted != nil && *accepted == older {
		return d, err
	}
	reply, err := e.Change(ctx, l, e.defaultCall(l))
	if err != nil {
		return d, err
	}
	if reply == int64(1) {
		e.happened(limit.Event{Kind: limit.RateReplaced, Limiter: l.Observed, Found: older, Want: l.Rate}, once)
	}
	again, err := e.Peek(ctx, l, 0)
	if err == nil && again.Limit == d.Limit {
		l.accepted.Store(&older) // it was set on purpose
	}
	return again, err
}

// Rename moves the limiter to other keys.
func (e *Engine) Rename(ctx context.Context, l *Limiter, to redisson.Keys) error {
	keys := script.KeysOf(slices.Concat(l.Keys().Names(), to.List())...)
	_, err := e.Change(ctx, l, script.Call{Script: lua.Rename, Keys: keys, Args: script.Constant{}})
	e.Granted(to.Config)
	if err == nil {
		e.changed(to.Config)
	}
	return err
}

// TTL returns how many milliseconds the limiter lives: -1 if it lives forever, -2 if there is no limiter.
func (e *Engine) TTL(ctx context.Context, l *Limiter) (int64, error) {
	return script.Integer(e.Read(ctx, l, script.Call{Script: lua.Command, Keys: script.KeysOf(l.Config), Args: script.Constant{"PTTL"}}))
}

// Available returns how many permits are free, of a limiter that its default will make as many as Peek says; below 0
// while more are in use than a lowered rate has.
func (e *Engine) Available(ctx context.Context, l *Limiter) (int64, error) {
	args := func(all []any, a script.Attempt) []any { return append(all, a.Token, e.rules.Flags()) }
	reply, err := e.Read(ctx, l, script.Call{Script: lua.Available, Args: script.ArgumentsFunc(args)})
	if l.Fallback != "" && errors.Is(err, limit.ErrNotInitialized) {
		d, err := e.Peek(ctx, l, 0)
		return d.Remaining, err
	}
	numbers, failed := script.Integers(reply, 2)
	if err := cmp.Or(err, failed); err != nil {
		return 0, err
	}
	e.found(l, findings(numbers[1]))
	return numbers[0], nil
}

// Rate reads a limiter's rate.
func (e *Engine) Rate(ctx context.Context, l *Limiter) (limit.Rate, error) {
	rate, _, _, err := e.Override(ctx, l)
	return rate, err
}

// MaxOverride is for how long a rate can be set at most. Redis counts times to live in ms from 1970 on, with room for more.
const MaxOverride = 100 * 366 * 24 * time.Hour

// Override is Rate that also returns when the rate ends, and what comes back then; the zero time if it has no end.
func (e *Engine) Override(ctx context.Context, l *Limiter) (rate limit.Rate, until time.Time, then limit.Rate, err error) {
	reply, err := e.Read(ctx, l, script.Call{Script: lua.Config, Args: script.Constant{}})
	values, failed := script.Integers(reply, 4)
	if err := cmp.Or(err, failed); err != nil {
		return limit.Rate{}, time.Time{}, limit.Rate{}, err
	}
	if rate = rateOf(values); len(values) == 7 {
		until, then = time.UnixMilli(values[4]), rate
		then.Permits, then.Interval = values[5], script.Millis(values[6])
	}
	return rate, until, then, nil
}

// Peek returns the figures that a request would get, and takes nothing. With 0 permits it returns what is free.
func (e *Engine) Peek(ctx context.Context, l *Limiter, permits int64) (limit.Decision, error) {
	b := &batch{rules: e.rules}
	b.Add(permits, false, 0)
	letters := e.rules.Flags()
	if l.auditDue(time.Now()) {
		letters += "a"
	}
	reply, err := e.Read(ctx, l, script.Call{Script: lua.Peek, Args: script.Paged{script.Number(permits), l.Fallback, letters}})
	if err != nil {
		return limit.Decision{}, err
	}
	o, _, err := b.parseFigures(reply)
	if err != nil {
		return limit.Decision{}, err
	}
	l.showed(o.Limit, o.Interval, false)
	a := b.Results(nil, o)[0]
	if a.Exceeds {
		return a.Decision, errExceeds(permits, a.Decision.Limit)
	}
	return a.Decision, nil
}
