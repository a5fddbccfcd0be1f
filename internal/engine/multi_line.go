package engine

import (
	"container/list"
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/refusal"
)

// jointLine is where callers wait who want permits of a limiter together with those of others: callers whom this
// limiter refused last, and those who came after them. It asks in passes, as a line does: for the first, and then for
// those for whom the limiter has enough left by the last answer. A pass ends with one for whom it has not, until the
// first has been first for an interval: then those behind it are asked for too. Each caller asks for itself, in its turn.
//
// The Engine's lock guards it.
type jointLine struct {
	queue      *queue
	requests   list.List // of *multiRequest, in the order in which they came
	asking     int       // how many of them are asked for now
	underWay   int64     // the permits that these want
	lateAt     time.Time // when their answers are late: another is asked for
	answered   time.Time // when the last answer came
	unanswered time.Time // since when requests have been asked for without any answer; zero: none have

	dueAt     time.Time // when the next pass begins
	freed     bool      // it begins as soon as nothing is asked for
	timer     *time.Timer
	first     *list.Element
	firstFrom time.Time     // when it became the first
	interval  time.Duration // the limiter's; 0 before the first refusal

	pass     int
	strict   bool  // it ends with a request for which there is not enough
	refused  bool  // the limiter refused one in it
	smallest int64 // the fewest permits that it refused in it
	overdue  bool  // callers whose time is over wait for its end

	pause time.Duration // half of the limiter's keep-alive time; 0: none; -1: no one has asked yet
	alive time.Time     // when to ask again to keep it alive; zero: no matter
}

// maxAsking is how many requests of a line are asked for at once: as many as a flight takes.
const maxAsking = 128

func newJointLine(q *queue) *jointLine {
	return &jointLine{queue: q, pass: 1, strict: true, smallest: math.MaxInt64, pause: -1}
}

// idle returns how many requests wait for their turn.
func (l *jointLine) idle() int { return l.requests.Len() - l.asking }

// insert puts a request in its place, mostly the end.
func (l *jointLine) insert(m *multiRequest) {
	after := l.requests.Back()
	for after != nil && m.waiter.since.Before(requestAt(after).waiter.since) {
		after = after.Prev()
	}
	if m.waiter.line = l; after == nil {
		m.waiter.place = l.requests.PushFront(m)
	} else {
		m.waiter.place = l.requests.InsertAfter(m, after)
	}
}

// remove takes a request out.
func (l *jointLine) remove(m *multiRequest) {
	l.requests.Remove(m.waiter.place)
	m.waiter.line = nil
	if l.requests.Len() == 0 {
		l.dueAt, l.freed = time.Time{}, false
		l.strict, l.refused, l.smallest = true, false, math.MaxInt64
	}
}

// ask lets the caller of a request ask.
func (l *jointLine) ask(m *multiRequest, now time.Time) {
	w := &m.waiter
	w.asking, w.pass, w.changes = true, l.pass, m.countChanges()
	l.asking++
	l.underWay += m.permitsOf(l.queue)
	l.lateAt = now.Add(l.queue.engine.conn.AttemptTimeout)
	m.told = m.figures || l.idle() > 0
	if l.unanswered.IsZero() {
		l.unanswered = now
	}
	for _, q := range m.queues {
		one := q.joint
		if one.pause = max(0, one.pause); one.pause > 0 {
			one.alive = now.Add(one.pause / 2) // if no answer comes, another caller asks in time
		}
	}
	m.wake()
}

// asked ends what ask began.
func (l *jointLine) asked(m *multiRequest) {
	m.waiter.asking = false
	l.asking--
	l.underWay -= m.permitsOf(l.queue)
}

// begin begins a pass.
func (l *jointLine) begin(now time.Time) {
	l.pass++
	l.strict = l.interval == 0 || now.Before(l.firstFrom.Add(l.interval))
	l.freed, l.refused, l.smallest = false, false, math.MaxInt64
	for at := l.requests.Front(); at != nil; at = at.Next() {
		if m := requestAt(at); !m.waiter.asking {
			l.ask(m, now)
			return
		}
	}
}

// goOn asks for more in a pass, now that the limiter has that many permits left, below 0 if that is not known. If
// nothing is under way, it asks for one for which there is not enough, to learn when there will be.
func (l *jointLine) goOn(free int64, now time.Time) {
	free -= l.underWay
	var next *multiRequest
	for at := l.requests.Front(); at != nil && l.asking < maxAsking; at = at.Next() {
		m := requestAt(at)
		need := m.permitsOf(l.queue)
		switch {
		case m.waiter.asking:
			continue
		case m.waiter.pass == l.pass:
		case need <= free:
			free -= need
			l.ask(m, now)
			continue
		case need < l.smallest && (next == nil || need < next.permitsOf(l.queue)):
			next = m
		}
		if l.strict {
			break
		}
	}
	if l.asking == 0 && next != nil {
		l.ask(next, now)
	}
}

func requestAt(place *list.Element) *multiRequest {
	m, _ := place.Value.(*multiRequest)
	return m
}

// note records that the limiter refused a request, with that wait and interval.
func (l *jointLine) note(m *multiRequest, wait, interval time.Duration, now time.Time) {
	if due := now.Add(refusal.AskAgain(wait)); !l.refused || m.waiter.place == l.requests.Front() || due.Before(l.dueAt) {
		l.dueAt = due
	}
	l.refused, l.interval, l.smallest = true, interval, min(l.smallest, m.permitsOf(l.queue))
}

// permitsFreed makes a pass begin, unless one is under way that has refused none: its refusals see that they may be too old.
func (l *jointLine) permitsFreed(now time.Time) {
	if l != nil && (l.asking == 0 || l.refused) {
		l.freed = true
		l.next(now)
	}
}

// close makes callers see that the Engine is closed.
func (l *jointLine) close() {
	if l == nil {
		return
	}
	for at := l.requests.Front(); at != nil; at = at.Next() {
		requestAt(at).wake()
	}
}

// next starts what can be done now.
func (l *jointLine) next(now time.Time) {
	if l.asking == 0 {
		l.unanswered = time.Time{}
	}
	if first := l.requests.Front(); first != l.first {
		l.first, l.firstFrom = first, now
	}
	timeout := l.queue.engine.conn.Timeout
	if l.asking > 0 && !now.Before(l.unanswered.Add(timeout)) {
		l.end(func(m *multiRequest) bool {
			m.waiter.err = lane.NoAnswer(timeout, false)
			return true
		})
	}
	if l.overdue && l.asking == 0 {
		l.overdue = false
		l.end(func(m *multiRequest) bool { return !now.Before(m.deadline) })
	}
	if l.idle() > 0 && !l.nextAt().After(now) {
		l.begin(now)
	}
	switch {
	case l.idle() == 0 && l.timer != nil:
		l.timer.Stop()
	case l.idle() == 0:
	case l.timer == nil:
		l.timer = time.AfterFunc(l.nextAt().Sub(now), l.poll)
	default:
		l.timer.Reset(l.nextAt().Sub(now))
	}
}

// nextAt returns when there is something to do.
func (l *jointLine) nextAt() time.Time {
	switch {
	case l.asking > 0:
		return lane.Sooner(l.lateAt, l.unanswered.Add(l.queue.engine.conn.Timeout))
	case l.freed:
		return time.Time{}
	case l.strict && l.interval > 0 && l.idle() > 1 && !l.dueAt.IsZero():
		return lane.Sooner(l.dueAt, l.firstFrom.Add(l.interval))
	default:
		return l.dueAt
	}
}

func (l *jointLine) poll() {
	e := l.queue.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	l.next(time.Now())
}

// end takes out those idle requests for which over returns true.
func (l *jointLine) end(over func(m *multiRequest) bool) {
	var next *list.Element
	for at := l.requests.Front(); at != nil; at = next {
		next = at.Next()
		if m := requestAt(at); !m.waiter.asking && over(m) {
			l.remove(m)
			m.wake()
		}
	}
}
