package compat_test

import "strconv"

// What Redisson does to a limiter, defects included.

// tail is what tryAcquire, release and a rate set with keepState do at their
// end.
func (r *redisson) tail(c *call) {
	if keepAlive := c.keepAlive(); r.keepsAlive && keepAlive > 0 {
		c.configEnd = c.after(keepAlive)
		c.pair().expire(c.configEnd)
	} else if r.givesTTL && c.configEnd != never {
		c.pair().expire(c.configEnd)
	}
}

func (r *redisson) tryAcquire(c *call, permits int64) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	rate, p := c.rate(), c.pair()
	if permits > rate && (r.looksFirst || !p.hasValue) {
		return say(exceedsRate)
	}
	if !r.keepsSet {
		return r.tryWindow(c, permits)
	}
	if !p.hasValue {
		p.set(rate) // whatever is in use
		c.grant(p, permits)
		r.tail(c)
		return say(true)
	}
	out, rest := c.split(p.rows, c.interval())
	if released := sum(out); released > 0 {
		p.setRows(rest)
		value := p.value + released
		if r.clamps && value > rate {
			value = rate - r.inUse(c, rest)
		}
		p.set(value)
	}
	if p.value < permits {
		if problem := r.noWait(c, p); problem != "" {
			return say(problem)
		}
		r.tail(c)
		return say(false)
	}
	c.grant(p, permits)
	r.tail(c)
	return say(true)
}

// inUse returns what the release takes for the permits of these rows.
func (r *redisson) inUse(c *call, rows []row) int64 {
	permits := sum(rows)
	if r.sumsUp {
		return permits
	}
	c.miscounted = int64(len(rows)) != permits
	return int64(len(rows))
}

// noWait returns the error of a refusal that finds no row to tell its wait from,
// "" where it finds one.
func (r *redisson) noWait(c *call, p *pair) string {
	if r.readsOldest {
		if len(p.rows) == 0 {
			return nilArithmetic
		}
		return ""
	}
	_, rows := c.split(p.rows, c.interval())
	for _, row := range rows {
		if r.seesFuture || c.past(row.at) {
			return ""
		}
	}
	if r.plainWait {
		return nilArithmetic
	}
	return nothingToUnpack
}

// tryWindow is tryAcquire of a release without a set.
func (r *redisson) tryWindow(c *call, permits int64) answer {
	p := c.pair()
	if !p.hasValue {
		r.openWindow(c)
	}
	if p.value < permits {
		return say(false)
	}
	p.value -= permits
	return say(true)
}

func (r *redisson) openWindow(c *call) {
	p := c.pair()
	p.set(c.rate())
	if !r.keepsSet {
		p.valueEnd = c.after(c.interval())
	}
}

func (r *redisson) release(c *call, permits int64) answer {
	switch {
	case permits < 0:
		return say(illegal)
	case permits == 0:
		return say("done")
	case c.config == nil:
		return say(notInitialized)
	}
	rate, p := c.rate(), c.pair()
	value := rate
	if p.hasValue {
		value = p.value
	}
	p.set(min(rate, value+permits)) // the rows stay
	r.tail(c)
	return say("done")
}

func (r *redisson) availablePermits(c *call) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	p := c.pair()
	if !p.hasValue {
		r.openWindow(c)
		return say(p.value)
	}
	if !r.keepsSet {
		return say(p.value)
	}
	out, rest := c.split(p.rows, c.interval())
	if released := sum(out); released > 0 {
		p.setRows(rest)
		p.set(p.value + released)
	}
	return say(p.value)
}

func (r *redisson) trySetRate(c *call, cfg rateConfig) answer {
	if c.config != nil {
		if _, ok := c.config["keepAliveTime"]; !ok && r.keepsAlive {
			c.config["keepAliveTime"] = strconv.FormatInt(cfg.keepAlive, 10)
		}
		return say(false)
	}
	r.store(c, cfg)
	return say(true)
}

// store writes the configuration. Without a keep-alive time the old end stays,
// and before there was a field for it the field too.
func (r *redisson) store(c *call, cfg rateConfig) {
	field, ok := c.config["keepAliveTime"]
	c.setConfig(cfg)
	if !r.keepsAlive {
		delete(c.config, "keepAliveTime")
		if ok {
			c.config["keepAliveTime"] = field
		}
	}
	if cfg.keepAlive > 0 {
		c.configEnd = c.after(cfg.keepAlive)
	}
}

func (r *redisson) setRate(c *call, cfg rateConfig) answer {
	r.store(c, cfg)
	if r.clearsOwn {
		c.pairOf(cfg.kind).del()
	} else {
		c.pairOf("0").del()
	}
	return say("done")
}

// setRateArgs is setRate(args), or updateRate(args) with updateOnly.
func (r *redisson) setRateArgs(c *call, cfg rateConfig, keepState, updateOnly bool) answer {
	set := say("done")
	if updateOnly {
		set = say(true)
	}
	if updateOnly && c.config == nil {
		return say(false)
	}
	typeChanged := c.config != nil && c.config["type"] != cfg.kind
	r.store(c, cfg)
	p := c.pair()
	switch {
	case typeChanged:
		for _, p := range c.own() {
			p.del()
		}
	case !keepState:
		p.del()
	default:
		_, rest := c.split(p.rows, cfg.interval)
		p.setRows(rest)
		p.set(max(0, cfg.rate-sum(rest)))
		r.tail(c)
	}
	return set
}

// unlink takes the configuration alone.
func (r *redisson) unlink(c *call) answer {
	there := c.config != nil
	c.config, c.configEnd = nil, never
	return say(there)
}

func (r *redisson) remove(c *call) answer {
	if !r.deletesAll {
		return r.unlink(c)
	}
	gone := 0
	if c.config != nil {
		gone++
	}
	for _, p := range c.own() {
		if p.hasValue {
			gone++
		}
		if len(p.rows) > 0 {
			gone++
		}
	}
	answer := remove(c)
	if !r.deletesMany {
		return say(gone == 1)
	}
	return answer
}

// expire sets the end of the configuration alone where there is no set.
func (r *redisson) expire(c *call, end span) answer {
	if r.keepsSet {
		return expire(c, end)
	}
	there := c.config != nil
	if there {
		c.configEnd = end
	}
	c.expireKeys(c.now)
	return say(there)
}

func (r *redisson) clearExpire(c *call) answer {
	if r.keepsSet {
		return clearExpire(c)
	}
	had := c.configEnd != never
	c.configEnd = never
	return say(had)
}

// getConfig reads what is missing as OVERALL, 0, 0.
func (r *redisson) getConfig(c *call) answer {
	if c.config == nil && !r.readsEmpty {
		return say(notDecoded)
	}
	return say(typeName(c.config["type"]), c.rate(), c.interval())
}

func typeName(kind string) string {
	if kind == "1" {
		return "PER_CLIENT"
	}
	return "OVERALL"
}
