// Package lease says how many permits to take ahead of demand, for how long, and counts what is left of them.
//
// A [Planner] makes a lease as large as its program needs for two thirds of its life. It takes at most a 16th of the
// free permits or, if that is more, what the program has lately used; while permits are short, four times what calls
// find free on average. A lease lives for a twentieth of the interval, longer in a large fleet or if answers are
// slow. A program that found nothing free asks again in its turn, at a random moment. A turn grows with the root of
// the number of programs, as answers show it.
package lease

import (
	"math"
	"sync/atomic"
	"time"
)

// Lease is permits that were taken ahead at once. It is safe for concurrent use. It ends when it is ended, and when more
// is asked for than is left. The count that all callers change has a cache line of its own, beside which others read.
type Lease struct {
	Sent time.Time
	Life time.Duration
	Size int64

	_     [24]byte
	taken atomic.Int64 // permits; above Size once it has ended
	_     [56]byte
}

// ended is what is taken of a lease that has ended.
const ended = math.MaxInt64 / 2

// New returns a Lease of that many permits.
func New(permits int64, sent time.Time, life time.Duration) *Lease {
	return &Lease{Sent: sent, Life: life, Size: permits}
}

// Take takes permits from the lease, if it has as many and lives, and returns what it leaves; below 0 if it takes
// nothing. The caller then has unused permits of it to give back, if that is above 0.
func (l *Lease) Take(permits int64) (left, unused int64) {
	left = l.Size - l.taken.Add(permits) // one who would first look, and then swap, pays twice for a line that others change
	if left < 0 {
		l.taken.Store(ended)
		return left, max(0, left+permits) // one caller only finds the rest
	}
	// In this order permits are used before the lease's end, however long the caller was held up in between.
	if time.Since(l.Sent) < l.Life {
		return left, 0
	}
	if l.Return(permits) {
		return -1, 0
	}
	return -1, permits
}

// Return puts permits back that were taken, unless the lease has ended.
func (l *Lease) Return(permits int64) (returned bool) {
	for {
		taken := l.taken.Load()
		if taken > l.Size {
			return false
		}
		if l.taken.CompareAndSwap(taken, taken-permits) {
			return true
		}
	}
}

// Left returns how many permits are left.
func (l *Lease) Left() int64 { return max(0, l.Size-l.taken.Load()) }

// End ends the lease, and returns the permits left.
func (l *Lease) End() int64 { return max(0, l.Size-l.taken.Swap(ended)) }
