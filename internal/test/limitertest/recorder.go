package limitertest

import (
	"context"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A Recorder is an observer that keeps all that it receives.
type Recorder struct {
	decided redistest.List[limit.Decided]
	flights redistest.List[limit.Flight]
	leases  redistest.List[limit.Lease]
	settled redistest.List[limit.Settled]
	events  redistest.List[limit.Event]
	waiting redistest.List[waiting]
}

// waiting is how many callers were said to wait for a limiter.
type waiting struct {
	limiter string
	callers int
}

// Decided keeps d.
func (r *Recorder) Decided(_ context.Context, d limit.Decided) { r.decided.Add(d) }

// Landed keeps f.
func (r *Recorder) Landed(f limit.Flight) { r.flights.Add(f) }

// Waiting keeps the number.
func (r *Recorder) Waiting(limiter string, callers int) { r.waiting.Add(waiting{limiter, callers}) }

// Leased keeps l.
func (r *Recorder) Leased(l limit.Lease) { r.leases.Add(l) }

// Settled keeps s.
func (r *Recorder) Settled(s limit.Settled) { r.settled.Add(s) }

// Happened keeps e.
func (r *Recorder) Happened(e limit.Event) { r.events.Add(e) }

// Decisions returns those received since the last call.
func (r *Recorder) Decisions() []limit.Decided { return r.decided.Take() }

// Flights returns those received so far.
func (r *Recorder) Flights() []limit.Flight { return r.flights.All() }

// Settlements returns those received so far.
func (r *Recorder) Settlements() []limit.Settled { return r.settled.All() }

// Leases returns those received so far.
func (r *Recorder) Leases() []limit.Lease { return r.leases.All() }

// Events returns those received so far.
func (r *Recorder) Events() []limit.Event { return r.events.All() }

// Callers returns how many were said to wait, one number after another.
func (r *Recorder) Callers(limiter string) (all []int) {
	for _, w := range r.waiting.All() {
		if w.limiter == limiter {
			all = append(all, w.callers)
		}
	}
	return all
}
