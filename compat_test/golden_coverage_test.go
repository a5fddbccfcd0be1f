package compat_test

import (
	"fmt"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
)

// coverage counts what the steps of a history were, and what they found.
type coverage struct {
	h       *history
	release *model.Release
	counts  map[string]int
}

func newCoverage(h *history) *coverage {
	return &coverage{h, h.named("java1").release, make(map[string]int)}
}

// add counts a step to which the history has come.
func (v *coverage) add(s step) {
	who, before := v.h.named(s.Who), v.h.states[s.On]
	if who == nil {
		v.counts[s.Do]++
		return
	}
	if inUse(before) {
		v.counts[who.side()+": "+s.Do]++
	}
	found := make(map[string]bool)
	v.shrunk(s, found)
	if aboutPermits[s.Do] {
		v.found(who, before, found)
	}
	for what := range found {
		v.counts[who.side()+" "+what]++
	}
	if kind, ok := before.Config["type"]; ok {
		v.counts[who.side()+", "+model.TypeName(kind)]++
	}
	if slices.ContainsFunc(s.models(v.h), func(o outcome) bool { return o.miscounted }) {
		v.counts["rows taken for permits"]++
	}
}

// aboutPermits are the operations that look at what is in use.
var aboutPermits = map[string]bool{
	"tryAcquire": true, "tryAcquireTimeout": true, "take": true, "withDefault": true, "release": true, "availablePermits": true,
}

// What a step may find.
const (
	ranOut   = "what has run out"
	inFuture = "what is dated in the future"
)

// found tells what a step that has to do with permits finds in use.
func (v *coverage) found(who *actor, before *model.State, found map[string]bool) {
	p := before.Pairs[""]
	if before.PerClient() {
		p = before.Pairs[who.ID]
	}
	for _, r := range p.Rows {
		switch {
		case before.Config != nil && -r.At >= before.Interval():
			found["finds "+ranOut] = true
		case r.At > 0:
			found["finds "+inFuture] = true
		}
		found["finds what "+v.writer(r)+" wrote"] = true
	}
}

// writer returns the side that wrote a row.
func (v *coverage) writer(r model.Row) string { return v.h.named(v.h.wrote[numberOf(r)]).side() }

// inUse reports whether permits have been taken and the limiter still is there.
func inUse(s *model.State) bool {
	there := func(p *model.Pair) bool { return p.HasValue || len(p.Rows) > 0 }
	for _, p := range s.Pairs {
		if there(p) && s.Config != nil {
			return true
		}
	}
	return false
}

// shrunk tells whose members the step has left with fewer permits.
func (v *coverage) shrunk(s step, found map[string]bool) {
	for id, p := range s.State.Pairs {
		for _, r := range p.Rows {
			same := slices.ContainsFunc(v.h.states[s.On].Pairs[id].Rows, func(b model.Row) bool { return b.Member == r.Member })
			if !same && numberOf(r) <= v.h.last {
				found["takes from what "+v.writer(r)+" wrote"] = true
			}
		}
	}
}

// missing tells of what there is not enough yet.
func (v *coverage) missing() (missing []string) {
	want := func(least int, what string) {
		if v.counts[what] < least {
			missing = append(missing, fmt.Sprintf("%s: %d times, not %d", what, v.counts[what], least))
		}
	}
	for _, name := range []string{"java1", "go1"} {
		who := v.h.named(name)
		for _, operation := range slices.Compact(who.operations()) {
			if operation == "wait" {
				continue // no trace takes that long
			}
			want(3, who.side()+": "+operation)
		}
		for _, kind := range []string{"0", "1"} {
			want(10, who.side()+", "+model.TypeName(kind))
		}
		if v.release.KeepsSet {
			want(10, who.side()+" finds what Java wrote")
			want(10, who.side()+" finds what Go wrote")
			want(5, who.side()+" finds "+ranOut)
			want(2, who.side()+" finds "+inFuture)
		}
	}
	if v.release.KeepsSet {
		want(1, "Go takes from what Java wrote")
		want(1, "Go takes from what Go wrote")
		want(1, "lose the permits")
	}
	for _, part := range []string{"value", "configuration", "keep-alive time"} {
		want(1, "lose the "+part)
	}
	if v.release.CountsRows() {
		want(2, "rows taken for permits")
	}
	return missing
}
