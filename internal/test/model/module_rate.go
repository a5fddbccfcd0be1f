package model

// What the module does to a limiter's configuration, and to its end.

func (m *Module) trySetRate(c *Call, op Op) Answer {
	if c.Config != nil {
		// trySetRate=false adds keepAliveTime to an older limiter.
		return Say(false)
	}
	c.setConfig(op.Rate)
	m.recount(c)
	m.newEnd(c, m.isWindow(c, c.Pair()))
	return Say(true)
}

func (m *Module) setRate(c *Call, op Op) Answer {
	if op.Keep && m.windowed {
		return Say(Unsupported)
	}
	rate, lost := op.Rate, c.Config == nil
	if lost && op.Do == "updateRate" {
		return Say(false)
	}
	kept := op.Keep && (lost || c.Config["type"] == rate.Type)
	oldRate := c.Rate()
	c.setConfig(rate)
	if !kept {
		// setRate with keepAliveTime 0 leaves an old TTL that kills the limiter.
		c.ConfigEnd = 0
		if rate.KeepAlive > 0 {
			c.ConfigEnd = c.after(rate.KeepAlive)
		}
		// Plain setRate with another type leaves the other mode's keys.
		for _, p := range c.own() {
			p.Del()
		}
		return op.set()
	}
	p := c.Pair()
	if lost {
		m.recount(c)
	} else {
		if p.HasValue {
			// updateRate(keepState) clamps at 0: the debt is kept here.
			p.Value = min(p.Value, oldRate) + rate.Rate - oldRate
			// A client's own value may be the rest of a rate that others have changed since.
			if c.PerClient() {
				p.Value = min(p.Value, rate.Rate-sum(p.Rows))
			}
		}
		m.bringUpToDate(c, p)
		if len(p.Rows) > 0 {
			m.recoverLeaked(c, p)
		}
	}
	m.newEnd(c, m.isWindow(c, p))
	return op.set()
}

func moduleConfig(c *Call) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	return Say(TypeName(c.Config["type"]), c.Rate(), c.Interval(), c.KeepAlive())
}

// expire sets the end of all keys; a window keeps its own. PER_CLIENT: keys of clients that are gone stay as long as the limiter.
func (m *Module) expire(c *Call, op Op) Answer {
	there, end := c.Config != nil, op.end(c)
	shared, own := c.Pairs[""], c.Pairs[c.Who.ID]
	ends := map[*Pair]int64{shared: end, own: end}
	windows := make(map[*Pair]bool)
	for _, p := range c.own() {
		windows[p] = m.isWindow(c, p)
		there = there || p.there()
	}
	valueEnd, rowsEnd := own.ValueEnd, own.RowsEnd
	if c.Config != nil {
		c.ConfigEnd = end
		m.endKept(c, windows[c.Pair()])
	}
	if c.PerClient() {
		ends[own] = earlier(end, c.idle())
	}
	for _, p := range c.own() {
		p.expireBut(windows[p], ends[p])
	}
	if !c.PerClient() {
		own.ValueEnd, own.RowsEnd = earlier(own.ValueEnd, valueEnd), earlier(own.RowsEnd, rowsEnd)
	}
	c.ExpireKeys(c.Now)
	return Say(there)
}

// endKept is endWindow of the value in use, if it keeps its end as a window.
func (m *Module) endKept(c *Call, window bool) {
	if window {
		m.endWindow(c, c.Pair())
	}
}

// clearExpire takes the limiter's end away. PER_CLIENT: keys of clients that are gone stay for ever.
func (m *Module) clearExpire(c *Call, _ Op) Answer {
	shared, own := c.Pairs[""], c.Pairs[c.Who.ID]
	window, ownWindow := m.isWindow(c, shared), m.isWindow(c, own)
	had := c.ConfigEnd != 0 || shared.RowsEnd != 0 || !window && shared.ValueEnd != 0
	if c.Config != nil {
		m.endKept(c, c.Pair() == shared && window || c.Pair() == own && ownWindow)
	}
	c.ConfigEnd = 0
	shared.persistBut(window)
	if c.PerClient() {
		own.expireBut(ownWindow, c.idle())
	}
	return Say(had)
}

// reset frees what is in use; if each client has a pair, the caller's alone.
func reset(c *Call) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	for _, p := range c.own() {
		p.Del()
	}
	return Say("done")
}

// rename moves the limiter: unlink, rename and the like take the whole one, not only its configuration.
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
