package compat_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// coverage counts what the steps of a trace were, and what they found.
type coverage struct {
	*cast
	release *redisson
	counts  map[string]int
}

func newCoverage(c *cast, version string) *coverage {
	return &coverage{c, redissonOf(version), make(map[string]int)}
}

func side(who *actor) string {
	if who.redisson != nil {
		return "Java"
	}
	return "Go"
}

// add counts a step to which a trace has come.
func (v *coverage) add(t *testing.T, h history, s step) {
	t.Helper()
	who, before := v.named(s.Who), h.states[s.On]
	if who == nil {
		v.counts[s.Do]++
		return
	}
	if before.inUse() {
		v.counts[side(who)+": "+s.Do]++
	}
	for what := range v.shrunk(h, s) {
		v.counts[side(who)+" takes from "+what]++
	}
	if kind, ok := before.Config["type"]; ok {
		v.counts[side(who)+", "+typeName(kind)]++
	}
	for what := range v.found(h, s) {
		v.counts[side(who)+" finds "+what]++
	}
	outcomes, err := s.models(v.cast, h.states, h.last+1)
	require.NoError(t, err)
	if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.miscounted }) {
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
func (v *coverage) found(h history, s step) map[string]bool {
	who, before := v.named(s.Who), h.states[s.On]
	if !aboutPermits[s.Do] {
		return nil
	}
	found := make(map[string]bool)
	id := sharedPair
	if before.Config["type"] == "1" {
		id = who.id
	}
	interval, err := strconv.ParseInt(before.Config["interval"], 10, 64)
	for member, age := range before.Pairs[id].Permits {
		switch {
		case err == nil && age >= interval:
			found[ranOut] = true
		case age < 0:
			found[inFuture] = true
		}
		found["what "+side(v.named(h.wrote[numberOf(idOfText(member))]))+" wrote"] = true
	}
	return found
}

// inUse tells whether anybody has taken permits and the limiter still is there.
func (told snapshot) inUse() bool { return told.Config != nil && len(told.Pairs) > 0 }

// shrunk tells whose members the step has left with fewer permits.
func (v *coverage) shrunk(h history, s step) map[string]bool {
	shrunk := make(map[string]bool)
	for name, pair := range s.State.Pairs {
		before := h.states[s.On].Pairs[name].Permits
		for member := range pair.Permits {
			n := numberOf(idOfText(member))
			if _, same := before[member]; !same && n <= h.last {
				shrunk["what "+side(v.named(h.wrote[n]))+" wrote"] = true
			}
		}
	}
	return shrunk
}

// missing tells of what there is not enough yet.
func (v *coverage) missing() (missing []string) {
	want := func(least int, what string) {
		if v.counts[what] < least {
			missing = append(missing, fmt.Sprintf("%s: %d times, not %d", what, v.counts[what], least))
		}
	}
	for _, name := range []string{"java1", "go1"} {
		who := v.named(name)
		for _, operation := range goldenOperations(who) {
			want(3, side(who)+": "+operation)
		}
		for _, kind := range []string{"0", "1"} {
			want(10, side(who)+", "+typeName(kind))
		}
		if v.release.keepsSet {
			want(10, side(who)+" finds what Java wrote")
			want(10, side(who)+" finds what Go wrote")
			want(5, side(who)+" finds "+ranOut)
			want(2, side(who)+" finds "+inFuture)
		}
	}
	if v.release.keepsSet {
		want(1, "Go takes from what Java wrote")
		want(1, "Go takes from what Go wrote")
		want(1, "lose the permits")
	}
	for _, part := range []string{"value", "configuration", "keep-alive time"} {
		want(1, "lose the "+part)
	}
	if v.release.countsRows() {
		want(2, "rows taken for permits")
	}
	return missing
}

// requireCovered checks that a trace holds what it is for.
func requireCovered(t *testing.T, version string, steps []step) {
	t.Helper()
	v := newCoverage(newCast(version), version)
	var h history
	for _, s := range steps {
		v.add(t, h, s)
		h.add(s)
	}
	require.Empty(t, v.missing())
}
