package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
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
	pass         *batch      // of the line, under way
	dueSince     time.Time   // since when a due pass waits for a flight; zero: none does
	freed        int         // how often permits have been freed
	timer        *time.Timer // begins the line's next pass
	jobs         jobs
	leases       leases
	jointWaiters jointWaiters
}

// request asks for permits.
func (e *Engine) request(ctx context.Context, l *Limiter, ask outage.Question) (answer, error) {
	r := newRequest(ctx, e.clock, l, ask)
	q, err := e.enter(ctx, l, r)
	if err != nil {
		return answer{}, err
	}
	answered := false
	defer func() { e.letGo(q, r, answered) }()
	to := q.lane.Load()
	if alone := q.submit(r, to); alone != nil {
		to.Alone(ctx, alone, !r.deadline.IsZero())
	}
	a, answered := r.await(ctx)
	return a, a.err
}

// submit adds a request. It returns the call that the caller must send itself, if there is one.
func (q *queue) submit(r *request, to *lane.Lane) (alone *lane.Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		r.tell(answer{err: limit.ErrClosed})
	case q.borrow(r):
		r.Tell()
	case r.Waits && q.line.count > 0:
		q.line.join(r)
		r.Wait()
		q.next(r.since)
	default:
		q.gathered = append(q.gathered, r)
		if len(q.gathered) == 1 && !q.listed && !q.held() && q.calls < maxCalls && to.Enter() {
			if !q.engine.conn.Inline() || !r.deadline.IsZero() {
				r.Wait() // another goroutine makes the call
			}
			return q.makeBatch(r.since)
		}
		q.next(r.since)
		r.WaitOn(q.wave)
	}
	return nil
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
	case q.line.count > 0 && q.pass == nil && wait > 0:
		if q.timer == nil {
			q.timer = time.AfterFunc(wait, q.poll)
		} else {
			q.timer.Reset(wait)
		}
		return
	case q.line.count > 0 && q.pass == nil && q.listed && q.dueSince.IsZero():
		q.dueSince = time.Now()
	}
	if q.timer != nil {
		q.timer.Stop()
	}
}

func (q *queue) poll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next(q.engine.clock.Now())
}

// hasWork reports whether there is something to send at this time.
func (q *queue) hasWork(now time.Time) bool {
	return len(q.gathered) > 0 || q.pass == nil && q.line.due(now)
}

// nudge says that permits may have become free: all who wait ask at once, and remembered refusals
// end.
func (q *queue) nudge() {
	q.engine.refusals.Changed(q.config)
	q.jointWaiters.wake()
	q.freed++
	q.line.nudge()
	q.next(q.engine.clock.Now())
}

// NextCall makes a call for a flight.
func (q *queue) NextCall(now time.Time) (c *lane.Call, more bool) {
	now = q.engine.clock.At(now)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.listed, q.wave, q.dueSince = false, nil, time.Time{}
	if q.held() || q.calls >= maxCalls {
		return nil, false
	}
	c = q.makeBatch(now)
	if c == nil {
		q.next(now)
		return nil, false
	}
	q.listed = q.hasWork(now) && !q.held() && q.calls < maxCalls
	return c, q.listed
}

// makeBatch makes a batch: first of requests in the line, if it is due, then of those that gathered.
func (q *queue) makeBatch(now time.Time) *lane.Call {
	b := newBatch(q)
	if q.pass == nil && q.line.due(now) {
		if len(q.gathered) > 0 {
			b.reserved = lane.MaxRuns / 2 // a long line leaves room for the others
		}
		q.line.fill(b, now, time.Now())
		b.reserved = 0
		b.pass = len(b.requests) > 0
		if !b.pass {
			q.line.settle(now) // the requests left to ask for have gone
		}
	}
	kept, full := q.gathered[:0], false
	for _, r := range q.gathered {
		switch {
		case !full && r.State != lane.Gathered:
		case full || !b.add(r, false):
			full = full || r.Settled == b.requests[0].Settled // reservations and others are for different batches
			kept = append(kept, r)
		}
	}
	clear(q.gathered[len(kept):])
	q.gathered, q.left = kept, 0
	if len(b.requests) == 0 {
		b.free()
		return nil
	}
	for _, r := range b.requests {
		r.State, r.Batch = lane.Sent, &b.Batch
	}
	b.audit, b.freed = b.limiter().auditDue(now), q.freed
	b.ahead = q.prefetch(b, now)
	q.calls++
	q.jobs.requestsNext = false
	b.prepare()
	if b.Count == 1 {
		b.call.By(b.requests[0].ctx)
	}
	if b.pass {
		q.pass = b
	}
	return &b.call
}

// record records how the batch ended, and computes its answers.
func (b *batch) record(o outcome, err error) {
	e := b.queue.engine
	if err != nil || o.Taken > 0 {
		e.Granted(b.queue.config)
	}
	if b.ahead.permits > 0 {
		b.Drop(b.ahead.permits)
	}
	if err != nil {
		return
	}
	b.answers = b.Answers(b.answers[:0], o.Outcome)
	if b.audit && (len(o.Waits) > 0 || b.UpTo && o.Taken < b.requests[0].Permits) {
		b.limiter().auditDone(e.clock.Now(), o.interval)
	}
}

// complete gives the callers of a batch their answers.
func (q *queue) complete(b *batch, o outcome, err error) {
	b.record(o, err)
	short := b.call.Unreplicated()
	q.mu.Lock()
	now := q.engine.clock.Now()
	var unwanted []share
	b.plan(o, err, now)
	granted, doubtful, lined := int64(0), int64(0), false
	for i, r := range b.requests {
		a := b.answer(i, o, err)
		if a.Granted {
			granted += a.Taken
			if r.State != lane.Sent || short != nil {
				unwanted = append(unwanted, share{i, a.Taken})
			}
		}
		switch {
		case r.State != lane.Sent:
			if errors.Is(err, limit.ErrUnknownOutcome) && !r.UpTo {
				doubtful += r.Permits
			}
			if r.inLine {
				q.line.remove(r)
			}
		case a.Granted && short != nil:
			q.answer(b, i, answer{err: short}, outcome{})
		case r.Waits && a.refused() && !q.closed && !r.overdue(now):
			q.lineUp(b, r, a, o, now)
			lined = true
		default:
			q.answer(b, i, a, o)
		}
	}
	if b.pass {
		q.pass = nil
		q.line.settle(now)
	}
	if lined {
		q.endLeases()
	}
	if doubtful > 0 {
		q.engine.givenUp(q, doubtful, err)
	}
	q.hear(o, b.sent)
	back := q.keepLease(b, o, granted, len(unwanted) > 0 || short != nil)
	q.calls--
	for _, one := range b.grants(unwanted, back, o) {
		q.giveBack(one)
	}
	q.next(now)
	q.engine.letGoAll(b)
	q.mu.Unlock()
	b.free()
}

// lineUp puts a refused request in line.
func (q *queue) lineUp(b *batch, r *request, a answer, o outcome, now time.Time) {
	r.State, r.refused = lane.Gathered, true
	if r.inLine {
		q.line.refused(r, a, o)
		return
	}
	q.line.enter(r, a, o, now)
	if q.freed != b.freed {
		q.line.nudge() // the refusal may be older than that
	}
}

// answer sets the answer of a batch's request.
func (q *queue) answer(b *batch, place int, a answer, o outcome) {
	r := b.requests[place]
	if r.inLine {
		q.line.drop(r)
	}
	if q.closed && r.Waits && a.refused() {
		a.err = limit.ErrClosed
	}
	switch {
	case !a.Granted:
		a.RetryAfter = b.spread(r, a.RetryAfter)
	case r.Undo:
		a.Undo = q.undo(b.grants([]share{{place, a.Taken}}, 0, o)[0])
	case r.Settled:
		member := b.grants([]share{{place, a.Taken}}, 0, o)[0].member
		s := &settlement{engine: q.engine, limiter: r.limiter, member: member, permits: a.Taken, sent: b.sent, granted: q.engine.clock.Now()}
		a.Settle = s.settle
	}
	r.answer, r.State = a, lane.Answered
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
	q.next(q.engine.clock.Now())
}

// withdraw is Leave for a request that has no answer. q.mu is held.
func (q *queue) withdraw(r *request) {
	r.byBatch = r.State == lane.Sent
	r.State = lane.Gone
	switch {
	case r.byBatch:
	case r.inLine:
		q.line.remove(r)
		q.next(q.engine.clock.Now())
	default:
		if q.left++; q.left > len(q.gathered)/2 {
			q.gathered = slices.DeleteFunc(q.gathered, func(r *request) bool { return r.State != lane.Gathered })
			q.left = 0
		}
	}
}

// asksLast reports whether a request in line whose caller's patience has just ended is sent a last
// time: the line asks at this moment. q.mu is held.
func (q *queue) asksLast(r *request, now time.Time) bool {
	if q.pass != nil || !q.line.stillAsks(r) || !now.Before(r.deadline.Add(q.engine.grace)) {
		return false
	}
	q.next(now)
	return true
}
