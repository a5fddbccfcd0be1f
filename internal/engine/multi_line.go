package engine

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/refusal"
)

// jointLine is where callers wait who want permits of a limiter together with those of others: callers whom this
// limiter refused last, and those who came after them. It asks in passes, as a line does: for the first, and then for
// those for whom the limiter has enough left by the last answer. A pass ends with one for whom it has not, until the
// first yields: then those behind it are asked for too. Each caller asks for itself, in its turn.
type jointLine struct {
	order

	queue      *queue
	asking     int         // how many of them are asked for now
	underWay   int64       // the permits that these want
	lateAt     time.Time   // when their answers are late: another is asked for
	answered   time.Time   // when the last answer came
	unanswered time.Time   // since when requests have been asked for without any answer; zero: none have
	timer      *time.Timer // runs poll

	// Of those whom the pass has passed over.
	least  *multiRequest // who wants the fewest permits; nil once it is asked for
	fewest int64         // how many these are; the least number if another may be looked for

	pause time.Duration // half of the limiter's keep-alive time; 0: none; -1: no one has asked yet
	alive time.Time     // when to ask again to keep it alive; zero: no matter
}

// maxAsking is how many requests of a line are asked for at once: as many as a flight takes.
const maxAsking = 128

func newJointLine(q *queue) *jointLine {
	l := &jointLine{queue: q, pause: -1}
	l.begin(time.Time{})
	return l
}

// idle returns how many requests wait for their turn.
func (l *jointLine) idle() int { return l.count - l.asking }

// refused reports whether the limiter has refused one in this pass.
func (l *jointLine) refused() bool { return l.smallest < math.MaxInt64 }

// insert puts a request in its place.
func (l *jointLine) insert(m *multiRequest) {
	m.waiter.line, m.waiter.multi = l, m
	l.order.insert(&m.waiter.place)
}

// remove takes a request out.
func (l *jointLine) remove(m *multiRequest) {
	l.drop(&m.waiter.place)
	if m.waiter.line = nil; l.least == m {
		l.least, l.fewest = nil, math.MinInt64
	}
	if l.count == 0 {
		l.dueAt, l.again, l.strict, l.smallest = time.Time{}, false, true, math.MaxInt64
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
		one := q.joint.Load()
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

// start begins a pass.
func (l *jointLine) start(now time.Time) {
	l.begin(now)
	l.least, l.fewest = nil, math.MaxInt64
	for p := range l.all() {
		if m := p.multi; !m.waiter.asking {
			l.ask(m, now)
			return
		}
	}
}

// goOn asks for more in a pass, now that the limiter has that many permits left, below 0 if that is not known. If
// nothing is under way, it asks for one for which there is not enough, to learn when there will be. It goes on where the
// pass has come to, unless there may be enough for one that it has passed over.
func (l *jointLine) goOn(free int64, now time.Time) {
	free -= l.underWay
	if l.strict || free >= l.fewest {
		l.rest, l.least, l.fewest = l.first(), nil, math.MaxInt64
	}
	for ; l.rest != nil && l.asking < maxAsking; l.rest = l.known(l.rest.next) {
		m := l.rest.multi
		need := m.permitsOf(l.queue)
		switch {
		case m.waiter.asking:
			continue
		case m.waiter.pass == l.pass:
		case need <= free:
			free -= need
			l.ask(m, now)
			continue
		case need < l.fewest:
			l.least, l.fewest = m, need
		}
		if l.strict {
			break
		}
	}
	if m := l.least; l.asking == 0 && m != nil && l.fewest < l.smallest {
		l.least, l.fewest = nil, math.MinInt64
		l.ask(m, now)
	}
}

// note records that the limiter refused a request, with that wait and interval.
func (l *jointLine) note(m *multiRequest, wait, interval time.Duration, now time.Time) {
	if due := now.Add(refusal.AskAgain(wait)); !l.refused() || &m.waiter.place == l.first() || due.Before(l.dueAt) {
		l.dueAt = due
	}
	l.interval, l.smallest = interval, min(l.smallest, m.permitsOf(l.queue))
}

// changed counts a change of the limiter. It makes a pass begin, unless one is under way that has refused none: its
// refusals see that they may be too old.
func (l *jointLine) changed(q *queue, now time.Time) {
	if l == nil {
		q.changes.Add(1)
		return
	}
	q.engine.joints.Lock()
	defer q.engine.joints.Unlock()
	q.changes.Add(1) // who sees that in between would begin a pass too
	if l.asking == 0 || l.refused() {
		l.again = true
		l.run(now)
	}
}

// close makes callers see that the Engine is closed.
func (l *jointLine) close() {
	if l == nil {
		return
	}
	e := l.queue.engine
	e.joints.Lock()
	defer e.joints.Unlock()
	for p := range l.all() {
		p.multi.wake()
	}
}

// run starts what can be done now.
func (l *jointLine) run(now time.Time) {
	if l.asking == 0 {
		l.unanswered = time.Time{}
		for _, p := range l.overdue {
			l.end(p.multi, nil)
		}
		l.overdue = nil
	}
	l.yields(now)
	if timeout := l.queue.engine.conn.Timeout; l.asking > 0 && !now.Before(l.unanswered.Add(timeout)) {
		for p := range l.all() {
			l.end(p.multi, lane.NoAnswer(timeout, false))
		}
	}
	if l.idle() > 0 && !l.runAt(now).After(now) {
		l.start(now)
	}
	switch {
	case l.idle() == 0 && l.timer != nil:
		l.timer.Stop()
	case l.idle() == 0:
	case l.timer == nil:
		l.timer = time.AfterFunc(l.runAt(now).Sub(now), l.poll)
	default:
		l.timer.Reset(l.runAt(now).Sub(now))
	}
}

// runAt returns when there is something to do.
func (l *jointLine) runAt(now time.Time) time.Time {
	if l.asking > 0 {
		return lane.Sooner(l.lateAt, l.unanswered.Add(l.queue.engine.conn.Timeout))
	}
	return l.nextAt(now)
}

func (l *jointLine) poll() {
	e := l.queue.engine
	e.joints.Lock()
	defer e.joints.Unlock()
	l.run(time.Now())
}

// end ends the wait of a request that is still in line and not asked for.
func (l *jointLine) end(m *multiRequest, err error) {
	if w := &m.waiter; w.line == l && !w.asking {
		l.remove(m)
		w.err = err
		m.wake()
	}
}
