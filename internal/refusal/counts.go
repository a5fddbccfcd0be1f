package refusal

import (
	"hash/maphash"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/rratelimiter/rratelimiter/internal/clock"
)

// Counts is how often limiters, by their keys, were changed and granted permits,
// as far as one Client knows.
type Counts struct {
	// Clock is what refusals end by.
	Clock *clock.Clock

	// Limiters may share a count of changes: a change to one then ends another's refusals,
	// which costs a request.
	changes [1024]atomic.Uint64

	mu          sync.Mutex
	grants      map[string]weak.Pointer[grants]
	most        int         // counts that this map has held
	remembering atomic.Bool // there are some
}

// grants counts how often permits of a limiter were taken, for those who remember
// figures. Unlike the count of changes it is the limiter's alone: a busy limiter
// would leave others that share its count nothing to remember.
type grants struct{ count atomic.Uint64 }

var seed = maphash.MakeSeed()

func (c *Counts) changesOf(key string) *atomic.Uint64 {
	return &c.changes[maphash.String(seed, key)%uint64(len(c.changes))]
}

// NewCache returns a Cache for a handle of the limiter.
func (c *Counts) NewCache(key string) *Cache {
	return &Cache{clock: c.Clock, changes: c.changesOf(key), grants: c.grantsOf(key)}
}

// grantsOf returns the limiter's count, which is kept for as long as a Cache is.
func (c *Counts) grantsOf(key string) *grants {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.grants[key].Value(); g != nil {
		return g
	}
	g := &grants{}
	if c.grants == nil {
		c.grants = make(map[string]weak.Pointer[grants])
	}
	c.grants[key] = weak.Make(g)
	c.most = max(c.most, len(c.grants))
	runtime.AddCleanup(g, c.uncount, key)
	c.remembering.Store(true)
	return g
}

// uncount removes an unused count.
func (c *Counts) uncount(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.grants[key].Value() == nil {
		delete(c.grants, key)
	}
	if left := len(c.grants); left < c.most/2 { // a map does not shrink by itself
		smaller := make(map[string]weak.Pointer[grants], left)
		maps.Copy(smaller, c.grants)
		c.grants, c.most = smaller, left
	}
}

// Changed records that permits of the limiter may have become free.
func (c *Counts) Changed(key string) { c.changesOf(key).Add(1) }

// Granted records that permits of the limiter were taken, or may have been.
func (c *Counts) Granted(key string) {
	if !c.remembering.Load() {
		return
	}
	c.mu.Lock()
	g := c.grants[key].Value()
	c.mu.Unlock()
	if g != nil {
		g.count.Add(1)
	}
}

// Forget ends the refusals of all limiters.
func (c *Counts) Forget() {
	for i := range c.changes {
		c.changes[i].Add(1)
	}
}
