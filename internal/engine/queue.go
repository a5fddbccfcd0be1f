package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// maxCalls is how many batches of one limiter may be under way: fewer than its configuration has
// room for notes of answered attempts.
const maxCalls = 24

// queue is the requests of one limiter: those gathered for the next flight, the line of those that
// were refused and wait, and exclusive jobs.
type queue struct {
	engine   *Engine
	config   string
	of       *Limiter // one of its handles
	observed string
	state    atomic.Int32              // used, or not
	lane     atomic.Pointer[lane.Lane] // to the master that last had the limiter; it changes under the lock

	mu    sync.Mutex // guards what follows, and the queue's requests; it is taken before a lane's
	users int        // callers and background work; the queue goes with the last

	listed   bool       // a flight will ask for what has gathered
	wave     *lane.Wave // of that flight; nil if callers can't wait on it
	gathered places     // of requests for the next flight
	calls    int        // batches under way
	beside   int        // other calls that hold up jobs: give-backs, settlements, and tries of several limiters
	line     line
	passing  bool         // a pass of the line is under way
	dueSince time.Time    // since when a due pass waits for a flight; zero: none does
	changes  atomic.Int64 // how often permits may have become free: a refusal with fewer before it is too old
	timer    *time.Timer  // begins the line's next pass
	jobs     jobs
	leases   *leases // nil until a handle with leases comes

	joint atomic.Pointer[jointLine] // of callers that want permits of others too; nil until one may wait
}

// State of a queue. It becomes used, or not, under its lock, and removed, or not, under that of its shard.
const (
	unused  int32 = iota // it has no users, and will be removed
	used                 // it has users, and Close waits for it
	removed              // it is none of the Engine's
)

// lock locks the limiter's queue and returns that, which unlock removes unless it has users by then.
func (e *Engine) lock(ctx context.Context, l *Limiter) (*queue, error) {
	for {
		to := e.lanes.To(ctx, l.Config)
		q := l.queue.Load()
		if q == nil || q.state.Load() == removed {
			q = e.queueOf(l, to)
		}
		q.lock()
		switch ok, err := q.use(); {
		case err != nil:
			q.mu.Unlock()
			q.remove()
			return nil, err
		case !ok:
			q.mu.Unlock()
			continue
		}
		q.moveTo(to)
		if l.Lease != nil && q.leases == nil {
			q.leases = &leases{}
		}
		return q, nil
	}
}

// queueOf returns the limiter's queue, and makes one for that lane if it has none. No queue's lock is held.
func (e *Engine) queueOf(l *Limiter, to *lane.Lane) *queue {
	return e.queues.GetOrMake(l.Config, func(q *queue) *queue {
		if q == nil || q.of != l || !q.state.CompareAndSwap(removed, unused) {
			q = &queue{engine: e, config: l.Config, of: l, observed: l.Observed}
			q.line.observer = e.observer
			q.lane.Store(to)
		}
		l.queue.Store(q)
		return q
	})
}

// keysFor returns the keys that a call of a handle needs; overall says that the client's own are left out.
func (q *queue) keysFor(l *Limiter) (keys *script.Keys, overall bool) {
	if keys := l.overall.Load(); keys != nil {
		return keys, true
	}
	return q.of.Keys(), false
}

// use reports whether the queue is one of the Engine's. It then has users until unlock finds none. Once the Engine is closed
// it returns limit.ErrClosed: Close fails what queues have that were used before.
func (q *queue) use() (ok bool, err error) {
	if q.state.Load() == used {
		return true, q.engine.Closed()
	}
	if err := q.engine.lanes.Begin(); err != nil {
		return false, err
	}
	if q.state.CompareAndSwap(unused, used) {
		return true, nil
	}
	q.engine.lanes.End()
	return false, nil
}

// remove removes the queue if it is not used.
func (q *queue) remove() {
	q.engine.queues.RemoveIf(q.config, func(now *queue) bool {
		if now != q || !q.state.CompareAndSwap(unused, removed) {
			return false
		}
		q.of.queue.CompareAndSwap(q, nil)
		return true
	})
}

// moveTo makes the queue live on that lane. Its place among those that the last one asks stays behind: see NextCall.
func (q *queue) moveTo(to *lane.Lane) {
	if q.lane.Load() == to {
		return
	}
	q.lane.Store(to)
	if q.listed {
		q.wave = to.Ready(q)
	}
}

func (q *queue) lock() { q.mu.Lock() }

func (q *queue) unlock() {
	unused := q.tidy()
	q.mu.Unlock()
	if unused {
		q.remove()
		q.engine.lanes.End() // once Close has returned no queue is left
	}
}

// pause lets others have the lock. The queue must have users.
func (q *queue) pause() {
	q.unlock()
	q.lock()
}

// tidy reports whether the queue is to be removed, and then counted out: no one uses it.
func (q *queue) tidy() bool { return q.users+q.beside == 0 && q.state.CompareAndSwap(used, unused) }

// withQueue calls f with the limiter's queue, under the lock, if there is one.
func (e *Engine) withQueue(key string, f func(q *queue)) {
	for q := e.queues.Get(key); q != nil; q = e.queues.Get(key) {
		q.lock()
		state := q.state.Load()
		if state == used {
			f(q)
		}
		q.unlock()
		if state != removed {
			return
		}
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
	q.lock()
	defer q.unlock()
	q.next(time.Now())
}

// hasWork reports whether there is something to send at this time.
func (q *queue) hasWork(now time.Time) bool {
	return q.gathered.count > 0 || !q.passing && q.line.due(now)
}

// NextCall makes a call for a flight, unless the queue has moved to another lane since.
func (q *queue) NextCall(from *lane.Lane, now time.Time) (c *lane.Call, more bool) {
	q.lock()
	defer q.unlock()
	if q.lane.Load() != from {
		return nil, false
	}
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
	p := q.gathered.first()
	for looked := 0; p != nil && looked < lane.MaxRequests; looked++ { // without all, whose functions may need the heap
		next := q.gathered.known(p.next)
		if b.add(p.request, false) {
			q.gathered.take(p)
		} else if b.accepts(p.request) { // what can't share the call goes with another of the flight
			break
		}
		p = next
	}
	if len(b.requests) == 0 {
		b.free()
		return nil
	}
	for _, r := range b.requests {
		r.State, r.Batch = lane.Sent, &b.Batch
	}
	b.audit, b.changes, b.figures = b.limiter.auditDue(now), q.changes.Load(), b.figures || b.limiter.asksFigures.Load()
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
	q.line.again = true
	now := time.Now()
	q.next(now)
	q.joint.Load().changed(q, now)
}

// close fails all requests that are not under way, and gives leases back.
func (q *queue) close() {
	q.users++
	q.joint.Load().close()
	for q.closeSome() {
		q.pause()
	}
	q.users--
	q.endLeases()
	q.next(time.Now())
}

// closeSome fails some requests that are not under way, and reports whether there may be more.
func (q *queue) closeSome() (more bool) {
	n := 0
	for _, all := range []*places{&q.line.places, &q.gathered} {
		for p := range all.all() {
			if n == lane.MaxWalk {
				return true
			}
			if p.request.State != lane.Gathered {
				continue
			}
			n++
			if p.inLine {
				q.line.drop(p.request)
			} else {
				q.gathered.take(p)
			}
			p.request.finish(decide.Answer{}, limit.ErrClosed)
		}
	}
	return false
}
