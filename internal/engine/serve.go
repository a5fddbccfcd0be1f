package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Acquire asks Redis for permits, and waits for them if the ask says so. It fills the Answer, which is a zero one.
func (e *Engine) Acquire(ctx context.Context, l *Limiter, ask *decide.Ask, a *decide.Answer) error {
	a.By = limit.FromRedis
	before := l.Refusals.Now()
	r := e.newRequest(ctx, l, ask)
	e.book.Used(r.Asked)
	q, err := e.lock(ctx, l)
	if err != nil {
		return err
	}
	to := q.lane.Load()
	alone := q.submit(r, to)
	q.unlock()
	if ask.Waits {
		decide.Entered(ctx)
	}
	if alone != nil {
		to.SendOne(ctx, alone, r.timed)
	}
	answered := r.await(ctx)
	*a, err = r.answer, r.err
	a.By = cmp.Or(a.By, limit.FromRedis)
	if answered && !r.Waits { // the line may still know one that waits
		if err == nil && !a.Granted {
			l.Refusals.Note(leastOf(ask), r.sent, before, a.Decision, r.alive)
		}
		*r = request{}
		requests.Put(r)
	}
	return err
}

// submit adds a request. It returns the call that the caller must send itself, if there is one.
func (q *queue) submit(r *request, to *lane.Lane) (alone *lane.Call) {
	r.queue = q
	q.users++
	switch {
	case r.limiter.Lease != nil && q.serveFromLease(r):
		r.finish(r.answer, nil)
	case r.Waits && q.line.list.Len() > 0:
		q.line.join(r, to.Fresh())
		r.WaitOn(nil)
		q.next(r.since)
	default:
		q.gathered = append(q.gathered, r)
		if len(q.gathered) == 1 && !q.listed && !q.blocked() && q.calls < maxCalls && to.TryReserve() {
			if !q.engine.conn.Inline || !r.deadline.IsZero() {
				r.WaitOn(nil) // another goroutine makes the call
			}
			return q.makeBatch(r.since)
		}
		if !q.listed || q.leases.returning() {
			q.next(r.since)
		}
		r.WaitOn(q.wave)
	}
	return nil
}

// NextCall makes a call for a flight.
func (q *queue) NextCall(now time.Time) (c *lane.Call, more bool) {
	defer q.tidy()
	q.listed, q.wave, q.dueSince = false, nil, time.Time{}
	if q.blocked() || q.calls >= maxCalls {
		return nil, false
	}
	c = q.makeBatch(now)
	if c == nil {
		q.next(now)
		return nil, false
	}
	q.listed = q.hasWork(now) && !q.blocked() && q.calls < maxCalls
	return c, q.listed
}

// makeBatch makes a batch: first of requests in the line, if it is due, then of those that gathered.
func (q *queue) makeBatch(now time.Time) *lane.Call {
	b := newBatch(q)
	if !q.passing && q.line.due(now) {
		if len(q.gathered) > 0 {
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
	kept, full := q.gathered[:0], false
	for _, r := range q.gathered {
		switch {
		case !full && r.State != lane.Gathered:
		case full || !b.add(r, false):
			full = full || b.accepts(r) // what can't share the call goes with another of the flight
			kept = append(kept, r)
		}
	}
	clear(q.gathered[len(kept):])
	q.gathered, q.cancelled = kept, 0
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
	b.prepare()
	if b.pass {
		q.passing = true
	}
	return &b.call
}
