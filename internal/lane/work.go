package lane

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

const (
	// nearTrip is the longest round trip for which a new goroutine, whose stack must grow, is worth
	// avoiding.
	nearTrip = 100 * time.Microsecond

	// parkTime is how long a goroutine waits for the next flight.
	parkTime = 20 * time.Millisecond
)

// dispatch gives a flight, or what has gathered if f is nil, to a goroutine: one that waits, or a new one.
func (l *Lane) dispatch(f *flight) {
	select {
	case l.parked <- f:
	default:
		go l.work(f)
	}
}

// work sends f, if that is not nil, and then what has gathered, flight after flight while it has a place for them.
func (l *Lane) work(f *flight) {
	timer := time.NewTimer(parkTime)
	defer timer.Stop()
	for {
		if f == nil {
			runtime.Gosched() // callers that just got answers may ask again
			f = l.take()
		}
		if f != nil {
			ctx := context.Background()
			if len(f.calls) == 1 && f.calls[0].Ctx != nil {
				ctx = context.WithoutCancel(f.calls[0].Ctx) // for the client's hooks
			}
			if l.sendFlight(ctx, f); f.hasPlace {
				f = nil
				continue
			}
		}
		if !l.near.Load() {
			return
		}
		timer.Reset(parkTime)
		select {
		case f = <-l.parked:
		case <-timer.C:
			return
		case <-l.lanes.over:
			return
		}
	}
}

// atOnce is how many calls are looked at before the lock is let go for a moment.
const atOnce = 64

// ask adds a call of each source, and further ones of those that have more while there is room. It lets the lock go while
// it asks: sources have locks of their own. It reports whether all calls were of the flight's kind.
func (l *Lane) ask(f *flight, room int, now time.Time) (alike bool) {
	n := min(room-len(f.calls), len(l.ready))
	taken := l.taken
	taken = append(taken, l.ready[:n]...)
	l.ready, l.asking, f.wave = dropped(l.ready, n), true, l.wave
	l.mu.Unlock()
	asked, others := 0, []*Call(nil)
	for ; asked < len(taken) && len(f.calls)+len(others) < room; asked++ {
		c, more := taken[asked].NextCall(l, now)
		switch {
		case c == nil:
		case len(f.calls) > 0 && c.Repeat != f.calls[0].Repeat:
			others = append(others, c) // of the other kind: see fill
		default:
			c.Wave = f.wave
			f.calls = append(f.calls, c)
		}
		if more {
			taken = append(taken, taken[asked])
		}
	}
	l.mu.Lock()
	l.asking = false
	l.ready = append(l.ready, taken[asked:]...)
	clear(taken)
	l.taken = taken[:0]
	if len(others) > 0 {
		to := &l.once
		if others[0].Repeat {
			to = &l.calls
		}
		*to = slices.Insert(*to, 0, others...) // they came before
	}
	return len(others) == 0
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
	if c.Repeat && (c.Requests > 0 || l.replicas.Count == 0) {
		l.calls = append(l.calls, c)
	} else {
		l.once = append(l.once, c)
	}
	l.watch()
	l.start()
}

// stuckPause is how often the calls to be sent are looked at while no flight can leave.
const stuckPause = 100 * time.Millisecond

// watch makes sweep look at the calls to be sent if no flight can leave.
func (l *Lane) watch() {
	if l.limit() == 0 && len(l.calls)+len(l.once) > 0 {
		l.sweepBy(time.Now().Add(stuckPause))
	}
}

// sweepBy makes sweep run at that time at the latest. One timer for all keeps the calls of a silent server from
// holding a goroutine each.
func (l *Lane) sweepBy(due time.Time) {
	if !l.sweepAt.IsZero() && !due.Before(l.sweepAt) {
		return
	}
	l.sweepAt = due
	if l.sweeper == nil {
		l.sweeper = time.AfterFunc(time.Until(due), l.sweep)
		return
	}
	l.sweeper.Reset(time.Until(due))
}

// sweep ends what has waited too long, be it sent or not, and sends the delayed calls that are due.
func (l *Lane) sweep() {
	var over []*Call
	var givenUp []*flight
	now := time.Now()
	ends := func(c *Call) bool {
		if !c.Overdue(l.conn, now) {
			return false
		}
		over = append(over, c)
		return true
	}
	l.mu.Lock()
	l.underWay = slices.DeleteFunc(l.underWay, func(f *flight) bool {
		if !now.Before(f.due) && l.overdue(f, now) {
			f.calls = slices.Clone(f.calls) // of a lone call they are in the call, which its owner may use again
			given := *f                     // it may land meanwhile
			givenUp = append(givenUp, &given)
		}
		return f.over && !f.hasPlace
	})
	l.sweepAt = time.Time{}
	l.endBy(l.wave, now)
	for _, f := range l.underWay {
		l.sweepBy(f.due)
		l.endBy(f.wave, now)
	}
	l.each(&l.delayed, func(c *Call) (gone bool) {
		due := !c.due.After(now)
		switch {
		case !due:
			l.sweepBy(c.due)
		case !ends(c):
			l.send(c)
		}
		return due
	})
	if l.limit() == 0 { // no flight takes them, which would find out
		l.each(&l.calls, ends)
		l.each(&l.once, ends)
	}
	l.watch()
	l.mu.Unlock()
	for _, f := range givenUp {
		l.deliver(f, script.ErrSilent)
	}
	l.expire(over)
}

// each removes those of the calls for which gone returns true, some at a time: in between the lock is let go for a moment.
func (l *Lane) each(calls *[]*Call, gone func(c *Call) bool) {
	for left := len(*calls); left > 0; {
		some := slices.Clone((*calls)[:min(left, atOnce, len(*calls))])
		*calls = append(dropped(*calls, len(some)), slices.DeleteFunc(some, gone)...)
		if left -= max(1, len(some)); left > 0 {
			l.pause()
		}
	}
}

// overdue reports whether a flight is given up now: if the server has been silent for an attempt's time, or has answered
// what was sent when the flight was late already. Behind others on a server that answers it is slow, not lost. Likewise
// others get the place of one that is late, if there is room, while go-redis still waits for it. From now on its
// callers, and those behind it, check their own time. One that is given up keeps its place until it is late: otherwise
// calls that have little time left would all go to a silent server, one right after the other.
func (l *Lane) overdue(f *flight, now time.Time) (givenUp bool) {
	f.wave.End()
	l.wave.End()
	heard := f.sent
	if l.lastAnswer.After(heard) {
		heard = l.lastAnswer
	}
	overtaken := !l.newest.Before(f.late)
	silent := heard.Add(max(f.late.Sub(f.sent), 2*l.trips.Shortest()))
	lost := heard.Add(l.conn.AttemptTimeout + l.replicas.Wait)
	givenUp = !f.over && !f.byOne && !now.Before(f.end) && (overtaken || !now.Before(Sooner(lost, f.last)))
	f.over = f.over || givenUp
	if f.hasPlace && !now.Before(f.late) && (f.over || l.stuck < l.spare && (overtaken || !now.Before(silent))) {
		f.hasPlace = false
		l.setSilent(l.silent || !now.Before(silent))
		l.stuck++
		l.flights--
		l.load -= f.load
		l.start()
	}
	f.due = now.Add(l.conn.ProbePace)
	for _, at := range [...]time.Time{f.late, f.end, f.last, silent, lost} {
		if at.After(now) && at.Before(f.due) {
			f.due = at
		}
	}
	return givenUp
}
