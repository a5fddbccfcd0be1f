// Package local limits in this process's memory: sliding windows, one for each key. Keys
// are of any type that can be compared.
package local

import (
	"container/list"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// What a Limiter keeps at most.
const (
	// maxKeys is how many keys. Beyond that the one not asked for the longest time is forgotten.
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

	mu    sync.Mutex
	keys  map[any]*list.Element // in asked
	asked list.List             // windows, that of the key asked last at the end
}

// window is the grants of one key, oldest first.
type window struct {
	key    any
	length time.Duration // by the rule that was given last
	used   int64         // the sum of grants
	grants []grant
}

// grant is permits taken from first to last. They run out together.
type grant struct {
	first, last time.Duration
	n           int64
}

// New returns a Limiter that has granted nothing.
func New() *Limiter {
	return &Limiter{start: time.Now(), keys: map[any]*list.Element{}}
}

// Take takes as many permits of key as are free, at most n, and none if these are fewer than least, which is 1 or
// more. If it takes any, giveBack undoes that. If the rule never has as many, the Decision has the limit only.
func (l *Limiter) Take(key any, least, n int64, rule Rule) (d limit.Decision, taken int64, giveBack func()) {
	if least > rule.Permits {
		return limit.Decision{Limit: rule.Permits}, 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	l.sweep(now)
	w := l.of(key)
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
		giveBack = func() { l.giveBack(key, now, now, taken) } // grants of the same moment are as good as one
	} else {
		d.RetryAfter = min(w.freed(min(w.used, least-free))+rule.Window, end) - now
	}
	d.Remaining = max(0, free-taken)
	if last := len(w.grants) - 1; last >= 0 {
		d.ResetAfter = min(w.grants[last].last+rule.Window, end) - now
	}
	return d, taken, giveBack
}

// sweep forgets the least recently asked keys that hold nothing any more, a few at a time.
func (l *Limiter) sweep(now time.Duration) {
	for range 2 {
		oldest := l.asked.Front()
		if oldest == nil {
			return
		}
		w := windowIn(oldest)
		if w.expire(now - w.length); w.used > 0 {
			return
		}
		l.forget(oldest)
	}
}

func windowIn(e *list.Element) *window { return e.Value.(*window) } //nolint:forcetypeassert // l.asked has nothing else

func (l *Limiter) forget(e *list.Element) {
	l.asked.Remove(e)
	delete(l.keys, windowIn(e).key)
}

// of returns the window of key, which is now the one asked last.
func (l *Limiter) of(key any) *window {
	e, ok := l.keys[key]
	if !ok {
		if len(l.keys) >= maxKeys {
			l.forget(l.asked.Front())
		}
		e = l.asked.PushBack(&window{key: key})
		l.keys[key] = e
	}
	l.asked.MoveToBack(e)
	return windowIn(e)
}

// GiveBack undoes the newest grants of a key, up to n permits that have not run out, and returns how many these were.
func (l *Limiter) GiveBack(key any, n int64) (back int64) {
	return l.giveBack(key, 0, math.MaxInt64, n)
}

// giveBack is GiveBack for grants made from first to last.
func (l *Limiter) giveBack(key any, first, last time.Duration, n int64) (back int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	l.sweep(now)
	e, ok := l.keys[key]
	if !ok {
		return 0
	}
	w := windowIn(e)
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
