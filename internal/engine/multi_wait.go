package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// jointWaiter is what a caller who waits needs in a jointLine.
type jointWaiter struct {
	place

	line    *jointLine    // nil: it is in none
	turn    chan struct{} // holds one if there is news for the caller
	asking  bool          // it is its turn
	changes int64         // of the limiters before it asked
	refused bool
	counted bool  // the observer has heard of it
	err     error // why it is not in line any more
}

// join puts the request in a line: behind those who wait for one of its limiters. If none do, it is its turn, and so it
// is if no one has asked for one of them yet, which may have to be kept alive.
func (m *multiRequest) join() {
	e, w := m.engine, &m.waiter
	e.joints.Lock()
	defer e.joints.Unlock()
	w.since, w.turn = time.Now(), make(chan struct{}, 1)
	for _, q := range m.queues {
		if q.joint.Load() == nil {
			q.joint.Store(newJointLine(q))
		}
	}
	l := m.ordered[0].joint.Load()
	if at := slices.IndexFunc(m.ordered, func(q *queue) bool { return q.joint.Load().idle() > 0 }); at >= 0 {
		l = m.ordered[at].joint.Load()
	}
	known := !slices.ContainsFunc(m.queues, func(q *queue) bool { return q.joint.Load().pause < 0 })
	waits := l.idle() > 0 || l.asking >= maxAsking
	l.insert(m)
	if !waits || !known {
		l.ask(m, w.since)
		return
	}
	m.count(true)
	if l.asking == 0 {
		l.dueBy(l.answered.Add(l.queue.lane.Load().Fresh()))
	}
	l.run(w.since)
}

// awaitTurn reports whether it is the request's turn to ask. Otherwise its wait is over.
func (m *multiRequest) awaitTurn(ctx context.Context) (turn bool, err error) {
	e, w, last := m.engine, &m.waiter, m.deadline
	e.joints.Lock()
	defer e.joints.Unlock()
	for {
		now := time.Now()
		l := w.line
		switch {
		case l == nil:
			return false, w.err
		case e.lanes.Closed():
			return false, limit.ErrClosed
		case w.asking:
			return true, nil
		case err != nil:
			return false, err
		case now.Before(last):
		case m.mayStillAsk(now) && last.Equal(m.deadline):
			last = last.Add(e.grace)
			continue
		case w.refused || l.first().multi.waiter.refused || l.answered.After(w.since):
			return false, nil
		default:
			return false, lane.NoAnswer(now.Sub(w.since), false)
		}
		if alive := m.alive(); !alive.IsZero() && !alive.After(now) {
			l.ask(m, now)
			continue
		}
		until := lane.Sooner(last, m.alive())
		e.joints.Unlock()
		err = lane.Wait(ctx, w.turn, until)
		e.joints.Lock()
		if errors.Is(err, lane.ErrLate) {
			err = nil
		}
	}
}

// mayStillAsk reports whether a request whose caller's patience has just ended waits for the end of a pass that is
// under way, or due.
func (m *multiRequest) mayStillAsk(now time.Time) bool {
	l := m.waiter.line
	l.run(now)
	if l.asking > 0 {
		l.overdue = append(l.overdue, &m.waiter.place)
	}
	return m.waiter.asking || l.asking > 0 && m.waiter.pass != l.pass
}

// alive returns when to ask again to keep all limiters alive; zero if that needs no requests.
func (m *multiRequest) alive() (at time.Time) {
	for _, q := range m.queues {
		at = lane.Sooner(at, q.joint.Load().alive)
	}
	return at
}

// waitsOn reports whether the caller waits on after an answer: in the line of the limiter that refuses longest.
func (m *multiRequest) waitsOn(a decide.Answer) bool {
	e, w := m.engine, &m.waiter
	e.joints.Lock()
	defer e.joints.Unlock()
	now, from := time.Now(), w.line
	from.asked(m)
	from.answered, from.unanswered = now, now
	for i, keep := range m.said.keep {
		one := m.queues[i].joint.Load()
		one.pause, one.alive = keep/keepAliveShare, aliveBy(m.sent, keep)
	}
	to, longest := from, time.Duration(0)
	var interval time.Duration
	for refusal := range slices.Chunk(m.said.refusals, 3) {
		if m.one(refusal[0]) == nil {
			continue
		}
		one, wait, each := m.queues[refusal[0]-1].joint.Load(), script.Millis(refusal[1]), script.Millis(refusal[2])
		if one == from {
			from.note(m, wait, each, now)
		}
		if wait > longest {
			to, longest, interval = one, wait, each
		}
	}
	waits := !a.Granted && now.Before(m.deadline)
	if !waits || to != from {
		from.remove(m)
	}
	if waits {
		w.refused = true
		m.count(true)
		if to != from {
			to.insert(m)
			to.note(m, longest, interval, now)
			w.pass = to.pass
		}
	}
	if m.countChanges() != w.changes { // what has been refused may be free now
		from.again, to.again = from.again || from.refused(), to.again || to.refused()
	}
	from.goOn(m.free(from.queue), now)
	from.run(now)
	if to != from {
		to.run(now)
	}
	return waits
}

// leave takes the request out of its line, and lets others ask.
func (m *multiRequest) leave(err error) {
	e, w := m.engine, &m.waiter
	e.joints.Lock()
	defer e.joints.Unlock()
	m.count(false)
	l, now := w.line, time.Now()
	if l == nil {
		return
	}
	asked, first := w.asking, &w.place == l.first()
	if asked {
		l.asked(m)
	}
	l.remove(m)
	switch {
	case asked && err != nil && !m.left && !errors.Is(err, limit.ErrUnavailable):
		l.unanswered = now
		for range min(2, l.idle()) { // the limiter may have gone, which all will learn
			l.start(now)
		}
	case asked: // a late answer may come yet
		l.goOn(-1, now)
	case first:
		l.again = true
	}
	l.run(now)
}

// wake makes the caller look whether it is its turn.
func (m *multiRequest) wake() {
	select {
	case m.waiter.turn <- struct{}{}:
	default:
	}
}

// count tells the observer whether the caller waits.
func (m *multiRequest) count(waits bool) {
	if m.waiter.counted == waits || !m.engine.observer.Watches() {
		return
	}
	m.waiter.counted = waits
	for _, claim := range m.claims {
		if waits {
			m.engine.observer.Waiting(claim.Limiter.Observed, 1)
		} else {
			m.engine.observer.Waiting(claim.Limiter.Observed, -1)
		}
	}
}

// permitsOf returns how many permits of that limiter are wanted.
func (m *multiRequest) permitsOf(q *queue) int64 { return m.claims[slices.Index(m.queues, q)].Permits }

// free returns how many permits the last answer says that the limiter has left, -1 if it does not.
func (m *multiRequest) free(q *queue) int64 {
	if m.said.free == nil {
		return -1
	}
	return m.said.free[slices.Index(m.queues, q)]
}

// countChanges returns how often permits of the limiters may have become free.
func (m *multiRequest) countChanges() (n int64) {
	for _, q := range m.queues {
		n += q.changes.Load()
	}
	return n
}
