package refusal

import (
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"
)

// Counts is how often limiters, by their keys, were changed and granted permits,
// as far as one Client knows.
type Counts struct {
	// Limiters may share a count of changes: a change to one then ends another's refusals,
	// which costs a request.
	changes [1024]atomic.Uint64

	grants      sync.Map    // weak.Pointer[grants] by key
	remembering atomic.Bool // there are some
}

// grants counts how often permits of a limiter were taken, for those who remember
// figures. Unlike the count of changes it is the limiter's alone: a busy limiter
// would leave others that share its count nothing to remember.
type grants struct {
	count atomic.Uint64
	_     [8]byte // without it, one may share a block of memory with its key, which its cleanup holds
}

var seed = maphash.MakeSeed()

func (c *Counts) changesOf(key string) *atomic.Uint64 {
	return &c.changes[maphash.String(seed, key)%uint64(len(c.changes))]
}

// NewCache returns a Cache for a handle of the limiter.
func (c *Counts) NewCache(key string) *Cache {
	return &Cache{changes: c.changesOf(key), grants: c.grantsOf(key)}
}

// grantsOf returns the limiter's count, which is kept for as long as a Cache is.
func (c *Counts) grantsOf(key string) *grants {
	if !c.remembering.Load() {
		c.remembering.Store(true) // before another caller can find the count
	}
	if g := c.knownGrants(key); g != nil {
		return g
	}
	made := &grants{}
	mine := weak.Make(made)
	for {
		found, known := c.grants.LoadOrStore(key, mine)
		if !known {
			runtime.AddCleanup(made, func(unused weak.Pointer[grants]) { c.grants.CompareAndDelete(key, unused) }, mine)
			return made
		}
		if g := valueOf(found); g != nil {
			return g
		}
		c.grants.CompareAndDelete(key, found)
	}
}

// knownGrants returns the limiter's count, nil if no Cache uses it.
func (c *Counts) knownGrants(key string) *grants {
	found, _ := c.grants.Load(key)
	return valueOf(found)
}

// valueOf returns the count that a value of the map points to, nil if it is unused.
func valueOf(value any) *grants {
	p, _ := value.(weak.Pointer[grants])
	return p.Value()
}

// Changed records that permits of the limiter may have become free.
func (c *Counts) Changed(key string) { c.changesOf(key).Add(1) }

// Granted records that permits of the limiter were taken, or may have been.
func (c *Counts) Granted(key string) {
	if !c.remembering.Load() {
		return
	}
	if g := c.knownGrants(key); g != nil {
		g.count.Add(1)
	}
}

// Forget ends the refusals of all limiters.
func (c *Counts) Forget() {
	for i := range c.changes {
		c.changes[i].Add(1)
	}
}
