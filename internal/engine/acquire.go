package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
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
	if ask.MayWait {
		decide.Entered(ctx)
	}
	if alone != nil {
		to.SendOne(ctx, alone, r.timed)
	}
	answered := r.await(ctx)
	*a, err = r.answer, r.err
	a.By = cmp.Or(a.By, limit.FromRedis)
	if answered && !r.lined {
		if err == nil && !a.Granted && !ask.MayWait {
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
	case r.MayWait && q.line.count > 0:
		q.line.join(r, to.Fresh())
		r.WaitOn(nil)
		q.next(r.since)
	default:
		r.request = r
		q.gathered.put(&r.place, q.gathered.last())
		if q.gathered.count == 1 && !q.listed && q.maySend() && to.TryReserve() {
			if !q.engine.conn.Inline || !r.deadline.IsZero() {
				r.WaitOn(nil) // another goroutine makes the call
			}
			return q.makeBatch(r.since)
		}
		if !q.listed || q.leases.returning() {
			q.next(r.since)
		}
		r.WaitOn(q.wave)
		if r.timed {
			to.EndBy(q.wave, lane.Sooner(r.since.Add(r.tryTime), r.Last))
		}
	}
	return nil
}

// FromMemory answers without a round trip, if it can: from permits that the handle has taken ahead, or from a
// refusal that it remembers. It serves no reservation, which needs a member of its own.
func (e *Engine) FromMemory(ctx context.Context, l *Limiter, ask *decide.Ask, a *decide.Answer) (known bool) {
	if l.Lease == nil && l.Refusals == nil || ask.Reserve {
		return false
	}
	from, left := e.takeFromLease(ctx, l, ask.Permits)
	switch {
	case from != nil:
		e.leaseAnswer(l, from, ask, left, a)
		return true
	case l.prefetched.lasts():
		return false
	case ask.MayWait:
		wait := l.Refusals.Wait(ask.Permits)
		if known = !ask.Until.IsZero() && time.Now().Add(wait).After(ask.Until); known {
			a.RetryAfter = wait
		}
	case ask.Figures:
		a.Decision, known = l.Refusals.Decision(leastOf(ask))
	default:
		known = l.Refusals.Refuses(ask.Permits)
	}
	if known {
		a.By = limit.FromMemory
	}
	return known
}

// leastOf returns how many permits are refused if the ask is.
func leastOf(ask *decide.Ask) int64 {
	if ask.UpTo {
		return 1
	}
	return ask.Permits
}

// Breaker returns the breaker of the limiter's server.
func (e *Engine) Breaker(ctx context.Context, l *Limiter) *outage.Breaker {
	return e.lanes.Breaker(ctx, l.Config)
}

// Probe returns what asks the limiter's server whether it decides.
func (e *Engine) Probe(l *Limiter) func() bool {
	return func() bool { return e.lanes.Answers(l.Keys(), "SET") }
}
