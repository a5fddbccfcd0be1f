package linear

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// An effect is what a call does at one moment.
type effect struct {
	kind    effectKind
	call    int // number of the call
	client  int
	permits int64

	rate, interval int64 // of setRate; of an acquire or a Reset, what its handle gives a limiter without one
	upTo           bool  // an acquire takes as much of permits as is free
	taken          int64 // by that
	reservation    int   // that an acquire makes; of settle, the one that is settled
	used           int64 // what it cost
	hold           int64 // until an acquire's permits come back; 0: an interval
	excess         int64 // what that is beyond its permits: charged whether it is free or not
	keep           bool  // setRate keeps the permits in use; an unseen acquire has a stake; at rest there is none
	maybe          bool  // an unseen acquire may have a stake
	update         bool  // setRate changes nothing if there is no rate
	try            bool  // setRate changes nothing if there is one
	now            int64 // of a tick

	outcome op.Outcome
	ok      bool
	anyhow  bool   // refused, whether permits were free or not
	doubted bool   // a request that may have carried the call got no answer
	mates   string // what others of its script call may have got in its place, together: numbers, a space after each
	figures bool   // free and limit are known
	free    int64
	limit   int64
	times   bool // wait and reset are known, by a known clock
	wait    int64
	reset   int64

	loose looseSet // announce: those that may come from now on; acquire: those that no longer can
}

type effectKind int

const (
	tickEffect     effectKind = iota // time passes
	announceEffect                   // loose effects may come from now on
	withdrawEffect                   // and these no longer; what the call took has been given back
	acquireEffect                    // with its answer
	unseenEffect                     // an acquire whose answer was lost
	phantomEffect                    // an attempt that no repeat finds again
	peekEffect
	releaseEffect
	settleEffect
	resetEffect
	setRateEffect
	deleteEffect
	availableEffect
	finalEffect // available, when all has come to rest
)

// step returns the states that an effect may lead to; none if it can't have happened.
func (s State) step(e effect) []State {
	switch e.kind {
	case tickEffect:
		s.now = e.now
		s = s.settled()
	case announceEffect:
		s.loose = s.loose.with(e.loose)
	case withdrawEffect:
		return s.withdrawn(e)
	case acquireEffect:
		return s.acquire(e)
	case peekEffect:
		if s.acquire(e) == nil {
			return nil
		}
	case unseenEffect, phantomEffect:
		if e.maybe {
			e.maybe, e.keep = false, true
			kept := e
			kept.keep = false
			return []State{s.unseen(e), s.unseen(kept)}
		}
		s = s.unseen(e)
	case releaseEffect:
		if e.outcome != op.Unknown && (s.rate == 0) != (e.outcome == op.Missing) {
			return nil
		}
		if s.rate > 0 {
			var uses []model.Grant
			for i := range s.uses.NewestFirst(e.client) {
				uses = append(uses, s.uses[i])
			}
			return s.takenOff(uses, e.permits)
		}
	case settleEffect:
		return s.settle(e)
	case resetEffect:
		if e.outcome != op.Unknown && (s.rate == 0 && e.rate == 0) != (e.outcome == op.Missing) {
			return nil
		}
		s = s.full()
	case setRateEffect:
		return s.setRate(e)
	case deleteEffect:
		if e.outcome != op.Unknown && e.ok != (s.rate > 0) {
			return nil
		}
		s = s.full()
		s.rate, s.interval = 0, 0
	case availableEffect, finalEffect:
		seen := s.byDefault(e)
		if (seen.rate == 0) != (e.outcome == op.Missing) || seen.rate > 0 && e.free != max(0, seen.free()) {
			return nil
		}
		if e.kind == finalEffect && e.keep && slices.ContainsFunc(s.stakes, func(k stake) bool { return !k.phantom }) {
			return nil
		}
	}
	return []State{s}
}

// byDefault gives a limiter without a rate the one that the caller's handle has.
func (s State) byDefault(e effect) State {
	if s.rate == 0 && (e.upTo || e.excess > 0 || e.permits <= e.rate) {
		s.rate, s.interval = e.rate, e.interval
	}
	return s
}

// withdrawn returns the states in which loose effects of a call no longer come, and nothing is left of those that came:
// whatever an earlier attempt took and no repeat found again has been taken off by others. If that was a part of it, the repeat
// may have taken the rest for what others of the same script call were granted.
func (s State) withdrawn(e effect) []State {
	mine := func(k stake) bool { return k.call == e.call }
	for _, k := range s.stakes {
		rest := k.permits - k.released
		switch {
		case !mine(k) || k.phantom && rest == 0:
		case k.phantom && k.released > 0 && strings.Contains(" "+e.mates, fmt.Sprintf(" %d ", rest)):
			if at := slices.IndexFunc(s.uses, k.of); at >= 0 && s.uses[at].Permits >= rest {
				s = s.lessened(s.uses[at], rest)
			}
		default:
			return nil
		}
	}
	s.loose = s.loose.without(e.loose)
	s.stakes = without(s.stakes, mine)
	return []State{s}
}

func (s State) acquire(e effect) []State {
	// A repeat can't tell a refusal of an earlier attempt from a grant that others have released.
	mine := func(k stake) bool { return k.call == e.call }
	anyhow := e.anyhow || e.outcome == op.Done && !e.ok && slices.ContainsFunc(s.stakes, mine)
	left := s.withdrawn(e)
	if left == nil {
		return nil
	}
	s = left[0]
	if anyhow {
		return []State{s}
	}
	before := s
	s = s.byDefault(e)
	switch e.outcome {
	case op.Missing:
		if s.rate > 0 || e.rate > 0 {
			return nil
		}
		return []State{s}
	case op.Exceeds:
		if e.upTo {
			return nil
		}
		if s.rate > 0 && e.permits > s.rate || s.rate == 0 && e.rate > 0 && e.permits > e.rate {
			return []State{before}
		}
		return nil
	}
	taken := s.taken(e)
	if s.rate == 0 || !e.fits(taken, s.rate) {
		return nil
	}
	if taken > 0 {
		s = s.with(s.grant(e, taken))
	}
	if e.figures && (e.limit != s.rate || e.free != max(0, s.free())) {
		return nil
	}
	if e.times && !s.rightTimes(e) {
		return nil
	}
	return []State{s}
}

func (s State) taken(e effect) int64 {
	free := max(0, s.free())
	switch {
	case s.rate == 0:
		return 0
	case e.excess > 0:
		return e.excess
	case e.upTo:
		return min(e.permits, free)
	case e.permits <= free:
		return e.permits
	}
	return 0
}

// fits reports whether an acquire that took that many permits may have been answered so.
func (e effect) fits(taken, rate int64) bool {
	if e.upTo {
		// A repeat finds what others have left of what the first attempt took.
		return e.taken == taken || e.doubted && 0 < e.taken && e.taken < taken
	}
	// A repeat can't tell whether the first attempt's permits exceeded the rate of
	// that time, or were not free: it answers that they are not granted.
	exceeded := e.permits > rate && !e.ok && !e.doubted
	return !exceeded && e.ok == (taken > 0)
}

// rightTimes reports whether an answer's times are what they should be: at least exact, since
// what a batch grants counts for all of its requests, and no longer than an interval.
func (s State) rightTimes(e effect) bool {
	reset, wait := s.uses.Full(s.interval, s.now)-s.now, int64(0)
	if !e.ok {
		need := e.permits
		if e.upTo {
			need = 1
		}
		if at, ok := s.uses.Ready(s.free(), need, s.interval, s.now); ok {
			wait = at - s.now
		}
	}
	return reset <= e.reset && e.reset <= s.interval && wait <= e.wait && (e.wait <= s.interval || e.ok)
}

// unseen takes permits if they are free, for a caller that does not learn it.
func (s State) unseen(e effect) State {
	s = s.byDefault(e)
	taken := s.taken(e)
	if taken == 0 {
		return s
	}
	g := s.grant(e, taken)
	g.Own = 0
	s = s.with(g)
	if e.keep {
		s.stakes = append(slices.Clone(s.stakes), stake{call: e.call, at: g.At, client: e.client, permits: taken, phantom: e.kind == phantomEffect})
		slices.SortFunc(s.stakes, func(a, b stake) int {
			return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.at, b.at), cmp.Compare(a.released, b.released))
		})
	}
	return s
}

// settle charges what a reservation has cost beyond its permits, and frees what it has not
// cost of them. If a held one is gone, all that was used is charged, even if it was released: within
// a second of the hold's end that can't be told, and holds by a known clock are shorter.
func (s State) settle(e effect) []State {
	left := s.withdrawn(e)
	if left == nil {
		return nil
	}
	s = left[0]
	own := func(u model.Grant) bool { return u.Own == e.reservation }
	if e.hold > 0 && !slices.ContainsFunc(s.uses, own) {
		e.excess = e.used
	}
	if e.excess > 0 {
		s = s.byDefault(e)
		s = s.with(model.Grant{At: s.now, By: e.client, Permits: s.taken(e)})
	}
	if i := slices.IndexFunc(s.uses, own); i >= 0 {
		u := s.uses[i]
		s = s.lessened(u, u.Permits)
		u.At, u.Early, u.Own, u.Permits = u.At+u.Early, 0, 0, min(u.Permits, e.used)
		s = s.with(u)
	}
	return []State{s}
}

// grant is what an acquire takes now: if it is held, it runs out when the hold is over.
func (s State) grant(e effect, permits int64) model.Grant {
	g := model.Grant{At: s.now, By: e.client, Permits: permits, Own: e.reservation}
	if e.hold > 0 {
		early := max(0, s.interval-e.hold)
		g.At -= early
		if g.Own > 0 {
			g.Early = early
		}
	}
	return g
}

func (s State) setRate(e effect) []State {
	did := (s.rate > 0 || !e.update) && (s.rate == 0 || !e.try)
	if e.outcome != op.Unknown && e.ok != did {
		return nil
	}
	if did {
		if !e.keep && !e.try {
			s = s.full()
		}
		s.rate, s.interval = e.rate, e.interval
		s = s.settled()
	}
	return []State{s}
}

// states are those that a limiter may be in.
type states struct {
	states []State
	key    string // all of their keys
}

// follow returns the states that an effect may lead to, together with the loose effects that may have come after it; none once
// the search's time is over, since they may be too many to list. Of those that are the same the first comes first.
func (all states) follow(e effect, loose []effect, within *searchTime) states {
	found := map[string]State{}
	var queue []State
	add := func(some ...State) {
		for _, s := range some {
			key := s.key()
			if _, known := found[key]; !known {
				found[key] = s
				queue = append(queue, s)
			}
		}
	}
	for _, s := range all.states {
		add(s.step(e)...)
	}
	for len(queue) > 0 {
		if within.over() {
			return states{}
		}
		s := queue[0]
		queue = queue[1:]
		for i, e := range loose {
			if s.loose.has(i) && !s.announced(loose[:i], e) {
				after := s
				after.loose = after.loose.without(only(i))
				add(after.step(e)...)
			}
		}
		for _, k := range s.stakes {
			if !k.phantom {
				add(s.givenBack(k)...)
			}
		}
	}
	var next states
	var keys strings.Builder
	for _, key := range slices.Sorted(maps.Keys(found)) {
		next.states = append(next.states, found[key])
		fmt.Fprintf(&keys, "%d:%s", len(key), key)
	}
	next.key = keys.String()
	return next
}

// announced reports whether one of the first loose effects is that one and may come.
func (s State) announced(first []effect, e effect) bool {
	for i := range first {
		if first[i] == e && s.loose.has(i) {
			return true
		}
	}
	return false
}
