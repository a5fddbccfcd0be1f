package chaos_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A fault is something that happens to servers or Clients in the middle of a round.
type fault struct {
	name   string
	mood   mood               // from which on it may happen
	arenas []string           // where it can; empty: everywhere
	only   func(p *plan) bool // nil: any plan
	server bool               // it is a server's, and waits for the one before
	// do does it, and returns what took place, with a start if that was later; nil for nothing.
	do func(r *round, draw *rand.Rand) *event
}

// faults are all there are, but for what the weather does to single commands.
var faults = slices.Concat(clientFaults, networkFaults, serverFaults, topologyFaults)

// allowed tells whether a fault may happen in the round.
func (f *fault) allowed(p *plan) bool {
	if len(f.arenas) > 0 && !slices.Contains(f.arenas, p.servers) {
		return false
	}
	return p.mood.allows(f.mood) && (f.only == nil || f.only(p))
}

// weight is how often a fault is drawn beside others: the fewer rounds allow it, and the
// longer it takes, the more.
func (f *fault) weight(m mood) int {
	switch {
	case slices.Contains(topologyFaults, f) && slices.Contains(f.arenas, sentinel):
		return 12
	case slices.Contains(topologyFaults, f):
		return 6
	case len(f.arenas) > 0 || f.mood == m:
		return 3
	}
	return 1
}

// An event is a fault that took place.
type event struct {
	start, end time.Duration // since the round's beginning
	kind       string
	text       string
	// What it did to limiters, for the checks.
	lost    map[string]int64 // permits in use that Redis forgot, by limiter
	forgot  int              // how often all that is in use may have been forgotten, of each limiter
	forward time.Duration    // the server's clock was set forward by so much
}

func (e *event) String() string {
	return fmt.Sprintf("%s-%s ms  ==== %s %s", millis(e.start), millis(e.end), e.kind, e.text)
}

// short is a time below the one that a call of any Client may be late without being
// repeated: a third of the shortest call timeout.
func (r *round) short(draw *rand.Rand) time.Duration {
	least := time.Second
	for _, c := range r.clients {
		least = min(least, c.callTimeout)
	}
	return time.Duration(1 + draw.Int64N(int64(least/10)))
}

// spell is how long a fault lasts: short in a gentle round, else anything that keeps
// some calls from being answered.
func (r *round) spell(draw *rand.Rand) time.Duration {
	if r.mood == gentle || r.mood == dropping {
		return r.short(draw)
	}
	longest := []int{50, 200, 900}[draw.IntN(3)]
	return time.Duration(5+draw.IntN(longest)) * time.Millisecond
}

// happen has faults happen, one after another, until the round is over.
func (r *round) happen(server bool) {
	var all []*fault
	for _, f := range r.faults {
		if f.server == server {
			all = append(all, slices.Repeat([]*fault{f}, f.weight(r.mood))...)
		}
	}
	if len(all) == 0 {
		return
	}
	draw := r.draw("faults", server)
	for {
		select {
		case <-r.over.Done():
			return
		case <-time.After(time.Duration(draw.Int64N(int64(r.pause)))):
		}
		if r.over.Err() != nil || !r.onServers(func() { all[draw.IntN(len(all))].take(r, draw) }) {
			return
		}
	}
}

// take has the fault take place.
func (f *fault) take(r *round, draw *rand.Rand) {
	start := r.now()
	if e := f.do(r, draw); e != nil {
		e.start, e.kind = cmp.Or(e.start, start), f.name
		r.happened(*e)
	}
}

// sleep returns early when the round is over.
func (r *round) sleep(d time.Duration) {
	select {
	case <-r.over.Done():
	case <-time.After(d):
	}
}

// happened notes a fault that took place from start on, until now.
func (r *round) happened(e event) {
	e.end = r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *round) now() time.Duration { return time.Since(r.began) }
