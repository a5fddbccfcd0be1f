package chaos_test

import (
	"math"
	"time"
)

// checkCount compares the permits that are in use, where nothing comes back by itself,
// with what callers were told. Between two figures they must lie:
//
//   - at least what was granted for sure, less what was given back or may have been;
//     fewer would mean that permits can be granted twice. What Redis lost comes off.
//   - at most what was granted or may have been, less what was given back for sure; more
//     would mean that permits got lost. That can't be told where Redis lost data, since
//     what was lost can be taken anew by a repeat, and of leases only where no call got
//     lost: nobody knows how many a lease had. Where a process was killed, that is what its
//     calls of that moment may have been granted, and what a lease may hold.
//
// A Reset frees what is in use when it happens, and what callers release of that later
// may be others': only what was granted behind the last one is in use for sure, and only
// what was granted before one is surely not.
func (r *round) checkCount(p *pool, s *state) {
	const check = "count"
	exact := !r.lostCalls(p.limiter)
	var sure, maybe, back, maybeBack int64
	begun, over := p.resets()
	for _, c := range p.calls {
		switch {
		case c.takes() && c.Answer == granted && c.End < begun: // it is free
		case over > 0 && c.takes() && c.Answer == granted && c.Start <= over:
			maybe += c.Permits
		case over > 0 && c.Op == opRelease:
			maybeBack += c.Permits
		case c.Op == opRelease && c.Redisson != "":
			maybeBack += c.Permits // to the value, where it leaves the members
		case c.Op == opRelease && c.Answer == done:
			back += c.Permits
		case c.Op == opRelease && (c.Answer == unknown || c.Answer == killed):
			maybeBack += c.Permits
		case !c.takes():
		case c.Answer == granted:
			sure += c.Permits
		case c.Answer == unknown, (!exact || c.Redisson != "") && p.mayKeep(c), r.cutOff(p, c):
			maybe += c.Permits
		}
	}
	low, high := sure-back-maybeBack-r.lost(p.limiter), sure+maybe-back+r.strandedLeases(p.limiter)
	if s.inUse < low {
		r.violatePool(p, check, "%d permits are in use, of at least %d: some can be granted twice\n"+
			"granted %d, maybe %d more; given back %d, maybe %d more; lost by Redis %d\n%v",
			s.inUse, low, sure, maybe, back, maybeBack, r.lost(p.limiter), s)
	}
	if most := r.highest(p.limiter) + r.lost(p.limiter) + r.minted(p); sure-back-maybeBack > most {
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

// resets tells of the pool's Resets when the last that was answered began, and when all
// of them were over, 0 where there was none.
func (p *pool) resets() (begun, over time.Duration) {
	for _, c := range p.calls {
		switch {
		case c.Op != opReset || c.Answer == missing || c.Answer == unavailable || c.Answer == closed || c.Answer == gone:
		case c.Answer == done:
			begun, over = max(begun, c.Start), max(over, c.End)
		default:
			over = math.MaxInt64
		}
	}
	return begun, over
}

// mayKeep tells whether permits may stay in use after a call that was not told of any: they
// are given back behind its back, which may fail where calls get lost.
func (p *pool) mayKeep(c *call) bool {
	switch c.Answer {
	case gone:
		return true
	case refused, closed, unavailable:
		return c.Timeout > 0 || c.Op == opAcquire
	}
	return false
}
