package model

// change is do for what is not about permits.
func (m *Module) change(c *Call, op Op) Answer {
	set := Say("done")
	switch there := c.Config != nil; op.Do {
	case "trySetRate":
		// trySetRate=false adds keepAliveTime to an older limiter.
		m.open(c, op.Rate)
		return Say(!there)
	case "updateRate":
		if there || op.Keep && m.windowed {
			set = Say(true)
		} else {
			return Say(false)
		}
		fallthrough
	case "setRate", "setRateArgs":
		return m.setRate(c, op, set)
	case "getConfig":
		return c.known(Say(TypeName(c.Config["type"]), c.Rate(), c.Interval(), c.KeepAlive()))
	case "expire":
		return m.expire(c, c.after(op.TTL))
	case "expireAt":
		return m.expire(c, c.after(op.At))
	case "clearExpire":
		return m.clearExpire(c)
	case "ttl":
		return ttl(c)
	case "exists":
		return exists(c)
	case "delete":
		return remove(c)
	case "reset": // if each client has a pair, the caller's alone
		if there {
			c.delOwn()
		}
		return c.known(set)
	case "rename":
		return rename(c)
	}
	panic("no operation: " + op.Do)
}

// known is the answer, if the limiter has a rate.
func (c *Call) known(a Answer) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	return a
}

// setRate sets a rate, whether there is one or not.
func (m *Module) setRate(c *Call, op Op, set Answer) Answer {
	if op.Keep && m.windowed {
		return Say(Unsupported)
	}
	lost, old, kind := c.Config == nil, c.Rate(), c.Config["type"]
	c.setConfig(op.Rate)
	// setRate with keepAliveTime 0 leaves an old TTL that kills the limiter.
	c.ConfigEnd = 0
	p := c.Pair()
	switch {
	case !op.Keep || !lost && kind != op.Rate.Type:
		// Plain setRate with another type leaves the other mode's keys.
		c.delOwn()
	case lost:
		m.recount(c)
	default:
		if p.HasValue {
			// updateRate(keepState) clamps at 0: the debt is kept here.
			p.Value = min(p.Value, old) + op.Rate.Rate - old
			// A client's own value may be the rest of a rate that others have changed since.
			if c.PerClient() {
				p.Value = min(p.Value, op.Rate.Rate-sum(p.Rows))
			}
		}
		m.bringUpToDate(c, p)
		m.recoverLeaked(c, p)
	}
	return set
}

// expire gives all keys an end.
func (m *Module) expire(c *Call, end int64) Answer {
	there := c.Config != nil
	for _, p := range c.own() {
		window := m.isWindow(c, p)
		there = there || p.there()
		if end > c.Now {
			continue
		}
		if p.SetRows(nil); !window {
			p.DelValue()
		}
	}
	if end <= c.Now {
		c.DelConfig()
	}
	return Say(there)
}

// clearExpire takes the limiter's end away.
func (m *Module) clearExpire(c *Call) Answer {
	shared := c.Pairs[""]
	had := c.ConfigEnd != 0 || shared.RowsEnd != 0 || !m.isWindow(c, shared) && shared.ValueEnd != 0
	c.ConfigEnd = 0
	return Say(had)
}

// rename moves the limiter: unlink, rename and the like take the whole one, not only its
// configuration.
func rename(c *Call) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	if len(c.To) == 0 { // to its own name
		return Say("done")
	}
	to := c.To[0]
	to.Config, to.ConfigEnd = c.Config, c.ConfigEnd
	c.DelConfig()
	for _, id := range []string{"", c.Who.ID} {
		*to.Pairs[id] = *c.Pairs[id]
		c.Pairs[id].Del()
	}
	return Say("done")
}
