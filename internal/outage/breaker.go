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
	// longestPause is the longest pause after a return that failed: the server answered a
	// probe and decided nothing.
	longestPause = 30 * time.Second

	// leastSilence is how long a server must have been silent at least for the end of a
	// caller's own time to count: callers choose their deadlines, and short ones must not
	// end the calls to a server that works. One that is far away is silent for longer:
	// tripsOfSilence of its shortest round trips, and those of unknownTrip until one was
	// measured, which takes a few if the connection is new.
	leastSilence   = 50 * time.Millisecond
	tripsOfSilence = 3
	unknownTrip    = 250 * time.Millisecond
	// Patience is how long the caller that starts a probe waits for it: a call that comes long
	// after a server is back does not see its error.
	Patience = 5 * time.Millisecond
)

// Breaker knows whether a server decides. The zero Breaker assumes that it does.
type Breaker struct {
	Clock *clock.Clock  // by which it pauses between probes; nil: the machine's
	Slack time.Duration // how much longer than its round trips say a server may be silent while it works

	open atomic.Bool

	mu      sync.Mutex
	failed  int       // calls in a row
	heard   time.Time // when the server last answered any call
	left    time.Time // when the first call began that was left without an answer since
	trip    Trips
	probing bool
	next    time.Time     // when to probe
	pace    time.Duration // of probes
	pause   time.Duration // before the first probe if no call is decided until then; 0 once one was

	returned time.Time // when calls were sent again
}

// Trips keeps the shortest round trip of the last second or two: a busy server does not
// make that longer, since some of its answers are small.
type Trips struct {
	now, before time.Duration
	since       time.Time
}

// Add notes a round trip that ended at that time.
func (t *Trips) Add(trip time.Duration, at time.Time) {
	if at.Sub(t.since) > time.Second {
		t.before, t.now, t.since = t.now, 0, at
	}
	if t.now == 0 || trip < t.now {
		t.now = trip
	}
}

// Shortest returns the shortest one, 0 if none was measured.
func (t *Trips) Shortest() time.Duration {
	if t.now == 0 || t.before != 0 && t.before < t.now {
		return t.before
	}
	return t.now
}

// Admission is whether a call may be sent.
type Admission int

// The admissions.
const (
	Sent    Admission = iota // it may
	NotSent                  // the server is known to leave calls undecided
	Probing                  // to see whether it still does; report the result to [Breaker.Probed]
)

// Admit reports whether a call may be sent. Of those that come while none may, one at a
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

// Probed records the result of a probe, and reports whether calls are sent again.
func (b *Breaker) Probed(answers bool) (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if answers {
		b.failed, b.returned = 0, b.Clock.Now()
		b.open.Store(false)
	} else {
		b.pace = min(2*b.pace, LastPace)
		b.next = b.Clock.Now().Add(b.pace)
	}
	return answers
}

// Allows reports whether a call may be sent. While none may, probe is run in the
// background from time to time, one at a time; it reports whether the server answers.
// changed is called if that makes a difference.
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
	patience := time.After(Patience)
	if b.Clock != nil {
		patience = nil // a test's answers are not to depend on how fast the machine is
	}
	select {
	case <-done:
	case <-patience:
	}
	return !b.open.Load()
}

// Heard notes that the server answered after that time, even if no caller still waited.
func (b *Breaker) Heard(after time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard = b.Clock.Now()
	b.trip.Add(max(after, 1), b.heard) // a bubble's takes no time
}

// Left notes that the time of a call which began at start was over before an answer came. It
// reports whether the server has been silent long enough to count.
func (b *Breaker) Left(start time.Time) bool {
	if b.Clock != nil {
		return true // a test's clock stands still
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left.IsZero() || b.left.Before(b.heard) {
		b.left = start
	}
	from := b.heard
	if b.left.After(from) {
		from = b.left
	}
	trip := b.trip.Shortest()
	if trip == 0 {
		trip = unknownTrip
	}
	return time.Since(from) >= max(leastSilence, tripsOfSilence*trip)+b.Slack
}

// Decided records that Redis decided a call.
func (b *Breaker) Decided() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() {
		b.failed, b.pause, b.left = 0, 0, time.Time{} // otherwise only a probe shows it: this call may be an old one
	}
}

// Failed notes that Redis left a call undecided which began at start. It reports whether no
// more are sent from now on: after a return, the first call that fails is enough.
func (b *Breaker) Failed(start time.Time) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() || start.Before(b.returned) {
		return false
	}
	if b.failed++; b.failed < failures && b.pause == 0 {
		return false
	}
	b.pace = firstPace
	b.next = b.Clock.Now().Add(max(firstPace, b.pause))
	b.pause = min(max(LastPace, 2*b.pause), longestPause)
	b.open.Store(true)
	return true
}
