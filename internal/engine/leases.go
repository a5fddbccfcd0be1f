package engine

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/limit"
)

// leases are a queue's data about its handles' leases.
type leases struct {
	holders  []*Limiter
	unused   []grant         // the rests of leases, to be given back
	returned <-chan struct{} // closed once they are given back; requests wait for that
	ends     int             // how often leases have been ended
	figures  atomic.Pointer[figures]
	tally    tally
	pending  int64 // permits that calls under way may take
}

// tally is what had come when a call was sent.
type tally struct {
	answers  int   // with figures
	taken    int64 // permits, by calls that were answered
	returned int64 // permits of leases that ended
}

// returning reports whether permits are to go back before all requests.
func (s *leases) returning() bool { return s != nil && (len(s.unused) > 0 || s.underWay()) }

// underWay reports whether permits are going back.
func (s *leases) underWay() bool {
	select {
	case <-s.returned:
		return false
	default:
		return s.returned != nil
	}
}

// TakeLeased takes permits from the handle's lease, and reports whether it had as many.
func (e *Engine) TakeLeased(ctx context.Context, l *Limiter, permits int64) bool {
	from, _ := e.takeFromLease(ctx, l, permits)
	return from != nil
}

// takeFromLease takes permits from the handle's lease, and returns how many are left there; nil if it has too few.
// Then the lease has ended.
func (e *Engine) takeFromLease(ctx context.Context, l *Limiter, permits int64) (from *leased, left int64) {
	if from = l.prefetched.current.Load(); from == nil {
		return nil, 0
	}
	left, unused := from.Take(permits)
	if left >= 0 {
		return from, left
	}
	if unused > 0 {
		e.endedLease(ctx, l, from, unused)
	}
	return nil, 0
}

// endedLease gives back what a caller has found left of a lease, which has ended with that, also while the Engine closes.
func (e *Engine) endedLease(ctx context.Context, l *Limiter, from *leased, unused int64) {
	given := false
	giveBack := func(q *queue) {
		if q.leases == nil {
			return
		}
		q.leases.leave(from, unused)
		if l.prefetched.current.Load() == from {
			q.dropLease(l)
		}
		e.refusals.Changed(l.Config) // more is free than they know
		q.next(time.Now())
		given = true
	}
	if e.withQueue(l.Config, giveBack); given {
		return
	}
	q, err := e.lock(ctx, l)
	if err != nil {
		e.observer.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: l.Observed, Permits: unused, Err: err})
		return
	}
	giveBack(q)
	q.unlock()
}

// leaseAnswer answers a request from a lease in which so much is left.
func (e *Engine) leaseAnswer(l *Limiter, from *leased, ask *decide.Ask, left int64, a *decide.Answer) {
	a.Granted, a.By, a.Taken = true, limit.FromMemory, ask.Permits
	if ask.Figures {
		f := from.figures.Load()
		// Others may have taken permits since, which come back within an interval.
		a.Limit, a.Remaining, a.ResetAfter = f.rate, max(0, f.remaining(from, left)), f.interval
	}
	if permits := ask.Permits; ask.Undo {
		a.Undo = func(ctx context.Context) error { return e.returnToLease(ctx, l, from, permits) }
	}
}

// returnToLease gives permits back to their lease, or to Redis if it has ended.
func (e *Engine) returnToLease(ctx context.Context, l *Limiter, to *leased, permits int64) error {
	if err := ctx.Err(); err != nil || to.Return(permits) {
		return err
	}
	q, err := e.lock(ctx, l)
	if err != nil {
		return err
	}
	q.unlock()
	return q.undo(to.part(permits))(ctx)
}

// sent records what a batch may take, before it is sent.
func (s *leases) sent(b *batch) {
	b.tally, b.asked = s.tally, b.Sum
	s.pending += b.asked
}

// updateFiguresBy is updateFigures for a batch, and makes its grants say what those of leases say: permits that were
// taken ahead are left to the Client.
func (q *queue) updateFiguresBy(b *batch, o lane.Outcome, err error) {
	if q.leases == nil {
		return
	}
	q.leases.pending -= b.asked
	if err != nil {
		q.leases.tally.taken += o.Taken
		return
	}
	behind := int64(0)
	for _, a := range b.results {
		behind += a.Taken
	}
	q.updateFigures(o, o.Taken-behind, b.tally)
	f := q.leases.figures.Load()
	if f.interval == 0 {
		return
	}
	left := f.remaining(nil, 0)
	for i := range b.results {
		a := &b.results[i]
		behind -= a.Taken
		if r := b.requests[i]; r.limiter.Lease != nil && a.Decision.Granted && a.Taken == r.Permits {
			a.Decision.Remaining = max(0, left+behind)
		}
	}
}

// updateFigures updates the figures of the limiter's leases from an answer to a request that was sent when that
// had come. Of the permits taken, so many are taken ahead, and not charged to callers.
//
// Requests under way together are decided in an order that is not known. What this Client's own calls
// took is known, so the figures follow these as long as Redis' answer allows for it: of the calls
// answered meanwhile some may have come after it, and of those under way some before.
func (q *queue) updateFigures(o lane.Outcome, ahead int64, before tally) {
	s := q.leases
	if s == nil {
		return
	}
	meanwhile, back := s.tally.taken-before.taken, s.tally.returned-before.returned
	s.tally.taken += max(0, o.Taken)
	f := *cmp.Or(s.figures.Load(), &figures{})
	f.free -= o.Taken - ahead
	if o.Reset != 0 { // the answer has figures
		s.tally.answers++
		free := o.Free - o.Taken + ahead
		if least := free - meanwhile; f.interval == 0 || f.free < least {
			f.free = least
		}
		f.free = min(f.free, free+s.pending+back)
		if before.answers >= f.asked {
			f.rate, f.interval, f.asked = o.Limit, o.Interval, before.answers
		}
	}
	s.figures.Store(&f)
}

// begins counts a lease as charged. It must be counted before it can be used.
func (s *leases) begins(a *leased) {
	f := *s.figures.Load()
	f.free -= a.Size
	f.live = append(slices.Clone(f.live), a)
	s.figures.Store(&f)
}

// leave makes permits go back that a lease which has ended leaves, and counts them as free.
func (s *leases) leave(a *leased, unused int64) {
	f := *cmp.Or(s.figures.Load(), &figures{}) // its queue may be another by now
	f.free += unused
	f.live = slices.DeleteFunc(slices.Clone(f.live), func(one *leased) bool { return one == a })
	s.figures.Store(&f)
	if a.unused += unused; unused > 0 {
		s.goBack(a.part(unused))
	}
}

// goBack makes a grant be given back before other requests. Its permits count as free already.
func (s *leases) goBack(one grant) {
	s.unused = append(s.unused, one)
	s.tally.returned += one.permits
}

// serveFromLease serves a request from its handle's lease. If that has too little left, it ends, so that its
// rest is free before the request is decided.
func (q *queue) serveFromLease(r *request) bool {
	l := r.limiter
	if r.Reserve {
		return false
	}
	a := l.prefetched.current.Load()
	if a == nil || a.Left() == 0 {
		return false
	}
	left, unused := a.Take(r.Permits)
	if left < 0 {
		q.leases.leave(a, unused)
		q.dropLease(l)
		return false
	}
	q.engine.leaseAnswer(l, a, &r.Ask, left, &r.answer)
	return true
}

// endLease ends the handle's lease; its rest will be given back.
func (q *queue) endLease(l *Limiter) {
	a := l.prefetched.current.Swap(nil)
	if a == nil {
		return
	}
	q.leases.leave(a, a.End())
	l.Lease.Unused(a.unused)
	q.engine.observer.Leased(limit.Lease{Limiter: l.Observed, Permits: a.Size, Ended: true, Unused: a.unused})
}

// dropLease is endLease if no other lease follows.
func (q *queue) dropLease(l *Limiter) {
	q.endLease(l)
	if l.prefetched.timer != nil {
		l.prefetched.timer.Reset(0)
	}
}

// expire is called by the timer of a handleLease. The handle stays one of the queue's holders until it has no lease.
func (q *queue) expire(l *Limiter) {
	q.lock()
	defer q.unlock()
	i := slices.Index(q.leases.holders, l)
	if i < 0 {
		return
	}
	if l.prefetched.lasts() {
		a := l.prefetched.current.Load()
		if left := a.Life - time.Since(a.Sent); left > 0 {
			l.prefetched.timer.Reset(left)
			return
		}
	}
	q.endLease(l)
	q.leases.holders = slices.Delete(q.leases.holders, i, i+1)
	l.prefetched.timer.Stop()
	l.prefetched.timer = nil
	q.users--
	q.next(time.Now())
}

// endLeases ends all leases of the limiter, and keeps batches under way from making one.
func (q *queue) endLeases() {
	if q.leases == nil {
		return
	}
	q.leases.ends++
	for _, l := range q.leases.holders {
		q.dropLease(l)
	}
}

// returnUnused gives back the rests of leases that have ended, before all requests. It reports
// whether that is under way.
func (q *queue) returnUnused() bool {
	if !q.leases.returning() {
		return false
	}
	if q.leases.underWay() {
		return true
	}
	all := q.leases.unused
	q.leases.unused = nil
	q.leases.returned = q.giveBack(all...)
	return true
}

// recall ends the leases of the limiter, and returns when their rests are given back, ctx ends, or
// the time of the call that began at since is over.
func (e *Engine) recall(ctx context.Context, l *Limiter, since time.Time) {
	e.withQueue(l.Config, func(q *queue) {
		q.users++
		q.endLeases()
		for late := error(nil); late == nil && q.returnUnused(); {
			returned := q.leases.returned
			q.unlock()
			late = lane.Wait(ctx, returned, since.Add(e.conn.Timeout))
			q.lock()
		}
		q.users--
	})
}
