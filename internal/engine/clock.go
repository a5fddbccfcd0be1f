package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// Clock returns the clock that the engine uses.
func (e *Engine) Clock() *clock.Clock { return e.clock }

// Rest reports whether everything under way waits for a test's clock: see [clock.Sleeper].
func (e *Engine) Rest() (waiting int, next time.Time, rests bool) {
	now := e.clock.Now()
	for _, key := range e.keys() {
		rests = true
		e.visit(key, func(q *queue) {
			n, at, quiet := q.rest(now)
			waiting, next, rests = waiting+n, clock.Sooner(next, at), quiet
		})
		if !rests {
			return 0, time.Time{}, false
		}
	}
	return waiting, next, true
}

// Moved wakes callers whose time has come by a test's clock.
func (e *Engine) Moved() {
	for _, key := range e.keys() {
		e.visit(key, (*queue).moved)
	}
}

func (e *Engine) keys() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.queues))
}

// rest is [Engine.Rest] for one limiter, whose users include the visitor. q.mu is held.
func (q *queue) rest(now time.Time) (waiting int, next time.Time, rests bool) {
	q.engine.mu.Lock()
	users := q.users - 1
	q.engine.mu.Unlock()
	waiting = q.line.count
	if users != waiting+len(q.jointWaiters.waiting)+len(q.leases.holders) || q.calls+q.returns > 0 || q.listed || q.hasWork(now) || q.held() {
		return 0, time.Time{}, false
	}
	rests = true
	sleeps := func(until time.Time) { next, rests = clock.Sooner(next, until), rests && until.After(now) }
	for r := range q.line.all() {
		next, rests = clock.Sooner(next, r.deadline), rests && r.State == lane.Gathered && !r.overdue(now)
	}
	if q.line.count > 0 {
		next = clock.Sooner(next, q.line.dueAt)
	}
	for w, first := range q.jointWaiters.waiting {
		sleeps(w.sleepsUntil())
		if first { // count it once: it waits in other queues too
			waiting++
		}
	}
	for _, l := range q.leases.holders {
		sleeps(l.prefetched.end())
	}
	return waiting, next, rests
}

// moved is [Engine.Moved] for one limiter. q.mu is held.
func (q *queue) moved() {
	now := q.engine.clock.Now()
	for r := range q.line.all() {
		if r.State == lane.Gathered && r.overdue(now) && !q.asksLast(r, now) {
			q.line.remove(r)
			r.tell(answer{})
		}
	}
	for w := range q.jointWaiters.waiting {
		if !w.sleepsUntil().After(now) {
			w.wake()
		}
	}
	for _, l := range q.leases.holders {
		if !l.prefetched.end().After(now) {
			l.prefetched.timer.Reset(0)
		}
	}
	q.next(now)
}
