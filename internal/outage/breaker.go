// Package outage answers callers while Redis does not decide: by the policy that was
// chosen, at once, and without asking a server that is known not to answer.
package outage

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
)

const (
	// failures is how many calls in a row Redis must leave undecided before others
	// are not sent any more.
	failures = 3

	firstPace = 100 * time.Millisecond
	// LastPace is the longest pause between probes, which begin firstPace apart.
	LastPace = time.Second
	// LeastTime is how long a server must have been silent for the end of a caller's own
	// time to count: callers choose their deadlines, and very short ones must not have a
	// server that works be asked no more.
	LeastTime = 50 * time.Millisecond
	// Patience is how long the caller who has one begin waits for it: one who comes
	// long after a server is back is not told that it is not.
	Patience = 5 * time.Millisecond
)

// Breaker knows whether a server decides. The zero Breaker takes it that it does.
type Breaker struct {
	Clock *clock.Clock  // by which it pauses between probes; nil: the machine's
	Slack time.Duration // how much longer than LeastTime a server may be silent while it works

	open  atomic.Bool
	heard atomic.Int64 // when the server last answered anybody, Unix ns

	mu      sync.Mutex
	failed  int       // calls in a row
	left    time.Time // when the first of those began who left without an answer since
	probing bool
	next    time.Time // when to probe
	pace    time.Duration
}

// Admission is whether a call may be sent.
type Admission int

// The admissions.
const (
	Sent    Admission = iota // it may
	NotSent                  // the server is known to leave calls undecided
	Probing                  // to see whether it still does, which [Breaker.Probed] is told
)

// Admit tells whether a call may be sent. Of those that come while none may, one at a
// time is to be a probe.
func (b *Breaker) Admit() Admission {
	if !b.open.Load() {
		return Sent
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.open.Load():
		return Sent
	case b.probing || b.Clock.Now().Before(b.next):
		return NotSent
	}
	b.probing = true
	return Probing
}

// Probed is told what came of a probe, and tells whether calls are sent again.
func (b *Breaker) Probed(answers bool) (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if answers {
		b.failed = 0
		b.open.Store(false)
	} else {
		b.pace = min(2*b.pace, LastPace)
		b.next = b.Clock.Now().Add(b.pace)
	}
	return answers
}

// Allows tells whether a call may be sent. While none may, probe is run in the
// background from time to time, one at a time; it tells whether the server answers.
// changed is told when that makes a difference.
func (b *Breaker) Allows(probe func() bool, changed func(open bool)) bool {
	switch b.Admit() {
	case Sent:
		return true
	case NotSent:
		return false
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if b.Probed(probe()) {
			changed(false)
		}
	}()
	if b.Clock != nil { // a test's answers are not to depend on how fast the machine is
		<-done
		return !b.open.Load()
	}
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	return !b.open.Load()
}

// Heard is told that the server answered, whether anybody still listened or not.
func (b *Breaker) Heard() { b.heard.Store(b.Clock.Now().UnixNano()) }

// Left is told that the time of a call which began at start was over before an answer
// came, and tells whether the server has been silent for so long that it counts.
func (b *Breaker) Left(start time.Time) bool {
	if b.Clock != nil {
		return true // a test's clock stands still
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	from := time.Unix(0, b.heard.Load())
	if b.left.IsZero() || b.left.Before(from) {
		b.left = start
	}
	if b.left.After(from) {
		from = b.left
	}
	return b.Clock.Now().Sub(from) >= LeastTime+b.Slack
}

// Decided is told that Redis decided a call.
func (b *Breaker) Decided() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() {
		b.failed, b.pace, b.left = 0, 0, time.Time{} // else a probe is to say so: this call may be an old one
	}
}

// Failed is told that Redis left a call undecided, and tells whether no more are sent
// from now on.
func (b *Breaker) Failed() (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed++; b.failed < failures || b.open.Load() {
		return false
	}
	// A server that answers probes and still decides nothing is asked ever less.
	b.pace = min(max(firstPace, 2*b.pace), LastPace)
	b.next = b.Clock.Now().Add(b.pace)
	b.open.Store(true)
	return true
}
