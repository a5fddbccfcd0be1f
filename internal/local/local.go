// Package local limits in this process's memory: sliding windows, one for each key. Keys
// are of any type that can be compared.
package local

import (
	"container/heap"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// What a Limiter keeps at most.
const (
	// maxKeys is how many keys have a window of their own. Each key beyond that shares one of as many others.
	maxKeys = 1 << 15

	// exact is how many grants of a key are kept apart. Those after that
	// within one exact-th of the window are kept as one, as of the last.
	exact = 32
)

// Rule is how many permits a span of that length may have.
type Rule struct {
	Permits int64
	Window  time.Duration

	// Until, if it is not zero, is the end of the current window of that length: all that it has granted
	// runs out then.
	Until time.Time
}

// Limiter keeps the windows of many keys. No span of a window's length ever has more than the rule's permits.
type Limiter struct {
	start time.Time // times below are durations since
	seed  maphash.Seed
	count atomic.Int64 // windows
	parts [16]part
}

// part is the windows of keys whose hashes end alike.
type part struct {
	mu     sync.Mutex
	keys   map[any]*window
	ending ending
}

// window is the grants of one key, oldest first, or of the keys that share it.
type window struct {
	key    any
	length time.Duration // by the rule that was given last
	used   int64         // the sum of grants
	grants []grant
	ends   time.Duration // when all is free again
	due    time.Duration // when to look whether that is so; not after ends
	index  int           // in ending
}

// share is the key of a window that several keys share.
type share uint64

// grant is permits taken from first to last. They run out together.
type grant struct {
	first, last time.Duration
	n           int64
}

// New returns a Limiter that has granted nothing.
func New() *Limiter {
	l := &Limiter{start: time.Now(), seed: maphash.MakeSeed()}
	for i := range l.parts {
		l.parts[i].keys = map[any]*window{}
	}
	return l
}

// part returns the part of a key, and the key of the window that it may share, which is of the same part.
func (l *Limiter) part(key any) (*part, share) {
	hash := maphash.Comparable(l.seed, key) % maxKeys
	return &l.parts[hash%uint64(len(l.parts))], share(hash)
}

// Take takes as many permits of key as are free, at most n, and none if these are fewer than least, which is 1 or
// more. If it takes any, giveBack undoes that. If the rule never has as many, the Decision has the limit only.
func (l *Limiter) Take(key any, least, n int64, rule Rule) (d limit.Decision, taken int64, giveBack func()) {
	if least > rule.Permits {
		return limit.Decision{Limit: rule.Permits}, 0, nil
	}
	p, shared := l.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Since(l.start)
	l.count.Add(-p.sweep(now))
	w := p.find(key, shared)
	if w == nil {
		if l.count.Load() >= maxKeys {
			key = shared
		}
		l.count.Add(1)
		w = p.add(key)
	}
	if _, shared := w.key.(share); shared { // what a key with another rule has taken counts for as long as by that
		rule.Window, rule.Until = max(rule.Window, w.length), time.Time{}
	}
	w.length = rule.Window
	end := time.Duration(math.MaxInt64) // of the current window, if that has an end of its own
	if rule.Until.IsZero() {
		w.expire(now - rule.Window)
	} else {
		end = now + max(1, time.Until(rule.Until))
		w.expire(end - rule.Window - 1)
	}
	free := rule.Permits - w.used
	d = limit.Decision{Limit: rule.Permits, Granted: least <= free}
	if d.Granted {
		taken = min(n, free)
		w.add(now, taken, rule.Window/exact)
		giveBack = func() { l.giveBack(p, w, now, now, taken) } // grants of the same moment are as good as one
	} else {
		d.RetryAfter = min(w.freed(min(w.used, least-free))+rule.Window, end) - now
	}
	d.Remaining = max(0, free-taken)
	p.endAt(w, min(w.grants[len(w.grants)-1].last+rule.Window, end)) // there is one: least is at most rule.Permits
	d.ResetAfter = w.ends - now
	return d, taken, giveBack
}

// sweep forgets keys that hold nothing any more, a few at a time, and returns how many.
func (p *part) sweep(now time.Duration) (gone int64) {
	for range 2 {
		if len(p.ending) == 0 || p.ending[0].due > now {
			break
		}
		w := p.ending[0]
		if w.due = w.ends; w.due > now {
			heap.Fix(&p.ending, 0)
			continue
		}
		heap.Pop(&p.ending)
		delete(p.keys, w.key)
		gone++
	}
	return gone
}

// endAt notes when all of w is free again.
func (p *part) endAt(w *window, at time.Duration) {
	if w.ends = at; at < w.due {
		w.due = at
		heap.Fix(&p.ending, w.index)
	}
}

// add makes a window. Once there are too many, it is one that several keys share for as long as it may hold something.
func (p *part) add(key any) *window {
	w := &window{key: key, due: math.MaxInt64}
	p.keys[key] = w
	heap.Push(&p.ending, w)
	return w
}

// find returns the window that counts key, nil if there is none.
func (p *part) find(key any, shared share) *window {
	if w, ok := p.keys[key]; ok {
		return w
	}
	return p.keys[shared]
}

// GiveBack undoes the newest grants of a key, up to n permits that have not run out, and returns how many these were.
// They may be another key's if it shares its window.
func (l *Limiter) GiveBack(key any, n int64) (back int64) {
	p, shared := l.part(key)
	p.mu.Lock()
	w := p.find(key, shared)
	p.mu.Unlock()
	if w == nil {
		return 0
	}
	return l.giveBack(p, w, 0, math.MaxInt64, n)
}

// giveBack is GiveBack for grants made from first to last.
func (l *Limiter) giveBack(p *part, w *window, first, last time.Duration, n int64) (back int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Since(l.start)
	w.expire(now - w.length)
	for i := len(w.grants) - 1; i >= 0 && back < n; i-- {
		g := &w.grants[i]
		if last < g.first || first > g.last {
			continue
		}
		part := min(n-back, g.n)
		back += part
		w.used -= part
		if g.n -= part; g.n == 0 {
			w.grants = slices.Delete(w.grants, i, i+1)
		}
	}
	if w.used == 0 && p.keys[w.key] == w {
		p.endAt(w, now)
	}
	return back
}

// expire drops the grants at or before then.
func (w *window) expire(then time.Duration) {
	gone := 0
	for gone < len(w.grants) && w.grants[gone].last <= then {
		w.used -= w.grants[gone].n
		gone++
	}
	w.grants = slices.Delete(w.grants, 0, gone)
}

// add notes a grant. Beyond exact of them it goes to the newest if that began less than grain ago.
func (w *window) add(now time.Duration, n int64, grain time.Duration) {
	w.used += n
	if last := len(w.grants) - 1; last+1 >= exact && now-w.grants[last].first < grain {
		w.grants[last].last = now
		w.grants[last].n += n
		return
	}
	w.grants = append(w.grants, grant{now, now, n})
}

// freed returns when the last of n permits was taken, oldest first. There are as many.
func (w *window) freed(n int64) (at time.Duration) {
	for i := 0; n > 0; i++ {
		n -= w.grants[i].n
		at = w.grants[i].last
	}
	return at
}

// ending is a heap of windows: that to look at first is its first.
type ending []*window

func (e *ending) Len() int { return len(*e) }

func (e *ending) Less(i, j int) bool { return (*e)[i].due < (*e)[j].due }

func (e *ending) Swap(i, j int) {
	all := *e
	all[i], all[j] = all[j], all[i]
	all[i].index, all[j].index = i, j
}

func (e *ending) Push(w any) {
	w.(*window).index = len(*e)  //nolint:forcetypeassert // part.add pushes nothing else
	*e = append(*e, w.(*window)) //nolint:forcetypeassert // likewise
}

func (e *ending) Pop() any {
	last := len(*e) - 1
	w := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return w
}
