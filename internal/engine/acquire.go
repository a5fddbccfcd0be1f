package engine

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// FromMemory answers without a round trip, if it can: from permits that the handle has taken ahead, or from a
// refusal that it remembers. It serves no reservation, which needs a member of its own.
func (e *Engine) FromMemory(ctx context.Context, l *Limiter, q *decide.Ask, a *decide.Answer) (known bool) {
	if l.Lease == nil && l.Refusals == nil || q.Reserve {
		return false
	}
	from, left := e.takeFromLease(ctx, l, q.Permits)
	switch {
	case from != nil:
		e.leaseAnswer(l, from, q, left, a)
		return true
	case q.Waits || l.prefetched.lasts():
		return false
	case q.Figures:
		a.Decision, known = l.Refusals.Decision(leastOf(q))
	default:
		known = l.Refusals.Refuses(q.Permits)
	}
	if known {
		a.By = limit.FromMemory
	}
	return known
}

// leastOf returns how many permits are refused if the ask is.
func leastOf(q *decide.Ask) int64 {
	if q.UpTo {
		return 1
	}
	return q.Permits
}

// Server returns the breaker of the limiter's server, and a function that reports whether the server decides.
func (e *Engine) Server(ctx context.Context, l *Limiter) (*outage.Breaker, func() bool) {
	return e.lanes.Breaker(ctx, l.Config), func() bool { return e.lanes.Answers(l.Keys, "SET") }
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
	a := b.Answers(nil, o)[0]
	if a.Exceeds {
		return a.Decision, errExceeds(permits, a.Decision.Limit)
	}
	return a.Decision, nil
}
