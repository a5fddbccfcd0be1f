package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// Clock returns the time that the engine goes by.
func (e *Engine) Clock() *clock.Clock { return e.clock }

// Rest reports whether all that is under way waits for a test's clock: see [clock.Sleeper].
func (e *Engine) Rest() (waiting int, next time.Time, rests bool) {
	now := e.clock.Now()
	for _, key := range e.keys() {
		rests = true
		e.visit(key, func(g *group) {
			n, at, quiet := g.rest(now)
			waiting, next, rests = waiting+n, clock.Sooner(next, at), quiet
		})
		if !rests {
			return 0, time.Time{}, false
		}
	}
	return waiting, next, true
}

// Moved wakes those who waited for this moment of a test's clock.
func (e *Engine) Moved() {
	for _, key := range e.keys() {
		e.visit(key, (*group).moved)
	}
}

func (e *Engine) keys() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.groups))
}

// rest is [Engine.Rest] for one limiter, which a visitor uses too. g.mu is held.
func (g *group) rest(now time.Time) (waiting int, next time.Time, rests bool) {
	g.engine.mu.Lock()
	users := g.users - 1
	g.engine.mu.Unlock()
	waiting = g.line.count
	if users != waiting+len(g.crowd.waiting)+len(g.leases.holders) || g.calls+g.returns > 0 || g.listed || g.hasWork(now) || g.held() {
		return 0, time.Time{}, false
	}
	rests = true
	sleeps := func(until time.Time) { next, rests = clock.Sooner(next, until), rests && until.After(now) }
	for r := range g.line.all() {
		next, rests = clock.Sooner(next, r.deadline), rests && r.State == lane.Gathered && !r.overdue(now)
	}
	if g.line.count > 0 {
		next = clock.Sooner(next, g.line.dueAt)
	}
	for m := range g.crowd.waiting {
		sleeps(m.sleepsUntil())
		if m.groups[0] == g { // it waits for others too
			waiting++
		}
	}
	for _, l := range g.leases.holders {
		sleeps(l.leaseEnd())
	}
	return waiting, next, rests
}

// moved is [Engine.Moved] for one limiter. g.mu is held.
func (g *group) moved() {
	now := g.engine.clock.Now()
	for r := range g.line.all() {
		if r.State == lane.Gathered && r.overdue(now) && !g.asksLast(r, now) {
			g.line.remove(r)
			r.tell(answer{})
		}
	}
	for m := range g.crowd.waiting {
		if !m.sleepsUntil().After(now) {
			m.wake()
		}
	}
	for _, l := range g.leases.holders {
		if !l.leaseEnd().After(now) {
			l.prefetched.timer.Reset(0)
		}
	}
	g.next(now)
}

// leaseEnd returns when the handle's lease ends, zero if it has.
func (l *Limiter) leaseEnd() time.Time {
	a := l.prefetched.current.Load()
	if a == nil {
		return time.Time{}
	}
	return a.Sent.Add(a.Life)
}
