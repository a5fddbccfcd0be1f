package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/refusal"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// handleLease is the lease of one handle. The lock of the limiter's queue guards everything except
// the current lease.
type handleLease struct {
	current atomic.Pointer[leased]
	asking  bool        // a batch that takes permits ahead is under way
	timer   *time.Timer // runs while the handle is one of its queue's holders
}

// leased is a lease, with how to undo it and its figures.
type leased struct {
	*lease.Lease

	rest    grant // the grant that goes back; the permits are set then
	figures atomic.Pointer[figures]
}

// figures are what Redis last said about a limiter, less what its Client took since.
type figures struct {
	rate, free int64
	interval   time.Duration
	at         time.Time
}

// part is a number of permits of the lease, to be given back.
func (a *leased) part(permits int64) grant {
	part := a.rest
	part.permits = permits
	return part
}

// leases are a queue's data about its handles' leases.
type leases struct {
	used     bool // a handle with leases has been here
	holders  []*Limiter
	unused   []grant         // the rests of leases, to be given back
	returned <-chan struct{} // closed once they are given back; requests wait for that
	ends     int             // how often leases have been ended
}

func (s *leases) returning() bool {
	select {
	case <-s.returned:
		return false
	default:
		return s.returned != nil
	}
}

// prefetch is the permits that a batch takes ahead.
type prefetch struct {
	limiter *Limiter // nil if there is no lease
	permits int64
	ends    int            // how often leases had been ended before
	before  refusal.Moment // when it was asked for
}

// takeAhead takes permits from the handle's lease, and returns how many are left there; nil if it
// has too few.
func (e *Engine) takeAhead(ctx context.Context, l *Limiter, permits int64) (from *leased, left int64) {
	if from = l.prefetched.current.Load(); from == nil {
		return nil, 0
	}
	left, late := from.Take(permits)
	if left >= 0 {
		return from, left
	}
	if late && from.Add(permits) < 0 {
		// The lease ended in between, and these were not given back with its rest.
		if q, err := e.enter(ctx, l, nil); err == nil {
			q.mu.Lock()
			q.leases.unused = append(q.leases.unused, from.part(permits))
			q.next(e.clock.Now())
			q.mu.Unlock()
			e.leave(q)
		}
	}
	return nil, 0
}

// lent answers a request from a lease in which so much is left.
func (e *Engine) lent(l *Limiter, from *leased, q outage.Question, left int64) outage.Answer {
	a := outage.Answer{By: limit.FromMemory, Taken: q.Permits}
	a.Granted = true
	if q.Figures {
		f := from.figures.Load()
		// Others may have taken permits since, which come back within an interval.
		a.Limit, a.Remaining, a.ResetAfter = f.rate, max(0, f.free+left), f.interval
	}
	if q.Undo {
		a.Undo = func(ctx context.Context) error { return e.returnLent(ctx, l, from, q.Permits) }
	}
	return a
}

// returnLent gives permits back to their lease, or to Redis if it has ended.
func (e *Engine) returnLent(ctx context.Context, l *Limiter, to *leased, permits int64) error {
	if err := ctx.Err(); err != nil || to.Add(permits) >= 0 {
		return err
	}
	q, err := e.enter(ctx, l, nil)
	if err != nil {
		return err
	}
	defer e.leave(q)
	return q.undo(to.part(permits))(ctx)
}

// hear updates the figures of the limiter's leases from an answer to a request sent at that moment.
// q.mu is held.
func (q *queue) hear(o outcome, asked time.Time) {
	for _, l := range q.leases.holders {
		a := l.prefetched.current.Load()
		if a == nil {
			continue
		}
		f, free := *a.figures.Load(), o.Free-o.Taken
		switch {
		case o.Reset == 0: // the answer had no figures
			f.free -= o.Taken
		case asked.Before(f.at): // this answer may be older
			f.free = min(f.free, free)
		default:
			f = figures{o.Limit, free, o.interval, q.engine.clock.Now()}
		}
		a.figures.Store(&f)
	}
}

// borrow serves a request from its handle's lease. If that has too little left, it ends, so that its
// rest is free before the request is decided.
func (q *queue) borrow(r *request) bool {
	l := r.limiter
	if l.Lease == nil || r.Settled {
		return false
	}
	q.leases.used = true
	a := l.prefetched.current.Load()
	if a == nil || a.Left() == 0 {
		return false
	}
	left, late := a.Take(r.Permits)
	if late {
		a.Add(r.Permits)
	}
	if left < 0 {
		q.endLease(l)
		return false
	}
	r.answer.Answer = q.engine.lent(l, a, r.Question, left)
	return true
}

// prefetch makes a batch take permits ahead if one of its callers may. Callers in line come first:
// nothing is taken ahead while there is a line.
func (q *queue) prefetch(b *batch, now time.Time) prefetch {
	if !q.leases.used || q.closed || q.line.count != b.Line {
		return prefetch{}
	}
	var l *Limiter
	for _, r := range b.requests {
		if r.refused || r.Settled {
			return prefetch{}
		}
		if l == nil && r.limiter.Lease != nil && !r.limiter.prefetched.asking && !hasLease(r.limiter) {
			l = r.limiter
		}
	}
	if l == nil {
		return prefetch{}
	}
	permits, figures := l.Lease.Ask(b.Sum, now)
	if full := len(b.requests) == maxRequests(b.rules) || b.Sum+permits > maxPermits; permits > 0 && (full || !b.AddMany(permits)) {
		permits = 0
	}
	b.figures = b.figures || figures || permits > 0 // for the next lease's size
	l.prefetched.asking = true
	return prefetch{limiter: l, permits: permits, ends: q.leases.ends, before: l.Refusals.Now()}
}

// hasLease reports whether there is a lease with permits left.
func hasLease(l *Limiter) bool {
	a := l.prefetched.current.Load()
	return a != nil && a.Left() > 0
}

// plan passes the batch's result to its handle's planner of leases.
func (b *batch) plan(o outcome, err error, now time.Time) {
	if b.ahead.limiter == nil {
		return
	}
	a := lease.Answer{Sent: b.sent, Come: now, Asked: b.ahead.permits, Refused: err != nil, Reset: o.Reset}
	if o.Reset > 0 { // the answer has figures
		a.Interval, a.Rate, a.Free = o.interval, o.Limit, o.Free-o.Taken
	}
	for i := range b.requests {
		one := b.answer(i, o, err)
		a.Callers += one.Taken
		a.Refused = a.Refused || one.refused()
	}
	a.Ahead = o.Taken - a.Callers
	if last := len(o.Waits) - 1; last >= 0 { // the wait of the permits ahead, if they were refused
		a.Wait = script.Millis(max(o.Waits[last], -o.Waits[last]))
	}
	b.ahead.limiter.Lease.Answered(a)
}

// spread makes a refused caller, or one that remembers the refusal, come back when its handle's next
// lease is planned for.
func (b *batch) spread(r *request, wait time.Duration) time.Duration {
	l := b.ahead.limiter
	if l == nil || l != r.limiter || l.Refusals == nil || wait == 0 {
		return wait
	}
	return max(wait, l.Lease.Back().Sub(b.sent))
}

// keepLease handles what a batch took ahead: it becomes a lease, or goes back. If callers have gone,
// it goes back together with their grants, and keepLease returns it: two calls that shrink one member
// at a time could not tell their repeats apart. granted is what the callers got; their requests may be
// in use by others by now.
func (q *queue) keepLease(b *batch, o outcome, granted int64, gone bool) (back int64) {
	l, now := b.ahead.limiter, q.engine.clock.Now()
	if l == nil {
		return 0
	}
	l.prefetched.asking = false
	taken, life := o.Taken-granted, l.Lease.Life()
	left := life - now.Sub(b.sent)
	lives := !gone && !q.closed && b.ahead.ends == q.leases.ends && left > 0
	if taken > 0 && !lives {
		l.Lease.Unused(taken)
	}
	switch {
	case taken == 0:
		return 0
	case gone:
		return taken
	case !lives:
		q.leases.unused = append(q.leases.unused, b.grants(nil, taken, o)...)
		return 0
	}
	q.retire(l)
	a := &leased{Lease: lease.New(taken, b.sent, life, q.engine.clock), rest: b.grants(nil, taken, o)[0]}
	a.figures.Store(&figures{o.Limit, o.Free - o.Taken, o.interval, now})
	l.prefetched.current.Store(a)
	q.engine.observer.Leased(limit.Lease{Limiter: l.Observed, Permits: taken})
	if taken < b.ahead.permits && len(o.Waits) > 0 {
		// Once the lease is used up, asking again before that is useless.
		d := limit.Decision{Limit: o.Limit, RetryAfter: l.Lease.Back().Sub(b.sent), ResetAfter: o.Reset}
		l.Refusals.Note(1, b.sent, l.Refusals.Granted(b.ahead.before), d, answer{sent: b.sent, keep: o.keep}.alive())
	}
	if l.prefetched.timer == nil {
		q.engine.stay(q)
		q.leases.holders = append(q.leases.holders, l)
		l.prefetched.timer = time.AfterFunc(left, func() { q.expire(l) })
	}
	q.serveFromLease(l)
	return 0
}

// serveFromLease gives permits of a new lease to requests of its handle that came meanwhile, as long
// as the lease has as many as the next request wants.
func (q *queue) serveFromLease(l *Limiter) {
	lent := func(r *request) bool {
		return r.State == lane.Gathered && r.limiter == l && q.borrow(r)
	}
	for r := range q.line.all() {
		if !lent(r) {
			break
		}
		q.line.drop(r)
		r.Tell()
	}
	q.gathered = slices.DeleteFunc(q.gathered, func(r *request) bool {
		if !lent(r) {
			return false
		}
		r.Tell()
		return true
	})
}

// retire ends the handle's lease; its rest will be given back.
func (q *queue) retire(l *Limiter) {
	a := l.prefetched.current.Swap(nil)
	if a == nil {
		return
	}
	left := a.End()
	if left > 0 {
		q.leases.unused = append(q.leases.unused, a.part(left))
		l.Lease.Unused(left)
	}
	q.engine.observer.Leased(limit.Lease{Limiter: l.Observed, Permits: a.Size, Ended: true, Unused: left})
}

// endLease is retire if no other lease follows.
func (q *queue) endLease(l *Limiter) {
	q.retire(l)
	if l.prefetched.timer != nil {
		l.prefetched.timer.Reset(0)
	}
}

// expire is called by the timer of a handleLease. The handle stays one of the queue's holders until
// it has no lease.
func (q *queue) expire(l *Limiter) {
	q.mu.Lock()
	i := slices.Index(q.leases.holders, l)
	if i < 0 {
		q.mu.Unlock()
		return
	}
	if hasLease(l) {
		a := l.prefetched.current.Load()
		if left := a.Life - q.engine.clock.Since(a.Sent); left > 0 {
			l.prefetched.timer.Reset(left)
			q.mu.Unlock()
			return
		}
	}
	q.retire(l)
	q.leases.holders = slices.Delete(q.leases.holders, i, i+1)
	l.prefetched.timer.Stop()
	l.prefetched.timer = nil
	q.next(q.engine.clock.Now())
	q.mu.Unlock()
	q.engine.leave(q)
}

// endLeases ends all leases of the limiter, and keeps batches under way from making one.
func (q *queue) endLeases() {
	q.leases.ends++
	for _, l := range q.leases.holders {
		q.endLease(l)
	}
}

// returnUnused gives back the rests of leases that have ended, before all requests. It reports
// whether that is under way.
func (q *queue) returnUnused() bool {
	if q.leases.returning() {
		return true
	}
	all := q.leases.unused
	if len(all) == 0 {
		return false
	}
	q.leases.unused = nil
	q.leases.returned = q.giveBack(all...)
	return true
}

// recall ends the leases of the limiter, and returns when their rests are given back, ctx ends, or
// the time of the call that began at since is over.
func (e *Engine) recall(ctx context.Context, l *Limiter, since time.Time) {
	ctx, cancel := context.WithDeadline(ctx, since.Add(e.conn.Timeout()))
	defer cancel()
	e.visit(l.Config, func(q *queue) {
		q.endLeases()
		for q.returnUnused() && ctx.Err() == nil {
			returned := q.leases.returned
			q.mu.Unlock()
			select {
			case <-returned:
			case <-ctx.Done():
			}
			q.mu.Lock()
		}
	})
}
