package refusal

import (
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"
)

// Counts is how often limiters, by their keys, were changed and granted permits, as far as one Client knows.
type Counts struct {
	remembering atomic.Bool // there was a Cache
	parts       [64]part
}

// part is the counts of limiters whose keys have hashes that end alike.
type part struct {
	mu  sync.Mutex
	all map[string]weak.Pointer[counts]
}

var seed = maphash.MakeSeed()

func (c *Counts) part(key string) *part {
	return &c.parts[maphash.String(seed, key)%uint64(len(c.parts))]
}

// counts is how often permits of a limiter may have become free, and were taken. They are kept for as long as a Cache
// of the limiter is. Were they smaller, they might share a block of memory with their key, which their cleanup holds.
type counts struct{ changes, grants atomic.Uint64 }

// NewCache returns a Cache for a handle of the limiter.
func (c *Counts) NewCache(key string) *Cache {
	p := c.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.all[key].Value()
	if known == nil {
		known = &counts{}
		if p.all == nil {
			p.all = make(map[string]weak.Pointer[counts])
		}
		p.all[key] = weak.Make(known)
		c.remembering.Store(true)
		runtime.AddCleanup(known, p.forget, key)
	}
	return &Cache{counts: known}
}

// forget drops the limiter's counts, unless others have replaced them.
func (p *part) forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key].Value() == nil {
		delete(p.all, key)
	}
}

// of returns the limiter's counts; nil if no Cache uses them.
func (c *Counts) of(key string) *counts {
	if !c.remembering.Load() {
		return nil
	}
	p := c.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[key].Value()
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
	for i := range c.parts {
		p := &c.parts[i]
		p.mu.Lock()
		for _, one := range p.all {
			if known := one.Value(); known != nil {
				known.changes.Add(1)
			}
		}
		p.mu.Unlock()
	}
}
