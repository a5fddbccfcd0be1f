package model

import (
	"fmt"

	"github.com/rratelimiter/rratelimiter/codec"
)

// A Module is what this module does to a limiter as the option WithRedissonVersion has it: how it writes beside the oldest Redisson
// that shares the limiters. If that is not what Redisson does, a comment says which of Redisson's defects is the reason.
type Module struct {
	Layout   codec.Layout // of the members that it writes
	windowed bool         // the value's key alone is the limiter: a fixed window
	thorough bool         // each acquire takes back all that has run out
}

// Beside returns the module that shares limiters with a release.
func Beside(oldest *Release) *Module {
	return &Module{Layout: oldest.Layout, windowed: !oldest.KeepsSet, thorough: !oldest.SumsUp}
}

// moduleDoes are the operations that have one outcome.
var moduleDoes = map[string]func(m *Module, c *Call, op Op) Answer{
	"peek":             (*Module).peek,
	"reset":            func(_ *Module, c *Call, _ Op) Answer { return reset(c) },
	"release":          (*Module).release,
	"settle":           (*Module).settleRow,
	"availablePermits": (*Module).availablePermits,
	"trySetRate":       (*Module).trySetRate,
	"setRate":          (*Module).setRate,
	"setRateArgs":      (*Module).setRate,
	"updateRate":       (*Module).setRate,
	"getConfig":        func(_ *Module, c *Call, _ Op) Answer { return moduleConfig(c) },
	"expire":           (*Module).expire,
	"expireAt":         (*Module).expire,
	"clearExpire":      (*Module).clearExpire,
	"ttl":              func(_ *Module, c *Call, _ Op) Answer { return ttl(c) },
	"exists":           func(_ *Module, c *Call, _ Op) Answer { return exists(c) },
	"delete":           func(_ *Module, c *Call, _ Op) Answer { return remove(c) },
	"rename":           func(_ *Module, c *Call, _ Op) Answer { return rename(c) },
}

// may returns what an operation may do. What has run out may stay while the value suffices. A handle of long standing may overlook
// leaked permits: one that has just been made looks for them when it is refused, one that did so less than an interval ago does not.
func (m *Module) may(op Op) []Possible {
	switch op.Do {
	case "tryAcquire":
		return m.mayAcquire(op.Permits, nil, !op.Held)
	case "withDefault":
		return m.mayAcquire(op.Permits, op.Rate, true)
	case "acquireAll":
		switch {
		case m.windowed && op.Permits > 0:
			return []Possible{func(*Call) (Answer, bool) { return Say(Unsupported), true }}
		case len(op.To) > 0:
			return m.mayAll(op)
		}
		return m.mayAcquire(op.Permits, op.Rate, false)
	case "take", "takeUpTo", "reserve":
		return []Possible{
			func(c *Call) (Answer, bool) { return m.decides(c, op, true), true },
			func(c *Call) (Answer, bool) { return m.decides(c, op, false), op.Held },
		}
	}
	return []Possible{func(c *Call) (Answer, bool) { return moduleDoes[op.Do](m, c, op), true }}
}

func (m *Module) mayAcquire(n int64, fallback *Rate, fresh bool) []Possible {
	return []Possible{
		func(c *Call) (Answer, bool) { return m.tryAcquireAtOnce(c, n) },
		func(c *Call) (Answer, bool) { return m.tryAcquire(c, n, fallback, true), true },
		func(c *Call) (Answer, bool) { return m.tryAcquire(c, n, fallback, false), !fresh },
		func(c *Call) (Answer, bool) {
			refused, may := m.refuseAtOnce(c, n)
			return refused, may && !fresh
		},
	}
}

// Sound returns the fault after a call of ours that concerned permits, "" if there is none: whatever else is there, calls
// neither mint permits nor lose any, and bring back what others have lost. Redisson relies on it.
func (m *Module) Sound(op Op, before, c *Call) string {
	p, was := c.Pair(), before.Pair()
	window := m.isWindow(c, p)
	if why := p.Broken(c.Rate(), len(p.Rows) == 0 && !window); why != "" {
		return why
	}
	if window || !p.HasValue || !was.HasValue || before.Config == nil || m.isWindow(before, was) {
		return ""
	}
	excess, earlier := p.Value+sum(p.Rows)-c.Rate(), was.Value+sum(was.Rows)-c.Rate()
	switch {
	case excess > max(0, earlier) || excess < min(0, earlier):
		return fmt.Sprintf("value and permits in use differ from the rate by %d, and by %d before", excess, earlier)
	case len(was.Rows) == 0 && excess != 0:
		return fmt.Sprintf("nothing was in use, and value and permits in use differ from the rate by %d", excess)
	case op.Do == "availablePermits" && excess < 0:
		return fmt.Sprintf("%d permits have leaked", -excess)
	}
	return ""
}

// isWindow reports whether the value is a fixed window of a Redisson that keeps no set: it ends before all the rest, an
// interval away at most. If such a Redisson shares the limiters, every value is one.
func (m *Module) isWindow(c *Call, p *Pair) bool {
	if m.windowed {
		return p.HasValue
	}
	if !p.HasValue || p.ValueEnd == 0 || c.Config == nil || p != c.Pairs[""] || m.tooFar(c, p) {
		return false
	}
	later := func(end int64) bool { return end == 0 || end-p.ValueEnd > 1000 }
	return later(c.ConfigEnd) && later(p.RowsEnd)
}

// tooFar reports whether the value ends later than a window can.
func (m *Module) tooFar(c *Call, p *Pair) bool { return p.ValueEnd-c.Now > c.Interval() }

func (m *Module) endWindow(c *Call, p *Pair) {
	if p.HasValue && (p.ValueEnd == 0 || m.tooFar(c, p)) {
		p.ValueEnd = c.after(c.Interval())
	}
}

func (m *Module) set(c *Call, p *Pair, value int64) {
	p.set(value)
	if m.windowed {
		p.ValueEnd = c.after(c.Interval())
	}
}

// upToDate is what a pair holds once it is up to date.
type upToDate struct {
	free   int64
	window bool // the value is one, and what is taken of it comes back as a whole
}

// bringUpToDate brings a pair up to date: what has run out comes back.
func (m *Module) bringUpToDate(c *Call, p *Pair) upToDate {
	rate := c.Rate()
	canBe := m.windowed || !c.PerClient()
	_, rest := c.split(p.Rows, c.Interval())
	if len(rest) == 0 {
		window := p.Value < rate && canBe && m.isWindow(c, p)
		// Value there, set gone: nothing is in use.
		if p.HasValue && !window {
			p.Value = rate
		}
		p.SetRows(nil)
		if !p.HasValue {
			return upToDate{free: rate}
		}
		return upToDate{p.Value, window}
	}
	if !p.HasValue {
		end := p.RowsEnd
		m.set(c, p, rate-sum(p.Rows)) // value gone, set there: from the set
		if !m.windowed {
			p.ValueEnd = end
		}
	}
	// Value above rate is possible and stays: it does not stay here.
	p.Value = min(rate, p.Value)
	if released := sum(p.Rows) - sum(rest); !canBe || !m.isWindow(c, p) {
		p.Value = min(rate, p.Value+released)
	}
	for i := range rest {
		// Client clocks: a row dated in the future counts from now.
		rest[i].At = min(rest[i].At, c.Now)
	}
	sortRows(rest)
	p.SetRows(rest)
	return upToDate{p.Value, m.isWindow(c, p)}
}

// repay gives back permits that leaked: those neither free nor in use.
func (m *Module) recoverLeaked(c *Call, p *Pair) {
	if m.isWindow(c, p) {
		return
	}
	// A resent acquire loses its permit for good, and so do rows that another rate has left behind.
	p.Value = max(p.Value, c.Rate()-sum(p.Rows))
}

// goTail puts the limiter's end on all keys. A window keeps its own, and all else outlives it, which identifies a window.
func (m *Module) goTail(c *Call, p *Pair, renew, window bool) {
	end := c.ConfigEnd
	if keepAlive := c.KeepAlive(); keepAlive > 0 && renew {
		end = c.after(keepAlive)
		if window && !m.windowed {
			end = max(end, p.ValueEnd+2000)
		}
		c.ConfigEnd = end
	} else if c.PerClient() {
		// PER_CLIENT: keys of clients that are gone stay for ever.
		end = earlier(end, c.idle())
	}
	if end != 0 {
		p.expireBut(window, end)
	}
}

// idle returns when a client's own pair goes if it is not used again.
func (c *Call) idle() int64 {
	if keepAlive := c.KeepAlive(); keepAlive > 0 {
		return c.after(keepAlive)
	}
	return c.after(c.Interval())
}

func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// expireBut is expire, except that a window keeps its end.
func (p *Pair) expireBut(window bool, end int64) {
	old := p.ValueEnd
	p.expire(end)
	if window && p.HasValue && old != 0 {
		p.ValueEnd = old
	}
}

// persistBut takes the ends away, except a window's.
func (p *Pair) persistBut(window bool) {
	p.RowsEnd = 0
	if !window {
		p.ValueEnd = 0
	}
}

// newEnd gives the pair of a limiter whose rate has just been set the end that
// the rate has, whatever was there before. A window keeps its own, if it can have that.
func (m *Module) newEnd(c *Call, window bool) {
	m.endKept(c, window)
	c.ConfigEnd = 0
	c.Pair().persistBut(window)
	m.goTail(c, c.Pair(), true, window)
}

// recount makes the value of a limiter with a lost configuration from the permits in use: of
// which rate it was the rest is unknown. A value that counts nothing is no window.
func (m *Module) recount(c *Call) {
	p := c.Pair()
	window := m.isWindow(c, p)
	free := c.Rate()
	if _, rest := c.split(p.Rows, c.Interval()); len(rest) > 0 {
		free -= sum(p.Rows)
	} else {
		p.SetRows(nil)
		window = window && (m.windowed || p.Value < c.Rate())
	}
	// A value that counts nothing may be none of a window.
	counts := m.windowed || len(p.Rows) > 0 || p.Value < c.Rate()
	switch {
	case window && counts:
		p.Value = min(p.Value, free)
	case len(p.Rows) == 0:
		p.DelValue()
	default:
		m.set(c, p, free)
	}
}

func (m *Module) availablePermits(c *Call, _ Op) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	p := c.Pair()
	u := m.bringUpToDate(c, p)
	if !p.HasValue && !m.windowed && (c.PerClient() || c.ConfigEnd != 0) {
		p.set(u.free)
	}
	if len(p.Rows) > 0 {
		m.recoverLeaked(c, p)
		u.free = p.Value
	}
	if m.windowed {
		m.endWindow(c, p)
	}
	// availablePermits creates a value with no TTL beside an expiring config.
	m.goTail(c, p, false, m.windowed || u.window)
	return Say(max(0, u.free))
}
