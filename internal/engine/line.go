package engine

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/refusal"
)

// line is where requests wait for permits. It asks in passes: at the time that the server named, now and then before,
// and when a caller joins. A pass may take several batches, one after another.
//
//	waits     the next pass begins later: nextAt says when
//	due       it begins with the next flight
//	asking    it is under way; between two of its batches too
//	  strict  it asks for the first, then for those behind it, until one is refused
//	  for all it asks for all: the first has been that for an interval
type line struct {
	order

	answered time.Time     // when the last answer came
	cost     time.Duration // of the last pass: see join
	asking   bool          // a pass is under way
	stopped  bool          // by a refusal: it ends with the batch
	joined   time.Duration // a caller joined since: how young its answer may be to do; 0: none
	unmixed  bool          // requests with other defaults can't share a call: the limiter had gone
	late     []*place      // to be refused: see refuseLate
	soonest  time.Duration // the shortest wait of those refused in it
	alive    time.Time     // the next begins by then, to keep the limiter alive; zero if that needs no requests

	observer *observe.Observer // receives how many wait
}

// insert puts a request in its place.
func (l *line) insert(r *request) {
	r.request = r
	l.order.insert(&r.place)
	l.tell(r, 1)
}

// drop takes a request out.
func (l *line) drop(r *request) {
	l.order.drop(&r.place)
	l.tell(r, -1)
}

// tell reports to the observer that this many more callers wait.
func (l *line) tell(r *request, more int) {
	if l.observer.Watches() {
		l.observer.Waiting(r.limiter.Observed, more)
	}
}

// join puts a request in the line that was not sent yet. If the last answer is older than fresh, the line
// asks, the first in line first. A request is sent at once if it needs less than was refused to those
// before it, and these must no longer hold it up.
func (l *line) join(r *request, fresh time.Duration) {
	l.insert(r)
	fresh = max(fresh, l.cost)
	switch {
	case l.asksForAll(r.since) && r.Permits < l.smallest:
		l.dueAt = time.Time{}
	case l.asking:
		l.joined = fresh
	default:
		l.dueBy(l.answered.Add(fresh))
	}
}

// The cost of a pass, so that callers who join a long line make it ask the more seldom: a program and its
// server spend a small part of their time on it.
const (
	costOfRequest = 10 * time.Microsecond
	costOfRun     = 100 * time.Microsecond // of equal requests
)

// enter puts a request in the line that has just been refused.
func (l *line) enter(r *request, a lane.Result, interval time.Duration, alive, now time.Time) {
	l.insert(r)
	l.interval, l.alive, l.answered = interval, alive, now
	due, asksForAll := now.Add(refusal.AskAgain(a.Decision.RetryAfter)), l.asksForAll(now)
	switch {
	case l.asking:
		r.pass = l.pass
		l.note(r, a)
		return
	case l.count == 1:
		l.dueAt, l.smallest, l.strict, l.again = due, r.Permits, true, false
	case l.first() == &r.place || asksForAll:
		l.smallest = min(l.smallest, r.Permits)
		l.dueBy(due)
	}
	l.dueBy(l.alive)
}

// due reports whether it is time to ask for a request in line.
func (l *line) due(now time.Time) bool {
	return l.count > 0 && (l.asking || !l.nextAt(now).After(now))
}

// stillAsks reports whether a request whose caller's patience has just ended is sent a last time, in
// a pass under way or due by then.
func (l *line) stillAsks(r *request, now time.Time) bool {
	return l.asking && r.pass != l.pass || !l.nextAt(now).After(r.deadline)
}

// remove takes out a request whose caller went away. The next pass sees what the first left to the others.
func (l *line) remove(r *request) {
	first := l.first() == &r.place
	l.drop(r)
	if first {
		l.again = true
	}
}

// fill adds to a batch the requests that this pass asks for.
func (l *line) fill(now time.Time, add func(r *request, inLine bool) bool) {
	if !l.asking {
		l.begin(now)
		l.asking, l.stopped, l.soonest, l.alive, l.cost, l.joined = true, false, 0, time.Time{}, 0, 0
	}
	for p := l.unasked(); p != nil; p = l.unasked() {
		if !add(p.request, l.strict) {
			return
		}
		p.pass, p.request.Asked = l.pass, now
	}
}

// refused records a request that stays in line.
func (l *line) refused(r *request, a lane.Result, interval time.Duration, alive time.Time) {
	l.interval = interval
	if a.Unasked {
		r.pass, l.rest = 0, l.first() // it was not asked for
		return
	}
	l.stopped = l.strict
	l.note(r, a)
	l.alive = alive
}

// askUnmixed makes a request that shared a call with others of another default be asked again, without
// these: there is no limiter, so the defaults count.
func (l *line) askUnmixed(r *request) {
	r.pass, l.rest, l.unmixed, l.again = 0, l.first(), true, true
}

func (l *line) note(r *request, a lane.Result) {
	if wait := a.Decision.RetryAfter; l.soonest == 0 || wait < l.soonest {
		l.soonest = wait
	}
	l.smallest = min(l.smallest, r.Permits)
}

// refuseLate refuses some of those whose time was over when their last pass ended, and reports whether there are more.
func (l *line) refuseLate() (more bool) {
	n := min(lane.MaxWalk, len(l.late))
	for _, p := range l.late[:n] {
		if p.inLine && p.request.State == lane.Gathered {
			l.drop(p.request)
			p.request.finish(decide.Answer{}, nil)
		}
	}
	if l.late = l.late[n:]; len(l.late) == 0 {
		l.late = nil
	}
	return l.late != nil
}

// answeredBatch says that a batch of a pass has its answers. At the end of the pass it refuses requests whose
// time is over, or the first of them, and sets when the next begins.
func (l *line) answeredBatch(now time.Time) {
	l.answered = now
	if !l.stopped && l.unasked() != nil {
		return
	}
	l.asking = false
	l.late, l.overdue = append(l.late, l.overdue...), nil
	l.refuseLate()
	l.dueAt = now.Add(refusal.AskAgain(l.soonest))
	if l.joined > 0 {
		l.dueBy(now.Add(max(l.joined, l.cost)))
	}
	l.dueBy(l.alive)
}
