package chaos_test

import (
	"slices"
	"sort"
	"time"
)

// checkRefusals checks that nobody was refused what must have been free: all that calls
// before, and beside, may have in use leaves room for it at the lowest rate there was.
//
// What was granted is in use until it was given back for sure, or, where permits run out,
// for an interval after its answer; what may have been granted is taken to be in use to the end. It looks at calls
// that ask once: those that wait may be refused for one before them. It says nothing of
// leases, which hold what nobody sees, of refusals remembered, which do not see others'
// releases, of buckets, which fill slowly, where keys got lost or the clock was set, of
// limiters other than RateLimiters where calls got lost, since those can't tell a refused
// attempt from one that never came, and where permits run out while requests are doubled:
// the first copy may be refused, and the second take permits for nobody.
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
		case reset > 0 && c.Op == opRelease: // what it names may have been free before
		case c.Op == opRelease && c.Answer == done && p.counted():
			back = append(back, change{c.End, c.Permits})
		case !c.takes():
		case c.Answer == granted:
			taken = append(taken, change{c.Start, c.Permits})
			back = append(back, change{c.End + p.config.Interval + 2*time.Millisecond, c.Permits})
		case c.Answer == unknown || c.Answer == killed || p.mayKeep(c):
			taken = append(taken, change{c.Start, c.Permits})
		}
	}
	before, since := sums(taken), sums(back)
	lowest := r.lowest(p.limiter)
	for _, c := range p.calls {
		if c.Answer != refused || c.Timeout > 0 || len(c.Limiters) > 1 {
			continue
		}
		if inUse := before(c.End) - since(c.Start); inUse+c.Permits <= lowest {
			r.violatePool(p, "refused", "at most %d of %d permits were in use: %v", inUse, lowest, c)
			return
		}
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

// lowest is the lowest rate that the limiter may have had.
func (r *round) lowest(l *limiter) int64 {
	least := l.config.Rate
	for i := range r.calls {
		if c := &r.calls[i]; c.Rate > 0 && slices.Contains(c.Limiters, l.name) {
			least = min(least, c.Rate)
		}
	}
	return least + l.borrow
}
