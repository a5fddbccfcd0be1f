package chaos_test

import (
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Programs with Redisson bring faults of their own, which are counted, and not ours. Its
// release is sent again where the answer got lost, and gives back again; it leaves the
// members too, so permits come back twice. Its updateRate forgets what is in use beyond a
// lower rate. An acquire that came twice would take permits twice for one member.
//
// Of a limiter that they use the checks look at all but the sum of value and members, and
// at refusals: grants, ours and theirs together, are bounded by the rate, and by minted
// more; members are those of permits that callers hold. Where Redis lost keys, Redisson
// grants what it then finds, and nothing is looked at.

// mixed tells whether programs with Redisson may have asked for the pool's permits.
func (r *round) mixed(p *pool) bool {
	return p.redisson != "" && (p.kind == overall || r.javaIDs[p.id])
}

// minted is how many permits calls of Redisson may have set free that are in use: each of
// the three attempts at a release gives back, and the members that it leaves do once more;
// an update may forget all.
func (r *round) minted(p *pool) (sum int64) {
	const attempts = 3
	if !r.mixed(p) {
		return 0
	}
	for _, c := range p.calls {
		switch {
		case c.Redisson == "":
		case c.Op == opRelease:
			sum += attempts * c.Permits
		case c.Op == opUpdate:
			sum += r.highest(p.limiter)
		}
	}
	return sum
}

// figures are what calls came to, theirs or ours.
type figures struct {
	calls, granted, over, lost, late, errors int64
}

// sumUp returns the figures of the calls that are to be counted, and of the pools that they used.
func (r *round) sumUp(counts func(c *call) bool) (f figures) {
	slack := r.slack()
	for i := range r.calls {
		c := &r.calls[i]
		if !counts(c) {
			continue
		}
		f.calls++
		if c.takes() && c.Answer == granted {
			f.granted += c.Permits
		}
		if c.End-c.Start > c.Bound+slack {
			f.late++
		}
		if c.Answer == unknown || c.Answer == unavailable || c.Answer == failed {
			f.errors++
		}
	}
	for _, l := range r.limiters {
		for _, p := range r.pools(l) {
			used := false
			for _, c := range p.calls {
				used = used || counts(c)
			}
			if !used || l.wild || l.resets || r.damaged(l) || !l.isRate() {
				continue
			}
			if l.counted() {
				over, lost := r.balance(p)
				f.over, f.lost = f.over+over, f.lost+lost
			} else {
				worst := r.worstSpan(p)
				f.over += max(0, worst.sum-worst.allowed)
			}
		}
	}
	return f
}

// balance is how many permits callers hold above the limit, and how many are lost, in a pool
// that nothing comes back to by itself: they are not free, and no caller holds them. What
// calls of killed programs asked for is left out, and what those whose figures these are not
// were not told of.
func (r *round) balance(p *pool) (over, lost int64) {
	held, maybeBack, doubtful := int64(0), int64(0), r.strandedLeases(p.limiter)
	for _, c := range p.calls {
		switch {
		case c.Answer == killed, c.Redisson != r.redisson && (c.Answer == unknown || c.Answer == gone):
			doubtful += c.Permits
		case c.Op == opRelease && c.Answer == done:
			held -= c.Permits
		case c.Op == opRelease:
			maybeBack += c.Permits // else the caller may try again
		case c.takes() && c.Answer == granted:
			held += c.Permits
		}
	}
	over = max(0, held-maybeBack-doubtful-r.highest(p.limiter))
	s, err := p.read(r.t.Context(), r.admin, p.id)
	if err != nil || !s.pair.HasValue {
		return over, 0
	}
	rate, err := s.config.Field("rate")
	if err != nil {
		return over, 0
	}
	return over, max(0, rate-s.pair.Value-held-doubtful)
}

// recordRedisson adds the figures of a round's programs with Redisson to a table, or those
// of all where it is measured beside one with Redisson.
func (r *round) recordRedisson() {
	who := "Redisson " + r.redisson
	switch {
	case r.beside && r.redisson == "":
		who = "this package"
	case r.redisson == "":
		return
	case !r.beside:
		who += " beside this package"
	}
	f := r.figures
	redistest.Record(r.t, "chaos-redisson", r.seed, r.number, r.servers, r.mood, who, len(r.events),
		f.calls, f.granted, f.over, f.lost, f.late, f.errors)
	r.t.Logf("%s: %s", who, f)
}

func (f figures) String() string {
	return fmt.Sprintf("%d calls, %d permits granted, %d over the limit, %d lost, %d calls late, %d failed",
		f.calls, f.granted, f.over, f.lost, f.late, f.errors)
}
