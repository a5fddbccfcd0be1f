// Package clock is the time by which permits come back and callers lose their
// patience: the machine's, save where a test moves it.
package clock

import (
	"slices"
	"sync"
	"time"
)

// Clock is a time that stands still until it is moved. A nil Clock is the machine's.
type Clock struct {
	mu       sync.Mutex
	now      time.Time
	sleepers []Sleeper
}

// Sleeper waits for times of a Clock.
type Sleeper interface {
	// Rest reports whether all that is under way waits for the Clock; then how many
	// callers do, and when the first is to be woken, zero where none is.
	Rest() (waiting int, next time.Time, rests bool)

	// Moved wakes those whose time has come.
	Moved()
}

// Of returns the Clock of a Redis client. Package rratelimitertest sets it.
var Of func(rdb any) *Clock

// New returns a Clock that shows now.
func New(now time.Time) *Clock { return &Clock{now: now.Round(0)} }

// Now returns the time.
func (c *Clock) Now() time.Time {
	if c == nil {
		return time.Now()
	}
	return c.shown()
}

func (c *Clock) shown() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// At is Now for a caller who knows the machine's time.
func (c *Clock) At(machine time.Time) time.Time {
	if c == nil {
		return machine
	}
	return c.shown()
}

// Since returns the time since t.
func (c *Clock) Since(t time.Time) time.Duration {
	if c == nil {
		return time.Since(t) // reads half of what time.Now does
	}
	return c.shown().Sub(t)
}

// Until returns the time until t.
func (c *Clock) Until(t time.Time) time.Duration {
	if c == nil {
		return time.Until(t)
	}
	return t.Sub(c.shown())
}

// Machine returns when the machine's time is as far from now as t is. The zero
// time stands for never.
func (c *Clock) Machine(t time.Time) time.Time {
	if c == nil || t.IsZero() {
		return t
	}
	return time.Now().Add(c.Until(t))
}

// Join has s woken when the Clock is moved. The machine's wakes nobody.
func (c *Clock) Join(s Sleeper) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sleepers = append(c.sleepers, s)
}

// Sleepers returns those who have joined.
func (c *Clock) Sleepers() []Sleeper {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.sleepers)
}

// Set moves the Clock, and wakes nobody.
func (c *Clock) Set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}
