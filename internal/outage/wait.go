package outage

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A sleeper is the callers of a Guard as a test's clock sees them.
type sleeper struct {
	clock *clock.Clock
	asked clock.Sleeper // those who ask a server

	mu     sync.Mutex
	inside int // callers
	waits  map[*wait]struct{}
}

// wait is one caller's, until a moment.
type wait struct {
	until time.Time
	woken chan struct{}
}

// Enter counts a caller who may wait, until leave is called.
func (g *Guard) Enter() (leave func()) {
	if g.clock == nil {
		return func() {}
	}
	g.sleeper.count(1)
	return func() { g.sleeper.count(-1) }
}

func (s *sleeper) count(change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside += change
}

// Close ends all waits, and those to come.
func (g *Guard) Close() { g.close.Do(func() { close(g.closed) }) }

// Wait returns after d, when ctx ends, or with limit.ErrClosed.
func (g *Guard) Wait(ctx context.Context, d time.Duration) error {
	if g.clock == nil {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-g.closed:
			return limit.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w := &wait{until: g.clock.Now().Add(d), woken: make(chan struct{})}
	g.sleeper.add(w)
	defer g.sleeper.remove(w)
	select {
	case <-w.woken:
		return nil
	case <-g.closed:
		return limit.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *sleeper) add(w *wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits == nil {
		s.waits = make(map[*wait]struct{})
	}
	s.waits[w] = struct{}{}
}

func (s *sleeper) remove(w *wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waits, w)
}

// Rest tells whether all callers wait, here or where they ask: see [clock.Sleeper].
func (s *sleeper) Rest() (waiting int, next time.Time, rests bool) {
	s.mu.Lock()
	inside := s.inside
	for w := range s.waits {
		waiting++
		if next.IsZero() || w.until.Before(next) {
			next = w.until
		}
	}
	s.mu.Unlock()
	asking, _, rests := s.asked.Rest()
	return waiting, next, rests && inside <= waiting+asking
}

// Moved wakes those whose time has come.
func (s *sleeper) Moved() {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.waits {
		if !w.until.After(now) {
			delete(s.waits, w)
			close(w.woken)
		}
	}
}
