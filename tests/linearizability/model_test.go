package linearizability_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// linearState is a limiter that one call at a time happens to. Times are in
// milliseconds. A state never changes: a step returns others.
type linearState struct {
	now      int64
	rate     int64 // 0: none is set
	interval int64
	uses     []linearUse // what is in use, sorted
	stakes   []linearStake
	loose    uint64 // the model's loose effects that may come yet, a bit each
}

// linearUse is permits in use that were granted at the same time to the same
// Client.
type linearUse struct {
	at      int64
	client  int
	permits int64
}

// linearStake is a part of a use that its caller does not know of: that of a
// call which was cancelled, until it is given back, or that of an attempt which
// a repeat did not find again.
type linearStake struct {
	call     int
	at       int64
	client   int
	permits  int64
	released int64 // what Release has taken off the use since
	phantom  bool  // of an attempt that a repeat did not find again
}

// effect is what a call does at one moment.
type effect struct {
	kind    effectKind
	call    int // number of the call
	client  int
	permits int64

	rate, interval int64 // of setRate; of an acquire, what its handle gives a limiter without one
	keep           bool  // setRate keeps the permits in use; an unseen acquire has a stake; at rest there is none
	maybe          bool  // an unseen acquire may have a stake
	update         bool  // setRate changes nothing where there is no rate
	try            bool  // setRate changes nothing where there is one
	now            int64 // of a tick

	outcome outcome
	ok      bool
	anyhow  bool // refused, whether permits were free or not
	doubted bool // a request that may have carried the call got no answer
	figures bool // free and limit were told
	free    int64
	limit   int64
	times   bool // wait and reset were told, by a clock that is known
	wait    int64
	reset   int64

	loose uint64 // announce: those that may come from now on; acquire: those that no longer can
}

type effectKind int

const (
	tickEffect     effectKind = iota // time passes
	announceEffect                   // loose effects may come from now on
	withdrawEffect                   // and these no longer; what the call took has been given back
	acquireEffect                    // with its answer
	unseenEffect                     // an acquire whose answer nobody got
	phantomEffect                    // an attempt that no repeat finds again
	releaseEffect
	setRateEffect
	deleteEffect
	availableEffect
	finalEffect // available, when all has come to rest
)

func (s linearState) free() int64 {
	free := s.rate
	for _, u := range s.uses {
		free -= u.permits
	}
	return free
}

// settled returns the state without what has run out.
func (s linearState) settled() linearState {
	s.uses = without(s.uses, func(u linearUse) bool { return u.at+s.interval <= s.now })
	s.stakes = without(s.stakes, func(k linearStake) bool { return k.at+s.interval <= s.now })
	return s
}

// without returns a copy of the list without those that f tells.
func without[E any](list []E, f func(E) bool) []E {
	if !slices.ContainsFunc(list, f) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), f)
}

// with returns the state with that many more permits in use.
func (s linearState) with(client int, permits int64) linearState {
	s.uses = slices.Clone(s.uses)
	i, found := slices.BinarySearchFunc(s.uses, linearUse{at: s.now, client: client}, func(a, b linearUse) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.client, b.client))
	})
	if found {
		s.uses[i].permits += permits
	} else {
		s.uses = slices.Insert(s.uses, i, linearUse{at: s.now, client: client, permits: permits})
	}
	return s
}

// released returns the state with up to so many permits fewer in use: the
// client's own, the newest first, then those of others.
func (s linearState) released(client int, permits int64) linearState {
	for _, own := range []bool{true, false} {
		for _, u := range slices.Backward(s.uses) {
			if own == (u.client == client) {
				taken := min(permits, u.permits)
				s = s.takenOff(u, taken)
				permits -= taken
			}
		}
	}
	return s
}

// takenOff returns the state with that many permits of a use released.
func (s linearState) takenOff(use linearUse, permits int64) linearState {
	s.stakes = slices.Clone(s.stakes)
	for i := range s.stakes {
		if k := &s.stakes[i]; k.at == use.at && k.client == use.client {
			k.released = min(k.released+permits, k.permits)
		}
	}
	return s.lessened(use, permits)
}

func (s linearState) lessened(use linearUse, permits int64) linearState {
	i := slices.Index(s.uses, use)
	s.uses = slices.Clone(s.uses)
	if use.permits == permits {
		s.uses = slices.Delete(s.uses, i, i+1)
	} else {
		s.uses[i].permits -= permits
	}
	return s
}

// full returns the state with nothing in use.
func (s linearState) full() linearState {
	s.uses = nil
	s.stakes = without(s.stakes, func(k linearStake) bool { return !k.phantom })
	for i, k := range s.stakes {
		if k.released < k.permits {
			s.stakes = slices.Clone(s.stakes)
			s.stakes[i].released = k.permits
		}
	}
	return s
}

// step returns the states that an effect may lead to; none where it can't have
// happened.
func (s linearState) step(e effect) []linearState {
	switch e.kind {
	case tickEffect:
		s.now = e.now
		s = s.settled()
	case announceEffect:
		s.loose |= e.loose
	case withdrawEffect:
		return s.withdrawn(e)
	case acquireEffect:
		return s.acquire(e)
	case unseenEffect, phantomEffect:
		if e.maybe {
			e.maybe, e.keep = false, true
			kept := e
			kept.keep = false
			return []linearState{s.unseen(e), s.unseen(kept)}
		}
		s = s.unseen(e)
	case releaseEffect:
		if e.outcome != unknown && (s.rate == 0) != (e.outcome == noRate) {
			return nil
		}
		if s.rate > 0 {
			s = s.released(e.client, e.permits)
		}
	case setRateEffect:
		return s.setRate(e)
	case deleteEffect:
		if e.outcome != unknown && e.ok != (s.rate > 0) {
			return nil
		}
		s = s.full()
		s.rate, s.interval = 0, 0
	case availableEffect, finalEffect:
		if (s.rate == 0) != (e.outcome == noRate) || s.rate > 0 && e.free != max(0, s.free()) {
			return nil
		}
		if e.kind == finalEffect && e.keep && slices.ContainsFunc(s.stakes, func(k linearStake) bool { return !k.phantom }) {
			return nil
		}
	}
	return []linearState{s}
}

// byDefault gives a limiter without a rate the one that the caller's handle has.
func (s linearState) byDefault(e effect) linearState {
	if s.rate == 0 && e.permits <= e.rate {
		s.rate, s.interval = e.rate, e.interval
	}
	return s
}

// withdrawn returns the states in which loose effects of a call no longer come,
// and nothing is left of those that came: whatever an earlier attempt took and
// no repeat found again has been taken off by others.
func (s linearState) withdrawn(e effect) []linearState {
	mine := func(k linearStake) bool { return k.call == e.call }
	if slices.ContainsFunc(s.stakes, func(k linearStake) bool { return mine(k) && (!k.phantom || k.released < k.permits) }) {
		return nil
	}
	s.loose &^= e.loose
	s.stakes = without(s.stakes, mine)
	return []linearState{s}
}

func (s linearState) acquire(e effect) []linearState {
	anyhow := e.anyhow
	if e.loose != 0 {
		// A repeat can't tell whether an earlier attempt was refused, or others
		// have released since what it took.
		anyhow = anyhow || e.outcome == done && !e.ok && slices.ContainsFunc(s.stakes, func(k linearStake) bool { return k.call == e.call })
		left := s.withdrawn(e)
		if left == nil {
			return nil
		}
		s = left[0]
	}
	if anyhow {
		return []linearState{s}
	}
	before := s
	s = s.byDefault(e)
	switch e.outcome {
	case noRate:
		if s.rate > 0 || e.rate > 0 {
			return nil
		}
		return []linearState{s}
	case exceeds:
		if s.rate > 0 && e.permits > s.rate || s.rate == 0 && e.rate > 0 && e.permits > e.rate {
			return []linearState{before}
		}
		return nil
	}
	// A repeat can't tell whether the first attempt's permits exceeded the rate of
	// that time, or were not free: it answers that they are not granted.
	exceeded := e.permits > s.rate && !e.ok && !e.doubted
	if s.rate == 0 || exceeded || e.ok != (s.free() >= e.permits) {
		return nil
	}
	if e.ok {
		s = s.with(e.client, e.permits)
	}
	if e.figures && (e.limit != s.rate || e.free != max(0, s.free())) {
		return nil
	}
	if e.times && !s.rightTimes(e) {
		return nil
	}
	return []linearState{s}
}

// rightTimes tells whether an answer's times are what they should be: at least
// exact, since what a batch grants counts for all of its requests, and no longer
// than an interval.
func (s linearState) rightTimes(e effect) bool {
	reset, wait := int64(0), int64(0)
	if len(s.uses) > 0 {
		reset = s.uses[len(s.uses)-1].at + s.interval - s.now
	}
	if !e.ok {
		free := s.free()
		for _, u := range s.uses {
			if free += u.permits; free >= e.permits {
				wait = u.at + s.interval - s.now
				break
			}
		}
	}
	return reset <= e.reset && e.reset <= s.interval && wait <= e.wait && (e.wait <= s.interval || e.ok)
}

// unseen takes permits if they are free, for a caller that does not learn it.
func (s linearState) unseen(e effect) linearState {
	s = s.byDefault(e)
	if s.rate == 0 || s.free() < e.permits {
		return s
	}
	s = s.with(e.client, e.permits)
	if e.keep {
		s.stakes = append(slices.Clone(s.stakes), linearStake{
			call: e.call, at: s.now, client: e.client, permits: e.permits, phantom: e.kind == phantomEffect,
		})
		slices.SortFunc(s.stakes, func(a, b linearStake) int {
			return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.at, b.at), cmp.Compare(a.released, b.released))
		})
	}
	return s
}

// givenBack returns the states in which the stake of a cancelled call has been
// given back. Where Release has been at the use since, that may have been any
// part of it.
func (s linearState) givenBack(stake linearStake) []linearState {
	i := slices.IndexFunc(s.uses, func(u linearUse) bool { return u.at == stake.at && u.client == stake.client })
	s.stakes = without(s.stakes, func(k linearStake) bool { return k == stake })
	if i < 0 {
		return []linearState{s}
	}
	var next []linearState
	most := min(stake.permits, s.uses[i].permits)
	for back := min(stake.permits-stake.released, most); back <= most; back++ {
		next = append(next, s.lessened(s.uses[i], back))
	}
	return next
}

func (s linearState) setRate(e effect) []linearState {
	did := (s.rate > 0 || !e.update) && (s.rate == 0 || !e.try)
	if e.outcome != unknown && e.ok != did {
		return nil
	}
	if did {
		if !e.keep && !e.try {
			s = s.full()
		}
		s.rate, s.interval = e.rate, e.interval
		s = s.settled()
	}
	return []linearState{s}
}

func (s linearState) String() string {
	if s.rate == 0 {
		return "no rate"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %d free", s.free(), s.rate)
	if s.now > 0 {
		for _, u := range s.uses {
			fmt.Fprintf(&text, ", %d of client %d until %d ms", u.permits, u.client, u.at+s.interval)
		}
	}
	return text.String()
}

// key returns a text that no other state has.
func (s linearState) key() string {
	key := make([]byte, 0, 64)
	add := func(numbers ...int64) {
		for _, n := range numbers {
			key = binary.AppendVarint(key, n)
		}
	}
	add(s.now, s.rate, s.interval, int64(s.loose), int64(len(s.uses)))
	for _, u := range s.uses {
		add(u.at, int64(u.client), u.permits)
	}
	for _, k := range s.stakes {
		add(int64(k.call), k.at, int64(k.client), k.permits, k.released)
		key = strconv.AppendBool(key, k.phantom)
	}
	return string(key)
}

// linearStates is the states that a limiter may be in.
type linearStates struct {
	states []linearState
	key    string // all of their keys
}

// follow returns the states that an effect may lead to, together with the loose
// effects that may have come after it.
func (all linearStates) follow(e effect, loose []effect) linearStates {
	found := map[string]linearState{}
	var queue []linearState
	add := func(states ...linearState) {
		for _, s := range states {
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
		s := queue[0]
		queue = queue[1:]
		for i, e := range loose {
			if bit := uint64(1) << i; s.loose&bit != 0 {
				after := s
				after.loose &^= bit
				add(after.step(e)...)
			}
		}
		for _, k := range s.stakes {
			if !k.phantom {
				add(s.givenBack(k)...)
			}
		}
	}
	var next linearStates
	var keys strings.Builder
	for _, key := range slices.Sorted(maps.Keys(found)) {
		next.states = append(next.states, found[key])
		fmt.Fprintf(&keys, "%d:%s", len(key), key)
	}
	next.key = keys.String()
	return next
}

// linearModel is what porcupine is to know of a limiter. All that an operation
// is, its answer included, is its input. Loose effects come at any time after
// they were announced, or never; they are no operations, since porcupine would
// try each at every moment.
func linearModel(start linearState, loose []effect) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return linearStates{states: []linearState{start}} },
		Step: func(state, input, _ any) (bool, any) {
			next := state.(linearStates).follow(input.(effect), loose)
			return len(next.states) > 0, next
		},
		Equal: func(a, b any) bool { return a.(linearStates).key == b.(linearStates).key },
		Hash: func(state any) uint64 {
			h := fnv.New64a()
			_, _ = h.Write([]byte(state.(linearStates).key))
			return h.Sum64()
		},
	}
}
