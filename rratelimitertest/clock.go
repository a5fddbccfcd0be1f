package rratelimitertest

import (
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
)

// standing is a time that stands still until a test moves it: a [clock.Test].
type standing struct {
	mu       sync.Mutex
	now      time.Time
	sleepers []clock.Sleeper
	inside   int                          // callers who entered
	waits    map[chan time.Time]time.Time // until when; the channel is closed then
}

func newStanding(now time.Time) *standing {
	return &standing{now: now.Round(0), waits: make(map[chan time.Time]time.Time)}
}

// Now returns the time.
func (s *standing) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// After implements [clock.Test].
func (s *standing) After(d time.Duration) (due <-chan time.Time, stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	woken := make(chan time.Time)
	s.waits[woken] = s.now.Add(d)
	return woken, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waits, woken)
	}
}

// Enter implements [clock.Test].
func (s *standing) Enter() (leave func()) {
	count := func(change int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inside += change
	}
	count(1)
	return func() { count(-1) }
}

// Join implements [clock.Test].
func (s *standing) Join(sleeper clock.Sleeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sleepers = append(s.sleepers, sleeper)
}

// rest reports whether everything under way waits for the time, how many callers do, and when to wake
// the first; zero if there is none.
func (s *standing) rest() (waiting int, next time.Time, rests bool) {
	s.mu.Lock()
	sleepers, inside, waiting := slices.Clone(s.sleepers), s.inside, len(s.waits)
	for _, until := range s.waits {
		next = clock.Sooner(next, until)
	}
	s.mu.Unlock()
	for _, sleeper := range sleepers {
		n, at, rests := sleeper.Rest()
		if !rests {
			return 0, time.Time{}, false
		}
		waiting, next = waiting+n, clock.Sooner(next, at)
	}
	return waiting, next, inside <= waiting
}

// set moves the time and wakes callers that wait for it.
func (s *standing) set(now time.Time) {
	s.mu.Lock()
	s.now = now
	for woken, until := range s.waits {
		if !until.After(now) {
			delete(s.waits, woken)
			close(woken)
		}
	}
	sleepers := slices.Clone(s.sleepers)
	s.mu.Unlock()
	for _, sleeper := range sleepers {
		sleeper.Moved()
	}
}
