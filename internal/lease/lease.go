// Package lease says how many permits to take ahead of demand, for how long, and counts what is left of them.
//
// A [Planner] makes a lease as large as its program needs for two thirds of its life. It takes at most a 16th of the
// free permits or, if that is more, what the program has lately used; while permits are short, four times what calls
// find free on average. A lease lives for a twentieth of the interval, longer in a large fleet or if answers are
// slow. A program that found nothing free asks again in its turn, at a random moment. A turn grows with the root of
// the number of programs, as answers show it.
package lease

import (
	"sync/atomic"
	"time"
)

// Lease is permits that were taken ahead at once. It is safe for concurrent use.
type Lease struct {
	Sent time.Time
	Life time.Duration
	Size int64
	left atomic.Int64 // -1 once it has ended
}

// New returns a Lease of that many permits.
func New(permits int64, sent time.Time, life time.Duration) *Lease {
	a := &Lease{Sent: sent, Life: life, Size: permits}
	a.left.Store(permits)
	return a
}

// Take takes permits from the lease, if it has as many and lives, and returns what it leaves; below 0 if it takes
// nothing. late says that they were taken after its end, and are to be put back by Add.
func (l *Lease) Take(permits int64) (left int64, late bool) {
	left = l.Add(-permits)
	// In this order permits are used before the lease's end, however long the caller was held up in between.
	if left < 0 || time.Since(l.Sent) < l.Life {
		return left, false
	}
	return -1, true
}

// Add changes the permits left, and returns them; below 0, and without a change, if there would
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

// Left returns how many permits are left, 0 or less if none are.
func (l *Lease) Left() int64 { return l.left.Load() }

// End ends the lease, and returns the permits left.
func (l *Lease) End() int64 { return max(0, l.left.Swap(-1)) }
