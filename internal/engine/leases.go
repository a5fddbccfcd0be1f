package engine

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// leases are a queue's data about its handles' leases.
type leases struct {
	used     bool // a handle with leases has been here
	holders  []*Limiter
	unused   []grant         // the rests of leases, to be given back
	returned <-chan struct{} // closed once they are given back; requests wait for that
	ends     int             // how often leases have been ended
	figures  atomic.Pointer[figures]
	heard    heard
}

// heard is how many answers with figures have come, and how many permits those without them granted.
type heard struct {
	answers int
	permits int64
}

func (s *leases) returning() bool {
	select {
	case <-s.returned:
		return false
	default:
		return s.returned != nil
	}
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

// hear updates the figures of the limiter's leases from an answer to a request that was sent when so
// much was heard. Of requests under way together the order is not known: the lower figures count. q.mu
// is held.
func (q *queue) hear(o outcome, before heard) {
	s := &q.leases
	if !s.used {
		return
	}
	f := *cmp.Or(s.figures.Load(), &figures{})
	if o.Reset == 0 { // the answer had no figures
		s.heard.permits += o.Taken
		f.free -= o.Taken
	} else {
		s.heard.answers++
		free := o.Free - o.Taken - (s.heard.permits - before.permits)
		if before.answers < f.come {
			free = min(free, f.free)
		} else {
			f.come = s.heard.answers
		}
		if before.answers >= f.asked {
			f.rate, f.interval, f.asked = o.Limit, o.interval, before.answers
		}
		f.free = free
	}
	s.figures.Store(&f)
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
	if l.prefetched.lasts() {
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
