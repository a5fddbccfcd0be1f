package lane

import (
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// departs records that a flight is under way. It is not before its commands are made, since sweep may end its calls.
func (l *Lane) departs(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.due, f.before, f.since = Sooner(f.late, f.end), l.landed, f.sent
	if len(l.underWay) > 0 {
		f.since = l.underWay[0].sent
		if l.lastAnswer.After(f.since) {
			f.since = l.lastAnswer
		}
	}
	l.underWay = append(l.underWay, f)
	l.sweepBy(f.due)
	l.endBy(f.wave, f.sent)
}

// answered records that the server has answered a flight. The window follows how many calls it answered meanwhile, its
// own included. It shrinks slowly while the server has no queue: of flights that left together the first to land has
// seen none of the others.
func (l *Lane) answered(f *flight, now time.Time) {
	trip := now.Sub(f.sent)
	if l.lastAnswer = now; f.sent.After(l.newest) {
		l.newest = f.sent
	}
	l.setSilent(false)
	if now.Before(f.last) {
		l.trips.Add(trip, now)
		shortest := l.trips.Shortest()
		l.shortest.Store(int64(shortest))
		l.near.Store(shortest > 0 && shortest < nearTrip)
	}
	l.landed += len(f.calls)
	found := max(1, int(time.Duration(l.landed-f.before)*l.ahead()/max(1, now.Sub(f.since))))
	if trip < l.trips.Shortest()*5/4 {
		found = max(found, l.window-len(f.calls))
	}
	l.window = found
	if trip < max(f.late.Sub(f.sent), 2*l.trips.Shortest()) {
		l.window = max(l.window, minWindow)
	}
}

// ahead is how much of the server's work may be under way, in time: two round trips, so that the window can grow.
func (l *Lane) ahead() time.Duration {
	return min(max(2*l.trips.Shortest(), l.conn.ProbePace/2), l.conn.AttemptTimeout/2)
}

// keepUnsent leaves to a flight that was given up, and has landed now, its calls whose repeat was not sent yet; none if
// it brings no answers.
func (l *Lane) keepUnsent(f *flight, empty bool) {
	mine := make(map[*Call]bool)
	take := func(c *Call) bool {
		if empty || c.flight != f {
			return false
		}
		mine[c] = true
		return true
	}
	l.calls, l.once, l.delayed = slices.DeleteFunc(l.calls, take), slices.DeleteFunc(l.once, take), slices.DeleteFunc(l.delayed, take)
	calls := make([]*Call, len(f.calls)) // others are of the calls' owners, who may use them again
	for i, c := range f.calls {
		if mine[c] {
			calls[i] = c
		}
	}
	f.calls, f.told = calls, limit.Flight{} // which was told
}
