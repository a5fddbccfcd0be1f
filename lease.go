package rratelimiter

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Lease says how many permits a handle takes ahead, and for how long: see
// [WithLease].
type Lease struct {
	// Permits is the most that one lease holds: 1 to MaxPermits.
	Permits int64

	// Life is how long a lease lives, from the moment at which it was asked for.
	// It must be shorter than the limiter's interval, and is half of that at most.
	// 0 stands for a twentieth of the interval.
	Life time.Duration
}

// WithLease has a handle take permits ahead: a request that goes to Redis brings
// more than it asks for, charged at once, and TryAcquire and Acquire are served
// from these without a round trip, as long as the lease lives. The guarantee:
// what is charged obeys the limit exactly, and what is used obeys the rate for
// each span of the interval less the lease's life.
//
// How many permits are taken ahead follows the handle's demand: at most a 16th
// of what is free, fewer where requests are refused or permits are left over, and
// none where demand is low or an answer takes as long as a lease lives. Permits
// not used are given back at the end of the lease's life, by Client.Close, and
// before a Release, SetRate, UpdateRate, Delete, Rename or change of the time to
// live through the same Client. A request for more permits than the lease has
// left ends it too. While callers stand in line, nothing is taken ahead.
//
// To others, Take, AvailablePermits and TryAcquireAll included, permits of a lease
// are in use. Changes by other programs are noticed when the lease ends, and a
// limiter with a KeepAlive time may go earlier by the lease's life. A lease belongs
// to its handle, so keep the handle. Bad values, WithDefault's interval not above
// Life among them, are ErrInvalidConfig; beside Redissons before 3.35 leases are
// ErrUnsupported.
func WithLease(lease Lease) LimiterOption {
	return func(l *RateLimiter) error {
		switch {
		case lease.Permits < 1 || lease.Permits > MaxPermits:
			return fmt.Errorf("%w: WithLease: %d permits are not between 1 and %d", ErrInvalidConfig, lease.Permits, int64(MaxPermits))
		case lease.Life < 0:
			return fmt.Errorf("%w: WithLease: the life %v is below 0", ErrInvalidConfig, lease.Life)
		case !l.client.rules.merge:
			return fmt.Errorf("%w: WithLease: one member for many requests is read right by Redisson 3.35 and newer only, and WithRedissonVersion names %s",
				ErrUnsupported, l.client.rules.version)
		}
		l.ahead = &lessor{most: lease.Permits, wanted: lease.Life}
		return nil
	}
}

// check is for what can only be said of all options together.
func (l *RateLimiter) check() error {
	if l.ahead != nil && l.defaultInterval > 0 && l.ahead.wanted >= l.defaultInterval {
		return fmt.Errorf("%w: WithLease: the life %v is not shorter than the interval %v", ErrInvalidConfig, l.ahead.wanted, l.defaultInterval)
	}
	return nil
}

// freeShare is the part of the free permits that is taken ahead at most: one in
// so many.
const freeShare = 16

// lessor takes permits ahead for the callers of one handle. The lock of the
// limiter's queue guards all but the current lease.
type lessor struct {
	most    int64         // permits of a lease
	wanted  time.Duration // a lease's life; 0: by the interval
	current atomic.Pointer[lease]

	interval time.Duration // the limiter's; 0 while it is not known
	free     int64         // permits that were left free, as far as is known
	size     int64         // permits to be taken ahead
	asked    time.Time     // when requests last went to Redis; zero where they had to be refused

	timer *time.Timer // runs as long as the lessor is one of its queue's
}

// lease is what was taken ahead at once.
type lease struct {
	left   atomic.Int64 // -1 once it has ended
	sent   time.Time
	life   time.Duration
	size   int64
	member []byte
}

// rest is what is left of a lease, to be given back.
type rest struct {
	grant grant
	sent  time.Time
}

func (s *lessor) life() time.Duration {
	if s.wanted == 0 {
		return s.interval / 20
	}
	return min(s.wanted, s.interval/2)
}

// take takes permits from the lease, if it has as many and lives.
func (a *lease) take(permits int64) (ok, late bool) {
	if !a.add(-permits) {
		return false, false
	}
	// In this order what was taken is used before the lease's end, however long
	// the caller was held up in between.
	if time.Since(a.sent) < a.life {
		return true, false
	}
	return false, true
}

// add changes what is left, unless that would be below 0 or the lease has ended.
func (a *lease) add(permits int64) bool {
	for {
		left := a.left.Load()
		if left < 0 || left+permits < 0 {
			return false
		}
		if a.left.CompareAndSwap(left, left+permits) {
			return true
		}
	}
}

// end ends the lease, and returns what was left.
func (a *lease) end() int64 { return max(0, a.left.Swap(-1)) }

func (a *lease) rest(permits int64) rest {
	return rest{grant{a.member, permits}, a.sent}
}

// takeAhead serves a request from the handle's lease, without a round trip.
func (l *RateLimiter) takeAhead(ctx context.Context, permits int64) bool {
	if l.ahead == nil {
		return false
	}
	a := l.ahead.current.Load()
	if a == nil || permits < 1 || ctx.Err() != nil {
		return false
	}
	ok, late := a.take(permits)
	if late && !a.add(permits) {
		// The lease ended in between, and its rest was given back without these.
		if q, err := l.client.enter(l); err == nil {
			q.mu.Lock()
			q.rests = append(q.rests, a.rest(permits))
			q.start()
			q.mu.Unlock()
			l.client.leave(q)
		}
	}
	return ok
}

// ask returns how many permits to take ahead with a batch for so many that is
// sent now. Where that can't be told, the answer's figures are wanted.
func (s *lessor) ask(permits int64, now time.Time) (ahead int64, figures bool) {
	life := s.life()
	brisk := now.Sub(s.asked) < life/2 // what came last is used up
	s.asked = now
	if brisk {
		s.size = min(max(2*s.size, permits), s.most)
	}
	if life == 0 || s.size == 0 {
		return 0, life == 0
	}
	share := (s.free - permits) / freeShare
	s.size = max(1, min(s.size, share))
	if share < 1 {
		return 0, true
	}
	return s.size, false
}

// learn takes note of the answer to a batch.
func (s *lessor) learn(o outcome, scarce bool) {
	if o.reset > 0 { // the figures were told
		s.free, s.interval = o.free-o.taken, o.interval
	}
	if scarce {
		s.size /= 2
		s.asked = time.Time{}
	}
}

// aheadRequest stands for a lease in a batch: it is asked for behind all requests,
// as so many of one permit each.
var aheadRequest = &request{waits: true, deadline: time.Unix(0, 0)}

// addAhead has the batch take permits ahead.
func (b *batch) addAhead(permits int64) bool {
	if len(b.requests) >= b.rules.maxRequests() || b.Sum+permits > MaxPermits || !b.AddMany(permits) {
		return false
	}
	b.requests = append(b.requests, aheadRequest)
	return true
}

// dropAhead makes the batch one of callers' requests alone again.
func (b *batch) dropAhead() {
	last := len(b.requests) - 1
	if b.requests[last] != aheadRequest {
		return
	}
	b.requests = b.requests[:last]
	b.Drop()
}

// flight is what a batch in flight means to leases.
type flight struct {
	lessor   *lessor // nil where nobody's is concerned
	ahead    int64   // permits to be taken ahead
	recalled bool    // leases have been ended since it was sent
}

// board has a batch take permits ahead where one of its callers may. Those that
// stand in line come first: nothing is taken ahead while one of them has been
// refused, or is not in the batch.
func (q *queue) board(b *batch, now time.Time) flight {
	if !q.leases || q.closed || q.line.requests.Len() != b.Line {
		return flight{}
	}
	var s *lessor
	for _, r := range b.requests {
		if r.refused {
			return flight{}
		}
		if s == nil && r.limiter.ahead != nil && !r.figures && !r.limiter.ahead.lends() {
			s = r.limiter.ahead
		}
	}
	if s == nil {
		return flight{}
	}
	permits, figures := s.ask(b.Sum, now)
	b.figures = b.figures || figures
	if permits > 0 && !b.addAhead(permits) {
		permits = 0
	}
	return flight{lessor: s, ahead: permits}
}

// lends tells whether there is a lease with permits left.
func (s *lessor) lends() bool {
	a := s.current.Load()
	return a != nil && a.left.Load() > 0
}

// land is told how a batch ended: scarce where a request was refused or no answer
// came, with so many permits taken ahead. What was taken ahead becomes a lease, or
// goes back; where callers have gone, together with theirs, which land returns:
// two calls that shrink one member at a time could not tell their repeats apart.
func (q *queue) land(b *batch, o outcome, scarce bool, taken int64, gone bool) (back int64) {
	f, now := q.flight, time.Now()
	q.flight = flight{}
	s := f.lessor
	if s == nil {
		return 0
	}
	s.learn(o, scarce || taken < f.ahead || f.ahead > 0 && now.Sub(b.sent) >= s.life())
	if taken == 0 {
		return 0
	}
	if gone {
		return taken
	}
	a := &lease{sent: b.sent, life: s.life(), size: taken, member: withPermits(b.member, o.taken)}
	left := a.life - now.Sub(a.sent)
	if q.closed || f.recalled || left <= 0 {
		q.rests = append(q.rests, a.rest(taken))
		return 0
	}
	a.left.Store(taken)
	q.retire(s)
	s.current.Store(a)
	if s.timer == nil {
		q.client.stay(q)
		q.lessors = append(q.lessors, s)
		s.timer = time.AfterFunc(left, func() { q.expire(s) })
	}
	q.serve(s)
	return 0
}

// serve gives permits of a new lease to those of its handle that have come
// meanwhile, as long as it has as many as the next one wants.
func (q *queue) serve(s *lessor) {
	lent := func(r *request) bool {
		if r.limiter.ahead != s || !q.lend(r) {
			return false
		}
		r.tell(answer{decision: limit.Decision{Granted: true}})
		return true
	}
	for place := q.line.requests.First(); place != nil; {
		next := place.Next()
		if !lent(place.Element) {
			break
		}
		place = next
	}
	for place := q.tries.First(); place != nil; {
		next := place.Next()
		lent(place.Element)
		place = next
	}
}

// lend serves a request from its handle's lease. Where that has too little left
// it ends, so that its rest is free before the request is decided.
func (q *queue) lend(r *request) bool {
	s := r.limiter.ahead
	if s == nil || r.figures {
		return false
	}
	a := s.current.Load()
	if a == nil || a.left.Load() == 0 {
		return false
	}
	ok, late := a.take(r.permits)
	if late {
		a.add(r.permits)
	}
	if !ok {
		q.end(s)
	}
	return ok
}

// retire ends the lessor's lease; its rest is to be given back.
func (q *queue) retire(s *lessor) {
	a := s.current.Swap(nil)
	if a == nil {
		return
	}
	if left := a.end(); left > 0 {
		q.rests = append(q.rests, a.rest(left))
		s.size = a.size - left // so many were of use
	}
}

// end is retire where no other lease follows.
func (q *queue) end(s *lessor) {
	q.retire(s)
	s.timer.Reset(0)
}

// expire is the timer of a lessor. It is one of the queue's until it has no lease
// any more.
func (q *queue) expire(s *lessor) {
	q.mu.Lock()
	i := slices.Index(q.lessors, s)
	if i < 0 {
		q.mu.Unlock()
		return
	}
	if s.lends() {
		a := s.current.Load()
		if left := a.life - time.Since(a.sent); left > 0 {
			s.timer.Reset(left)
			q.mu.Unlock()
			return
		}
	}
	q.retire(s)
	q.lessors = slices.Delete(q.lessors, i, i+1)
	s.timer.Stop()
	s.timer = nil
	q.start()
	q.mu.Unlock()
	q.client.leave(q)
}

// recall ends all leases of the limiter, and keeps a batch in flight from making
// one.
func (q *queue) recall() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLeases()
	q.start()
}

func (q *queue) endLeases() {
	q.flight.recalled = true
	for _, s := range q.lessors {
		q.end(s)
	}
}

// giveBackRests gives back what is left of leases.
func (c *Client) giveBackRests(ctx context.Context, keys *script.Keys, rests []rest) {
	for _, r := range rests {
		_ = c.giveBackGrant(ctx, keys, r.grant, r.sent)
	}
	c.changed(keys.Names()[0])
}

// recall ends the leases that the Client has of the limiter, and returns when
// their rests have been given back or ctx ends.
func (l *RateLimiter) recall(ctx context.Context) {
	q := l.client.visit(l.keys.Names()[0])
	if q == nil {
		return
	}
	q.mu.Lock()
	q.endLeases()
	rests := q.rests
	q.rests = nil
	q.mu.Unlock()
	if len(rests) == 0 {
		l.client.leave(q)
		return
	}
	done := make(chan struct{})
	go func() {
		defer l.client.leave(q)
		l.client.giveBackRests(context.WithoutCancel(ctx), l.keys, rests)
		q.poll(true)
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
