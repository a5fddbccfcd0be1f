package httplimit

import (
	"cmp"
	"container/heap"
	"errors"
	"slices"
	"sync"
	"time"
)

// maxPauses is how many paused keys a transport remembers beside those for which requests wait. If
// there are more, it forgets those whose pauses end first.
const maxPauses = 1 << 14

// pauses are the keys of a transport that upstreams pause or requests wait for.
type pauses struct {
	most   time.Duration
	shared *shared // nil: what other programs hear does not matter

	mu   sync.Mutex
	keys map[string]*pause
	idle byEnd  // those for which no request waits
	came uint64 // how many requests
}

// pause is a key that an upstream may have paused, and the requests that wait for its permits. Those
// that a pause stops form a line: when it is over, each asks the limiter once the one before it has,
// so that it serves them in the order in which they came.
type pause struct {
	all   *pauses
	key   string
	until time.Time
	place int // in idle

	fresh   time.Time     // until then it needs not be read from Redis
	reading chan struct{} // closed once it has been; nil if it is not being read

	users  int
	asking []*wait // those that wait at the limiter
	line   []*wait // in the order in which they came
	next   *wait   // left the line and has not asked yet
}

// errPaused ends the wait of a request at the limiter.
var errPaused = errors.New("an upstream paused the key")

// enter counts in a request that waits for permits of a key.
func (a *pauses) enter(key string, w *wait) *pause {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.keys[key]
	if p == nil {
		p = a.addLocked(key)
	} else if p.users == 0 {
		heap.Remove(&a.idle, p.place)
	}
	p.users++
	a.came++
	w.came = a.came
	return p
}

func (a *pauses) addLocked(key string) *pause {
	if a.keys == nil {
		a.keys = make(map[string]*pause)
	}
	p := &pause{all: a, key: key}
	a.keys[key] = p
	return p
}

// leave counts a request out.
func (p *pause) leave(w *wait) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if at, inLine := p.placeOf(w); inLine {
		p.line = slices.Delete(p.line, at, at+1)
	}
	p.askedLocked(w)
	p.leaveLocked()
}

func (p *pause) leaveLocked() {
	if p.users--; p.users == 0 {
		p.all.restLocked(p)
	}
}

// kept returns until when the key is remembered if no request waits for it.
func (p *pause) kept() time.Time {
	if p.fresh.After(p.until) {
		return p.fresh
	}
	return p.until
}

// restLocked keeps a key for which no request waits while it is paused, or known not to be.
func (a *pauses) restLocked(p *pause) {
	if p.kept().IsZero() {
		delete(a.keys, p.key)
		return
	}
	heap.Push(&a.idle, p)
	now := time.Now()
	for len(a.idle) > maxPauses || len(a.idle) > 0 && !a.idle[0].kept().After(now) {
		delete(a.keys, a.idle[0].key)
		heap.Pop(&a.idle)
	}
}

// left returns how much longer the key is paused.
func (p *pause) left() time.Duration {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	return p.leftLocked()
}

func (p *pause) leftLocked() time.Duration {
	if p.until.IsZero() {
		return 0
	}
	return max(0, time.Until(p.until))
}

// turn reports whether a request may ask: the key is not paused, and no other is before it. If not, the
// request is in line from now on, and left is how long the pause lasts.
func (p *pause) turn(w *wait) (left time.Duration, mayAsk bool) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	left = p.leftLocked()
	free := left == 0 && p.next == nil
	if free && len(p.line) == 0 {
		return 0, true
	}
	at, inLine := p.placeOf(w)
	if !inLine {
		p.line = slices.Insert(p.line, at, w)
		w.first = make(chan struct{}, 1)
	}
	if !free || at > 0 {
		return left, false
	}
	p.line[0] = nil
	p.line, p.next, w.leads = p.line[1:], w, true
	return 0, true
}

// placeOf returns a request's place in the line, which it may not have taken.
func (p *pause) placeOf(w *wait) (at int, inLine bool) {
	return slices.BinarySearchFunc(p.line, w, func(a, b *wait) int { return cmp.Compare(a.came, b.came) })
}

// asks records that a request is about to ask. A pause that began since its turn ends it now.
func (p *pause) asks(w *wait) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.leftLocked() > 0 {
		w.cancel(errPaused)
	}
	w.place = len(p.asking)
	p.asking = append(p.asking, w)
}

// asked records that the limiter has the request, so that it is the turn of the next.
func (p *pause) asked(w *wait) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.askedLocked(w)
}

func (p *pause) askedLocked(w *wait) {
	w.leads = false
	if p.next == w {
		p.next = nil
	}
	if p.next == nil && len(p.line) > 0 {
		select {
		case p.line[0].first <- struct{}{}:
		default: // it was woken before
		}
	}
}

// answered records that a request no longer waits at the limiter.
func (p *pause) answered(w *wait) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	last := len(p.asking) - 1
	p.asking[w.place], p.asking[last].place = p.asking[last], w.place
	p.asking[last] = nil
	p.asking = p.asking[:last]
	p.askedLocked(w)
}

// extend pauses a key, and reports whether it is paused for longer than before. Requests that wait for its permits get in
// line.
func (a *pauses) extend(key string, until time.Time) (longer bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.keys[key]
	switch {
	case p == nil:
		p = a.addLocked(key)
	case !until.After(p.until):
		return false
	case p.users == 0:
		heap.Remove(&a.idle, p.place)
	}
	p.until = until
	for _, w := range p.asking {
		w.cancel(errPaused)
	}
	if p.users == 0 {
		a.restLocked(p)
	}
	return true
}

// byEnd is a heap of pauses, the one that ends first on top.
type byEnd []*pause

func (h *byEnd) Len() int           { return len(*h) }
func (h *byEnd) Less(i, j int) bool { return (*h)[i].kept().Before((*h)[j].kept()) }

func (h *byEnd) Swap(i, j int) {
	all := *h
	all[i], all[j] = all[j], all[i]
	all[i].place, all[j].place = i, j
}

// Push implements heap.Interface.
func (h *byEnd) Push(x any) {
	p := x.(*pause) //nolint:forcetypeassert // it holds nothing else
	p.place = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *byEnd) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}
