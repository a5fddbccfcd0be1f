package engine

import (
	"iter"
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/refusal"
)

// line is where requests wait for permits, first come first served. It asks in passes: at the time that
// the server named, now and then before, and when a caller joins. Each pass asks for the first in line
// and, once that is granted, for those behind it. Until a request has been the first for an interval, a
// refusal ends the pass: by then all that others were granted before has come back. After that each pass asks
// for all in line, so that a request that can't be served does not hold up the rest. A pass may take several
// batches, one after another.
//
// The Engine's lock guards it.
type line struct {
	first, last *request  // in the order in which they came
	firstSince  time.Time // when that request became the first; zero: a moment ago
	placed      *request  // the one last put before others; nil if it has left
	count       int
	interval    time.Duration // the limiter's; 0 before the first refusal
	dueAt       time.Time     // when the next pass begins; zero: at once
	answered    time.Time     // when the last answer came
	cost        time.Duration // of the last pass: see join

	pass       int
	asking     bool          // a pass is under way
	strict     bool          // it ends with the first refusal
	blocked    bool          // there was one
	freedSince bool          // permits may have become free since it began
	joined     time.Duration // a caller joined since: how young its answer may be to do; 0: none
	unmixed    bool          // requests with other defaults can't share a call: the limiter had gone

	observer *observe.Observer // receives how many wait

	wait     time.Duration // the shortest wait in this pass's answers
	smallest int64         // the fewest permits refused in it
	alive    time.Time     // the next begins by then, to keep the limiter alive; zero if that needs no requests
}

// all returns the requests; the current one may be removed meanwhile.
func (l *line) all() iter.Seq[*request] {
	return func(yield func(*request) bool) {
		for r := l.first; r != nil; {
			next := r.next
			if !yield(r) {
				return
			}
			r = next
		}
	}
}

// insert puts a request in its place, mostly the end. Requests of a batch that was answered late
// have places one after another.
func (l *line) insert(r *request) {
	after := l.last
	if after != nil && r.since.Before(after.since) {
		if l.placed != nil {
			after = l.placed
		}
		for after.next != nil && !r.since.Before(after.next.since) {
			after = after.next
		}
		l.placed = r
	}
	for after != nil && r.since.Before(after.since) {
		after = after.prev
	}
	r.inLine = true
	r.prev = after
	if after == nil {
		r.next, l.first, l.firstSince = l.first, r, time.Time{}
	} else {
		r.next, after.next = after.next, r
	}
	if r.next == nil {
		l.last = r
	} else {
		r.next.prev = r
	}
	l.count++
	l.tell(r, 1)
}

// drop takes a request out.
func (l *line) drop(r *request) {
	if r.prev == nil {
		l.first, l.firstSince = r.next, time.Time{}
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.last = r.prev
	} else {
		r.next.prev = r.prev
	}
	if l.placed == r {
		l.placed = r.prev
	}
	r.prev, r.next, r.inLine = nil, nil, false
	l.count--
	l.tell(r, -1)
}

// tell reports to the observer that this many more callers wait.
func (l *line) tell(r *request, more int) {
	if l.observer.Watches() {
		l.observer.Waits(r.limiter.Observed, more)
	}
}

// join puts a request in the line that was not sent yet. If the last answer is older than fresh, the line
// asks, the first in line first. A request is sent at once if it needs less than was refused to those
// before it, and these must no longer hold it up.
func (l *line) join(r *request, fresh time.Duration) {
	l.insert(r)
	fresh = max(fresh, l.cost)
	switch due := l.answered.Add(fresh); {
	case l.asksForAll(r.since) && r.Permits < l.smallest:
		l.dueAt = time.Time{}
	case l.asking:
		l.joined = fresh
	case due.Before(l.dueAt):
		l.dueAt = due
	}
	l.dueToAskAll(r.since)
}

// The cost of a pass, so that callers who join a long line make it ask the more seldom: a program and its
// server spend a small part of their time on it.
const (
	costOfRequest = 10 * time.Microsecond
	costOfRun     = 100 * time.Microsecond // of equal requests
)

// enter puts a request in the line that has just been refused.
func (l *line) enter(r *request, a lane.Answer, interval time.Duration, alive, now time.Time) {
	l.insert(r)
	l.interval = interval
	due := now.Add(refusal.AskAgain(a.Decision.RetryAfter))
	l.alive = alive
	l.answered = now
	switch {
	case l.asking:
		r.pass = l.pass
		l.note(r, a)
		return
	case l.count == 1:
		l.dueAt, l.smallest, l.strict, l.freedSince = due, r.Permits, true, false
	case l.first == r || l.asksForAll(now):
		l.smallest = min(l.smallest, r.Permits)
		if due.Before(l.dueAt) {
			l.dueAt = due
		}
	}
	l.dueToLive()
	l.dueToAskAll(now)
}

// dueToLive makes the next pass begin in time to keep the limiter alive.
func (l *line) dueToLive() {
	if !l.alive.IsZero() && l.alive.Before(l.dueAt) {
		l.dueAt = l.alive
	}
}

// yields returns when the first in line will have been the first for an interval.
func (l *line) yields(now time.Time) time.Time {
	if l.firstSince.IsZero() {
		l.firstSince = now
	}
	return l.firstSince.Add(l.interval)
}

// asksForAll reports whether the first in line has been the first for an interval.
func (l *line) asksForAll(now time.Time) bool { return !now.Before(l.yields(now)) && l.interval > 0 }

// dueToAskAll makes a pass begin when the first yields: then it asks for
// all in line, if there are others.
func (l *line) dueToAskAll(now time.Time) {
	if at := l.yields(now); l.count > 1 && l.strict && l.interval > 0 && at.Before(l.dueAt) {
		l.dueAt = at
	}
}

// permitsFreed makes a pass begin at once, after the one under way.
func (l *line) permitsFreed() {
	l.dueAt = time.Time{}
	l.freedSince = true
}

// due reports whether it is time to ask for a request in line.
func (l *line) due(now time.Time) bool {
	return l.count > 0 && (l.asking || !l.dueAt.After(now))
}

// stillAsks reports whether a request whose caller's patience has just ended is sent a last time, in
// a pass under way or due by then.
func (l *line) stillAsks(r *request) bool {
	return l.asking && r.pass != l.pass || !l.dueAt.After(r.deadline)
}

// remove takes out a request whose caller went away. The next pass sees what the first left to the others.
func (l *line) remove(r *request) {
	first := l.first == r
	l.drop(r)
	if first {
		l.permitsFreed()
	}
}

// fill adds to a batch the requests that this pass asks for.
func (l *line) fill(now time.Time, add func(r *request, inLine bool) bool) {
	if !l.asking {
		l.pass++
		l.asking, l.strict = true, !l.asksForAll(now)
		l.blocked, l.freedSince = false, false
		l.wait, l.smallest, l.alive = 0, math.MaxInt64, time.Time{}
		l.cost, l.joined = 0, 0
	}
	for r := range l.all() {
		if r.pass == l.pass {
			continue
		}
		if !add(r, l.strict) {
			return
		}
		r.pass, r.Asked = l.pass, now
	}
}

// refused records a request that stays in line.
func (l *line) refused(r *request, a lane.Answer, interval time.Duration, alive time.Time) {
	l.interval = interval
	if a.Unasked {
		r.pass = 0 // it was not asked for
		return
	}
	l.blocked = l.strict
	l.note(r, a)
	l.alive = alive
}

// askUnmixed makes a request that shared a call with others of another default be asked again, without
// these: there is no limiter, so the defaults count.
func (l *line) askUnmixed(r *request) {
	r.pass, l.unmixed, l.freedSince = 0, true, true
}

func (l *line) note(r *request, a lane.Answer) {
	if wait := a.Decision.RetryAfter; l.wait == 0 || wait < l.wait {
		l.wait = wait
	}
	l.smallest = min(l.smallest, r.Permits)
}

// answeredBatch says that a batch of a pass has its answers. At the end of the pass it refuses requests
// whose time is over, and sets when the next begins.
func (l *line) answeredBatch(now time.Time) {
	l.answered = now
	if !l.blocked {
		for r := range l.all() {
			if r.pass != l.pass {
				return
			}
		}
	}
	l.asking = false
	for r := range l.all() {
		if r.overdue(now) {
			l.drop(r)
			r.finish(decide.Answer{}, nil)
		}
	}
	l.dueAt = now.Add(refusal.AskAgain(l.wait))
	if due := now.Add(max(l.joined, l.cost)); l.joined > 0 && due.Before(l.dueAt) {
		l.dueAt = due
	}
	l.dueToLive()
	if l.freedSince {
		l.dueAt = time.Time{}
	}
	if l.count > 0 {
		l.dueToAskAll(now)
	}
}
