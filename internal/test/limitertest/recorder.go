package limitertest

import (
	"context"
	"slices"
	"sync"

	"github.com/rratelimiter/rratelimiter/limit"
)

// A Recorder is an observer that keeps what it is told.
type Recorder struct {
	decided list[limit.Decided]
	flights list[limit.Flight]
	leases  list[limit.Lease]
	events  list[limit.Event]
	waiting list[waiting]
}

// waiting is how many callers were said to wait for a limiter.
type waiting struct {
	limiter string
	callers int
}

// A list is what was told so far.
type list[T any] struct {
	mu   sync.Mutex
	told []T
}

func (l *list[T]) add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, v)
}

func (l *list[T]) all() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.told)
}

// Decided keeps d.
func (r *Recorder) Decided(_ context.Context, d limit.Decided) { r.decided.add(d) }

// Landed keeps f.
func (r *Recorder) Landed(f limit.Flight) { r.flights.add(f) }

// Waiting keeps the number.
func (r *Recorder) Waiting(limiter string, callers int) { r.waiting.add(waiting{limiter, callers}) }

// Leased keeps l.
func (r *Recorder) Leased(l limit.Lease) { r.leases.add(l) }

// Happened keeps e.
func (r *Recorder) Happened(e limit.Event) { r.events.add(e) }

// Decisions returns those told of since the last time.
func (r *Recorder) Decisions() []limit.Decided {
	r.decided.mu.Lock()
	defer r.decided.mu.Unlock()
	told := r.decided.told
	r.decided.told = nil
	return told
}

// Flights returns those told of so far.
func (r *Recorder) Flights() []limit.Flight { return r.flights.all() }

// Leases returns those told of so far.
func (r *Recorder) Leases() []limit.Lease { return r.leases.all() }

// Events returns those told of so far.
func (r *Recorder) Events() []limit.Event { return r.events.all() }

// Callers returns how many were said to wait, one number after another.
func (r *Recorder) Callers(limiter string) (all []int) {
	for _, w := range r.waiting.all() {
		if w.limiter == limiter {
			all = append(all, w.callers)
		}
	}
	return all
}
