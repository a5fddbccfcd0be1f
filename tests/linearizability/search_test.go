package linearizability_test

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// guess narrows the search for an order. What happened is mostly found by the
// narrowest one.
type guess struct {
	when  func(*record) spell // when calls happened, as far as there are requests
	soon  int64               // after so many moments all is over of a call that nobody knows the outcome of; 0: never
	found bool                // all that an attempt took was found by its repeat
	limit time.Duration       // for how long it is worth searching
}

var (
	tightly = func(r *record) spell { return r.tight }
	widely  = func(r *record) spell { return r.wide }
	guesses = []guess{
		{when: tightly, soon: 20, found: true, limit: time.Second},
		{when: widely, soon: 20, found: true, limit: time.Second},
		{when: tightly, soon: 20, limit: 2 * time.Second},
		{when: widely, soon: 60, limit: 4 * time.Second},
	}
	noGuess = guess{when: func(*record) spell { return spell{} }}
)

// checkTime is far more than the search for an order of a history has taken.
const checkTime = time.Minute

// check tells whether the calls can have happened one after another. No single
// search takes longer than limit.
func (h *linearHistory) check(limit time.Duration) porcupine.CheckResult {
	for _, g := range guesses {
		if h.search(g, min(g.limit, limit)) == porcupine.Ok {
			return porcupine.Ok
		}
	}
	// Where they can't, it is mostly their beginning that tells.
	ends := h.ends()
	for n := 5; n < len(ends); n += 5 {
		if h.until(ends[n]).search(noGuess, limit) == porcupine.Illegal {
			return porcupine.Illegal
		}
	}
	return h.search(noGuess, limit)
}

func (h *linearHistory) search(g guess, limit time.Duration) porcupine.CheckResult {
	events, loose := h.events(g)
	return porcupine.CheckEventsTimeout(linearModel(h.start, loose), events, limit)
}

// fits is a check for shrunk: it need not find out.
func (h *linearHistory) fits() bool {
	const limit = time.Second
	return h.search(guesses[0], limit) == porcupine.Ok || h.search(noGuess, limit) != porcupine.Illegal
}

// ends returns when the calls ended, in order.
func (h *linearHistory) ends() []int64 {
	ends := make([]int64, len(h.records))
	for i, r := range h.records {
		ends[i] = r.ended
	}
	slices.Sort(ends)
	return ends
}

// shrunk returns as little as tells that a history does not fit. What is left
// out can't be what it fails for: the end, calls that change nothing, and what
// came before a rate was set with which the limiter starts full.
func (h *linearHistory) shrunk() *linearHistory {
	ends := h.ends()
	shortest := sort.Search(len(ends), func(i int) bool { return !h.until(ends[i]).fits() })
	if shortest == len(ends) {
		return h
	}
	h = h.until(ends[shortest])
	for _, r := range slices.Backward(h.records) {
		if from := h.from(&r); from != nil && !from.fits() {
			h = from
			break
		}
	}
	for i, r := range slices.Backward(h.records) {
		less := *h
		less.records = slices.Delete(slices.Clone(h.records), i, i+1)
		if r.changesNothing() && len(less.records) > 0 && !less.fits() {
			h = &less
		}
	}
	return h
}

// Until returns the history up to a moment.
func (h *linearHistory) until(moment int64) *linearHistory {
	short := *h
	short.records = nil
	for _, r := range h.records {
		if r.began <= moment {
			r.open = r.ended > moment
			short.records = append(short.records, r)
		}
	}
	return &short
}

// from returns the history from a call on, where that made whatever came before
// of no account, and nil elsewhere.
func (h *linearHistory) from(start *record) *linearHistory {
	if start.name != setCall || start.keep || start.outcome != done || start.open {
		return nil
	}
	short := *h
	short.start = linearState{}
	short.records = nil
	for _, r := range h.records {
		switch {
		case r.number == start.number || r.began > start.ended || r.unseen():
			short.records = append(short.records, r)
		case r.ended > start.began:
			return nil
		}
	}
	return &short
}

// changesNothing tells of a call that its answer says so.
func (r *record) changesNothing() bool {
	switch {
	case r.open || r.unseen() || r.doubts > 0:
		return false
	case r.outcome == exceeds || r.outcome == noRate || r.name == availableCall:
		return true
	}
	return !r.ok && r.name != releaseCall && !r.byDefault
}

// String returns the calls, and how far they fit.
func (h *linearHistory) String() string {
	events, loose := h.events(noGuess)
	_, info := porcupine.CheckEventsVerbose(linearModel(h.start, loose), events, 5*time.Second)
	var longest []porcupine.Operation
	for _, some := range info.PartialLinearizationsOperations()[0] {
		if len(some) > len(longest) {
			longest = some
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "no order of these calls gives these answers:\n%s  as far as they fit:", h.list())
	states := linearStates{states: []linearState{h.start}}
	for _, o := range longest {
		e := o.Input.(effect)
		states = states.follow(e, loose)
		if e.kind != tickEffect && e.kind != announceEffect {
			fmt.Fprintf(&text, " #%d", e.call)
		}
	}
	var ends []string
	for _, s := range states.states {
		ends = append(ends, s.String())
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	if len(ends) > 4 {
		ends = append(ends[:3], "...")
	}
	fmt.Fprintf(&text, "; then %s", strings.Join(ends, ", or "))
	return text.String()
}

// list returns a line for each call, with the moments between which it was.
func (h *linearHistory) list() string {
	var moments []int64
	for _, r := range h.records {
		moments = append(moments, r.began, r.ended)
	}
	slices.Sort(moments)
	rank := func(moment int64) int { return slices.Index(moments, moment) + 1 }
	var text strings.Builder
	fmt.Fprintf(&text, "%s, at first %v\n", h.about, h.start)
	for _, r := range h.records {
		ended := ""
		if !r.open {
			ended = fmt.Sprint(rank(r.ended))
		}
		fmt.Fprintf(&text, "  #%-3d %3d - %-3s", r.number, rank(r.began), ended)
		if h.virtual {
			fmt.Fprintf(&text, " %3d - %3d ms", r.beganAt, r.endedAt)
		}
		fmt.Fprintf(&text, "  %v\n", &r)
	}
	return text.String()
}
