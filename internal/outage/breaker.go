// Package outage answers callers while Redis does not decide: by the policy that was
// chosen, at once, and without asking a server that is known not to answer.
package outage

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	// failures is how many calls in a row Redis must leave undecided before others are not sent any more.
	failures = 3

	// firstPace is the pause before the first probe, lastPace the longest between probes.
	firstPace, lastPace = 100 * time.Millisecond, time.Second
	// longestPause is the longest pause after a return that failed: the server answered a probe and decided nothing.
	longestPause = 30 * time.Second

	// leastSilence is how long a server must have been silent at least for the end of a caller's own time to count:
	// callers choose their deadlines, and short ones must not end the calls to a server that works. One that is far
	// away is silent for longer: tripsOfSilence of its shortest round trips, and those of unknownTrip until one was
	// measured, which takes a few if the connection is new.
	leastSilence   = 50 * time.Millisecond
	tripsOfSilence = 3
	unknownTrip    = 250 * time.Millisecond
	// patience is how long the caller that starts a probe waits for it: a call that comes long
	// after a server is back does not see its error.
	patience = 5 * time.Millisecond
)

// Breaker knows whether a server decides. The zero Breaker assumes that it does.
type Breaker struct {
	Slack time.Duration // how much longer than its round trips say a server may be silent while it works

	open    atomic.Bool
	doubted atomic.Bool // there is something for Decided to forget

	mu      sync.Mutex
	failed  int       // calls in a row
	heard   time.Time // when the server last decided any call
	left    time.Time // when the first call began that was left without an answer since
	trip    Trips
	probing bool
	next    time.Time     // when to probe
	pace    time.Duration // of probes
	pause   time.Duration // before the first probe if no call is decided until then; 0 once one was

	returned time.Time // when calls were sent again
	told     []Watcher // who knows that none are sent
}

// Watcher learns when calls are sent no more, and when they are sent again.
type Watcher struct {
	Observer *observe.Observer
	Limiter  string // its name for the limiter; "" if it watches a server
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

// Open reports whether no calls are sent but probes.
func (b *Breaker) Open() bool { return b.open.Load() }

// Allows reports whether a call may be sent. While none may, probe is run in the background from time to
// time, one at a time; it reports whether the server decides. Who watches learns of it.
func (b *Breaker) Allows(probe func() bool, by ...*Policy) bool {
	if b.open.Load() && b.turn(by) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.probed(probe())
		}()
		select {
		case <-done:
		case <-time.After(patience):
		}
	}
	return !b.open.Load()
}

// turn reports whether the caller is to probe.
func (b *Breaker) turn(by []*Policy) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() {
		return false
	}
	b.tell(by, nil)
	if b.probing || time.Now().Before(b.next) {
		return false
	}
	b.probing = true
	return true
}

// tell tells those who watch and don't know it that no calls are sent. b.mu is held.
func (b *Breaker) tell(by []*Policy, why error) {
	for _, p := range by {
		for _, w := range [...]Watcher{{Observer: p.Observer}, p.Outer} {
			if w.Observer != nil && !slices.Contains(b.told, w) {
				b.told = append(b.told, w)
				w.Observer.Happened(limit.Event{Kind: limit.AskedNoMore, Limiter: w.Limiter, Err: why})
			}
		}
	}
}

// probed records the result of a probe.
func (b *Breaker) probed(decides bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if !decides {
		b.pace = min(2*b.pace, lastPace)
		b.next = time.Now().Add(b.pace)
		return
	}
	b.failed, b.returned = 0, time.Now()
	b.open.Store(false)
	for _, w := range b.told {
		w.Observer.Happened(limit.Event{Kind: limit.AskedAgain, Limiter: w.Limiter})
	}
	b.told = nil
}

// Heard notes that the server decided after that time, even if no caller still waited.
func (b *Breaker) Heard(after time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard = time.Now()
	b.trip.Add(max(after, 1), b.heard) // a bubble's takes no time
}

// CallerGaveUp records that the time of a call that began at start ended before an answer came, and reports whether
// the server has been silent long enough to count.
func (b *Breaker) CallerGaveUp(start time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.doubted.Store(true)
	if b.left.IsZero() || b.left.Before(b.heard) {
		b.left = start
	}
	trip := cmp.Or(b.trip.Shortest(), unknownTrip)
	return min(time.Since(b.heard), time.Since(b.left)) >= max(leastSilence, tripsOfSilence*trip)+b.Slack
}

// Decided records that Redis decided a call. It takes no lock if that is nothing new.
func (b *Breaker) Decided() {
	if !b.doubted.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() {
		b.failed, b.pause, b.left = 0, 0, time.Time{} // otherwise only a probe shows it: this call may be an old one
		b.doubted.Store(false)
	}
}

// Failed notes that Redis left a call undecided which began at start, and why. It reports whether that was
// known: no more calls are sent, or the call is older than a return. After a return, the first call that
// fails is enough to send no more.
func (b *Breaker) Failed(start time.Time, why error, by ...*Policy) (known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() || start.Before(b.returned) {
		return true
	}
	b.doubted.Store(true)
	if b.failed++; b.failed < failures && b.pause == 0 {
		return false
	}
	b.pace = firstPace
	b.next = time.Now().Add(max(firstPace, b.pause))
	b.pause = min(max(lastPace, 2*b.pause), longestPause)
	b.open.Store(true)
	b.tell(by, why)
	return false
}
