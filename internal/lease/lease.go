// Package lease says how many permits to take ahead of demand, for how long, and
// counts what is left of them.
package lease

import (
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
)

// freeShare is the part of the free permits that is taken ahead at most: one in
// so many.
const freeShare = 16

// Sizer follows the demand of one handle. It is not safe for concurrent use.
type Sizer struct {
	Most int64         // permits of a lease
	Want time.Duration // a lease's life; 0: by the interval

	interval time.Duration // the limiter's; 0 while it is not known
	free     int64         // permits that were left free, as far as is known
	size     int64         // permits to be taken ahead
	asked    time.Time     // when requests last went to Redis; zero where they had to be refused
}

// Life returns how long a lease lives, 0 where that is not known yet.
func (s *Sizer) Life() time.Duration {
	if s.Want == 0 {
		return s.interval / 20
	}
	return min(s.Want, s.interval/2)
}

// Ask returns how many permits to take ahead with a batch for so many that is
// sent now. Where that can't be told, the answer's figures are wanted.
func (s *Sizer) Ask(permits int64, now time.Time) (ahead int64, figures bool) {
	life := s.Life()
	brisk := now.Sub(s.asked) < life/2 // what came last is used up
	s.asked = now
	if brisk {
		s.size = min(max(2*s.size, permits), s.Most)
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

// Figures takes note of the limiter's free permits and interval.
func (s *Sizer) Figures(free int64, interval time.Duration) {
	s.free, s.interval = free, interval
}

// Scarce takes note that permits were refused, or no answer came in time.
func (s *Sizer) Scarce() {
	s.size /= 2
	s.asked = time.Time{}
}

// Used takes note that so many permits of a lease were of use.
func (s *Sizer) Used(permits int64) { s.size = permits }

// Lease is what was taken ahead at once. It is safe for concurrent use.
type Lease struct {
	Sent  time.Time
	Life  time.Duration
	Size  int64
	clock *clock.Clock
	left  atomic.Int64 // -1 once it has ended
}

// New returns a Lease of that many permits, which ends by that clock.
func New(permits int64, sent time.Time, life time.Duration, by *clock.Clock) *Lease {
	a := &Lease{Sent: sent, Life: life, Size: permits, clock: by}
	a.left.Store(permits)
	return a
}

// Take takes permits from the lease, if it has as many and lives, and returns what it
// leaves; below 0 if it takes nothing. late says that they were taken after its end, and
// are to be put back by Add.
func (l *Lease) Take(permits int64) (left int64, late bool) {
	left = l.Add(-permits)
	// In this order what was taken is used before the lease's end, however long
	// the caller was held up in between.
	if left < 0 || l.clock.Since(l.Sent) < l.Life {
		return left, false
	}
	return -1, true
}

// Add changes what is left, and returns it; below 0, and without a change, if there would
// be less than nothing or the lease has ended.
func (l *Lease) Add(permits int64) (left int64) {
	for {
		left := l.left.Load()
		if left < 0 || left+permits < 0 {
			return -1
		}
		if l.left.CompareAndSwap(left, left+permits) {
			return left + permits
		}
	}
}

// Left returns what is left, 0 or less where that is nothing.
func (l *Lease) Left() int64 { return l.left.Load() }

// End ends the lease, and returns what was left.
func (l *Lease) End() int64 { return max(0, l.left.Swap(-1)) }
