// Package engine takes permits of RateLimiters: the requests of each limiter in
// batches, its waiting line, what must be alone, and several limits at once.
package engine

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Engine serves the limiters of one Client.
type Engine struct {
	conn   *script.Conn
	lanes  *lane.Lanes
	rules  redisson.Rules
	ids    *redisson.Identities
	events Events
	made   time.Time
	taken  grantTimes // for Release

	mu     sync.Mutex        // taken last, after a group's
	groups map[string]*group // by config key, as long as somebody uses them or a lease lives
	active int               // calls and background work under way
	closed bool
	idle   chan struct{} // closed when closed and nothing is active
	watch  lane.Watch    // requests without a time of their own

	// multis are those that wait, by the config key of each of their limiters.
	multis map[string]*crowd
}

// Events are functions that are told the config key of a limiter.
type Events struct {
	Freed   func(key string) // permits may have become free
	Granted func(key string) // permits were taken, or may have been
}

// New returns an Engine that sends by lanes.
func New(lanes *lane.Lanes, rules redisson.Rules, ids *redisson.Identities, events Events) *Engine {
	e := &Engine{
		conn: lanes.Conn(), lanes: lanes, rules: rules, ids: ids, events: events, made: time.Now(),
		groups: make(map[string]*group), idle: make(chan struct{}), multis: make(map[string]*crowd),
	}
	e.watch = lane.NewWatch(&e.mu, e.conn.Timeout())
	return e
}

// Close fails the callers that wait, and returns when all other work is done or
// ctx ends.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	var groups []*group
	if !e.closed {
		e.closed = true
		if e.active == 0 {
			close(e.idle)
		}
		groups = slices.Collect(maps.Values(e.groups))
		for _, crowd := range e.multis {
			crowd.wake()
		}
	}
	e.mu.Unlock()
	for _, g := range groups {
		g.close()
	}
	defer e.lanes.Close()
	select {
	case <-e.idle:
		return nil
	default:
	}
	select {
	case <-e.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Begin counts a call in; End counts it out.
func (e *Engine) Begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	e.active++
	return nil
}

// End ends what Begin began.
func (e *Engine) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endLocked()
}

func (e *Engine) endLocked() {
	e.active--
	if e.closed && e.active == 0 {
		close(e.idle)
	}
}

func (e *Engine) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// enter counts a caller in at the limiter's group, and leave counts it out; a
// request's own has it watched. A group that nobody uses is forgotten.
func (e *Engine) enter(ctx context.Context, l *Limiter, r *request) (*group, error) {
	return e.enterBy(e.lanes.Of(ctx, l.config()), l, r)
}

// enterBy is enter for a limiter to which that lane leads.
func (e *Engine) enterBy(to *lane.Lane, l *Limiter, r *request) (*group, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	e.active++
	g := e.groups[l.config()]
	if g == nil {
		g = &group{engine: e, keys: l.Keys}
		g.gathered = g.room[:0]
		e.groups[l.config()] = g
	}
	if g.lane.Load() != to {
		g.lane.Store(to)
	}
	g.users++
	if r != nil {
		r.group = g
		if r.watched() {
			e.watch.Add(&r.Pending, r, r.since)
		}
	}
	return g, nil
}

// finish counts the caller of an answered request out, and lets go of the request.
// One that the line or the watch may still know is not used anew.
func (e *Engine) finish(g *group, r *request) (Answer, error) {
	known := !e.unwatch(g, r) || r.Waits
	a := r.answer
	if !known {
		*r = request{}
		requests.Put(r)
	}
	return a, a.err
}

// unwatch counts the caller of a request out, and tells whether the watch leaves it
// alone from now on.
func (e *Engine) unwatch(g *group, r *request) bool {
	e.mu.Lock()
	left := !r.watched() || e.watch.Remove(&r.Pending)
	e.mu.Unlock()
	e.leave(g)
	return left
}

func (e *Engine) leave(g *group) {
	e.mu.Lock()
	g.users--
	unused := g.users == 0
	if unused {
		delete(e.groups, g.config())
	}
	e.endLocked()
	e.mu.Unlock()
	if unused {
		g.stop()
	}
}

// stay counts background work of a group in, for a caller that is in itself.
func (e *Engine) stay(g *group) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active++
	g.users++
}

// visit counts a caller in at the limiter's group, if there is one.
func (e *Engine) visit(key string) *group {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.groups[key]
	if g != nil {
		g.users++
		e.active++
	}
	return g
}

// Changed is told that the limiter of that config key was changed. Callers that
// wait for it ask at once, and its leases end.
func (e *Engine) Changed(key string) { e.permitsFreed(key, true) }

// Freed is told that permits of the limiter were given back. Callers that wait for
// it ask at once.
func (e *Engine) Freed(key string) { e.permitsFreed(key, false) }

func (e *Engine) permitsFreed(key string, changed bool) {
	e.announce(key)
	if g := e.visit(key); g != nil {
		if changed {
			g.recall()
		}
		g.nudge()
		e.leave(g)
	}
}

// Noticed is told that another program changed the limiter: those that remember
// refusals or wait for several limiters ask anew.
func (e *Engine) Noticed(key string) { e.announce(key) }

// announce tells all but the limiter's own line.
func (e *Engine) announce(key string) {
	e.events.Freed(key)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.multis[key].wake()
}

// Groups returns how many limiters the Engine remembers, for tests.
func (e *Engine) Groups() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.groups)
}

// Active returns how many calls and how much background work is under way, for
// tests.
func (e *Engine) Active() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.active
}

// Waiting returns how many requests for the limiter have gathered or stand in
// line, for tests.
func (e *Engine) Waiting(l *Limiter) int {
	e.mu.Lock()
	g := e.groups[l.config()]
	e.mu.Unlock()
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, r := range g.gathered {
		if r.State == lane.Gathered {
			n++
		}
	}
	for r := range g.line.all() {
		if r.State == lane.Gathered {
			n++
		}
	}
	return n
}

// grace is how much longer than its timeout a caller waits for the answer to a
// question that is under way.
const grace = 100 * time.Millisecond
