package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// maxCalls is how many batches of one limiter are under way at most: fewer than
// the notes of answered attempts that its configuration has room for.
const maxCalls = 24

// group is the requests of one limiter: what has gathered for the next flight,
// the line of those that were refused and wait, and what must be alone.
type group struct {
	engine   *Engine
	config   string
	keys     *script.Keys
	observed string
	lane     atomic.Pointer[lane.Lane] // to where the limiter was last known to be
	users    int                       // guarded by engine.mu

	mu       sync.Mutex
	closed   bool
	listed   bool       // a flight will ask for what has gathered
	wave     *lane.Wave // of that flight, if callers may wait on it
	gathered []*request // go with the next flight
	room     [2]*request
	left     int // how many of them have been left by their callers
	calls    int // batches and requests of several limiters under way
	returns  int // give-backs under way
	line     line
	round    *batch      // of the line, under way
	dueSince time.Time   // since when one that is due waits for a flight; zero: none does
	freed    int         // how often permits have been freed
	timer    *time.Timer // begins the line's next round
	turns    turns
	leases   leases
	crowd    crowd
}

// request asks for permits.
func (e *Engine) request(ctx context.Context, l *Limiter, q outage.Question) (answer, error) {
	r := newRequest(ctx, e.clock, l, q)
	g, err := e.enter(ctx, l, r)
	if err != nil {
		return answer{}, err
	}
	answered := false
	defer func() { e.letGo(g, r, answered) }()
	to := g.lane.Load()
	if alone := g.submit(r, to); alone != nil {
		to.Alone(ctx, alone, !r.deadline.IsZero())
	}
	a, answered := r.await(ctx)
	return a, a.err
}

// submit takes a request in. It returns the call that the caller is to send by
// itself, if there is one.
func (g *group) submit(r *request, to *lane.Lane) (alone *lane.Call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		r.tell(answer{err: limit.ErrClosed})
	case g.borrow(r):
		r.Tell()
	case r.Waits && g.line.count > 0:
		g.line.join(r)
		r.Wait()
		g.next(r.since)
	default:
		g.gathered = append(g.gathered, r)
		if len(g.gathered) == 1 && !g.listed && !g.held() && g.calls < maxCalls && to.Enter() {
			if !g.engine.conn.Inline() || !r.deadline.IsZero() {
				r.Wait() // the call goes by another goroutine
			}
			return g.board(r.since)
		}
		g.next(r.since)
		r.WaitOn(g.wave)
	}
	return nil
}

// held reports whether requests wait for something that must not meet them.
func (g *group) held() bool {
	return g.leases.returning() || len(g.leases.unused) > 0 || g.turns.now || len(g.turns.waiting) > 0 && !g.turns.was
}

// next starts what can be done now. g.mu is held.
func (g *group) next(now time.Time) {
	if g.returnUnused() || g.startTurn(now) {
		return
	}
	if !g.listed && g.hasWork(now) && !g.held() && g.calls < maxCalls {
		g.listed = true
		g.wave = g.lane.Load().Ready(g)
	}
	switch wait := g.line.dueAt.Sub(now); {
	case g.line.count > 0 && g.round == nil && wait > 0:
		g.timer = restart(g.timer, wait, g.poll)
		return
	case g.line.count > 0 && g.round == nil && g.listed && g.dueSince.IsZero():
		g.dueSince = time.Now()
	}
	if g.timer != nil {
		g.timer.Stop()
	}
}

// restart has f run after a while, by the timer that there is.
func restart(t *time.Timer, after time.Duration, f func()) *time.Timer {
	if t == nil {
		return time.AfterFunc(after, f)
	}
	t.Reset(after)
	return t
}

func (g *group) poll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next(g.engine.clock.Now())
}

// hasWork reports whether there is something to send at this time.
func (g *group) hasWork(now time.Time) bool {
	return len(g.gathered) > 0 || g.round == nil && g.line.due(now)
}

// nudge is told that permits may have become free: all who wait ask at once, and
// no refusal is remembered.
func (g *group) nudge() {
	g.engine.refusals.Changed(g.config)
	g.crowd.wake()
	g.freed++
	g.line.nudge()
	g.next(g.engine.clock.Now())
}

// Board makes the call of a flight.
func (g *group) Board(now time.Time) (c *lane.Call, more bool) {
	now = g.engine.clock.At(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listed, g.wave, g.dueSince = false, nil, time.Time{}
	if g.held() || g.calls >= maxCalls {
		return nil, false
	}
	c = g.board(now)
	if c == nil {
		g.next(now)
		return nil, false
	}
	g.listed = g.hasWork(now) && !g.held() && g.calls < maxCalls
	return c, g.listed
}

// board makes a batch of those whose turn it is: the line first, where it is due,
// then those that have gathered.
func (g *group) board(now time.Time) *lane.Call {
	b := newBatch(g)
	if g.round == nil && g.line.due(now) {
		if len(g.gathered) > 0 {
			b.reserved = lane.MaxRuns / 2 // a long line leaves room for the others
		}
		g.line.fill(b, now, time.Now())
		b.reserved = 0
		b.round = len(b.requests) > 0
		if !b.round {
			g.line.settle(now) // those who were left to be asked for have gone
		}
	}
	kept, full := g.gathered[:0], false
	for _, r := range g.gathered {
		switch {
		case !full && r.State != lane.Gathered:
		case full || !b.add(r, false):
			full = full || r.Settled == b.requests[0].Settled // reservations and others are for different batches
			kept = append(kept, r)
		}
	}
	clear(g.gathered[len(kept):])
	g.gathered, g.left = kept, 0
	if len(b.requests) == 0 {
		b.free()
		return nil
	}
	for _, r := range b.requests {
		r.State, r.Batch = lane.Sent, &b.Batch
	}
	b.audit, b.freed = b.limiter().auditDue(now), g.freed
	b.ahead = g.prefetch(b, now)
	g.calls++
	g.turns.was = false
	b.prepare()
	if b.Count == 1 {
		b.call.By(b.requests[0].ctx)
	}
	if b.round {
		g.round = b
	}
	return &b.call
}

// conclude takes note of how the batch ended, and makes the answers of it.
func (b *batch) conclude(o outcome, err error) {
	e := b.group.engine
	if err != nil || o.Taken > 0 {
		e.Granted(b.group.config)
	}
	if b.ahead.permits > 0 {
		b.Drop(b.ahead.permits)
	}
	if err != nil {
		return
	}
	b.answers = b.Answers(b.answers[:0], o.Outcome)
	if b.audit && len(o.Waits) > 0 {
		b.limiter().auditDone(e.clock.Now(), o.interval)
	}
}

// finished tells the callers of a batch the answers.
func (g *group) finished(b *batch, o outcome, err error) {
	b.conclude(o, err)
	short := b.call.Unreplicated()
	g.mu.Lock()
	now := g.engine.clock.Now()
	var unwanted []share
	b.plan(o, err, now)
	granted, doubtful, lined := int64(0), int64(0), false
	for i, r := range b.requests {
		a := b.answer(i, o, err)
		if a.Decision.Granted {
			granted += a.taken
			if r.State != lane.Sent || short != nil {
				unwanted = append(unwanted, share{i, a.taken})
			}
		}
		switch {
		case r.State != lane.Sent:
			if errors.Is(err, limit.ErrUnknownOutcome) && !r.UpTo {
				doubtful += r.Permits
			}
			if r.inLine {
				g.line.remove(r)
			}
		case a.Decision.Granted && short != nil:
			g.answer(b, i, answer{err: short}, outcome{})
		case r.Waits && a.refused() && !g.closed && !r.overdue(now):
			g.lineUp(b, r, a, o, now)
			lined = true
		default:
			g.answer(b, i, a, o)
		}
	}
	if b.round {
		g.round = nil
		g.line.settle(now)
	}
	if lined {
		g.endLeases()
	}
	if doubtful > 0 {
		g.engine.givenUp(g, doubtful, err)
	}
	g.hear(o, b.sent)
	back := g.keepLease(b, o, granted, len(unwanted) > 0 || short != nil)
	g.calls--
	for _, one := range b.grants(unwanted, back, o) {
		g.giveBack(one)
	}
	g.next(now)
	g.engine.letGoAll(b)
	g.mu.Unlock()
	b.free()
}

// lineUp has a refused request wait in line.
func (g *group) lineUp(b *batch, r *request, a answer, o outcome, now time.Time) {
	r.State, r.refused = lane.Gathered, true
	if r.inLine {
		g.line.refused(r, a, o)
		return
	}
	g.line.enter(r, a, o, now)
	if g.freed != b.freed {
		g.line.nudge() // the refusal may have come before
	}
}

// answer makes the answer of a batch's request.
func (g *group) answer(b *batch, place int, a answer, o outcome) {
	r := b.requests[place]
	if r.inLine {
		g.line.drop(r)
	}
	if g.closed && r.Waits && a.refused() {
		a.err = limit.ErrClosed
	}
	switch {
	case !a.Decision.Granted:
		a.Decision.RetryAfter = b.spread(r, a.Decision.RetryAfter)
	case r.Undo:
		a.undo = g.undo(b.grants([]share{{place, a.taken}}, 0, o)[0])
	case r.Settled:
		member := b.grants([]share{{place, a.taken}}, 0, o)[0].member
		a.pays = &settlement{engine: g.engine, limiter: r.limiter, member: member, permits: a.taken, sent: b.sent, granted: g.engine.clock.Now()}
	}
	r.answer, r.State = a, lane.Answered
}

// close fails all that is not on its way, and has leases given back.
func (g *group) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.crowd.wake()
	for r := range g.line.all() {
		if r.State == lane.Gathered {
			g.line.drop(r)
			r.tell(answer{err: limit.ErrClosed})
		}
	}
	for _, r := range g.gathered {
		if r.State == lane.Gathered {
			r.tell(answer{err: limit.ErrClosed})
		}
	}
	g.gathered = nil
	g.endLeases()
	g.next(g.engine.clock.Now())
}
