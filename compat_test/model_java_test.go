package compat_test

import "strconv"

// What Redisson 4.7.0 does to a limiter, defects included.

// javaTail is what tryAcquire, release and a rate set with keepState do at
// their end.
func javaTail(c *call) {
	if keepAlive := c.keepAlive(); keepAlive > 0 {
		c.configEnd = c.after(keepAlive)
		c.pair().expire(c.configEnd)
	} else if c.configEnd != never {
		c.pair().expire(c.configEnd)
	}
}

func javaTryAcquire(c *call, permits int64) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	rate, p := c.rate(), c.pair()
	if permits > rate {
		return say(exceedsRate)
	}
	if !p.hasValue {
		p.set(rate) // whatever is in use
		c.grant(p, permits)
		javaTail(c)
		return say(true)
	}
	out, rest := c.split(p.rows, c.interval())
	if released := sum(out); released > 0 {
		p.setRows(rest)
		value := p.value + released
		if value > rate {
			value = rate - sum(rest)
		}
		p.set(value)
	}
	if p.value < permits {
		if len(p.rows) == 0 {
			return say(nilArithmetic)
		}
		javaTail(c)
		return say(false)
	}
	c.grant(p, permits)
	javaTail(c)
	return say(true)
}

func javaRelease(c *call, permits int64) answer {
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
	javaTail(c)
	return say("done")
}

func javaAvailablePermits(c *call) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	p := c.pair()
	if !p.hasValue {
		p.set(c.rate())
		return say(p.value)
	}
	out, rest := c.split(p.rows, c.interval())
	if released := sum(out); released > 0 {
		p.setRows(rest)
		p.set(p.value + released)
	}
	return say(p.value)
}

func javaTrySetRate(c *call, cfg rateConfig) answer {
	if c.config != nil {
		if _, ok := c.config["keepAliveTime"]; !ok {
			c.config["keepAliveTime"] = strconv.FormatInt(cfg.keepAlive, 10)
		}
		return say(false)
	}
	c.setConfig(cfg)
	if cfg.keepAlive > 0 {
		c.configEnd = c.after(cfg.keepAlive)
	}
	return say(true)
}

// javaStore writes the configuration. Without a keep-alive time the old end
// stays.
func javaStore(c *call, cfg rateConfig) {
	c.setConfig(cfg)
	if cfg.keepAlive > 0 {
		c.configEnd = c.after(cfg.keepAlive)
	}
}

func javaSetRate(c *call, cfg rateConfig) answer {
	javaStore(c, cfg)
	c.pairOf(cfg.kind).del()
	return say("done")
}

// javaSetRateArgs is setRate(args), or updateRate(args) with updateOnly.
func javaSetRateArgs(c *call, cfg rateConfig, keepState, updateOnly bool) answer {
	set := say("done")
	if updateOnly {
		set = say(true)
	}
	if updateOnly && c.config == nil {
		return say(false)
	}
	typeChanged := c.config != nil && c.config["type"] != cfg.kind
	javaStore(c, cfg)
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
		javaTail(c)
	}
	return set
}

// javaUnlink takes the configuration alone.
func javaUnlink(c *call) answer {
	there := c.config != nil
	c.config, c.configEnd = nil, never
	return say(there)
}

// javaConfig reads what is missing as OVERALL, 0, 0.
func javaConfig(c *call) answer {
	return say(typeName(c.config["type"]), c.rate(), c.interval())
}

func typeName(kind string) string {
	if kind == "1" {
		return "PER_CLIENT"
	}
	return "OVERALL"
}
