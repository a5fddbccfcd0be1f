package rratelimiter

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// queue is where the callers of one limiter meet. While a batch of theirs is on
// its way to Redis, requests gather; then all of them go together. Those that
// wait for permits stand in line, first come first served, with one timer for
// all of them.
type queue struct {
	client *Client
	keys   []string
	users  int // guarded by client.mu

	mu       sync.Mutex
	closed   bool
	busy     bool       // somebody is working through the queue
	jobs     []*job     // what must not meet a batch whose outcome is in doubt
	tries    []*request // want one answer, at once
	line     []*request // wait for permits, in the order in which they came
	dueAt    time.Time  // when the line asks again; zero: at once
	smallest int64      // the fewest permits that were refused when it asked last
	timer    *time.Timer
	interval time.Duration // the limiter's, as last seen
}

// job is work of the queue other than a batch.
type job struct {
	run  func()
	done chan struct{}
}

// request is one caller's wish for permits.
type request struct {
	limiter  *RateLimiter
	permits  int64
	fallback string    // configuration for a limiter that has none, or ""
	figures  bool      // the answer's figures are wanted
	waits    bool      // stands in line until it is granted or gives up
	since    time.Time // when the caller asked
	deadline time.Time // when the caller gives up; zero: never

	state  state
	tried  bool // was refused before
	answer answer
	err    error
	done   chan struct{} // closed with the answer
}

type state int

const (
	queued state = iota
	inFlight
	left     // the caller went away while its request was in flight
	answered // answer and err are set
)

// acquire hands a request in and waits for its answer.
func (q *queue) acquire(ctx context.Context, r *request) (answer, error) {
	r.since = time.Now()
	r.done = make(chan struct{})
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return answer{}, ErrClosed
	}
	if r.waits {
		q.line = append(q.line, r)
		if len(q.line) == 1 || q.overdue(r.since) && r.permits < q.smallest {
			q.dueAt = time.Time{}
		}
	} else {
		q.tries = append(q.tries, r)
	}
	lead := !q.busy && q.ready(r.since)
	if lead {
		q.busy = true
	}
	q.mu.Unlock()

	if lead {
		if ctx.Done() == nil {
			q.workOnce(ctx)
		} else {
			q.client.stay(q)
			go q.work(context.WithoutCancel(ctx))
		}
	}
	return q.await(ctx, r)
}

// await waits for the answer, for the caller's patience or for ctx to end.
func (q *queue) await(ctx context.Context, r *request) (answer, error) {
	var expired <-chan time.Time
	if !r.deadline.IsZero() {
		select {
		case <-r.done:
			return r.answer, r.err
		default:
		}
		timer := time.NewTimer(time.Until(r.deadline))
		defer timer.Stop()
		expired = timer.C
	}
	for {
		select {
		case <-r.done:
			return r.answer, r.err
		case <-ctx.Done():
			if !q.abandon(r) {
				return r.answer, r.err
			}
			return answer{}, ctx.Err()
		case <-expired:
			expired = nil
			if q.giveUp(r) {
				return answer{}, nil
			}
		}
	}
}

// abandon takes a request back whose caller's context has ended. What it is
// granted nevertheless goes back. It tells false where the answer is there.
func (q *queue) abandon(r *request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch r.state {
	case answered:
		return false
	case inFlight:
		r.state = left
	case queued:
		q.remove(r)
	}
	return true
}

// giveUp takes a request out of the line whose time is over. It tells false
// where an answer is on its way, or where the line is to ask at this moment:
// the request is then asked for a last time.
func (q *queue) giveUp(r *request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.state != queued {
		return false
	}
	if q.line[0] == r && !q.dueAt.After(r.deadline) {
		q.start()
		return false
	}
	q.remove(r)
	return true
}

// remove takes a queued request out of its list.
func (q *queue) remove(r *request) {
	if i := slices.Index(q.tries, r); i >= 0 {
		q.tries = slices.Delete(q.tries, i, i+1)
	}
	if i := slices.Index(q.line, r); i >= 0 {
		q.line = slices.Delete(q.line, i, i+1)
		if i == 0 && len(q.line) > 0 {
			// The next in line may want less.
			q.dueAt = time.Time{}
			q.start()
		}
	}
}

// exclusive runs f while no batch is on its way. It tells whether f ran, or
// will run: not where ctx ended before its turn.
func (q *queue) exclusive(ctx context.Context, f func()) error {
	j := &job{run: f, done: make(chan struct{})}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return ErrClosed
	}
	q.jobs = append(q.jobs, j)
	q.start()
	q.mu.Unlock()
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.jobs, j); i >= 0 {
		q.jobs = slices.Delete(q.jobs, i, i+1)
		return ctx.Err()
	}
	select {
	case <-j.done:
		return nil
	default:
		return fmt.Errorf("%w: %w", errUnderWay, ctx.Err())
	}
}

// poll starts work if there is some; with now, the line asks at once.
func (q *queue) poll(now bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now {
		q.dueAt = time.Time{}
	}
	q.start()
}

// start has the queue worked through in the background, where there is work and
// nobody does it.
func (q *queue) start() {
	if q.busy || !q.ready(time.Now()) {
		return
	}
	q.busy = true
	q.client.stay(q)
	go q.work(context.Background())
}

// ready tells whether there is work at this time.
func (q *queue) ready(now time.Time) bool {
	return len(q.jobs) > 0 || len(q.tries) > 0 || len(q.line) > 0 && !q.dueAt.After(now)
}

// overdue tells whether the first in line has asked for an interval: then those
// behind it are tried too.
func (q *queue) overdue(now time.Time) bool {
	return len(q.line) > 0 && q.interval > 0 && !now.Before(q.line[0].since.Add(q.interval))
}

// work goes through the queue until nothing is left to do now.
func (q *queue) work(ctx context.Context) {
	defer q.client.leave(q)
	for q.step(ctx) {
	}
}

// workOnce does one step for a caller that found nobody at work, and leaves the
// rest to others, so that the caller gets its answer.
func (q *queue) workOnce(ctx context.Context) {
	q.step(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy = false
	if q.ready(time.Now()) {
		q.start()
	} else {
		q.rest()
	}
}

// step does one piece of work. It tells false, and the queue is no longer busy,
// where there is none.
func (q *queue) step(ctx context.Context) bool {
	q.mu.Lock()
	if len(q.jobs) > 0 {
		j := q.jobs[0]
		q.jobs = slices.Delete(q.jobs, 0, 1)
		q.mu.Unlock()
		j.run()
		close(j.done)
		return true
	}
	b := q.next(time.Now())
	if b == nil {
		q.busy = false
		q.rest()
		q.mu.Unlock()
		return false
	}
	q.mu.Unlock()
	q.flush(ctx, b)
	return true
}

// next makes the batch to be sent now, nil where there is none: the line first,
// where it is due, then those that want one try.
func (q *queue) next(now time.Time) *batch {
	b := &batch{}
	if len(q.line) > 0 && !q.dueAt.After(now) {
		strict := !q.overdue(now)
		for _, r := range q.line {
			if !b.add(r, strict) {
				break
			}
		}
	}
	taken := 0
	for _, r := range q.tries {
		if !b.add(r, false) {
			break
		}
		taken++
	}
	q.tries = slices.Delete(q.tries, 0, taken)
	if len(b.requests) == 0 {
		return nil
	}
	for _, r := range b.requests {
		r.state = inFlight
	}
	b.audit = b.requests[0].limiter.auditDue(now)
	return b
}

// flush sends a batch and tells its callers the answers.
func (q *queue) flush(ctx context.Context, b *batch) {
	o, err := q.client.decide(ctx, q.keys, b)
	var answers []answer
	if err == nil {
		answers = b.answers(o)
	}

	q.mu.Lock()
	now := time.Now()
	if err == nil {
		q.interval = o.interval
		if b.audit && len(o.waits) > 0 {
			b.requests[0].limiter.auditDone(now, o.interval)
		}
	}
	var unwanted int64
	var wait time.Duration // until the next in line can be served
	smallest := int64(MaxPermits)
	for i, r := range b.requests {
		gone := r.state == left
		refused := err == nil && answers[i].err == nil && !answers[i].decision.Granted
		if gone && !refused && err == nil && answers[i].err == nil {
			unwanted += r.permits
		}
		if refused && r.waits && !gone && !q.closed && (r.deadline.IsZero() || now.Before(r.deadline)) {
			r.state = queued
			r.tried = true
			if !answers[i].inLine {
				w := answers[i].decision.RetryAfter
				if wait == 0 || w < wait {
					wait = w
				}
				smallest = min(smallest, r.permits)
			}
			continue
		}
		r.state = answered
		r.err = err
		if err == nil {
			r.answer, r.err = answers[i], answers[i].err
			if refused && r.waits && q.closed {
				r.err = ErrClosed
			}
		}
		close(r.done)
	}
	q.line = slices.DeleteFunc(q.line, func(r *request) bool { return r.state == answered })
	q.schedule(now, wait, smallest)
	q.mu.Unlock()

	if unwanted > 0 {
		q.client.giveBack(ctx, q.keys, b, o.taken, unwanted)
		q.poll(true)
	}
}

// schedule sets when the line asks again: at once where its first has not been
// asked for yet, else when the server said, and when its first has asked for an
// interval, so that those behind it are tried.
func (q *queue) schedule(now time.Time, wait time.Duration, smallest int64) {
	if len(q.line) == 0 {
		return
	}
	first := q.line[0]
	if !first.tried || first.state != queued {
		q.dueAt = time.Time{}
		return
	}
	if wait == 0 {
		return // the line was not part of the batch
	}
	q.dueAt, q.smallest = now.Add(wait), smallest
	if turn := first.since.Add(q.interval); len(q.line) > 1 && now.Before(turn) && turn.Before(q.dueAt) {
		q.dueAt = turn
	}
}

// rest arms the timer for a line that waits.
func (q *queue) rest() {
	if len(q.line) == 0 {
		return
	}
	wait := max(0, time.Until(q.dueAt))
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, func() { q.poll(false) })
	} else {
		q.timer.Reset(wait)
	}
}

// stop disarms the timer of a queue that nobody uses any more.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
	}
}

// close fails all that is not on its way.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	fail := func(r *request) bool {
		if r.state != queued {
			return false
		}
		r.state, r.err = answered, ErrClosed
		close(r.done)
		return true
	}
	q.line = slices.DeleteFunc(q.line, fail)
	q.tries = slices.DeleteFunc(q.tries, fail)
}
