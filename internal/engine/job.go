package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/limit"
)

// jobs are exclusive: releases and migrations must not run beside requests of the limiter whose outcome
// is in doubt. A job waits until everything under way is finished, and holds back what gathers
// meanwhile. After it requests come next. A queue's lock guards its jobs.
type jobs struct {
	waiting      []*job
	running      bool                       // one is running
	requestsNext bool                       // no requests followed the last one yet
	behind       map[chan struct{}]struct{} // waiting requests of several limiters; closed when the job is done
}

// job is work that runs alone.
type job struct {
	run     func(ctx context.Context, t *job) error
	release bool // releases permits, of several callers at once
	queue   *queue
	permits int64 // to be released
	callers int
	sent    bool            // callers can no longer leave it
	since   time.Time       // when the last caller came
	heard   atomic.Bool     // one of its calls was answered
	ctx     context.Context // for the Redis client's hooks
	done    chan struct{}
	err     error
}

// runJob runs t while no request of the limiter is under way, and returns its error. If ctx ends
// before it starts, it does not run.
func (e *Engine) runJob(ctx context.Context, l *Limiter, t *job) error {
	q, err := e.enter(ctx, l, nil)
	if err != nil {
		return err
	}
	defer e.leave(q)
	permits := t.permits
	t.ctx = context.WithoutCancel(ctx)
	since := t.since
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return limit.ErrClosed
	}
	t.queue = q
	t = q.jobs.join(t)
	q.next(time.Now())
	q.mu.Unlock()

	timeout := e.conn.Timeout()
	late := time.After(time.Until(since.Add(timeout)))
	for {
		select {
		case <-t.done:
			return t.err
		case <-ctx.Done():
			if q.leaveJob(t, permits) {
				return ctx.Err()
			}
			select {
			case <-t.done:
				return t.err
			default:
				return underWay(ctx.Err())
			}
		case <-late:
			if q.leaveJob(t, permits) {
				return lane.NoAnswer(timeout, false)
			}
			if t.since.After(since) && !t.heard.Load() {
				return lane.NoAnswer(timeout, true) // the job has the time of callers who came later
			}
		}
	}
}

// join adds a job, or merges it into another, and returns the resulting job.
func (s *jobs) join(t *job) *job {
	if t.release {
		for _, other := range s.waiting {
			if other.release && other.permits+t.permits <= maxRate {
				other.permits += t.permits
				other.callers++
				other.since = t.since
				return other
			}
		}
	}
	t.done, t.callers = make(chan struct{}), 1
	s.waiting = append(s.waiting, t)
	return t
}

// leaveJob takes a caller's part out of a job, unless that has begun.
func (q *queue) leaveJob(t *job, permits int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.sent {
		return false
	}
	t.permits -= permits
	t.callers--
	if t.callers > 0 {
		return true
	}
	i := slices.Index(q.jobs.waiting, t)
	if i < 0 {
		return true // it has started, and will do nothing
	}
	q.jobs.waiting = slices.Delete(q.jobs.waiting, i, i+1)
	if !q.jobsAhead() {
		q.admit()
	}
	q.next(time.Now())
	return true
}

// startJob starts the next job if nothing is under way.
func (q *queue) startJob(now time.Time) bool {
	s := &q.jobs
	if s.running || len(s.waiting) == 0 || q.calls+q.returns > 0 || s.requestsNext && q.hasWork(now) {
		return s.running
	}
	// A lease may have come while the job waited: a Release must not take its rest.
	if q.endLeases(); q.returnUnused() {
		return true
	}
	t := s.waiting[0]
	s.waiting = slices.Delete(s.waiting, 0, 1)
	s.running = true
	q.engine.stay(q)
	go func() {
		defer q.engine.leave(q)
		err := q.engine.explain(q.keys.Names(), t.run(t.ctx, t))
		q.mu.Lock()
		defer q.mu.Unlock()
		t.err = err
		close(t.done)
		s.running, s.requestsNext = false, true
		q.admit()
		q.next(time.Now())
	}()
	return true
}

// begin records that the first call of a job is being sent, unless all its callers have gone.
func (t *job) begin() bool {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.sent = t.callers > 0
	return t.sent
}

// jobsAhead reports whether a request of several limiters that comes now waits for a job.
func (q *queue) jobsAhead() bool { return len(q.jobs.waiting) > 0 || q.jobs.running }

// admit lets requests begin that have waited for a job.
func (q *queue) admit() {
	q.calls += len(q.jobs.behind)
	for admitted := range q.jobs.behind {
		close(admitted)
	}
	q.jobs.behind = nil
}

// maxRate is the highest rate a limiter can count exactly.
const maxRate = 1<<53 - 1

// beginBehindJobs counts a try in once the jobs that came before are done. It waits for them at most
// until end.
func (q *queue) beginBehindJobs(ctx context.Context, start, end time.Time) error {
	q.mu.Lock()
	if !q.jobsAhead() {
		q.calls++
		q.mu.Unlock()
		return nil
	}
	admitted := make(chan struct{})
	if q.jobs.behind == nil {
		q.jobs.behind = make(map[chan struct{}]struct{})
	}
	q.jobs.behind[admitted] = struct{}{}
	q.mu.Unlock()
	var err error
	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(time.Until(end)):
		err = lane.NoAnswer(time.Since(start), false)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.jobs.behind[admitted]; waits {
		delete(q.jobs.behind, admitted)
	} else {
		q.calls-- // it was admitted just now
		q.next(time.Now())
	}
	return err
}
