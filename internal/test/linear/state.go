package linear

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A State is a limiter that one call at a time happens to. Times are in
// milliseconds. A state never changes: a step returns others.
type State struct {
	now      int64
	rate     int64 // 0: none is set
	interval int64
	uses     []use // what is in use, sorted
	stakes   []stake
	loose    looseSet // the model's loose effects that may come yet
}

// A use is permits in use that were granted at the same time to the same
// Client.
type use struct {
	at      int64
	client  int
	permits int64
}

// A stake is a part of a use that its caller does not know of: that of a
// call which was cancelled, until it is given back, or that of an attempt which
// a repeat did not find again.
type stake struct {
	call     int
	at       int64
	client   int
	permits  int64
	released int64 // what Release has taken off the use since
	phantom  bool  // of an attempt that a repeat did not find again
}

// Full returns a limiter with a rate, of which nothing is in use.
func Full(rate, interval int64) State { return State{rate: rate, interval: interval} }

func (s State) free() int64 {
	free := s.rate
	for _, u := range s.uses {
		free -= u.permits
	}
	return free
}

// settled returns the state without what has run out.
func (s State) settled() State {
	s.uses = without(s.uses, func(u use) bool { return u.at+s.interval <= s.now })
	s.stakes = without(s.stakes, func(k stake) bool { return k.at+s.interval <= s.now })
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
func (s State) with(client int, permits int64) State {
	s.uses = slices.Clone(s.uses)
	i, found := slices.BinarySearchFunc(s.uses, use{at: s.now, client: client}, func(a, b use) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.client, b.client))
	})
	if found {
		s.uses[i].permits += permits
	} else {
		s.uses = slices.Insert(s.uses, i, use{at: s.now, client: client, permits: permits})
	}
	return s
}

// released returns the state with up to so many permits fewer in use: the
// client's own, the newest first, then those of others.
func (s State) released(client int, permits int64) State {
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
func (s State) takenOff(u use, permits int64) State {
	s.stakes = slices.Clone(s.stakes)
	for i := range s.stakes {
		if k := &s.stakes[i]; k.at == u.at && k.client == u.client {
			k.released = min(k.released+permits, k.permits)
		}
	}
	return s.lessened(u, permits)
}

func (s State) lessened(u use, permits int64) State {
	i := slices.Index(s.uses, u)
	s.uses = slices.Clone(s.uses)
	if u.permits == permits {
		s.uses = slices.Delete(s.uses, i, i+1)
	} else {
		s.uses[i].permits -= permits
	}
	return s
}

// full returns the state with nothing in use.
func (s State) full() State {
	s.uses = nil
	s.stakes = without(s.stakes, func(k stake) bool { return !k.phantom })
	for i, k := range s.stakes {
		if k.released < k.permits {
			s.stakes = slices.Clone(s.stakes)
			s.stakes[i].released = k.permits
		}
	}
	return s
}

// givenBack returns the states in which the stake of a cancelled call has been
// given back. Where Release has been at the use since, that may have been any
// part of it.
func (s State) givenBack(k stake) []State {
	i := slices.IndexFunc(s.uses, func(u use) bool { return u.at == k.at && u.client == k.client })
	at := slices.Index(s.stakes, k)
	s.stakes = slices.Delete(slices.Clone(s.stakes), at, at+1)
	if i < 0 {
		return []State{s}
	}
	var next []State
	most := min(k.permits, s.uses[i].permits)
	for back := min(k.permits-k.released, most); back <= most; back++ {
		next = append(next, s.lessened(s.uses[i], back))
	}
	return next
}

func (s State) String() string {
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
func (s State) key() string {
	key := make([]byte, 0, 64)
	add := func(numbers ...int64) {
		for _, n := range numbers {
			key = binary.AppendVarint(key, n)
		}
	}
	add(s.now, s.rate, s.interval, int64(len(s.uses)))
	for _, word := range s.loose {
		add(int64(word))
	}
	for _, u := range s.uses {
		add(u.at, int64(u.client), u.permits)
	}
	for _, k := range s.stakes {
		add(int64(k.call), k.at, int64(k.client), k.permits, k.released)
		key = strconv.AppendBool(key, k.phantom)
	}
	return string(key)
}
