package engine

import (
	"context"
	"time"
)

// crowd is those who wait for one limiter beside others. Its Engine's lock guards
// it.
type crowd struct {
	waiting map[*multi]struct{}
	asked   time.Time // when the last question was sent that has its answer
	claimed time.Time // when one of them last went to keep the limiter alive
}

// wake has all ask again.
func (c *crowd) wake() {
	if c == nil {
		return
	}
	for m := range c.waiting {
		m.wake()
	}
}

// wait returns when it is time to ask again: when those that refused could grant,
// or before; false where the deadline is sooner.
func (m *multi) wait(ctx context.Context, v verdict) (bool, error) {
	at := time.Now().Add(v.wait)
	last := at
	if m.deadline.Before(at) {
		last = m.deadline
	}
	for {
		if m.engine.isClosed() {
			return false, ErrClosed
		}
		next, mine := m.keepAlive(v.keeps, last)
		if mine {
			return true, nil
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-m.woken:
			timer.Stop()
			if m.engine.isClosed() {
				return false, ErrClosed
			}
			return time.Now().Before(m.deadline), nil
		case <-timer.C:
			if next.Equal(last) {
				return last.Equal(at), nil
			}
		case <-ctx.Done():
			timer.Stop()
			return false, ctx.Err()
		}
	}
}

// secondTry is the part of a keep-alive time, one in so many, after which another
// asks where the one whose turn it was has no answer.
const secondTry = 4 * keepAliveShare

// keepAlive tells whether the caller is to ask now to keep its limiters alive:
// one of those who wait for a limiter does it for all. Else it returns when to
// look again, last at the latest.
func (m *multi) keepAlive(keeps []time.Duration, last time.Time) (next time.Time, mine bool) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	next = last
	for i, keep := range keeps {
		if keep == 0 {
			continue
		}
		crowd := e.multis[m.limiters[i].config()]
		due := crowd.asked.Add(keep / keepAliveShare)
		if again := crowd.claimed.Add(keep / secondTry); again.After(due) {
			due = again
		}
		if !due.After(now) {
			crowd.claimed, mine = now, true
		}
		if due.Before(next) {
			next = due
		}
	}
	return next, mine
}

// noteAsked is told that a question sent at that time has its answer: it has
// started the keep-alive times of the caller's limiters anew.
func (m *multi) noteAsked(sent time.Time) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range m.limiters {
		if crowd := e.multis[l.config()]; sent.After(crowd.asked) {
			crowd.asked = sent
		}
	}
}

// wake has the caller ask again.
func (m *multi) wake() {
	select {
	case m.woken <- struct{}{}:
	default:
	}
}

// join has changes of its limiters wake the caller; part ends that.
func (m *multi) join() {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range m.groups {
		key := g.config()
		if e.multis[key] == nil {
			e.multis[key] = &crowd{waiting: make(map[*multi]struct{})}
		}
		e.multis[key].waiting[m] = struct{}{}
	}
}

func (m *multi) part() {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range m.groups {
		key := g.config()
		delete(e.multis[key].waiting, m)
		if len(e.multis[key].waiting) == 0 {
			delete(e.multis, key)
		}
	}
}
