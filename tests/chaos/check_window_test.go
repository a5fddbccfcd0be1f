package chaos_test

import "time"

// checkWindows looks at the grants from outside: a call that was granted permits took them
// at some moment between its beginning and its end, so all calls that lie wholly within a
// span took theirs in it.
//
// What a span may see is the highest rate there was, once more for each time that Redis
// may have forgotten all that was in use, or a Reset freed it, and what was given back in it. The span is
// shorter than the interval by what the server's clock was set forward, by a lease's life,
// and by the millisecond in which a grant is dated. This can't see grants of calls that
// lie across the span's ends.
func (r *round) checkWindows(p *pool) {
	if worst := r.worstSpan(p); worst.sum > worst.allowed+r.minted(p) {
		r.violatePool(p, "window", "%d permits were granted in %v from %s ms on, of %d at most",
			worst.sum, worst.length, millis(worst.start), worst.allowed+r.minted(p))
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
		if c.takes() && c.Answer == granted {
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
		if c.Op == opReset && c.Start <= end && (c.End >= start || c.Answer != done) {
			s.allowed += r.highest(p.limiter)
		}
		back := c.Op == opRelease && (c.Answer == done && c.End >= start || c.Answer == unknown || c.Answer == killed)
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
