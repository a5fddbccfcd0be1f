package lane

import (
	"context"
	"runtime"
	"slices"
	"time"
)

// gone counts a flight out. l.mu is held.
func (l *Lane) gone(errands bool) {
	l.flights--
	if errands {
		l.extra--
	}
}

// work sends flight after flight until nothing is left.
func (l *Lane) work(errands bool) {
	var calls []*Call
	var sources []Source
	for {
		runtime.Gosched() // callers that just got answers may ask again
		f := &flight{errands: errands}
		calls, sources = l.take(f, calls[:0], sources[:0])
		if len(calls) == 0 {
			return
		}
		f.calls = calls
		ctx := context.Background()
		if len(calls) == 1 && calls[0].ctx != nil {
			ctx = context.WithoutCancel(calls[0].ctx) // for the client's hooks
		}
		if l.sendFlight(ctx, f); f.late {
			return
		}
		clear(calls)
		clear(sources)
	}
}

// take appends the calls that a flight takes: errands alone if it is the flight for these. If it takes
// nothing, there is no flight.
func (l *Lane) take(f *flight, calls []*Call, sources []Source) ([]*Call, []Source) {
	errands := f.errands
	for {
		l.mu.Lock()
		if !errands && !l.waiting() || errands && (len(l.errands) == 0 || l.silent) {
			l.gone(errands)
			start := errands && l.start() // a probe of a silent server is not for errands alone
			l.mu.Unlock()
			if start {
				l.dispatch(task{})
			}
			return nil, sources
		}
		room := maxTogether
		if l.silent {
			room = 1
		}
		n := 0
		if !errands {
			n = min(room, len(l.again))
			calls = append(calls, l.again[:n]...)
			l.again = dropped(l.again, n)
		}
		if errands || !l.changed || n+len(l.ready) == 0 {
			calls = l.takeErrands(calls, min(room, n+maxErrands))
		}
		n = min(room-len(calls), len(l.ready))
		if !errands {
			l.changed = len(calls) > 0 && calls[0].errand != nil && !calls[0].Repeat
		}
		if errands || l.changed {
			n = 0
		}
		sources = append(sources[:0], l.ready[:n]...)
		l.ready = dropped(l.ready, n)
		if n > 0 {
			f.wave, l.wave = l.wave, nil
		}
		start := l.start() // for what this one has no room for
		l.mu.Unlock()
		if start {
			l.dispatch(task{})
		}

		now := time.Now()
		calls = slices.DeleteFunc(calls, func(c *Call) bool { return l.overdue(c, now) || c.errand != nil && !c.errand.departs() })
		calls = l.takeFrom(sources, f.wave, calls, room, now)
		if len(calls) > 0 {
			return calls, sources
		}
		f.wave.End() // nothing is sent: those who wait on it check their own time
	}
}

// takeFrom appends a call of each source, and further ones of those that have more while there is
// room.
func (l *Lane) takeFrom(sources []Source, wave *Wave, calls []*Call, room int, now time.Time) []*Call {
	for all := sources; len(all) > 0; {
		if len(calls) >= room {
			l.mu.Lock()
			l.ready = append(l.ready, all...)
			start := l.start()
			l.mu.Unlock()
			if start {
				l.dispatch(task{})
			}
			return calls
		}
		left := 0
		for _, s := range all {
			c, more := s.NextCall(now)
			if c != nil {
				c.wave = wave
				calls = append(calls, c)
			}
			if more {
				all[left] = s
				left++
			}
		}
		all = all[:left]
	}
	return calls
}

// dropped returns a slice without its first n, at a cost that does not grow with the rest.
func dropped[T any](all []T, n int) []T {
	clear(all[:n])
	if n == len(all) {
		return all[:0]
	}
	return all[n:]
}

// overdue ends a call whose time is over.
func (l *Lane) overdue(c *Call, now time.Time) bool {
	if !c.Overdue(now) {
		return false
	}
	c.Expire()
	l.done(c)
	return true
}

// done passes the result to the owner of a call.
func (l *Lane) done(c *Call) {
	if c.Owner.OnReply(c) {
		l.resend(c)
	}
}

// resend makes a flight take the call again.
func (l *Lane) resend(c *Call) {
	if c.errand != nil {
		l.queue(c.errand)
		return
	}
	l.mu.Lock()
	l.again = append(l.again, c)
	start := l.start()
	l.mu.Unlock()
	if start {
		l.dispatch(task{})
	}
}

// retry is resend after a while.
func (l *Lane) retry(c *Call, backoff time.Duration) {
	if backoff == 0 {
		l.resend(c)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.errand != nil {
		c.errand.unsent()
	}
	l.delayed++
	time.AfterFunc(backoff, func() {
		l.mu.Lock()
		l.delayed--
		l.mu.Unlock()
		if !l.overdue(c, time.Now()) {
			l.resend(c)
		}
	})
}

// task is work for a goroutine that sends flights: one call alone, or all that gathers.
type task struct {
	ctx  context.Context
	call *Call // nil: what has gathered

	errands bool // of that, errands alone
}

const (
	// nearTrip is the longest round trip for which a new goroutine, whose stack must grow, is worth
	// avoiding.
	nearTrip = 100 * time.Microsecond

	// parkTime is how long a goroutine waits for the next task.
	parkTime = 20 * time.Millisecond
)

// dispatch gives the task to a goroutine: one that waits, or a new one.
func (l *Lane) dispatch(t task) {
	select {
	case l.parked <- t:
	default:
		go l.do(t)
	}
}

func (l *Lane) do(t task) {
	timer := time.NewTimer(parkTime)
	defer timer.Stop()
	for {
		if t.call != nil {
			l.alone(t.ctx, t.call)
		} else {
			l.work(t.errands)
		}
		if !l.near.Load() {
			return
		}
		timer.Reset(parkTime)
		select {
		case t = <-l.parked:
		case <-timer.C:
			return
		case <-l.lanes.closed:
			return
		}
	}
}
