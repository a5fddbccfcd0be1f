package engine

import (
	"context"
	"time"
)

// jointWaiters are the callers that wait for one limiter together with others. Its queue's lock guards
// it.
type jointWaiters struct {
	waiting map[*multiRequest]struct{}
	due     time.Time // when one of them asks to keep the limiter alive
}

// wake makes all ask again.
func (c *jointWaiters) wake() {
	for m := range c.waiting {
		m.wake()
	}
}

func (m *multiRequest) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asleep = time.Time{}
	select {
	case m.woken <- struct{}{}:
	default:
	}
}

// sleepUntil records that the caller waits, unless it has been woken already.
func (m *multiRequest) sleepUntil(until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.woken) == 0 {
		m.asleep = until
	}
}

func (m *multiRequest) sleepsUntil() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asleep
}

// wait returns when it is time to ask again: when the limiters that refused should have permits, or
// before; false if the deadline is sooner.
func (m *multiRequest) wait(ctx context.Context, v verdict) (bool, error) {
	clock := m.engine.clock
	for i, q := range m.queues {
		q.mu.Lock()
		q.jointWaiters.due = m.sent.Add(v.keeps[i] / keepAliveShare)
		q.mu.Unlock()
	}
	at := clock.Now().Add(v.wait)
	last := at
	if m.deadline.Before(at) {
		last = m.deadline
	}
	defer m.sleepUntil(time.Time{})
	for {
		if err := m.engine.Closed(); err != nil {
			return false, err
		}
		next, mine := m.keepAlive(v.keeps, last)
		if mine {
			return true, nil
		}
		m.sleepUntil(next)
		select {
		case <-m.woken:
			return clock.Now().Before(m.deadline), m.engine.Closed()
		case <-time.After(next.Sub(clock.Now())):
			if !clock.Now().Before(last) {
				return last.Equal(at), nil
			}
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// secondTry is the divisor of a keep-alive time after which another caller asks if the one that
// asked has no answer.
const secondTry = 4 * keepAliveShare

// keepAlive reports whether the caller must ask now to keep its limiters alive: one of those that
// wait for a limiter does it for all. Otherwise it returns when to look again, at the latest last.
func (m *multiRequest) keepAlive(keeps []time.Duration, last time.Time) (next time.Time, mine bool) {
	now := m.engine.clock.Now()
	next = last
	for i, q := range m.queues {
		if keeps[i] == 0 {
			continue
		}
		q.mu.Lock()
		if !q.jointWaiters.due.After(now) {
			q.jointWaiters.due, mine = now.Add(keeps[i]/secondTry), true
		}
		if q.jointWaiters.due.Before(next) {
			next = q.jointWaiters.due
		}
		q.mu.Unlock()
	}
	return next, mine
}
