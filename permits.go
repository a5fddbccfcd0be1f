package rratelimiter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/chain"
	"github.com/rratelimiter/rratelimiter/internal/meet"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// queue is where the callers of one limiter meet. While a batch of theirs is on
// its way to Redis, requests gather; then all of them go together. Those that
// wait for permits stand in line.
type queue struct {
	client *Client
	keys   *script.Keys
	users  int // guarded by client.mu

	mu      sync.Mutex
	closed  bool
	busy    bool                 // somebody is working through the queue
	flying  bool                 // a batch or a job is on its way
	jobWas  bool                 // the last was a job: then it is the requests' turn
	jobNow  bool                 // a job is on its way
	rests   []rest               // of leases that have ended; they come before all else
	jobs    chain.List[*job]     // what must not meet an attempt whose outcome is in doubt
	bundles int                  // attempts on their way that take of other limiters too
	behind  []chan struct{}      // such attempts that wait for a job; closed when it is done
	tries   chain.List[*request] // want one answer, at once
	line    line                 // wait for permits
	timer   *time.Timer

	leases  bool      // a handle with leases has been here
	lessors []*lessor // those that may have a lease
	flight  flight    // of the batch on its way

	grants atomic.Pointer[grants] // nil while nobody remembers figures
}

// job is work of the queue other than a batch.
type job struct {
	run   func()
	place chain.Link[*job] // among those that are still to be done
	done  chan struct{}
}

// acquire hands a request in and waits for its answer.
func (q *queue) acquire(ctx context.Context, r *request) (answer, error) {
	r.since = time.Now()
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return answer{}, ErrClosed
	}
	q.leases = q.leases || r.limiter.ahead != nil
	if q.lend(r) {
		q.mu.Unlock()
		r.free()
		return answer{decision: limit.Decision{Granted: true}}, nil
	}
	if r.waits {
		q.line.join(r)
	} else {
		q.tries.Push(r.link())
	}
	lead := !q.busy && q.ready(r.since)
	if lead {
		q.busy = true
	} else if !q.busy {
		q.rest()
	}
	alone := lead && ctx.Done() == nil
	if !alone {
		r.done = make(chan struct{})
	}
	q.mu.Unlock()

	if alone {
		if q.workOnce(ctx, r) {
			return r.take()
		}
	} else if lead {
		q.client.stay(q)
		go q.work(context.WithoutCancel(ctx))
	}
	return q.await(ctx, r)
}

// await waits for the answer, for the caller's patience or for ctx to end.
func (q *queue) await(ctx context.Context, r *request) (answer, error) {
	var expired <-chan time.Time
	if !r.deadline.IsZero() {
		select {
		case <-r.done:
			return r.take()
		default:
		}
		timer := time.NewTimer(time.Until(r.deadline))
		defer timer.Stop()
		expired = timer.C
	}
	for {
		select {
		case <-r.done:
			return r.take()
		case <-ctx.Done():
			if !q.abandon(r) {
				return r.take()
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
	if !q.flying && q.line.stillAsks(r) {
		q.start()
		return false
	}
	q.remove(r)
	return true
}

// remove takes a queued request out of its list.
func (q *queue) remove(r *request) {
	if r.waits {
		q.line.remove(r)
	} else {
		r.place.Leave()
	}
	q.start()
}

// exclusive runs f while no batch is on its way. It tells whether f ran, or
// will run: not where ctx ended before its turn.
func (q *queue) exclusive(ctx context.Context, f func()) error {
	j := &job{run: f, done: make(chan struct{})}
	j.place.Element = j
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return ErrClosed
	}
	q.jobs.Push(&j.place)
	q.start()
	q.mu.Unlock()
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if j.place.Waits() {
		j.place.Leave()
		if !q.jobsBefore() {
			q.admit()
		}
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
		q.line.nudge()
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
	return len(q.rests) > 0 || q.jobReady() || q.asked(now)
}

// jobReady tells whether a job is to be done that no attempt holds up.
func (q *queue) jobReady() bool { return q.jobs.Len() > 0 && q.bundles == 0 }

// asked tells whether a batch is to be sent at this time.
func (q *queue) asked(now time.Time) bool {
	return q.tries.Len() > 0 || q.line.due(now)
}

// work goes through the queue until nothing is left to do now.
func (q *queue) work(ctx context.Context) {
	defer q.client.leave(q)
	for q.step(ctx) {
	}
}

// workOnce does one step for a caller that found nobody at work, and leaves the
// rest to others, so that the caller gets its answer. It tells whether that is
// there.
func (q *queue) workOnce(ctx context.Context, r *request) (done bool) {
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.busy = false
		if q.ready(time.Now()) {
			q.start()
		} else {
			q.rest()
		}
		done = r.state == answered
		if !done {
			r.done = make(chan struct{})
		}
	}()
	q.step(ctx)
	return false
}

// step does one piece of work. It tells false, and the queue is no longer busy,
// where there is none.
func (q *queue) step(ctx context.Context) bool {
	q.mu.Lock()
	if rests := q.rests; len(rests) > 0 {
		q.rests, q.flying = nil, true
		q.mu.Unlock()
		q.client.giveBackRests(ctx, q.keys, rests)
		q.mu.Lock()
		q.flying = false
		q.line.nudge()
		q.mu.Unlock()
		return true
	}
	if q.jobReady() && (!q.jobWas || !q.asked(time.Now())) {
		// A lease that came while the job waited: its rest is no job's to release.
		if q.endLeases(); len(q.rests) > 0 {
			q.mu.Unlock()
			return true
		}
		j := q.jobs.First().Element
		j.place.Leave()
		q.flying, q.jobWas, q.jobNow = true, true, true
		q.mu.Unlock()
		j.run()
		close(j.done)
		q.mu.Lock()
		q.flying, q.jobNow = false, false
		q.admit()
		q.mu.Unlock()
		return true
	}
	b := q.next(time.Now())
	if b == nil {
		q.busy = false
		q.rest()
		q.mu.Unlock()
		return false
	}
	q.flying, q.jobWas = true, false
	q.mu.Unlock()
	q.flush(ctx, b)
	return true
}

// next makes the batch to be sent now, nil where there is none: the line first,
// where it is due, then those that want one try.
func (q *queue) next(now time.Time) *batch {
	b := newBatch(q.client.rules)
	if q.tries.Len() > 0 {
		b.reserved = meet.MaxRuns / 2 // a long line leaves room for one try
	}
	q.line.fill(b, now)
	b.reserved = 0
	for place := q.tries.First(); place != nil && b.add(place.Element, false); place = q.tries.First() {
		place.Leave()
	}
	if len(b.requests) == 0 {
		b.free()
		return nil
	}
	for _, r := range b.requests {
		r.state, r.before = inFlight, r.limiter.refused.count()
	}
	b.audit = b.requests[0].limiter.auditDue(now)
	q.flight = q.board(b, now)
	return b
}

// flush sends a batch and tells its callers the answers.
func (q *queue) flush(ctx context.Context, b *batch) {
	o, err := q.send(ctx, b)
	defer b.free()
	b.dropAhead()
	var answers []answer
	if err == nil {
		answers = b.answers(o)
		if b.audit && len(o.waits) > 0 {
			b.requests[0].limiter.auditDone(time.Now(), o.interval)
		}
	}

	q.mu.Lock()
	q.flying = false
	now := time.Now()
	var unwanted []int
	scarce, lined := err != nil, false // a request was refused, and stays in line
	ahead := o.taken
	for i, r := range b.requests {
		a := answer{err: err}
		if err == nil {
			a = answers[i]
		}
		r.sent = b.sent
		scarce = scarce || a.refused()
		if a.decision.Granted {
			ahead -= r.permits
		}
		if r.state == left && a.decision.Granted {
			unwanted = append(unwanted, i)
		}
		if r.waits && r.state != left && !q.closed && a.refused() && (r.deadline.IsZero() || now.Before(r.deadline)) {
			r.state, r.refused, lined = queued, true, true
			q.line.refused(r, a, o)
			continue
		}
		if q.closed && r.waits && a.refused() {
			a.err = ErrClosed
		}
		if r.undoable && a.decision.Granted {
			a.undo = q.client.undo(q.keys, b, i, o)
		}
		r.tell(a)
	}
	q.line.settle(now)
	if lined {
		q.endLeases()
	}
	back := q.land(b, o, scarce, ahead, len(unwanted) > 0)
	q.mu.Unlock()

	if len(unwanted) > 0 {
		q.client.giveBack(ctx, q.keys, b, unwanted, back, o)
		q.poll(true)
	}
}

// send has a batch decided. Where a hook of the client's panics on the way, none
// of its callers is left without an answer.
func (q *queue) send(ctx context.Context, b *batch) (o outcome, err error) {
	sent := false
	defer func() {
		if sent {
			return
		}
		q.granted()
		q.mu.Lock()
		defer q.mu.Unlock()
		q.flying, q.flight = false, flight{}
		b.dropAhead()
		for _, r := range b.requests {
			r.tell(answer{err: fmt.Errorf("%w: a hook of the Redis client panicked", ErrUnknownOutcome)})
		}
	}()
	o, err = q.client.decide(ctx, q.keys, b)
	sent = true
	if err != nil || o.taken > 0 {
		q.granted()
	}
	return o, err
}

// rest arms the timer for a line that waits.
func (q *queue) rest() {
	if q.line.requests.Len() == 0 {
		return
	}
	wait := max(0, time.Until(q.line.dueAt))
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

// close fails all that is not on its way, and has leases given back.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, waiting := range []*chain.List[*request]{&q.line.requests, &q.tries} {
		for place := waiting.First(); place != nil; {
			r := place.Element
			place = place.Next()
			if r.state == queued {
				r.tell(answer{err: ErrClosed})
			}
		}
	}
	q.endLeases()
	q.start()
}
