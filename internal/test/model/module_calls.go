package model

import (
	"slices"
)

// orProblem returns the answer, or what a call fails with.
func orProblem(a Answer, problem string) Answer {
	if problem != "" {
		return Say(problem)
	}
	return a
}

// grant takes permits; without a member if there is only the window.
func (m *Module) grant(c *Call, p *Pair, permits int64) {
	if !p.HasValue {
		p.set(c.Rate())
		if m.windowed {
			p.ValueEnd = windowEnd(c, p)
		}
	}
	if m.windowed {
		p.Value -= permits
	} else {
		c.grant(p, permits)
	}
}

// take takes permits if they are free, or as many as are, and returns how many.
func (m *Module) take(c *Call, op Op, how way) (taken int64, u upToDate, problem string) {
	upTo := op.Do == "takeUpTo"
	if problem := ask(c, op.Permits, op.Rate); problem != "" && (!upTo || problem != ExceedsRate) {
		return 0, u, problem
	}
	m.open(c, op.Rate)
	p := c.Pair()
	u = m.look(c, op.Permits, how)
	if upTo || op.Permits <= u.free {
		taken = max(0, min(op.Permits, u.free))
	}
	if taken > 0 {
		m.grant(c, p, taken)
		u.free -= taken
	}
	return taken, u, ""
}

// look brings a pair up to date, unless that makes no difference to the answer, and finds leaked permits.
func (m *Module) look(c *Call, permits int64, how way) upToDate {
	p := c.Pair()
	if how.lazy && p.HasValue && p.Value <= c.Rate() {
		out, rest := c.split(p.Rows, c.Interval())
		u := upToDate{p.Value, m.isWindow(c, p)}
		enough := permits <= p.Value && (len(p.Rows) > 0 || u.window || p.Value == c.Rate())
		if enough || permits > p.Value && !how.audit && len(rest) > 0 && len(out) == 0 {
			return u
		}
	}
	u := m.bringUpToDate(c, p)
	if permits > u.free && how.audit && len(p.Rows) > 0 {
		u.free = m.recoverLeaked(c, p)
	}
	return u
}

// ask returns why permits can't be had at all, "" if they can.
func ask(c *Call, permits int64, fallback *Rate) string {
	rate := c.Rate()
	switch {
	case permits < 1:
		// tryAcquire(-5) mints permits; 0 leaves junk members.
		return Illegal
	case c.Config == nil && fallback == nil:
		return NotInitialized
	case c.Config == nil:
		rate = fallback.Rate
	}
	if permits > rate {
		return ExceedsRate
	}
	return ""
}

// open makes a limiter that has no rate.
func (m *Module) open(c *Call, fallback *Rate) {
	if c.Config == nil {
		c.setConfig(fallback)
		m.recount(c)
	}
}

// decision is Take, TakeUpTo and their like: tryAcquire, with figures.
func (m *Module) decision(c *Call, op Op, how way) Answer {
	taken, u, problem := m.take(c, op, how)
	if problem != "" {
		return Say(problem)
	}
	said, permits := []any{}, op.Permits
	if op.Do == "takeUpTo" {
		permits, said = 1, append(said, taken)
	}
	retry := int64(0)
	if taken == 0 {
		retry = m.ready(c, permits) - c.Now // no wait is longer than the limiter lives
	}
	return Say(append(said, taken > 0, c.Rate(), max(0, u.free))...).With(retry, m.full(c, u))
}

// full returns in how many ms all permits are free.
func (m *Module) full(c *Call, u upToDate) int64 {
	p := c.Pair()
	switch {
	case !m.windowed && !u.window:
		return p.Grants().Full(c.Interval(), c.Now) - c.Now
	case u.free < c.Rate():
		return windowEnd(c, p) - c.Now
	}
	return c.Interval()
}

// free is Peek of no permits: what is free, and when all will be.
func (m *Module) free(c *Call) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	p := c.Pair()
	u := m.bringUpToDate(c, p)
	if len(p.Rows) > 0 {
		u.free = m.recoverLeaked(c, p)
	}
	reset := m.full(c, u)
	if u.free == c.Rate() {
		reset = 0
	}
	return Say(u.free >= 0, c.Rate(), max(0, u.free)).With(0, reset)
}

func (m *Module) availablePermits(c *Call) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	p := c.Pair()
	u := m.bringUpToDate(c, p)
	if len(p.Rows) > 0 {
		u.free = m.recoverLeaked(c, p)
	}
	return Say(max(0, u.free))
}

// ready returns when permits may be had, or when the limiter ends, if that is sooner.
func (m *Module) ready(c *Call, permits int64) int64 {
	p := c.Pair()
	free := p.free(c.Rate())
	at, enough := p.Grants().Ready(free, permits, c.Interval(), c.Now)
	switch {
	case m.isWindow(c, p) && free < permits:
		at = windowEnd(c, p)
	case !enough:
		at = c.after(c.Interval()) // all there is would not do
	}
	if c.KeepAlive() == 0 && c.ConfigEnd != 0 {
		at = min(at, c.ConfigEnd)
	}
	return at
}

// acquireAll takes permits of all limiters, or of none.
func (m *Module) acquireAll(c *Call, op Op, how way) Answer {
	if m.windowed && op.Permits > 0 {
		return Say(Unsupported)
	}
	calls := []*Call{c}
	for _, other := range c.To {
		calls = append(calls, &Call{State: other, Who: c.Who, Now: c.Now})
	}
	for i, c := range calls {
		if problem := ask(c, op.PermitsOf(i), op.Rate); problem != "" {
			return Say(problem)
		}
	}
	granted := true
	for i, c := range calls {
		m.open(c, op.Rate)
		granted = op.PermitsOf(i) <= m.look(c, op.PermitsOf(i), how).free && granted
	}
	for i, c := range calls {
		if granted {
			m.grant(c, c.Pair(), op.PermitsOf(i))
		}
	}
	return Say(granted)
}

func (m *Module) release(c *Call, permits int64) Answer {
	switch {
	case permits < 0:
		return Say(Illegal)
	case m.windowed:
		return Say(Unsupported)
	case permits == 0:
		return Say("done")
	case c.Config == nil:
		return Say(NotInitialized)
	}
	p := c.Pair()
	u := m.bringUpToDate(c, p)
	if len(p.Rows) == 0 {
		return Say("done")
	}
	// release() leaves the set alone, so that the same permit comes back twice:
	// here it comes off the rows.
	left, inUse := permits, slices.Clone(p.Rows)
	for i := range p.Grants().NewestFirst(c.Who.Number) {
		if left == 0 {
			break
		}
		n := min(left, inUse[i].Permits)
		left -= n
		inUse[i] = inUse[i].lessened(inUse[i].Permits - n)
	}
	m.comeBack(c, inUse, permits-left, u)
	return Say("done")
}

// comeBack leaves these rows, and makes permits free that have been taken off them.
func (m *Module) comeBack(c *Call, rows []Row, permits int64, u upToDate) {
	p := c.Pair()
	p.SetRows(slices.DeleteFunc(rows, func(r Row) bool { return r.Layout == 0 }))
	p.Value = min(c.Rate(), p.Value+permits)
	if len(p.Rows) == 0 && !u.window {
		p.Value = c.Rate()
	}
}

// settleRow settles a reservation: unused permits come back, an excess is a row dated now. A held one is
// dated to its grant; if its hold is over, all that was used is a row dated now.
func (m *Module) settleRow(c *Call, op Op) Answer {
	if c.Config == nil {
		return Say("done")
	}
	p := c.Pair()
	u := m.bringUpToDate(c, p)
	reserved := func(r Row) bool { return r.Member != "" && r.Member.ID() == op.Row.Member.ID() }
	more := op.Used - op.Permits
	// A second before a hold ends it can't be told any more from a release.
	if op.Early > 0 && op.age()+1000 >= c.Interval()-op.Early && !slices.ContainsFunc(p.Rows, reserved) {
		more = op.Used
	}
	if more > 0 {
		m.grant(c, p, more)
	}
	if i := slices.IndexFunc(p.Rows, reserved); i >= 0 {
		r := &p.Rows[i]
		r.At = min(c.Now, r.At+op.Early)
		if had := r.Permits; op.Used < min(op.Permits, had) {
			*r = r.lessened(op.Used)
			m.comeBack(c, p.Rows, had-op.Used, u)
		}
	}
	sortRows(p.Rows)
	return Say("done")
}

// change is do for what is not about permits.
func (m *Module) change(c *Call, op Op) Answer {
	set := Say("done")
	switch there := c.Config != nil; op.Do {
	case "trySetRate":
		// trySetRate=false adds keepAliveTime to an older limiter.
		m.open(c, op.Rate)
		return Say(!there)
	case "updateRate":
		if !there && (!op.Keep || !m.windowed) {
			return Say(false)
		}
		set = Say(true)
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
