package chaos_test

import (
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
	do     func(r *round, draw *rand.Rand)
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
	var all, rare []*fault
	for _, f := range r.faults {
		if f.server != server {
			continue
		}
		all = append(all, f)
		if len(f.arenas) > 0 || f.mood == r.mood {
			rare = append(rare, f)
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
		from := all
		if len(rare) > 0 && draw.IntN(2) == 0 {
			from = rare // which few rounds allow
		}
		if !r.onServers(func() { from[draw.IntN(len(from))].do(r, draw) }) {
			return
		}
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
	e.end = time.Since(r.began)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// hasSeen tells whether a fault of that kind took place.
func (r *round) hasSeen(kind string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.events, func(e event) bool { return e.kind == kind })
}

func (r *round) now() time.Duration { return time.Since(r.began) }
