package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/limit"
)

// fewer is how many requests a walk under the lock handles at most before it lets go of that for a moment, unless
// they are those of one call.
const fewer = 256

// maxCalls is how many batches of one limiter may be under way: fewer than its configuration has
// room for notes of answered attempts.
const maxCalls = 24

// queue is the requests of one limiter: those gathered for the next flight, the line of those that
// were refused and wait, and exclusive jobs. The Engine's lock guards it.
type queue struct {
	engine   *Engine
	config   string
	of       *Limiter // one of its handles
	observed string
	lane     atomic.Pointer[lane.Lane] // the lane to the master that last had the limiter
	users    int                       // callers and background work; the queue goes with the last

	listed   bool       // a flight will ask for what has gathered
	wave     *lane.Wave // of that flight; nil if callers can't wait on it
	gathered places     // of requests for the next flight
	calls    int        // batches under way
	beside   int        // other calls that hold up jobs: give-backs, settlements, and tries of several limiters
	line     line
	passing  bool        // a pass of the line is under way
	dueSince time.Time   // since when a due pass waits for a flight; zero: none does
	changes  int         // how often permits may have become free: a refusal with fewer before it is too old
	timer    *time.Timer // begins the line's next pass
	jobs     jobs
	leases   *leases    // nil until a handle with leases comes
	joint    *jointLine // of callers that want permits of others too; nil until one may wait
}

// lock locks the Engine and returns the limiter's queue, which unlock removes unless it has users by then.
func (e *Engine) lock(ctx context.Context, l *Limiter) (*queue, error) {
	to := e.lanes.Lock(ctx, l.Config)
	if e.lanes.Closed {
		e.mu.Unlock()
		return nil, limit.ErrClosed
	}
	q := e.queues[l.Config]
	if q == nil {
		if q = e.last; q == nil || q.config != l.Config {
			q = &queue{engine: e, config: l.Config, of: l, observed: l.Observed}
			q.line.observer = e.observer
		}
		e.queues[l.Config] = q
		e.lanes.Count(1)
	}
	if l.Lease != nil && q.leases == nil {
		q.leases = &leases{}
	}
	if q.lane.Load() != to {
		q.lane.Store(to)
	}
	return q, nil
}

func (q *queue) unlock() {
	q.tidy()
	q.engine.mu.Unlock()
}

// pause lets others have the lock. The queue must have users.
func (q *queue) pause() {
	q.engine.mu.Unlock()
	q.engine.mu.Lock()
}

// tidy removes the queue if no one uses it.
func (q *queue) tidy() {
	if q.users+q.beside == 0 && q.engine.queues[q.config] == q {
		delete(q.engine.queues, q.config)
		q.engine.last = q
		q.engine.lanes.Count(-1)
	}
}

// withQueue calls f with the limiter's queue, under the lock, if there is one.
func (e *Engine) withQueue(key string, f func(q *queue)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queues[key]; q != nil {
		f(q)
		q.tidy()
	}
}

// maySend reports whether a batch may leave: no exclusive job or give-back comes first, and not too many are under way.
func (q *queue) maySend() bool {
	first := q.leases.returning() || q.jobs.running || len(q.jobs.waiting) > 0 && !q.jobs.requestsNext
	return !first && q.calls < maxCalls
}

// next starts what can be done now.
func (q *queue) next(now time.Time) {
	late := q.line.refuseLate()
	if q.returnUnused() || q.jobsAhead() && q.startJob(now) {
		return
	}
	if !q.listed && q.hasWork(now) && q.maySend() {
		q.listed = true
		q.wave = q.lane.Load().Ready(q)
	}
	wait := time.Duration(0) // for the line's next pass
	if q.line.count > 0 && !q.passing {
		if wait = q.line.nextAt(now).Sub(now); wait <= 0 && q.listed && q.dueSince.IsZero() {
			q.dueSince = time.Now()
		}
	}
	if late {
		wait = 1 // the lock is let go in between
	}
	switch {
	case wait > 0 && q.timer == nil:
		q.timer = time.AfterFunc(wait, q.poll)
	case wait > 0:
		q.timer.Reset(wait)
	case q.timer != nil:
		q.timer.Stop()
	}
}

func (q *queue) poll() {
	q.engine.mu.Lock()
	defer q.unlock()
	q.next(time.Now())
}

// hasWork reports whether there is something to send at this time.
func (q *queue) hasWork(now time.Time) bool {
	return q.gathered.count > 0 || !q.passing && q.line.due(now)
}

// NextCall makes a call for a flight.
func (q *queue) NextCall(now time.Time) (c *lane.Call, more bool) {
	defer q.tidy()
	q.listed, q.wave, q.dueSince = false, nil, time.Time{}
	if !q.maySend() {
		return nil, false
	}
	c = q.makeBatch(now)
	if c == nil {
		q.next(now)
		return nil, false
	}
	q.listed = q.hasWork(now) && q.maySend()
	return c, q.listed
}

// makeBatch makes a batch: first of requests in the line, if it is due, then of those that gathered.
func (q *queue) makeBatch(now time.Time) *lane.Call {
	b := newBatch(q)
	if !q.passing && q.line.due(now) {
		if q.gathered.count > 0 {
			b.reserved = lane.MaxRuns / 2 // a long line leaves room for the others
		}
		b.filling = true
		q.line.fill(now, b.add)
		b.reserved, b.filling = 0, false
		q.line.cost += time.Duration(len(b.requests))*costOfRequest + time.Duration(len(b.Runs))*costOfRun
		b.pass = len(b.requests) > 0
		if !b.pass {
			q.line.answeredBatch(now) // the requests left to ask for have gone
		}
	}
	looked := 0
	for p := range q.gathered.all() {
		if looked++; looked > lane.MaxRequests {
			break // the lock is held
		}
		if b.add(p.request, false) {
			q.gathered.take(p)
		} else if b.accepts(p.request) { // what can't share the call goes with another of the flight
			break
		}
	}
	if len(b.requests) == 0 {
		b.free()
		return nil
	}
	for _, r := range b.requests {
		r.State, r.Batch = lane.Sent, &b.Batch
	}
	b.audit, b.changes = b.limiter.auditDue(now), q.changes
	if q.leases != nil {
		b.ahead = q.prefetch(b, now)
		q.leases.sent(b)
	}
	q.calls++
	q.jobs.requestsNext = false
	if b.pass {
		q.passing = true
	}
	return b.makeCall()
}

// changed says that permits may have become free: all who wait ask at once, and refusals from before are too old, those
// under way and those remembered.
func (q *queue) changed() {
	q.engine.refusals.Changed(q.config)
	q.changes++
	q.line.again = true
	now := time.Now()
	q.next(now)
	q.joint.changed(now)
}

// close fails all requests that are not under way, and gives leases back.
func (q *queue) close() {
	q.joint.close()
	for p := range q.line.all() {
		if r := p.request; r.State == lane.Gathered {
			q.line.drop(r)
			r.finish(decide.Answer{}, limit.ErrClosed)
		}
	}
	for p := range q.gathered.all() {
		q.gathered.take(p)
		p.request.finish(decide.Answer{}, limit.ErrClosed)
	}
	q.endLeases()
	q.next(time.Now())
}
