package limitertest

import (
	"context"
	"sync"

	"github.com/rratelimiter/rratelimiter/limit"
)

// A Recorder is an observer that keeps what it is told.
type Recorder struct {
	mu      sync.Mutex
	decided []limit.Decided
	flights []limit.Flight
	leases  []limit.Lease
	events  []limit.Event
	waiting map[string][]int // as told
}

// Decided keeps d.
func (r *Recorder) Decided(_ context.Context, d limit.Decided) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decided = append(r.decided, d)
}

// Landed keeps f.
func (r *Recorder) Landed(f limit.Flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flights = append(r.flights, f)
}

// Waiting keeps the number.
func (r *Recorder) Waiting(limiter string, callers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = make(map[string][]int)
	}
	r.waiting[limiter] = append(r.waiting[limiter], callers)
}

// Leased keeps l.
func (r *Recorder) Leased(l limit.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leases = append(r.leases, l)
}

// Happened keeps e.
func (r *Recorder) Happened(e limit.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Decisions returns those told of since the last time.
func (r *Recorder) Decisions() []limit.Decided {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.decided
	r.decided = nil
	return told
}

// Flights returns those told of so far.
func (r *Recorder) Flights() []limit.Flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flights
}

// Leases returns those told of so far.
func (r *Recorder) Leases() []limit.Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leases
}

// Events returns those told of so far.
func (r *Recorder) Events() []limit.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events
}

// Callers returns how many were said to wait, one number after another.
func (r *Recorder) Callers(limiter string) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting[limiter]
}
