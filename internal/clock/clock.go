// Package clock is the time by which permits come back and callers lose their
// patience: the machine's, unless a test moves it.
package clock

import "time"

// Clock is a time. A nil Clock is the machine's.
type Clock struct{ Test Test }

// Test is a time that stands still until a test moves it. Package rratelimitertest has one.
type Test interface {
	Now() time.Time

	// After returns a channel that is closed when d is over, and what ends that.
	After(d time.Duration) (due <-chan time.Time, stop func())

	// Enter counts in a caller that waits by After or with a Sleeper, or is under way; leave
	// counts it out.
	Enter() (leave func())

	// Join wakes s when the time is moved.
	Join(s Sleeper)
}

// Sleeper waits for times of a Test.
type Sleeper interface {
	// Rest reports whether every caller under way waits for the Test; then how many callers do,
	// and when to wake the first, zero if there is none.
	Rest() (waiting int, next time.Time, rests bool)

	// Moved wakes callers whose time has come.
	Moved()
}

// Of returns the Clock of a Redis client. Package rratelimitertest sets it.
var Of = func(any) *Clock { return nil }

// Now returns the time.
func (c *Clock) Now() time.Time {
	if c == nil {
		return time.Now()
	}
	return c.Test.Now()
}

// At is Now for a caller who knows the machine's time.
func (c *Clock) At(machine time.Time) time.Time {
	if c == nil {
		return machine
	}
	return c.Test.Now()
}

// Since returns the time since t.
func (c *Clock) Since(t time.Time) time.Duration {
	if c == nil {
		return time.Since(t) // reads half of what time.Now does
	}
	return c.Test.Now().Sub(t)
}

// Machine returns when the machine's time is as far from now as t is. The zero
// time stands for never.
func (c *Clock) Machine(t time.Time) time.Time {
	if c == nil || t.IsZero() {
		return t
	}
	return time.Now().Add(t.Sub(c.Test.Now()))
}

// After returns a channel that is closed or sent to after d, and a function that stops it.
func (c *Clock) After(d time.Duration) (due <-chan time.Time, stop func()) {
	if c == nil {
		timer := time.NewTimer(d)
		return timer.C, func() { timer.Stop() }
	}
	return c.Test.After(d)
}

// Sooner returns the first of two moments, ignoring zero times.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
