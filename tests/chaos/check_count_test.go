package chaos_test

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
func (r *round) checkCount(p *pool, s *state) {
	const check = "count"
	exact := !r.lostCalls(p.limiter)
	var sure, maybe, back, maybeBack int64
	for _, c := range p.calls {
		switch {
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
