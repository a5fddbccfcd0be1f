package lane

import (
	"hash/maphash"
	"sync"
)

// Shards is a map of what gathers by key, in parts with locks of their own. These are taken last: nothing is called under
// them but what makes a value.
type Shards[V comparable] struct {
	parts [64]struct {
		mu   sync.Mutex
		all  map[string]V
		last V        // that RemoveIf has removed
		_    [40]byte // the next part is on another cache line
	}
}

var shardsSeed = maphash.MakeSeed()

func (s *Shards[V]) place(key string) uint64 {
	return maphash.String(shardsSeed, key) % uint64(len(s.parts))
}

// Get returns the value of a key, the zero one if there is none.
func (s *Shards[V]) Get(key string) V {
	part := &s.parts[s.place(key)]
	part.mu.Lock()
	defer part.mu.Unlock()
	return part.all[key]
}

// GetOrMake returns the value of a key, and makes it if there is none: perhaps of the last that RemoveIf has removed from the
// part, which is the key's own if a lone caller comes again and again.
func (s *Shards[V]) GetOrMake(key string, making func(last V) V) V {
	part := &s.parts[s.place(key)]
	part.mu.Lock()
	defer part.mu.Unlock()
	v, ok := part.all[key]
	if !ok {
		v = making(part.last)
		if part.all == nil {
			part.all = map[string]V{}
		}
		part.all[key] = v
	}
	return v
}

// Remove removes the value of a key if it is v.
func (s *Shards[V]) Remove(key string, v V) {
	part := &s.parts[s.place(key)]
	part.mu.Lock()
	defer part.mu.Unlock()
	if part.all[key] == v {
		delete(part.all, key)
	}
}

// RemoveIf removes the value of a key if that is wanted, and keeps it for GetOrMake.
func (s *Shards[V]) RemoveIf(key string, wanted func(v V) bool) {
	part := &s.parts[s.place(key)]
	part.mu.Lock()
	defer part.mu.Unlock()
	if v, ok := part.all[key]; ok && wanted(v) {
		delete(part.all, key)
		part.last = v
	}
}

// All returns the values.
func (s *Shards[V]) All() (all []V) {
	for i := range s.parts {
		part := &s.parts[i]
		part.mu.Lock()
		for _, v := range part.all {
			all = append(all, v)
		}
		part.mu.Unlock()
	}
	return all
}
