package linear

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
)

// A State is a limiter that one call at a time happens to. Times are in milliseconds. A state never changes: a step returns others.
type State struct {
	now      int64
	rate     int64 // 0: none is set
	interval int64
	uses     model.Grants // what is in use, sorted; what was granted to a client at one time is one, reservations aside
	stakes   []stake
	loose    looseSet // the model's loose effects that may come yet
}

// A stake is a part of a use that its caller does not know of: a cancelled call's grant until
// it is given back, or the grant of an attempt that a repeat did not find again.
type stake struct {
	call     int
	at       int64
	client   int
	permits  int64
	released int64 // what Release has taken off the use since
	phantom  bool  // of an attempt that a repeat did not find again
}

func (k *stake) of(u model.Grant) bool { return k.at == u.At && k.client == u.By && u.Own == 0 }

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

// with returns the state with that grant's permits in use too.
func (s State) with(taken model.Grant) State {
	if taken.Permits == 0 {
		return s
	}
	s.uses = slices.Clone(s.uses)
	i, found := slices.BinarySearchFunc(s.uses, taken, func(a, b model.Grant) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.By, b.By), cmp.Compare(a.Own, b.Own))
	})
	if found {
		s.uses[i].Permits += taken.Permits
	} else {
		s.uses = slices.Insert(s.uses, i, taken)
	}
	return s
}

// takenOff returns the states in which up to that many permits have been taken off these uses,
// in this order. Those of one Client and time may come in any order.
func (s State) takenOff(uses []model.Grant, permits int64) (next []State) {
	if len(uses) == 0 || permits == 0 {
		return []State{s}
	}
	first, rest, alike := uses[0], uses[1:], int64(0)
	for _, u := range rest {
		if u.At == first.At && u.By == first.By {
			alike += u.Permits
		}
	}
	most := min(permits, first.Permits)
	for off := min(most, max(0, permits-alike)); off <= most; off++ {
		less := s.lessened(first, off)
		less.stakes = slices.Clone(s.stakes)
		for n := range less.stakes {
			if k := &less.stakes[n]; k.of(first) {
				k.released = min(k.released+off, k.permits)
			}
		}
		next = append(next, less.takenOff(rest, permits-off)...)
	}
	return next
}

func (s State) lessened(u model.Grant, permits int64) State {
	i := slices.Index(s.uses, u)
	s.uses = slices.Clone(s.uses)
	if s.uses[i].Permits -= permits; s.uses[i].Permits == 0 {
		s.uses = slices.Delete(s.uses, i, i+1)
	}
	return s
}

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
// If Release has been at the use since, that may have been any part of it.
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
		add(u.At, int64(u.By), u.Permits, int64(u.Own), u.Early)
	}
	for _, k := range s.stakes {
		add(int64(k.call), k.at, int64(k.client), k.permits, k.released)
		key = strconv.AppendBool(key, k.phantom)
	}
	return string(key)
}

// A looseSet is some of a model's loose effects, by their numbers.
type looseSet [mostLoose / 64]uint64

const mostLoose = 256

func only(i int) (set looseSet) {
	set[i/64] = 1 << (i % 64)
	return set
}

func (set looseSet) has(i int) bool { return set[i/64]&(1<<(i%64)) != 0 }

func (set looseSet) with(other looseSet) looseSet {
	for i := range set {
		set[i] |= other[i]
	}
	return set
}

func (set looseSet) without(other looseSet) looseSet {
	for i := range set {
		set[i] &^= other[i]
	}
	return set
}

// guess narrows the search for an order. What happened is mostly found by the narrowest one.
type guess struct {
	when   func(*Record) spell // when calls happened, as far as there are requests
	soon   int64               // after this many moments a call with an unknown outcome is over; 0: never
	found  bool                // all that an attempt took was found by its repeat
	prompt bool                // requests began when they were made, before a caller could leave
	limit  time.Duration       // for how long it is worth searching; 0: as long as there is time
}

var (
	tightly = func(r *Record) spell { return r.tight }
	widely  = func(r *Record) spell { return r.wide }
	guesses = []guess{
		{when: tightly, soon: 20, found: true, prompt: true, limit: time.Second},
		{when: widely, soon: 20, found: true, prompt: true, limit: time.Second},
		{when: tightly, soon: 20, prompt: true, limit: 2 * time.Second},
		{when: widely, soon: 60, prompt: true, limit: 4 * time.Second},
		noGuess,
	}
	noGuess = guess{when: func(*Record) spell { return spell{} }}
)

// CheckTime is far more than the search for an order of most histories takes.
// If many calls were cancelled, as they are on a busy machine, none is enough.
const CheckTime = 30 * time.Second

// Check reports whether the calls can have happened one after another, within about the limit. It goes by beginnings of the history, each twice as
// long as the one before: if they can't, it is mostly their beginning that tells. For a while
// it tries the most likely orders, then all.
func (h *History) Check(limit time.Duration) (result porcupine.CheckResult) {
	start, ends := time.Now(), h.ends()
	for n := 6; ; n *= 2 {
		part := h
		if n < len(ends) {
			part = h.until(ends[n])
		}
		for _, g := range guesses {
			left := limit - time.Since(start)
			if left <= 0 {
				return porcupine.Unknown
			}
			if g.limit > 0 {
				left = max(min(g.limit, left/4), time.Millisecond)
			}
			if result = part.search(g, left); result == porcupine.Ok {
				break
			}
		}
		if result != porcupine.Ok || part == h {
			return result
		}
	}
}

func (h *History) search(g guess, limit time.Duration) porcupine.CheckResult {
	events, loose := h.events(g)
	if len(loose) > mostLoose {
		return porcupine.Unknown
	}
	within := &searchTime{ends: time.Now().Add(limit)}
	result := porcupine.CheckEventsTimeout(searched(h.Start, loose, within), events, limit)
	if result == porcupine.Illegal && within.cut.Load() {
		return porcupine.Unknown
	}
	return result
}

// searchTime is when a search must end, also between two steps of the model, each of which may take long.
type searchTime struct {
	ends time.Time
	cut  atomic.Bool // a step was not taken to its end
}

func (t *searchTime) over() bool {
	if time.Now().Before(t.ends) {
		return false
	}
	t.cut.Store(true)
	return true
}

func (h *History) ends() []int64 {
	ends := make([]int64, len(h.Records))
	for i, r := range h.Records {
		ends[i] = r.Ended
	}
	slices.Sort(ends)
	return ends
}

func (h *History) until(moment int64) *History {
	short := *h
	short.Records = nil
	for _, r := range h.Records {
		if r.Began <= moment {
			r.open = r.Ended > moment
			short.Records = append(short.Records, r)
		}
	}
	return &short
}

// String returns the calls.
func (h *History) String() string { return "no order of these calls gives these answers:\n" + h.List() }

// List returns a line for each call, with the moments between which it was.
func (h *History) List() string {
	var moments []int64
	for _, r := range h.Records {
		moments = append(moments, r.Began, r.Ended)
	}
	slices.Sort(moments)
	rank := func(moment int64) int { return slices.Index(moments, moment) + 1 }
	var text strings.Builder
	fmt.Fprintf(&text, "%s, at first %v\n", h.About, h.Start)
	for _, r := range h.Records {
		ended := ""
		if !r.open {
			ended = fmt.Sprint(rank(r.Ended))
		}
		fmt.Fprintf(&text, "  #%-3d %3d - %-3s", r.Number, rank(r.Began), ended)
		if h.Virtual {
			fmt.Fprintf(&text, " %3d - %3d ms", r.BeganAt, r.EndedAt)
		}
		fmt.Fprintf(&text, "  %v\n", &r)
	}
	return text.String()
}

// searched is what porcupine gets of a limiter. All that an operation is, its answer included, is its input. Loose effects come
// at any time after they were announced, or never; they are no operations, since porcupine would try each at every moment.
func searched(start State, loose []effect, within *searchTime) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return states{states: []State{start}} },
		Step: func(state, input, _ any) (bool, any) {
			e, _ := input.(effect)
			next := statesOf(state).follow(e, loose, within)
			return len(next.states) > 0, next
		},
		Equal: func(a, b any) bool { return statesOf(a).key == statesOf(b).key },
		Hash: func(state any) uint64 {
			h := fnv.New64a()
			_, _ = h.Write([]byte(statesOf(state).key))
			return h.Sum64()
		},
	}
}

// statesOf returns what porcupine has for states, which are always some.
func statesOf(state any) states {
	all, _ := state.(states)
	return all
}
