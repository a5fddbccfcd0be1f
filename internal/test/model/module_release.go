package model

import "slices"

func (m *Module) release(c *Call, op Op) Answer {
	permits := op.Permits
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
	m.goTail(c, p, true, u.window)
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
	p.SetRows(slices.DeleteFunc(inUse, func(r Row) bool { return r.Layout == 0 }))
	p.Value = min(c.Rate(), p.Value+permits-left)
	if len(p.Rows) == 0 && !u.window {
		p.Value = c.Rate()
	}
	return Say("done")
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
		if u.window {
			m.endWindow(c, p)
		}
	}
	i := slices.IndexFunc(p.Rows, reserved)
	if i >= 0 {
		p.Rows[i].At = min(c.Now, p.Rows[i].At+op.Early)
	}
	if i >= 0 && op.Used < min(op.Permits, p.Rows[i].Permits) {
		p.Value = min(c.Rate(), p.Value+p.Rows[i].Permits-op.Used)
		p.Rows[i] = p.Rows[i].lessened(op.Used)
		p.SetRows(slices.DeleteFunc(p.Rows, func(r Row) bool { return r.Layout == 0 }))
		if len(p.Rows) == 0 && !u.window {
			p.Value = c.Rate()
		}
	}
	sortRows(p.Rows)
	m.goTail(c, p, true, u.window)
	return Say("done")
}
