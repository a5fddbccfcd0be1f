package lane

import (
	"slices"
	"time"
)

// resend has a flight take the call again.
func (l *Lane) resend(c *Call) {
	if c.errand != nil {
		l.queue(c.errand)
		return
	}
	l.mu.Lock()
	l.again = append(l.again, c)
	start := l.start()
	l.mu.Unlock()
	if start {
		l.dispatch(task{})
	}
}

// delayed is a call that is to be sent again, and when.
type delayed struct {
	call *Call
	at   time.Time
}

// retry is resend after a while. Calls of one flight come back together: one timer
// wakes them all.
func (l *Lane) retry(c *Call, backoff time.Duration) {
	if backoff == 0 {
		l.resend(c)
		return
	}
	at := time.Now().Add(backoff)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.errand != nil {
		c.errand.unsent()
	}
	l.delayed = append(l.delayed, delayed{c, at})
	if l.wake.IsZero() || at.Before(l.wake) {
		l.wakeAt(at)
	}
}

// wakeAt has those resent at that time whose time it is. l.mu is held.
func (l *Lane) wakeAt(at time.Time) {
	l.wake = at
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Until(at), l.resendDue)
	} else {
		l.timer.Reset(time.Until(at))
	}
}

func (l *Lane) resendDue() {
	now := time.Now()
	var due []*Call
	next := time.Time{}
	l.mu.Lock()
	l.delayed = slices.DeleteFunc(l.delayed, func(d delayed) bool {
		if !d.at.After(now) {
			due = append(due, d.call)
			return true
		}
		if next.IsZero() || d.at.Before(next) {
			next = d.at
		}
		return false
	})
	l.wake = time.Time{}
	if !next.IsZero() {
		l.wakeAt(next)
	}
	l.mu.Unlock()
	for _, c := range due {
		if !l.overdue(c, now) {
			l.resend(c)
		}
	}
}
