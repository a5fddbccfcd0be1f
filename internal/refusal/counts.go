package refusal

import (
	"runtime"
	"sync"
	"sync/atomic"
	"weak"
)

// Counts is how often limiters, by their keys, were changed and granted permits, as far as one Client knows.
type Counts struct {
	remembering atomic.Bool // there was a Cache

	mu  sync.Mutex
	all map[string]weak.Pointer[counts]
}

// counts is how often permits of a limiter may have become free, and were taken. They are kept for as long as a Cache
// of the limiter is. Were they smaller, they might share a block of memory with their key, which their cleanup holds.
type counts struct{ changes, grants atomic.Uint64 }

// NewCache returns a Cache for a handle of the limiter.
func (c *Counts) NewCache(key string) *Cache {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.all[key].Value()
	if known == nil {
		known = &counts{}
		if c.all == nil {
			c.all = make(map[string]weak.Pointer[counts])
		}
		c.all[key] = weak.Make(known)
		c.remembering.Store(true)
		runtime.AddCleanup(known, c.forget, key)
	}
	return &Cache{counts: known}
}

// forget drops the limiter's counts, unless others have replaced them.
func (c *Counts) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[key].Value() == nil {
		delete(c.all, key)
	}
}

// of returns the limiter's counts; nil if no Cache uses them.
func (c *Counts) of(key string) *counts {
	if !c.remembering.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[key].Value()
}

// Changed records that permits of the limiter may have become free.
func (c *Counts) Changed(key string) {
	if known := c.of(key); known != nil {
		known.changes.Add(1)
	}
}

// Granted records that permits of the limiter were taken, or may have been.
func (c *Counts) Granted(key string) {
	if known := c.of(key); known != nil {
		known.grants.Add(1)
	}
}

// Forget ends the refusals of all limiters.
func (c *Counts) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		if known := one.Value(); known != nil {
			known.changes.Add(1)
		}
	}
}
