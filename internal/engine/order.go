package engine

import (
	"iter"
	"math"
	"time"
)

// order is those who wait for permits of a limiter, first come first served, with the passes in which it is asked for
// them. Until a waiter has been the first for an interval, a pass ends with one that is refused: by then all that others
// were granted before has come back. After that each pass asks for all, so that a waiter that can't be served does not
// hold up the rest.
//
// The lock of its queue guards that of a line, and the Engine's joints that of a jointLine.
type order struct {
	places

	firstSince time.Time     // when the first of them became that; zero: a moment ago
	placed     *place        // the one last put before others; nil if it has left
	interval   time.Duration // the limiter's; 0 before the first refusal

	dueAt    time.Time // when the next pass begins, by what the server said; zero: at once
	again    bool      // it begins at once: permits may have become free since the last began
	pass     int
	strict   bool     // it ends with the first refusal
	rest     *place   // it has asked for all before that one; nil: for all
	smallest int64    // the fewest permits refused in it
	overdue  []*place // of those whose time is over: they wait for its end
}

// places are in the order in which their callers came.
type places struct {
	root  place // of a ring
	count int
}

// place is a place in an order, or among the requests that gather.
type place struct {
	prev, next *place
	request    *request      // whose place it is
	multi      *multiRequest // whose it is in a jointLine
	since      time.Time     // when the caller came
	inLine     bool
	lined      bool // it has been in line: others may know it still
	pass       int  // in which it was last asked for; 0: in none
}

// known returns p, or nil if that is the root.
func (s *places) known(p *place) *place {
	if p == &s.root {
		return nil
	}
	return p
}

// first returns the first place, nil if there is none.
func (s *places) first() *place { return s.known(s.root.next) }

// last returns the last place, or the root.
func (s *places) last() *place {
	if s.root.next == nil {
		s.root.prev, s.root.next = &s.root, &s.root
	}
	return s.root.prev
}

// all returns the places; the current one may be removed meanwhile.
func (s *places) all() iter.Seq[*place] {
	return func(yield func(*place) bool) {
		for p := s.first(); p != nil; {
			next := s.known(p.next)
			if !yield(p) {
				return
			}
			p = next
		}
	}
}

// put puts a place behind another, or behind the root.
func (s *places) put(p, after *place) {
	p.prev, p.next = after, after.next
	p.prev.next, p.next.prev = p, p
	s.count++
}

// take takes a place out.
func (s *places) take(p *place) {
	p.prev.next, p.next.prev = p.next, p.prev
	p.prev, p.next = nil, nil
	s.count--
}

// insert puts a place where it belongs, mostly at the end. Those of a batch that was answered late follow one another.
func (o *order) insert(p *place) {
	after := o.last()
	late := p.since.Before(after.since) // not before the root's, which is zero
	if late && o.placed != nil {
		for after = o.placed; after.next != &o.root && !p.since.Before(after.next.since); {
			after = after.next
		}
	}
	for p.since.Before(after.since) {
		after = after.prev
	}
	p.inLine, p.lined = true, true
	o.put(p, after)
	if o.first() == p {
		o.firstSince = time.Time{}
	}
	if late {
		o.placed = p
	}
	if o.rest == nil || p.since.Before(o.rest.since) {
		o.rest = p
	}
}

// drop takes a place out.
func (o *order) drop(p *place) {
	if o.first() == p {
		o.firstSince = time.Time{}
	}
	if o.placed == p {
		o.placed = o.known(p.prev)
	}
	if o.rest == p {
		o.rest = o.known(p.next)
	}
	p.inLine = false
	o.take(p)
}

// begin begins a pass.
func (o *order) begin(now time.Time) {
	o.pass++
	o.strict = !o.asksForAll(now)
	o.again, o.dueAt, o.rest, o.smallest = false, time.Time{}, o.first(), math.MaxInt64
}

// unasked returns the first for which the pass has not asked, nil if there is none.
func (o *order) unasked() *place {
	for o.rest != nil && o.rest.pass == o.pass {
		o.rest = o.known(o.rest.next)
	}
	return o.rest
}

// dueBy makes the next pass begin by then; the zero time is never.
func (o *order) dueBy(at time.Time) {
	if !at.IsZero() && at.Before(o.dueAt) {
		o.dueAt = at
	}
}

// nextAt returns when the next pass begins; zero: at once. It begins when the first yields, if there are others.
func (o *order) nextAt(now time.Time) time.Time {
	switch at := o.yields(now); {
	case o.again:
		return time.Time{}
	case o.count > 1 && o.strict && o.interval > 0 && at.Before(o.dueAt):
		return at
	default:
		return o.dueAt
	}
}

// yields returns when the first will have been the first for an interval.
func (o *order) yields(now time.Time) time.Time {
	if o.firstSince.IsZero() {
		o.firstSince = now
	}
	return o.firstSince.Add(o.interval)
}

// asksForAll reports whether the first has been the first for an interval.
func (o *order) asksForAll(now time.Time) bool {
	return !now.Before(o.yields(now)) && o.interval > 0
}
