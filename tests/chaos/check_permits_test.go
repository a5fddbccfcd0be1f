package chaos_test

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// checkCount compares the permits that are in use, if nothing comes back by itself, with the
// callers' answers. Between two figures they must lie:
//
//   - at least what was certainly granted, less what was given back or may have been;
//     fewer would mean that permits can be granted twice. What Redis lost comes off.
//   - at most what was granted or may have been, less what was certainly given back; more
//     would mean that permits got lost. That is unknown if Redis lost data, since a repeat can
//     take again what was lost, and for leases if any call got lost: it is unknown how many
//     a lease had. If a Client was killed, that is what its calls of that moment may have
//     been granted, and what a lease may hold.
//
// A Reset frees what is in use when it happens, and what callers release of that later may be others': only what was granted
// behind the last one is in use for sure, and only what was granted before one is surely not.
func (r *round) checkCount(p *pool, s *state) {
	const check = "count"
	exact := !r.lostCalls(p.limiter)
	var sure, maybe, back, maybeBack, charged int64
	begun, over := p.resets()
	for _, c := range p.calls {
		if c.Name == charge {
			charged += c.Permits
		}
		switch {
		case c.granted() && c.End < begun: // it is free
		case over > 0 && c.granted() && c.Start <= over:
			maybe += c.Permits
		case over > 0 && c.Name == op.Release:
			maybeBack += c.Permits
		case c.Name == op.Release && c.Outcome == op.Done:
			back += c.Permits
		case c.Name == op.Release && c.of(op.Unknown, op.Killed):
			maybeBack += c.Permits
		case !c.takes():
		case c.granted():
			sure += c.Permits
		case c.Outcome == op.Unknown, (!exact || c.Redisson != "") && p.mayKeep(c), r.cutOff(p, c):
			maybe += c.Permits
		}
	}
	lost := r.lost(p.limiter, charged)
	low, high := sure-back-maybeBack-lost, sure+maybe-back+r.strandedLeases(p.limiter)
	if s.inUse < low {
		r.violatePool(p, check, "%d permits are in use, of at least %d: some can be granted twice\n"+
			"granted %d, maybe %d more; given back %d, maybe %d more; lost by Redis %d\n%v",
			s.inUse, low, sure, maybe, back, maybeBack, lost, s)
	}
	if most := r.highest(p.limiter) + lost + charged; sure-back-maybeBack > most {
		r.violatePool(p, check, "callers hold %d permits, of %d at most", sure-back-maybeBack, most)
	}
	if r.damaged(p.limiter) || p.lease > 0 && !exact {
		return
	}
	if s.inUse > high {
		r.violatePool(p, check, "%d permits are in use, of %d at most: some are lost\n"+
			"granted %d, maybe %d more; given back %d, maybe %d more\n%v",
			s.inUse, high, sure, maybe, back, maybeBack, s)
	}
}

// died notes a Client that was killed. Calls that had been answered before the moment had all been given back what they left.
func (r *round) died(id string, moment time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead[id] = moment
}

// cutOff reports whether the call may have left permits in use that no caller knows of,
// since its Client was killed before it could give them back, or during the call.
func (r *round) cutOff(p *pool, c *call) bool {
	if c.Outcome == op.Killed {
		return true
	}
	moment, dead := r.dead[c.Client]
	return dead && p.mayKeep(c) && c.End > moment
}

// strandedLeases is how many permits the leases of Clients that were killed may have held: one in use and one asked for.
func (r *round) strandedLeases(l *limiter) int64 {
	if l.lease == 0 {
		return 0
	}
	return 2 * int64(len(r.dead)) * l.leased()
}

// resets tells of the pool's Resets when the last that was answered began, and when all of them were over: 0 if there was none.
func (p *pool) resets() (begun, over time.Duration) {
	for _, c := range p.calls {
		switch {
		case c.Name != op.Reset || c.of(op.Missing, op.Unavailable, op.Closed, op.Gone):
		case c.Outcome == op.Done:
			begun, over = max(begun, c.Start), max(over, c.End)
		default:
			over = math.MaxInt64
		}
	}
	return begun, over
}

// mayKeep reports whether permits may stay in use after a call that got none: they are given
// back after its answer, which may fail if calls get lost.
func (p *pool) mayKeep(c *call) bool {
	return c.Outcome == op.Gone || c.Waits() && (c.refused() || c.of(op.Closed, op.Unavailable))
}

// checkRefusals checks that no call was refused what must have been free: all that calls
// before, and beside, may have in use leaves room for it at the lowest rate there was.
//
// What was granted is in use until it was certainly given back, or, if permits run out, for an interval after its answer; what
// may have been granted is taken to be in use to the end. It looks at calls that ask once: those that wait may be refused for
// one before them. It says nothing of leases, which hold unseen permits, of refusals remembered, which do not see others'
// releases, of buckets, which fill slowly, if keys got lost or the clock was set, of limiters other than RateLimiters if calls
// got lost, since those can't tell a refused attempt from one that never came, and if permits run out while requests are
// doubled: the first copy may be refused, and the second take permits that no caller gets.
func (r *round) checkRefusals(p *pool) {
	doubled := slices.ContainsFunc(r.events, func(e event) bool { return e.kind == doubledRequest })
	if doubled && !p.counted() {
		return
	}
	if p.lease > 0 || p.refusals || p.kind == bucket && !p.counted() || r.mood == stepping || r.damaged(p.limiter) ||
		!p.isRate() && r.lostCalls(p.limiter) {
		return
	}
	var taken, back []change
	_, reset := p.resets()
	for _, c := range p.calls {
		switch {
		case reset > 0 && c.Name == op.Release: // what it names may have been free before
		case c.Name == op.Release && c.Outcome == op.Done && p.counted():
			back = append(back, change{c.End, c.Permits})
		case !c.takes():
		case c.granted():
			taken = append(taken, change{c.Start, c.Permits})
			back = append(back, change{c.End + p.config.Interval + p.late() + 2*time.Millisecond, c.Permits})
		case c.of(op.Unknown, op.Killed) || p.mayKeep(c):
			taken = append(taken, change{c.Start, c.Permits})
		}
	}
	before, since := sums(taken), sums(back)
	lowest, _ := r.rates(p.limiter)
	for _, c := range p.calls {
		if !c.refused() || c.Timeout > 0 || len(c.Limiters) > 1 {
			continue
		}
		// A call whose grant a Reset undid, before its answer came, is refused when it is repeated.
		undoes := func(o *call) bool { return o.Name == op.Reset && o.Start < c.End && c.Start < o.End }
		inUse := before(c.End) - since(c.Start)
		if inUse+c.Permits > lowest || r.lostCalls(p.limiter) && slices.ContainsFunc(p.calls, undoes) {
			continue
		}
		r.violatePool(p, "refused", "at most %d of %d permits were in use: %v", inUse, lowest, c)
		return
	}
}

// change is permits taken or given back at a moment.
type change struct {
	at      time.Duration
	permits int64
}

// sums returns what tells the sum of all changes before a moment.
func sums(all []change) func(time.Duration) int64 {
	slices.SortFunc(all, func(a, b change) int { return int(a.at - b.at) })
	running := make([]int64, len(all)+1)
	for i, c := range all {
		running[i+1] = running[i] + c.permits
	}
	return func(at time.Duration) int64 {
		return running[sort.Search(len(all), func(i int) bool { return all[i].at >= at })]
	}
}

// checkWindows looks at the grants from outside: a call that was granted permits took them at some moment between its beginning
// and its end, so all calls that lie wholly within a span took theirs in it.
//
// What a span may see is the highest rate there was, once more for each time that Redis may have forgotten all that was in use, or a Reset
// freed it, and what was given back in it. The span is shorter than the interval by what the server's clock was set forward, by a lease's
// life, and by the millisecond in which a grant is dated. This can't see grants of calls that lie across the span's ends.
func (r *round) checkWindows(p *pool) {
	if worst := r.worstSpan(p); worst.sum > worst.allowed {
		r.violatePool(p, "window", "%d permits were granted in %v from %s ms on, of %d at most",
			worst.sum, worst.length, millis(worst.start), worst.allowed)
	}
}

// A span is a time, the permits that were granted in it, and how many may have been.
type span struct {
	start, length time.Duration
	sum, allowed  int64
}

// worstSpan is the span, from a grant on, that saw the most permits more than it may see.
func (r *round) worstSpan(p *pool) (worst span) {
	var grants []*call
	for _, c := range p.calls {
		if c.granted() && c.Name != charge {
			grants = append(grants, c)
		}
	}
	for _, first := range grants {
		for _, length := range p.spans() {
			if s := r.span(p, grants, first.Start, length); s.sum-s.allowed > worst.sum-worst.allowed || worst.length == 0 {
				worst = s
			}
		}
	}
	return worst
}

// spans are the lengths of the server's time that are looked at.
func (p *pool) spans() []time.Duration {
	interval := p.config.Interval - p.lease
	if p.kind == bucket {
		return []time.Duration{interval / 2, interval, 2 * interval}
	}
	return []time.Duration{interval}
}

// span returns what calls that were granted permits took in a span.
func (r *round) span(p *pool, grants []*call, start, length time.Duration) span {
	s := span{start: start, length: length, allowed: r.allowance(p, length)}
	end := start + length - 2*time.Millisecond
	for _, e := range r.events {
		if e.start > end {
			continue
		}
		if e.end >= start {
			end -= e.forward
			s.allowed += e.lost[p.name]
		}
		// Servers that part ways may do so until the round is over.
		s.allowed += int64(e.forgot) * r.highest(p.limiter)
	}
	for _, c := range p.calls {
		if c.Name == op.Reset && c.Start <= end && (c.End >= start || c.Outcome != op.Done) {
			s.allowed += r.highest(p.limiter)
		}
		back := c.Name == op.Release && (c.Outcome == op.Done && c.End >= start || c.of(op.Unknown, op.Killed))
		if back && c.Start <= end {
			s.allowed += c.Permits
		}
	}
	for _, c := range grants {
		if c.Start >= start && c.End <= end {
			s.sum += c.Permits
		}
	}
	return s
}

// allowance is how many permits a span of that length may see.
func (r *round) allowance(p *pool, length time.Duration) int64 {
	most := r.highest(p.limiter)
	switch p.kind {
	case window:
		return 2 * most // of one at its end and of the next at its beginning
	case bucket:
		// The first refill may come up to a second early.
		refills := int64((length+time.Second)/p.config.Interval) + 1
		return most + refills*p.refill
	}
	return most
}
