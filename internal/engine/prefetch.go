package engine

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// prefetch makes a batch take permits ahead if one of its callers may. Callers in line come first:
// nothing is taken ahead while there is a line.
func (q *queue) prefetch(b *batch, now time.Time) prefetch {
	if q.engine.lanes.Closed() || q.line.count != b.Line {
		return prefetch{}
	}
	var l *Limiter
	for _, r := range b.requests {
		if r.refused || r.Reserve {
			return prefetch{}
		}
		if l == nil && r.limiter.Lease != nil && !r.limiter.prefetched.asking && !r.limiter.prefetched.lasts() {
			l = r.limiter
		}
	}
	if l == nil {
		return prefetch{}
	}
	permits, figures := l.Lease.Ask(b.Sum, now)
	permits = min(permits, maxPermits-b.Sum)
	if permits > 0 && !b.AddUpTo(permits) {
		permits = 0
	}
	b.figures = b.figures || figures || permits > 0 // for the next lease's size
	l.prefetched.asking = true
	return prefetch{limiter: l, permits: permits, ends: q.leases.ends, before: l.Refusals.Now()}
}

// recordForPlanner passes the batch's result to its handle's planner of leases.
func (b *batch) recordForPlanner(o lane.Outcome, err error, now time.Time) {
	if b.ahead.limiter == nil {
		return
	}
	a := lease.Answer{Sent: b.sent, Come: now, Asked: b.ahead.permits, Refused: err != nil, Reset: o.Reset}
	if o.Reset > 0 { // the answer has figures
		a.Interval, a.Rate, a.Free = o.Interval, o.Limit, o.Free-o.Taken
	}
	for i := range b.requests {
		if err != nil {
			break
		}
		one := b.results[i]
		a.Callers += one.Taken
		a.Refused = a.Refused || !one.Decision.Granted && !one.Exceeds
	}
	a.Ahead = o.Taken - a.Callers
	if last := len(o.RetryAfters) - 1; last >= 0 { // the wait of the permits ahead, if they were refused
		a.Wait = script.Millis(o.RetryAfters[last])
	}
	b.ahead.limiter.Lease.Answered(a)
}

// delayRetry makes a refused caller, or one that remembers the refusal, come back when its handle's next
// lease is planned for.
func (b *batch) delayRetry(r *request, wait time.Duration) time.Duration {
	l := b.ahead.limiter
	if l == nil || l != r.limiter || l.Refusals == nil || wait == 0 {
		return wait
	}
	return max(wait, l.Lease.Back().Sub(b.sent))
}

// keepLease makes a lease of what a batch took ahead, or gives it back, as it does if grants of its callers go back
// too. granted is what the callers got; their requests may be in use by others by now.
func (q *queue) keepLease(b *batch, o lane.Outcome, granted int64, unwanted bool) {
	l, now := b.ahead.limiter, time.Now()
	l.prefetched.asking = false
	taken, life := o.Taken-granted, l.Lease.Life()
	left := life - now.Sub(b.sent)
	if taken == 0 {
		return
	}
	if unwanted || q.engine.lanes.Closed() || b.ahead.ends != q.leases.ends || left <= 0 {
		l.Lease.Unused(taken)
		q.leases.goBack(b.grant(0, taken, o))
		return
	}
	q.endLease(l)
	a := &leased{Lease: lease.New(taken, b.sent, life), rest: b.grant(0, taken, o), figures: &q.leases.figures}
	q.leases.begins(a)
	l.prefetched.current.Store(a)
	q.engine.observer.Leased(limit.Lease{Limiter: l.Observed, Permits: taken})
	if taken < b.ahead.permits && len(o.RetryAfters) > 0 {
		// Once the lease is used up, asking again before that is useless.
		d := limit.Decision{Limit: o.Limit, RetryAfter: l.Lease.Back().Sub(b.sent), ResetAfter: o.Reset}
		l.Refusals.Note(1, b.sent, l.Refusals.Granted(b.ahead.before), d, aliveBy(b.sent, o.Keep))
	}
	if l.prefetched.timer == nil {
		q.users++
		q.leases.holders = append(q.leases.holders, l)
		l.prefetched.timer = time.AfterFunc(left, func() { q.expire(l) })
	}
	q.serveWaiters(l)
}

// serveWaiters gives permits of a new lease to requests of its handle that came meanwhile, as long
// as the lease has as many as the next request wants.
func (q *queue) serveWaiters(l *Limiter) {
	lent := func(r *request) bool {
		return r.State == lane.Gathered && r.limiter == l && q.serveFromLease(r)
	}
	for p := range q.line.all() {
		r := p.request
		if !lent(r) {
			break
		}
		q.line.drop(r)
		r.finish(r.answer, nil)
	}
	looked := 0
	for p := range q.gathered.all() {
		if looked++; looked > lane.MaxRequests || !l.prefetched.lasts() {
			break
		}
		if r := p.request; lent(r) {
			q.gathered.take(p)
			r.finish(r.answer, nil)
		}
	}
}
