package lane

import (
	"context"
	"runtime"
	"slices"
	"time"
)

// work sends flight after flight until nothing is left.
func (l *Lane) work() {
	var calls []*Call
	var sources []Source
	for {
		runtime.Gosched() // callers that just got answers may ask again
		f := &flight{}
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

// take appends the calls that a flight takes. If it takes nothing, there is no flight.
func (l *Lane) take(f *flight, calls []*Call, sources []Source) ([]*Call, []Source) {
	for {
		var over []*Call
		l.mu.Lock()
		if !l.waiting() {
			l.flights--
			l.mu.Unlock()
			return nil, sources
		}
		room := maxTogether
		if l.silent {
			room = 1
		}
		n := 0
		if calls = l.takeReady(calls, min(room, maxReady)); !l.onceLast {
			n = min(room-len(calls), len(l.ready))
		}
		sources = append(sources[:0], l.ready[:n]...)
		l.ready = dropped(l.ready, n)
		f.wave, l.wave = l.wave, nil
		now := time.Now()
		calls = slices.DeleteFunc(calls, func(c *Call) bool {
			if !c.Overdue(now) && (c.command() == nil || c.command().claim()) {
				return false
			}
			over = append(over, c)
			return true
		})
		calls = l.takeFrom(sources, f.wave, calls, room, now)
		l.start() // for what this one has no room for
		l.mu.Unlock()
		l.expire(over)
		if len(calls) > 0 {
			return calls, sources
		}
		f.wave.End() // nothing is sent: those who wait on it check their own time
	}
}

// takeReady appends ready-made calls of one kind. A call that is not repeated may use all its time in one attempt,
// and the calls of its flight would have none for another. So these go by themselves, in turn with all others.
func (l *Lane) takeReady(calls []*Call, room int) []*Call {
	l.onceLast = len(l.once) > 0 && (!l.onceLast || len(l.calls)+len(l.ready) == 0)
	from := &l.calls
	if l.onceLast {
		from = &l.once
	}
	n := min(room, len(*from))
	calls = append(calls, (*from)[:n]...)
	*from = dropped(*from, n)
	return calls
}

// takeFrom appends a call of each source, and further ones of those that have more while there is
// room.
func (l *Lane) takeFrom(sources []Source, wave *Wave, calls []*Call, room int, now time.Time) []*Call {
	for all := sources; len(all) > 0; {
		if len(calls) >= room {
			l.ready = append(l.ready, all...)
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

// expire ends calls whose time is over.
func (l *Lane) expire(over []*Call) {
	for _, c := range over {
		c.Expire()
		l.done(c)
	}
}

// done passes the result to the owner of a call.
func (l *Lane) done(c *Call) {
	if c.Owner.OnReply(c) {
		l.resend(c)
	}
}

// resend makes a flight take the call again.
func (l *Lane) resend(c *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.send(c)
}

// send makes a flight take the call. The lock is held.
func (l *Lane) send(c *Call) {
	if c.Repeat {
		l.calls = append(l.calls, c)
	} else {
		l.once = append(l.once, c)
	}
	l.watch()
	l.start()
}

// stuckPause is how often calls are looked at while no flight can leave, which would find out that their time is
// over.
const stuckPause = 100 * time.Millisecond

// watch looks after the calls to be sent if no flight can leave.
func (l *Lane) watch() {
	if !l.watched && l.limit() == 0 && len(l.calls)+len(l.once) > 0 {
		l.watched = true
		time.AfterFunc(stuckPause, l.endOverdue)
	}
}

func (l *Lane) endOverdue() {
	var over []*Call
	now := time.Now()
	take := func(c *Call) bool {
		if !c.Overdue(now) {
			return false
		}
		over = append(over, c)
		return true
	}
	l.mu.Lock()
	l.calls, l.once, l.watched = slices.DeleteFunc(l.calls, take), slices.DeleteFunc(l.once, take), false
	l.watch()
	l.mu.Unlock()
	l.expire(over)
}

// retry is resend after a while. The call goes on if it was answered.
func (l *Lane) retry(c *Call, backoff time.Duration, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if answered {
		c.Owner.Progressed()
	}
	if r := c.command(); r != nil {
		r.unsent()
	}
	if backoff == 0 {
		l.send(c)
		return
	}
	c.due = time.Now().Add(backoff)
	l.delayed = append(l.delayed, c)
	if len(l.delayed) == 1 || c.due.Before(l.dueAt) {
		l.wakeAt(c.due)
	}
}

// wakeAt makes delayed calls be sent at that time. One timer for all keeps those of a silent server from holding a
// goroutine each.
func (l *Lane) wakeAt(due time.Time) {
	if l.wake != nil {
		l.wake.Stop()
	}
	l.dueAt, l.wake = due, time.AfterFunc(time.Until(due), l.sendDelayed)
}

// sendDelayed sends the delayed calls that are due.
func (l *Lane) sendDelayed() {
	var over []*Call
	now := time.Now()
	l.mu.Lock()
	l.delayed = slices.DeleteFunc(l.delayed, func(c *Call) bool {
		switch {
		case c.due.After(now):
			return false
		case c.Overdue(now):
			over = append(over, c)
		default:
			l.send(c)
		}
		return true
	})
	if l.wake = nil; len(l.delayed) > 0 {
		l.wakeAt(slices.MinFunc(l.delayed, func(a, b *Call) int { return a.due.Compare(b.due) }).due)
	}
	l.mu.Unlock()
	l.expire(over)
}

// task is work for a goroutine that sends flights: one call alone, or all that gathers.
type task struct {
	ctx  context.Context
	call *Call // nil: what has gathered
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
			l.work()
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
