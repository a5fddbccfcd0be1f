// Package recent keeps values by key for as long as they are used: what can be made again, such as handles.
package recent

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// A Map of more than Small bytes is looked through once in a Span: what was not used for three of them is forgotten, and
// what was used once within two.
const (
	Small = 4 << 20
	Span  = 5 * time.Minute
)

const (
	parts = 64 // of a Map, each with a lock of its own
	each  = 64 // bytes of an entry and its place in the table
	few   = 32 // entries among which one to forget is chosen
)

// Map keeps values by key, up to a number of bytes. If there are more, it forgets first what was used once, then what
// was not used lately. Finding a value takes no lock, and writes nothing if the value was found before.
type Map[K comparable, V any] struct {
	most  int // bytes of a part
	parts atomic.Pointer[[parts]part[K, V]]
	timer atomic.Bool // there is one, which looks the Map through
}

// part is the entries whose keys have hashes that begin alike. Its lock is for changes.
type part[K comparable, V any] struct {
	mu    sync.Mutex
	table atomic.Pointer[table[K, V]] // nil without entries
	count int
	bytes int
	hand  uint64 // where the search for an entry to forget goes on
}

// table has lists of entries by hash. Its length is a power of two.
type table[K comparable, V any] []atomic.Pointer[entry[K, V]]

type entry[K comparable, V any] struct {
	key   K
	value V
	hash  uint64
	next  atomic.Pointer[entry[K, V]]
	use   atomic.Uint32 // unused, once or again
	bytes uint32
}

// How an entry was used since it was last looked at.
const (
	unused = iota
	once   // made, or used before that
	again
)

var seed = maphash.MakeSeed()

// New returns a Map of that many bytes at most.
func New[K comparable, V any](bytes int) *Map[K, V] { return &Map[K, V]{most: bytes / parts} }

// Get returns the value of a key, if there is one.
func (m *Map[K, V]) Get(key K) (v V, ok bool) {
	hash, all := maphash.Comparable(seed, key), m.parts.Load()
	if all == nil {
		return v, false
	}
	p := &all[hash%parts]
	e := p.find(key, hash)
	if e == nil { // or its list is being moved
		p.mu.Lock()
		e = p.find(key, hash)
		p.mu.Unlock()
		if e == nil {
			return v, false
		}
	}
	return e.touch(), true
}

// Add keeps a value of a key, which takes that many bytes with the key, and returns it. If the key has a value by
// then that will do, it returns that one.
func (m *Map[K, V]) Add(key K, v V, bytes int, does func(V) bool) V {
	hash, all := maphash.Comparable(seed, key), m.parts.Load()
	for all == nil {
		m.parts.CompareAndSwap(nil, &[parts]part[K, V]{})
		all = m.parts.Load()
	}
	fresh := &entry[K, V]{key: key, value: v, hash: hash, bytes: uint32(bytes + each)}
	fresh.use.Store(once)
	e, large := all[hash%parts].add(fresh, m.most, does)
	if e != fresh {
		return e.touch()
	}
	if large {
		m.watch()
	}
	return v
}

// watch makes a timer look the Map through, unless there is one. It does not keep a Map that the program has dropped.
func (m *Map[K, V]) watch() {
	if m.timer.Load() || !m.timer.CompareAndSwap(false, true) {
		return
	}
	known := weak.Make(m)
	time.AfterFunc(Span, func() {
		if m := known.Value(); m != nil {
			m.timer.Store(false)
			m.age()
		}
	})
}

// age forgets what is not used, and goes on a span later if the Map is large.
func (m *Map[K, V]) age() {
	for all, i := m.parts.Load(), 0; i < parts; i++ {
		if all[i].age() {
			m.watch()
		}
	}
}

// touch notes that the entry is used.
func (e *entry[K, V]) touch() V {
	if e.use.Load() != again { // a store would take the entry from other processors
		e.use.Store(again)
	}
	return e.value
}

// at returns where the list of a hash begins.
func (t table[K, V]) at(hash uint64) *atomic.Pointer[entry[K, V]] {
	return &t[hash/parts&uint64(len(t)-1)]
}

// find returns the entry of a key. Without the lock it may miss one whose list is being moved.
func (p *part[K, V]) find(key K, hash uint64) *entry[K, V] {
	t := p.table.Load()
	if t == nil {
		return nil
	}
	for e := t.at(hash).Load(); e != nil; e = e.next.Load() {
		if e.hash == hash && e.key == key {
			return e
		}
	}
	return nil
}

// add puts an entry in place of one of its key, and returns it; that one if its value does. large says that unused entries
// are to be forgotten.
func (p *part[K, V]) add(fresh *entry[K, V], most int, does func(V) bool) (kept *entry[K, V], large bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.find(fresh.key, fresh.hash); e != nil {
		if does(e.value) {
			return e, false
		}
		p.remove(e)
	}
	p.count++
	p.bytes += int(fresh.bytes)
	for p.bytes > most && p.count > 1 {
		p.forget()
	}
	p.fit()
	list := p.table.Load().at(fresh.hash)
	fresh.next.Store(list.Load())
	list.Store(fresh)
	return fresh, p.bytes > Small/parts
}

// remove takes an entry out of its list. Those who look through the list find the way from it.
func (p *part[K, V]) remove(e *entry[K, V]) {
	at := p.table.Load().at(e.hash)
	for at.Load() != e {
		at = &at.Load().next
	}
	at.Store(e.next.Load())
	p.count--
	p.bytes -= int(e.bytes)
}

// forget removes the first of the next few entries that was not used again since it was last looked at, or else the
// last of them.
func (p *part[K, V]) forget() {
	t := *p.table.Load()
	for looked := 1; ; p.hand++ {
		for e := t[p.hand%uint64(len(t))].Load(); e != nil; e = e.next.Load() {
			if e.use.Load() < again || looked == few {
				p.remove(e)
				p.hand++
				return
			}
			e.use.Store(once)
			looked++
		}
	}
}

// age removes the entries that were not used since it was called twice, and reports whether it is to be called again.
func (p *part[K, V]) age() (large bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.table.Load()
	if t == nil {
		return false
	}
	for i := range *t {
		for e := (*t)[i].Load(); e != nil; e = e.next.Load() {
			if use := e.use.Load(); use == unused {
				p.remove(e)
			} else {
				e.use.CompareAndSwap(use, use-1)
			}
		}
	}
	p.fit()
	return p.bytes > Small/parts
}

// fit makes the table as large as its entries need.
func (p *part[K, V]) fit() {
	old := p.table.Load()
	length := 0
	if old != nil {
		length = len(*old)
	}
	switch {
	case p.count == 0:
		p.table.Store(nil)
		return
	case length == 0:
		length = 1
	case p.count > length:
		length *= 2
	case p.count < length/8:
		for length /= 2; p.count < length/2; length /= 2 {
		}
	default:
		return
	}
	fresh := make(table[K, V], length)
	if old != nil {
		for i := range *old {
			for e := (*old)[i].Load(); e != nil; {
				next, list := e.next.Load(), fresh.at(e.hash)
				e.next.Store(list.Load())
				list.Store(e)
				e = next
			}
		}
	}
	p.table.Store(&fresh)
}
