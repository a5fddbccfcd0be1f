package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// jobs are releases and migrations, which run alone: they change members by which a call whose outcome is in doubt is found.
// A job waits until everything under way is finished, and holds back what gathers meanwhile. After it requests come next.
// The queue's lock guards them.
type jobs struct {
	waiting      []*job
	running      bool            // one is running
	requestsNext bool            // no requests followed the last one yet
	entering     []chan struct{} // of callers that wait for their turn
}

// job is work that runs alone. It uses its queue until it is done.
type job struct {
	run      func(ctx context.Context, t *job) error
	release  bool // releases permits, of several callers at once
	queue    *queue
	answered atomic.Bool     // one of its calls was answered
	ctx      context.Context // for the Redis client's hooks
	done     chan struct{}
	err      error

	mu      sync.Mutex // guards what follows; it is taken last
	permits int64      // to be released
	callers int
	sent    bool      // callers can no longer leave it
	since   time.Time // when the last caller came
}

// runJob runs t while no request of the limiter is under way, and returns its error. If ctx ends
// before it starts, it does not run.
func (e *Engine) runJob(ctx context.Context, l *Limiter, t *job) error {
	q, err := e.lock(ctx, l)
	if err != nil {
		return err
	}
	permits, since := t.permits, t.since
	t.ctx = context.WithoutCancel(ctx)
	t = q.join(t)
	q.next(time.Now())
	q.unlock()

	timeout := e.conn.Timeout
	err = lane.Wait(ctx, t.done, since.Add(timeout))
	switch late := errors.Is(err, lane.ErrLate); {
	case err == nil:
	case q.leaveJob(t, permits):
		if late {
			err = lane.NoAnswer(timeout, false)
		}
		return err
	case late && t.since.After(since) && !t.answered.Load():
		return lane.NoAnswer(timeout, true) // the job has the time of callers who came later
	case late:
		err = lane.Wait(ctx, t.done, time.Time{})
	}
	if err == nil {
		return t.err
	}
	select {
	case <-t.done:
		return t.err
	default:
		return lane.UnderWay(err)
	}
}

// join adds a job, or merges it into another, and returns the resulting job.
func (q *queue) join(t *job) *job {
	if t.release {
		for _, other := range q.jobs.waiting {
			if other.release && other.joined(t.permits, t.since) {
				return other
			}
		}
	}
	q.users++
	t.queue, t.done, t.callers = q, make(chan struct{}), 1
	q.jobs.waiting = append(q.jobs.waiting, t)
	return t
}

// joined reports whether another caller's permits are released by the job too.
func (t *job) joined(permits int64, since time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.permits+permits > maxRate {
		return false
	}
	t.permits += permits
	t.callers++
	t.since = since
	return true
}

// left takes a caller's part out, unless the job has begun, and returns how many callers stay.
func (t *job) left(permits int64) (callers int, left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent {
		return t.callers, false
	}
	t.permits -= permits
	t.callers--
	return t.callers, true
}

// leaveJob takes a caller's part out of a job, unless that has begun.
func (q *queue) leaveJob(t *job, permits int64) bool {
	q.lock()
	defer q.unlock()
	if stay, left := t.left(permits); !left || stay > 0 {
		return left
	}
	i := slices.Index(q.jobs.waiting, t)
	if i < 0 {
		return true // it has started, and will do nothing
	}
	q.jobs.waiting = slices.Delete(q.jobs.waiting, i, i+1)
	q.users--
	if !q.jobsAhead() {
		q.admit()
	}
	q.next(time.Now())
	return true
}

// startJob starts the next job if nothing is under way that must not overlap it: a batch, or what may overlap a batch but
// is counted in beside it, give-backs, settlements and tries of several limiters. An undo, a change of the limiter and what
// only reads may overlap all.
func (q *queue) startJob(now time.Time) bool {
	s := &q.jobs
	if s.running || q.calls+q.beside > 0 || s.requestsNext && q.hasWork(now) {
		return s.running
	}
	// A lease may have come while the job waited: a Release must not take its rest.
	if q.endLeases(); q.returnUnused() {
		return true
	}
	t := s.waiting[0]
	s.waiting = slices.Delete(s.waiting, 0, 1)
	s.running = true
	go func() {
		err := q.engine.explain(q.of.Keys().Names(), t.run(t.ctx, t))
		q.lock()
		defer q.unlock()
		t.err = err
		close(t.done)
		q.users--
		q.admit() // before one of them that has gone can start the next job
		s.running, s.requestsNext = false, true
		q.next(time.Now())
	}()
	return true
}

// begin records that the first call of a job is being sent, unless all its callers have gone. It returns how many permits
// they release.
func (t *job) begin() (permits int64, wanted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent = t.callers > 0
	return t.permits, t.sent
}

// jobsAhead reports whether what comes now waits for a job.
func (q *queue) jobsAhead() bool { return len(q.jobs.waiting) > 0 || q.jobs.running }

// turn counts the caller in beside what is under way at the limiter, once the jobs that came before are done: at once,
// or when what it returns is closed. exit counts the caller out. The queue must have users.
func (q *queue) turn() (counted chan struct{}) {
	if !q.jobsAhead() {
		q.beside++
		return nil
	}
	counted = make(chan struct{})
	q.jobs.entering = append(q.jobs.entering, counted)
	return counted
}

// awaitTurn returns when the caller is counted in. Otherwise it returns ctx's error, or lane.ErrLate at the time late.
// The lock is not held.
func (q *queue) awaitTurn(ctx context.Context, counted chan struct{}, late time.Time) error {
	if counted == nil {
		return nil
	}
	err := lane.Wait(ctx, counted, late)
	if err == nil {
		return nil
	}
	q.lock()
	defer q.unlock()
	if at := slices.Index(q.jobs.entering, counted); at >= 0 {
		q.jobs.entering = slices.Delete(q.jobs.entering, at, at+1)
	} else {
		q.exit()
	}
	return err
}

// admit counts in those who wait for their turn.
func (q *queue) admit() {
	for _, counted := range q.jobs.entering {
		q.beside++
		close(counted)
	}
	q.jobs.entering = nil
}

// exit counts out who was counted in.
func (q *queue) exit() {
	q.beside--
	q.next(time.Now())
}

// maxRate is the highest rate a limiter can count exactly.
const maxRate = 1<<53 - 1
