package engine

import (
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// Of returns the Engine of a Client of the root package, for tests of internals. The root sets it.
var Of func(client any) *Engine

// OfHandle returns the Engine of a RateLimiter of the root package and its Limiter, for packages that
// inspect limiters. The root sets it.
var OfHandle func(limiter any) (*Engine, *Limiter)

// Queues returns how many limiters have a queue.
func (e *Engine) Queues() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.queues)
}

// Active returns how many calls and how much background work is under way.
func (e *Engine) Active() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.active
}

// Identities returns the source of the Engine's members.
func (e *Engine) Identities() *redisson.Identities { return e.ids }

// Waiting returns how many requests for the limiter of that config key are gathered or in line.
func (e *Engine) Waiting(key string) int {
	n := 0
	e.visit(key, func(q *queue) {
		for _, r := range slices.AppendSeq(slices.Clone(q.gathered), q.line.all()) {
			if r.State == lane.Gathered {
				n++
			}
		}
	})
	return n
}
