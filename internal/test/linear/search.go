package linear

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
)

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

// searchTime is when a search must end. One that is given up between two steps of the model
// would go on, in one of them, for as long as that takes.
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
