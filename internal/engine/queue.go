package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	keys     *script.Keys
	observed string
	lane     atomic.Pointer[lane.Lane] // the lane to the master that last had the limiter
	users    int                       // guarded by engine.mu

	mu           sync.Mutex
	closed       bool
	listed       bool       // a flight will ask for what has gathered
	wave         *lane.Wave // of that flight; nil if callers can't wait on it
	gathered     []*request // for the next flight
	room         [2]*request
	left         int // how many of them their callers have left
	calls        int // batches and requests of several limiters under way
	returns      int // give-backs under way
	line         line
	passing      bool        // a pass of the line is under way
	dueSince     time.Time   // since when a due pass waits for a flight; zero: none does
	freed        int         // how often permits have been freed
	timer        *time.Timer // begins the line's next pass
	jobs         jobs
	leases       leases
	jointWaiters jointWaiters
}

// enter counts a caller in at the limiter's queue, with its request if it has one, and leave counts
// it out. An unused queue is removed.
func (e *Engine) enter(ctx context.Context, l *Limiter, r *request) (*queue, error) {
	to := e.lanes.Of(ctx, l.Config)
	if r != nil {
		e.book.Used(r.Asked)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, limit.ErrClosed
	}
	e.active++
	q := e.queues[l.Config]
	if q == nil {
		if q = e.last; q == nil || q.config != l.Config {
			q = &queue{engine: e, config: l.Config, keys: l.Keys, observed: l.Observed}
			q.line.observer = e.observer
			q.gathered = q.room[:0]
		}
		e.queues[l.Config] = q
	}
	if q.lane.Load() != to {
		q.lane.Store(to)
	}
	q.users++
	if r != nil {
		r.queue, r.Mu = q, &q.mu
	}
	return q, nil
}

func (e *Engine) leave(q *queue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaveLocked(q, 1)
}

// leaveLocked counts out n. e.mu is held.
func (e *Engine) leaveLocked(q *queue, n int) {
	if q.users -= n; q.users == 0 {
		delete(e.queues, q.config)
		e.last = q
	}
	e.endLocked(n)
}

// stay counts in background work of a queue, for a caller that is counted in itself.
func (e *Engine) stay(q *queue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active++
	q.users++
}

// visit calls f with the limiter's queue, whose lock is held, if there is one.
func (e *Engine) visit(key string, f func(q *queue)) {
	e.mu.Lock()
	q := e.queues[key]
	if q != nil {
		q.users++
		e.active++
	}
	e.mu.Unlock()
	if q != nil {
		defer e.leave(q)
		q.mu.Lock()
		defer q.mu.Unlock()
		f(q)
	}
}

// held reports whether requests must wait for an exclusive job or a give-back.
func (q *queue) held() bool {
	return q.leases.returning() || len(q.leases.unused) > 0 || q.jobs.running || len(q.jobs.waiting) > 0 && !q.jobs.requestsNext
}

// next starts what can be done now. q.mu is held.
func (q *queue) next(now time.Time) {
	if q.returnUnused() || q.startJob(now) {
		return
	}
	if !q.listed && q.hasWork(now) && !q.held() && q.calls < maxCalls {
		q.listed = true
		q.wave = q.lane.Load().Ready(q)
	}
	switch wait := q.line.dueAt.Sub(now); {
	case q.line.count > 0 && !q.passing && wait > 0:
		if q.timer == nil {
			q.timer = time.AfterFunc(wait, q.poll)
		} else {
			q.timer.Reset(wait)
		}
		return
	case q.line.count > 0 && !q.passing && q.listed && q.dueSince.IsZero():
		q.dueSince = time.Now()
	}
	if q.timer != nil {
		q.timer.Stop()
	}
}

func (q *queue) poll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next(time.Now())
}

// hasWork reports whether there is something to send at this time.
func (q *queue) hasWork(now time.Time) bool {
	return len(q.gathered) > 0 || !q.passing && q.line.due(now)
}

// nudge says that permits may have become free: all who wait ask at once, and remembered refusals
// end.
func (q *queue) nudge() {
	q.engine.refusals.Changed(q.config)
	q.jointWaiters.wake()
	q.freed++
	q.line.nudge()
	q.next(time.Now())
}

// freed says that permits of the limiter may have become free.
func (e *Engine) freed(key string) {
	e.refusals.Changed(key)
	e.visit(key, (*queue).nudge)
}

// close fails all requests that are not under way, and gives leases back.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.jointWaiters.wake()
	for r := range q.line.all() {
		if r.State == lane.Gathered {
			q.line.drop(r)
			r.tell(answer{err: limit.ErrClosed})
		}
	}
	for _, r := range q.gathered {
		if r.State == lane.Gathered {
			r.tell(answer{err: limit.ErrClosed})
		}
	}
	q.gathered = nil
	q.endLeases()
	q.next(time.Now())
}

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
