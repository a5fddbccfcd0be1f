package linear

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
)

// A State is a limiter that one call at a time happens to. Times are in
// milliseconds. A state never changes: a step returns others.
type State struct {
	now      int64
	rate     int64 // 0: none is set
	interval int64
	uses     model.Grants // what is in use, sorted; what was granted to a client at one time is one
	stakes   []stake
	loose    looseSet // the model's loose effects that may come yet
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

// of reports whether the stake is a part of that use.
func (k *stake) of(u model.Grant) bool { return k.at == u.At && k.client == u.By }

// Full returns a limiter with a rate, of which nothing is in use.
func Full(rate, interval int64) State { return State{rate: rate, interval: interval} }

func (s State) free() int64 { return s.rate - s.uses.InUse() }

// settled returns the state without what has run out.
func (s State) settled() State {
	s.uses = s.uses.Settled(s.interval, s.now)
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
	taken := model.Grant{At: s.now, By: client, Permits: permits}
	i, found := slices.BinarySearchFunc(s.uses, taken, func(a, b model.Grant) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.By, b.By))
	})
	if found {
		s.uses[i].Permits += permits
	} else {
		s.uses = slices.Insert(s.uses, i, taken)
	}
	return s
}

// released returns the state with up to so many permits fewer in use.
func (s State) released(client int, permits int64) State {
	all := s.uses
	s.stakes = slices.Clone(s.stakes)
	for i := range all.NewestFirst(client) {
		off := min(permits, all[i].Permits)
		permits -= off
		for n := range s.stakes {
			if k := &s.stakes[n]; k.of(all[i]) {
				k.released = min(k.released+off, k.permits)
			}
		}
		s = s.lessened(all[i], off)
	}
	return s
}

func (s State) lessened(u model.Grant, permits int64) State {
	i := slices.Index(s.uses, u)
	s.uses = slices.Clone(s.uses)
	if s.uses[i].Permits -= permits; s.uses[i].Permits == 0 {
		s.uses = slices.Delete(s.uses, i, i+1)
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

// givenBack returns the states in which the stake of a cancelled call has been given back.
// Where Release has been at the use since, that may have been any part of it.
func (s State) givenBack(k stake) []State {
	i := slices.IndexFunc(s.uses, k.of)
	at := slices.Index(s.stakes, k)
	s.stakes = slices.Delete(slices.Clone(s.stakes), at, at+1)
	if i < 0 {
		return []State{s}
	}
	var next []State
	most := min(k.permits, s.uses[i].Permits)
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
			fmt.Fprintf(&text, ", %d of client %d until %d ms", u.Permits, u.By, u.At+s.interval)
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
		add(u.At, int64(u.By), u.Permits)
	}
	for _, k := range s.stakes {
		add(int64(k.call), k.at, int64(k.client), k.permits, k.released)
		key = strconv.AppendBool(key, k.phantom)
	}
	return string(key)
}
