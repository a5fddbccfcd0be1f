package engine

import (
	"container/list"
	"iter"
	"math"
	"time"
)

// order is those who wait for permits of a limiter, first come first served, with the passes in which it is asked for
// them. Until a waiter has been the first for an interval, a pass ends with one that is refused: by then all that others
// were granted before has come back. After that each pass asks for all, so that a waiter that can't be served does not
// hold up the rest.
//
// The Engine's lock guards it.
type order[W waiter] struct {
	list       list.List     // of W, in the order in which they came
	firstSince time.Time     // when the first of them became that; zero: a moment ago
	placed     *list.Element // the one last put before others; nil if it has left
	interval   time.Duration // the limiter's; 0 before the first refusal

	dueAt    time.Time // when the next pass begins, by what the server said; zero: at once
	again    bool      // it begins at once: permits may have become free since the last began
	pass     int
	strict   bool          // it ends with the first refusal
	rest     *list.Element // it has asked for all before that one; nil: for all
	smallest int64         // the fewest permits refused in it
	overdue  []W           // whose time is over: they wait for its end
}

// waiter is one of an order.
type waiter interface{ at() *place }

// place is a waiter's place in an order.
type place struct {
	element *list.Element // nil if it is in none
	since   time.Time     // when the caller came
	pass    int           // in which it was last asked for; 0: in none
}

func (p *place) at() *place { return p }

func (p *place) inLine() bool { return p.element != nil }

// of returns the waiter of an element; a zero one if that is nil.
func (o *order[W]) of(e *list.Element) (w W) {
	if e != nil {
		w, _ = e.Value.(W)
	}
	return w
}

// first returns the first waiter.
func (o *order[W]) first() W { return o.of(o.list.Front()) }

// all returns the waiters; the current one may be removed meanwhile.
func (o *order[W]) all() iter.Seq[W] {
	return func(yield func(W) bool) {
		for e := o.list.Front(); e != nil; {
			next := e.Next()
			if !yield(o.of(e)) {
				return
			}
			e = next
		}
	}
}

// insert puts a waiter in its place, mostly the end. Those of a batch that was answered late have places one after
// another.
func (o *order[W]) insert(w W) {
	p := w.at()
	before := func(e *list.Element) bool { return e != nil && p.since.Before(o.of(e).at().since) }
	after, late := o.list.Back(), before(o.list.Back())
	if late && o.placed != nil {
		for after = o.placed; after.Next() != nil && !before(after.Next()); {
			after = after.Next()
		}
	}
	for before(after) {
		after = after.Prev()
	}
	if after != nil {
		p.element = o.list.InsertAfter(w, after)
	} else {
		p.element, o.firstSince = o.list.PushFront(w), time.Time{}
	}
	if late {
		o.placed = p.element
	}
	if o.rest == nil || before(o.rest) {
		o.rest = p.element
	}
}

// drop takes a waiter out.
func (o *order[W]) drop(w W) {
	e := w.at().element
	if e.Prev() == nil {
		o.firstSince = time.Time{}
	}
	if o.placed == e {
		o.placed = e.Prev()
	}
	if o.rest == e {
		o.rest = e.Next()
	}
	o.list.Remove(e)
	w.at().element = nil
}

// begin begins a pass.
func (o *order[W]) begin(now time.Time) {
	o.pass++
	o.strict = !o.asksForAll(now)
	o.again, o.dueAt, o.rest, o.smallest = false, time.Time{}, o.list.Front(), math.MaxInt64
}

// unasked returns the first for whom the pass has not asked, nil if there is none.
func (o *order[W]) unasked() W {
	for o.rest != nil && o.of(o.rest).at().pass == o.pass {
		o.rest = o.rest.Next()
	}
	return o.of(o.rest)
}

// dueBy makes the next pass begin by then; the zero time is never.
func (o *order[W]) dueBy(at time.Time) {
	if !at.IsZero() && at.Before(o.dueAt) {
		o.dueAt = at
	}
}

// nextAt returns when the next pass begins; zero: at once. It begins when the first yields, if there are others.
func (o *order[W]) nextAt(now time.Time) time.Time {
	switch at := o.yields(now); {
	case o.again:
		return time.Time{}
	case o.list.Len() > 1 && o.strict && o.interval > 0 && at.Before(o.dueAt):
		return at
	default:
		return o.dueAt
	}
}

// yields returns when the first will have been the first for an interval.
func (o *order[W]) yields(now time.Time) time.Time {
	if o.firstSince.IsZero() {
		o.firstSince = now
	}
	return o.firstSince.Add(o.interval)
}

// asksForAll reports whether the first has been the first for an interval.
func (o *order[W]) asksForAll(now time.Time) bool {
	return !now.Before(o.yields(now)) && o.interval > 0
}
