package rratelimiter

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/chain"
)

// line is where requests wait for permits, first come first served. It asks in
// rounds, at the moment that the server named: each round asks for the first in
// line and, once that is granted, for those behind it. While the first has
// asked for less than an interval, one that is refused ends the round; after
// that all are asked for in each round, so that one that cannot be served does
// not hold up the rest. A round may take several batches.
//
// A queue's lock guards its line.
type line struct {
	requests chain.List[*request] // in the order in which they came
	interval time.Duration        // the limiter's; 0 before the first refusal
	dueAt    time.Time            // when the next round begins; zero: at once

	round   int
	asking  bool // a round is under way
	strict  bool // it ends with the first refusal
	blocked bool // there was one
	nudged  bool // permits may have become free since it began

	wait     time.Duration // the shortest wait that this round was told
	smallest int64         // the fewest permits that it was refused
	alive    time.Time     // the next begins by then, to keep the limiter alive; zero where that lives without
}

// join puts a request at the end of the line. It is asked for at once where
// nobody is before it, or where it wants less than was refused to those before
// it and these must no longer hold it up.
func (l *line) join(r *request) {
	l.requests.Push(r.link())
	if l.requests.Len() == 1 || l.overdue(r.since) && r.permits < l.smallest {
		l.dueAt = time.Time{}
	}
	l.takeTurns()
}

// overdue tells whether the first in line has asked for an interval.
func (l *line) overdue(now time.Time) bool {
	return l.interval > 0 && !now.Before(l.first().since.Add(l.interval))
}

func (l *line) first() *request { return l.requests.First().Element }

// takeTurns has a round begin when the first will have asked for an interval,
// where there are others to be tried then.
func (l *line) takeTurns() {
	if l.requests.Len() < 2 || !l.strict || l.interval == 0 {
		return
	}
	if turn := l.first().since.Add(l.interval); turn.Before(l.dueAt) {
		l.dueAt = turn
	}
}

// nudge has a round begin at once, after the one under way.
func (l *line) nudge() {
	l.dueAt = time.Time{}
	l.nudged = true
}

// due tells whether somebody in line is to be asked for.
func (l *line) due(now time.Time) bool {
	return l.requests.Len() > 0 && (l.asking || !l.dueAt.After(now))
}

// stillAsks tells whether a request whose caller's patience has just ended is
// to be asked for a last time, by a round under way or due by then.
func (l *line) stillAsks(r *request) bool {
	return l.asking && r.round != l.round || !l.dueAt.After(r.deadline)
}

// remove takes out a request whose caller went away. What the first left to the
// others is for the next round to see.
func (l *line) remove(r *request) {
	wasFirst := l.first() == r
	r.place.Leave()
	if wasFirst {
		l.nudge()
	}
}

// fill adds to the batch those whose turn it is.
func (l *line) fill(b *batch, now time.Time) {
	if !l.due(now) {
		return
	}
	if !l.asking {
		l.round++
		l.asking, l.strict = true, !l.overdue(now)
		l.blocked, l.nudged = false, false
		l.wait, l.smallest, l.alive = 0, MaxPermits, time.Time{}
	}
	for place := l.requests.First(); place != nil; place = place.Next() {
		r := place.Element
		if r.round == l.round {
			continue
		}
		if !b.add(r, l.strict) {
			return
		}
		r.round = l.round
	}
}

// refused takes note of a request that stays in line.
func (l *line) refused(r *request, a answer, o outcome) {
	l.interval = o.interval
	if a.inLine {
		r.round = 0 // it was not asked for
		return
	}
	l.blocked = l.strict
	if l.wait == 0 || a.decision.RetryAfter < l.wait {
		l.wait = a.decision.RetryAfter
	}
	l.smallest = min(l.smallest, r.permits)
	l.alive = time.Time{}
	if o.keep > 0 {
		l.alive = r.sent.Add(o.keep / keepAliveShare)
	}
}

// keepAliveShare is the part of a keep-alive time, one in so many, after which
// those who wait ask again: each question starts that time anew, and the rest is
// for the question to get there.
const keepAliveShare = 2

// settle is told that a batch has its answers. At the end of a round it refuses
// those whose time is over, and sets when the next begins.
func (l *line) settle(now time.Time) {
	// A round asks in order: all have been asked where the last has.
	last := l.requests.Last()
	if !l.asking || !l.blocked && last != nil && last.Element.round != l.round {
		return
	}
	l.asking = false
	for place := l.requests.First(); place != nil; {
		r := place.Element
		place = place.Next()
		if !r.deadline.IsZero() && !now.Before(r.deadline) {
			r.tell(answer{})
		}
	}
	l.dueAt = now.Add(l.wait)
	if !l.alive.IsZero() && l.alive.Before(l.dueAt) {
		l.dueAt = l.alive
	}
	if l.nudged {
		l.dueAt = time.Time{}
	}
	if l.requests.Len() > 0 {
		l.takeTurns()
	}
}
