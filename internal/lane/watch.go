package lane

import (
	"sync"
	"time"
)

// Watch ends requests that get no answer in time. All have the same time, so that
// the oldest is the first whose time is over, and one timer serves for all.
type Watch struct {
	timeout     time.Duration
	mu          *sync.Mutex // the owner's
	first, last *Pending
	timer       *time.Timer
	armed       time.Time // the since that the timer runs for; zero while it does not run
}

// Waiter is a request whose time may be over.
type Waiter interface {
	// Expire is told that so much time has passed since the request was made. The
	// Watch knows it no longer.
	Expire(now time.Time)
}

// NewWatch returns a Watch that mu guards.
func NewWatch(mu *sync.Mutex, timeout time.Duration) Watch { return Watch{mu: mu, timeout: timeout} }

// Add has r, whose Pending p is, expire a timeout after since. The lock is held.
func (w *Watch) Add(p *Pending, r Waiter, since time.Time) {
	p.waiter, p.since = r, since
	p.before = w.last
	for p.before != nil && since.Before(p.before.since) {
		p.before = p.before.before
	}
	if p.before == nil {
		p.behind, w.first = w.first, p
	} else {
		p.behind, p.before.behind = p.before.behind, p
	}
	if p.behind == nil {
		w.last = p
	} else {
		p.behind.before = p
	}
	w.arm()
}

// Remove reports whether the request had still been watched. The lock is held.
func (w *Watch) Remove(p *Pending) bool {
	if p.waiter == nil {
		return false
	}
	if p.before == nil {
		w.first = p.behind
	} else {
		p.before.behind = p.behind
	}
	if p.behind == nil {
		w.last = p.before
	} else {
		p.behind.before = p.before
	}
	p.waiter, p.before, p.behind = nil, nil, nil
	return true
}

// arm leaves a timer alone that runs for an earlier request: look sets it again.
func (w *Watch) arm() {
	if w.first == nil || !w.armed.IsZero() && !w.first.since.Before(w.armed) {
		return
	}
	w.armed = w.first.since
	wait := time.Until(w.armed.Add(w.timeout))
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, w.look)
	} else {
		w.timer.Reset(wait)
	}
}

func (w *Watch) look() {
	now := time.Now()
	var over []Waiter
	w.mu.Lock()
	for w.first != nil && !now.Before(w.first.since.Add(w.timeout)) {
		over = append(over, w.first.waiter)
		w.Remove(w.first)
	}
	w.armed = time.Time{}
	w.arm()
	w.mu.Unlock()
	for _, r := range over {
		r.Expire(now)
	}
}
