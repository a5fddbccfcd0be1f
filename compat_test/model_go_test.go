package compat_test

// What this module does to a limiter. Where that is not what Redisson does, a
// comment says which of Redisson's defects is the reason.

// settle brings a pair up to date: what has run out comes back.
func settle(c *call, p *pair) {
	rate := c.rate()
	store := func(value int64) {
		if p.hasValue {
			p.value = value // by INCRBY: the end of the key stays
		} else {
			p.set(value)
		}
	}
	_, rest := c.split(p.rows, c.interval())
	if len(rest) == 0 {
		// Value there, set gone: nothing is in use.
		store(rate)
		p.setRows(nil)
		return
	}
	value := rate - sum(p.rows) // value gone, set there: from the set
	if p.hasValue {
		value = p.value
	}
	// Value above rate is possible and stays: it does not stay here.
	store(min(rate, value+sum(p.rows)-sum(rest)))
	for i := range rest {
		// Client clocks: a row dated in the future counts from now.
		if !c.past(rest[i].at) {
			rest[i].at = c.now
		}
	}
	p.setRows(rest)
}

// repay gives back permits that leaked: those neither free nor in use.
func repay(c *call, p *pair) {
	// A resent acquire loses its permit for good, and so do rows that another
	// rate has left behind.
	p.value = max(p.value, c.rate()-sum(p.rows))
}

// goTail puts the limiter's end on all keys.
func goTail(c *call, p *pair, renew bool) {
	end := c.configEnd
	if keepAlive := c.keepAlive(); keepAlive > 0 {
		if renew {
			c.configEnd = c.after(keepAlive)
			end = c.configEnd
		}
	} else if idle := c.after(c.interval()); c.config["type"] == "1" && (end == never || end.from > idle.from) {
		// PER_CLIENT: keys of clients that are gone stay for ever.
		end = idle
	}
	if end != never {
		p.expire(end)
	}
}

// goNewEnd gives the pair of a limiter whose rate has just been set the end that
// the rate has, whatever was there before.
func goNewEnd(c *call) {
	p := c.pair()
	p.valueEnd, p.rowsEnd = never, never
	end := c.configEnd
	if end == never && c.config["type"] == "1" {
		end = c.after(c.interval())
	}
	p.expire(end)
}

// goTryAcquireAtOnce takes permits that are free without a look at what has
// run out; the flag tells whether they are.
func goTryAcquireAtOnce(c *call, permits int64) (answer, bool) {
	if c.config == nil {
		return answer{}, false
	}
	p := c.pair()
	if permits < 1 || !p.hasValue || permits > p.value || p.value > c.rate() {
		return answer{}, false
	}
	if len(p.rows) == 0 {
		p.value = c.rate() // value there, set gone
	}
	c.grant(p, permits)
	goTail(c, p, true)
	return say(true), true
}

// goTryAcquire takes permits if they are free. With audit, a refusal means that
// not even leaked permits were left.
func goTryAcquire(c *call, permits int64, fallback *rateConfig, audit bool) answer {
	granted, problem := goTake(c, permits, fallback, audit)
	if problem != "" {
		return say(problem)
	}
	return say(granted)
}

func goTake(c *call, permits int64, fallback *rateConfig, audit bool) (granted bool, problem string) {
	if permits < 1 {
		// tryAcquire(-5) mints permits; 0 leaves junk members.
		return false, illegal
	}
	rate := c.rate()
	if c.config == nil {
		if fallback == nil {
			return false, notInitialized
		}
		rate = fallback.rate
	}
	if permits > rate {
		return false, exceedsRate
	}
	if c.config == nil {
		c.setConfig(*fallback)
		// unlink takes the configuration alone: what is left may have an end.
		p := c.pair()
		p.valueEnd, p.rowsEnd = never, never
	}
	p := c.pair()
	settle(c, p)
	if permits > p.value && audit {
		repay(c, p)
	}
	granted = permits <= p.value
	if granted {
		c.grant(p, permits)
	}
	goTail(c, p, true)
	return granted, ""
}

// goDecision is Take: goTryAcquire, with figures.
func goDecision(c *call, permits int64, audit bool) answer {
	granted, problem := goTake(c, permits, nil, audit)
	if problem != "" {
		return say(problem)
	}
	p, interval := c.pair(), c.interval()
	retry, reset := span{0, 0}, span{interval, interval}
	if !granted {
		until := func(at span) span { return span{at.from + interval - c.now.to, at.to + interval - c.now.from} }
		rows := append([]row(nil), p.rows...)
		sortRows(rows)
		reset = until(rows[len(rows)-1].at)
		retry = span{interval, interval} // all there is would not do
		free := p.value
		for _, r := range rows {
			if free += r.permits; free >= permits {
				retry = until(r.at)
				break
			}
		}
	}
	return say(granted, c.rate(), max(0, p.value)).with(retry, reset)
}

func goRelease(c *call, permits int64) answer {
	switch {
	case permits < 0:
		return say(illegal)
	case permits == 0:
		return say("done")
	case c.config == nil:
		return say(notInitialized)
	}
	p := c.pair()
	settle(c, p)
	goTail(c, p, true)

	// release() leaves the set alone, so that the same permit comes back twice:
	// here it comes off the newest rows, the caller's own first.
	rows := append([]row(nil), p.rows...)
	sortRows(rows)
	for i := 1; i < len(rows); i++ {
		if rows[i-1].at.to >= rows[i].at.from && rows[i-1].at != rows[i].at {
			c.unsure = true // which of the two is newer
		}
	}
	left := permits
	for _, own := range []bool{true, false} {
		for i := len(rows) - 1; i >= 0 && left > 0; i-- {
			if (rows[i].owner == c.who) != own || rows[i].member == "" {
				continue
			}
			n := min(left, rows[i].permits)
			left -= n
			rows[i].permits -= n
			rows[i].member = withPermits(rows[i].member, rows[i].permits)
			if rows[i].permits == 0 {
				rows[i].member = ""
			}
		}
	}
	inUse := rows[:0]
	for _, r := range rows {
		if r.member != "" {
			inUse = append(inUse, r)
		}
	}
	p.setRows(inUse)
	p.value = min(c.rate(), p.value+permits-left)
	if len(inUse) == 0 {
		p.value = c.rate()
	}
	return say("done")
}

// withPermits returns the member of the same id that stands for so many.
func withPermits(member string, permits int64) string {
	n := uint32(permits)
	return member[:len(member)-4] + string([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
}

func goAvailablePermits(c *call) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	p := c.pair()
	settle(c, p)
	// availablePermits creates a value with no TTL beside an expiring config.
	goTail(c, p, false)
	if len(p.rows) > 0 {
		repay(c, p)
	}
	return say(max(0, p.value))
}

func goTrySetRate(c *call, cfg rateConfig) answer {
	if c.config != nil {
		// trySetRate=false adds keepAliveTime to an older limiter.
		return say(false)
	}
	c.setConfig(cfg)
	if cfg.keepAlive > 0 {
		c.configEnd = c.after(cfg.keepAlive)
	}
	goNewEnd(c)
	return say(true)
}

// goSetRate is SetRate, or UpdateRate with updateOnly.
func goSetRate(c *call, cfg rateConfig, keepState, updateOnly bool) answer {
	set := say("done")
	if updateOnly {
		set = say(true)
	}
	if updateOnly && c.config == nil {
		return say(false)
	}
	kept := keepState && (c.config == nil || c.config["type"] == cfg.kind)
	oldRate := cfg.rate
	if c.config != nil {
		oldRate = c.rate()
	}
	c.setConfig(cfg)
	// setRate with keepAliveTime 0 leaves an old TTL that kills the limiter.
	c.configEnd = never
	if cfg.keepAlive > 0 {
		c.configEnd = c.after(cfg.keepAlive)
	}
	if !kept {
		// Plain setRate with another type leaves the other mode's keys.
		for _, p := range c.own() {
			p.del()
		}
		return set
	}
	p := c.pair()
	if p.hasValue {
		// updateRate(keepState) clamps at 0: the debt is kept here.
		p.value = min(p.value, oldRate) + cfg.rate - oldRate
	}
	settle(c, p)
	if len(p.rows) > 0 {
		repay(c, p)
	}
	goNewEnd(c)
	return set
}

func goConfig(c *call) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	return say(typeName(c.config["type"]), c.rate(), c.interval(), c.keepAlive())
}

// goRename moves the limiter: unlink, rename and the like take the whole one,
// not only its configuration.
func goRename(c *call) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	to := c.second
	if to == c.state {
		return say("done")
	}
	to.config, to.configEnd = c.config, c.configEnd
	c.config, c.configEnd = nil, never
	for _, id := range []string{"", c.who.id} {
		*to.pairs[id] = *c.pairs[id]
		c.pairs[id].del()
	}
	return say("done")
}
