package model

import (
	"slices"

	"github.com/rratelimiter/rratelimiter/codec"
)

// tryAcquireAtOnce takes permits that are free without a look at what has run out; it returns false unless they are.
func (m *Module) tryAcquireAtOnce(c *Call, permits int64) (Answer, bool) {
	if c.Config == nil || m.thorough {
		return Answer{}, false
	}
	p := c.Pair()
	if permits < 1 || !p.HasValue || permits > p.Value || p.Value > c.Rate() {
		return Answer{}, false
	}
	window := m.isWindow(c, p)
	if len(p.Rows) == 0 && !window {
		p.Value = c.Rate() // value there, set gone
	}
	m.grant(c, p, permits)
	m.goTail(c, p, true, window)
	return Say(true), true
}

// refuseAtOnce refuses if the oldest member alone tells the wait, and changes nothing: also
// a value to which Redisson gave no end stays without one. It returns false if it may not.
func (m *Module) refuseAtOnce(c *Call, permits int64) (Answer, bool) {
	if c.Config == nil || m.thorough || c.PerClient() || c.KeepAlive() > 0 {
		return Answer{}, false
	}
	p := c.Pair()
	if permits < 1 || permits > c.Rate() || !p.HasValue || permits <= p.Value || p.Value > c.Rate() || len(p.Rows) == 0 {
		return Answer{}, false
	}
	oldest, newest := p.Rows[0], p.Rows[len(p.Rows)-1]
	if oldest.Layout != codec.LayoutD2 || oldest.At+c.Interval() <= c.Now || newest.At > c.Now || p.Value+oldest.Permits < permits {
		return Answer{}, false
	}
	return Say(false), true
}

// grant takes permits; without a member if there is only the window.
func (m *Module) grant(c *Call, p *Pair, permits int64) {
	if !p.HasValue {
		m.set(c, p, c.Rate())
	}
	if m.windowed {
		p.Value -= permits
	} else {
		c.grant(p, permits)
	}
}

// tryAcquire takes permits if they are free. With audit, a refusal means that not even leaked permits were left.
func (m *Module) tryAcquire(c *Call, permits int64, fallback *Rate, audit bool) Answer {
	taken, _, problem := m.take(c, permits, fallback, false, audit)
	if problem != "" {
		return Say(problem)
	}
	return Say(taken > 0)
}

// take takes permits, with upTo as many of them as are free, and returns how many.
func (m *Module) take(c *Call, permits int64, fallback *Rate, upTo, audit bool) (taken int64, u upToDate, problem string) {
	if problem := ask(c, permits, fallback); problem != "" && (!upTo || problem != ExceedsRate) {
		return 0, u, problem
	}
	m.open(c, fallback)
	p := c.Pair()
	u = m.bringUpToDate(c, p)
	if permits > u.free && audit && len(p.Rows) > 0 && !m.windowed {
		m.recoverLeaked(c, p)
		u.free = p.Value
	}
	if upTo || permits <= u.free {
		taken = max(0, min(permits, u.free))
	}
	if taken > 0 {
		m.grant(c, p, taken)
		u.free -= taken
	}
	if m.windowed || u.window {
		m.endWindow(c, p) // nothing else would ever fill it
	}
	m.goTail(c, p, true, m.windowed || u.window)
	return taken, u, ""
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

func (m *Module) open(c *Call, fallback *Rate) {
	if c.Config == nil {
		c.setConfig(fallback)
		m.recount(c)
		// unlink takes the configuration alone: what is left may have an end.
		c.Pair().persistBut(m.isWindow(c, c.Pair()))
	}
}

// decision is Take, with upTo TakeUpTo: tryAcquire, with figures.
func (m *Module) decision(c *Call, permits int64, upTo, audit bool) Answer {
	taken, u, problem := m.take(c, permits, nil, upTo, audit)
	if problem != "" {
		return Say(problem)
	}
	granted, said := taken > 0, []any{}
	if upTo {
		permits, said = 1, append(said, taken)
	}
	p, interval := c.Pair(), c.Interval()
	retry, reset := int64(0), interval
	switch {
	case m.windowed || u.window:
		if u.free < c.Rate() {
			reset = p.ValueEnd - c.Now
		}
	default:
		reset = p.Grants().Full(interval, c.Now) - c.Now
	}
	if !granted {
		retry = m.ready(c, permits) - c.Now
		if c.KeepAlive() == 0 && c.ConfigEnd != 0 {
			retry = min(retry, c.ConfigEnd-c.Now) // no wait is longer than the limiter lives
		}
	}
	return Say(append(said, granted, c.Rate(), max(0, u.free))...).With(retry, reset)
}

// decides is Take, TakeUpTo or Reserve with a Hold.
func (m *Module) decides(c *Call, op Op, audit bool) Answer {
	if op.Do == "reserve" {
		if m.windowed && op.Permits > 0 {
			return Say(Unsupported)
		}
		c.early = max(0, c.Interval()-op.Hold)
	}
	return m.decision(c, op.Permits, op.Do == "takeUpTo", audit)
}

// peek leaves all as it is.
func (m *Module) peek(c *Call, op Op) Answer {
	on := &Call{State: c.Clone(), Who: c.Who, Now: c.Now}
	if op.Permits == 0 {
		return m.free(on)
	}
	return m.decision(on, op.Permits, false, true)
}

// free is Peek of no permits: what is free, and when all will be.
func (m *Module) free(c *Call) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	p := c.Pair()
	u := m.bringUpToDate(c, p)
	if len(p.Rows) > 0 && !m.windowed {
		m.recoverLeaked(c, p)
		u.free = p.Value
	}
	reset := p.Grants().Full(c.Interval(), c.Now) - c.Now
	if m.windowed || u.window {
		m.endWindow(c, p)
		if reset = 0; u.free < c.Rate() {
			reset = p.ValueEnd - c.Now
		}
	}
	return Say(u.free >= 0, c.Rate(), max(0, u.free)).With(0, reset)
}

// ready returns when permits may be had, or when the limiter ends, if that is sooner.
func (m *Module) ready(c *Call, permits int64) int64 {
	p, free := c.Pair(), c.Rate()
	if p.HasValue {
		free = p.Value
	}
	at, enough := p.Grants().Ready(free, permits, c.Interval(), c.Now)
	switch {
	case m.isWindow(c, p) && free < permits:
		at = p.ValueEnd
	case !enough:
		at = c.after(c.Interval()) // all there is would not do
	}
	if c.KeepAlive() == 0 && c.ConfigEnd != 0 {
		at = min(at, c.ConfigEnd)
	}
	return at
}

// mayAll returns what TryAcquireAll may do. A limiter that has enough may
// be left as it is; else it is brought up to date, and leaked permits may be looked for.
func (m *Module) mayAll(op Op) (all []Possible) {
	ways := 3
	for range op.To {
		ways *= 3
	}
	for how := range ways {
		all = append(all, func(c *Call) (Answer, bool) {
			calls := []*Call{c}
			for _, other := range c.To {
				calls = append(calls, &Call{State: other, Who: c.Who, Now: c.Now})
			}
			return m.acquireAll(calls, op, how)
		})
	}
	return all
}

func (m *Module) acquireAll(calls []*Call, op Op, how int) (Answer, bool) {
	for i, c := range calls {
		if problem := ask(c, op.PermitsOf(i), op.Rate); problem != "" {
			return Say(problem), true
		}
	}
	granted, windows := true, make([]bool, len(calls))
	for i, c := range calls {
		m.open(c, op.Rate)
		permits := op.PermitsOf(i)
		p := c.Pair()
		windows[i] = m.isWindow(c, p)
		leave, audit := how%3 == 0, how%3 == 1
		how /= 3
		if leave {
			enough := p.HasValue && permits <= p.Value && p.Value <= c.Rate() && (p.Value == c.Rate() || len(p.Rows) > 0)
			if !enough || m.thorough {
				return Answer{}, false
			}
			continue
		}
		u := m.bringUpToDate(c, p)
		if windows[i] = u.window; permits > u.free && len(p.Rows) > 0 && audit {
			m.recoverLeaked(c, p)
			u.free = p.Value
		}
		if permits > u.free {
			granted = false
			m.endKept(c, u.window)
		}
	}
	for i, c := range calls {
		if granted {
			m.grant(c, c.Pair(), op.PermitsOf(i))
		}
		m.goTail(c, c.Pair(), true, windows[i])
	}
	return Say(granted), true
}

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

	// release() leaves the set alone, so that the same permit comes back twice: here it comes off the rows.
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
