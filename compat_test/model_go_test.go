package compat_test

import (
	"encoding/binary"

	"github.com/rratelimiter/rratelimiter/codec"
)

// What this module does to a limiter. Where that is not what Redisson does, a
// comment says which of Redisson's defects is the reason.

// module is what the option WithRedissonVersion makes of the module: how it
// writes beside the oldest Redisson that shares the limiters.
type module struct {
	layout   codec.Layout // of the members that it writes
	windowed bool         // the value's key alone is the limiter: a fixed window
	thorough bool         // each acquire takes back all that has run out
	marks    bool         // members tell who wrote them
}

func moduleFor(oldest string) *module {
	r := redissonOf(oldest)
	return &module{
		layout:   r.layout,
		windowed: !r.keepsSet,
		thorough: !r.sumsUp,
		marks:    r.layout >= codec.LayoutD1,
	}
}

// isWindow tells whether the value is a fixed window of a Redisson that keeps no
// set: it ends before all the rest, an interval away at most. Where such a
// Redisson shares the limiters, every value is one.
func (m *module) isWindow(c *call, p *pair) bool {
	if m.windowed {
		return p.hasValue
	}
	if !p.hasValue || p.valueEnd == never || c.config == nil || p != c.pairs[""] || m.tooFar(c, p) {
		return false
	}
	later := func(end span) bool {
		if end == never {
			return true
		}
		return above(c, end.from-p.valueEnd.from, 1000)
	}
	return later(c.configEnd) && later(p.rowsEnd)
}

// tooFar tells whether the value ends later than a window can. Nothing but a
// window ends just about an interval away.
func (m *module) tooFar(c *call, p *pair) bool {
	return p.valueEnd.from-c.now.from > c.interval()+settled
}

// above tells whether a distance is more than another; near it that is not sure.
func above(c *call, distance, limit int64) bool {
	if by := distance - limit; by > -settled && by < settled {
		c.unsure = true
	}
	return distance > limit
}

// endWindow gives a value that a window can't have an end that it can.
func (m *module) endWindow(c *call, p *pair) {
	if p.hasValue && (p.valueEnd == never || m.tooFar(c, p)) {
		p.valueEnd = c.after(c.interval())
	}
}

// upToDate is what a pair holds once it is up to date.
type upToDate struct {
	free   int64
	window bool // the value is one, and what is taken of it comes back as a whole
}

// settle brings a pair up to date: what has run out comes back.
func (m *module) settle(c *call, p *pair) upToDate {
	rate := c.rate()
	canBe := m.windowed || c.config["type"] == "0"
	_, rest := c.split(p.rows, c.interval())
	if len(rest) == 0 {
		window := p.value < rate && canBe && m.isWindow(c, p)
		// Value there, set gone: nothing is in use.
		if p.hasValue && !window {
			p.value = rate
		}
		p.setRows(nil)
		if !p.hasValue {
			return upToDate{free: rate}
		}
		return upToDate{p.value, window}
	}
	if !p.hasValue {
		p.set(rate - sum(p.rows)) // value gone, set there: from the set
		p.valueEnd = p.rowsEnd
		if m.windowed {
			p.valueEnd = c.after(c.interval())
		}
	}
	// Value above rate is possible and stays: it does not stay here.
	p.value = min(rate, p.value)
	if released := sum(p.rows) - sum(rest); !canBe || !m.isWindow(c, p) {
		p.value = min(rate, p.value+released)
	}
	for i := range rest {
		// Client clocks: a row dated in the future counts from now.
		if !c.past(rest[i].at) {
			rest[i].at = c.now
		}
	}
	p.setRows(rest)
	return upToDate{p.value, m.isWindow(c, p)}
}

// repay gives back permits that leaked: those neither free nor in use.
func (m *module) repay(c *call, p *pair) {
	if m.isWindow(c, p) {
		return
	}
	// A resent acquire loses its permit for good, and so do rows that another
	// rate has left behind.
	p.value = max(p.value, c.rate()-sum(p.rows))
}

// goTail puts the limiter's end on all keys. A window keeps its own.
func goTail(c *call, p *pair, renew, window bool) {
	end := c.configEnd
	if keepAlive := c.keepAlive(); keepAlive > 0 && renew {
		c.configEnd = c.after(keepAlive)
		end = c.configEnd
	} else if c.config["type"] == "1" {
		// PER_CLIENT: keys of clients that are gone stay for ever.
		end = earlier(end, c.idle())
	}
	if end != never {
		p.expireBut(window, end)
	}
}

// idle returns when a client's own pair goes if nobody uses it again.
func (c *call) idle() span {
	if keepAlive := c.keepAlive(); keepAlive > 0 {
		return c.after(keepAlive)
	}
	return c.after(c.interval())
}

func earlier(a, b span) span {
	if a == never || b != never && b.from < a.from {
		return b
	}
	return a
}

// expireBut is expire, save that a window keeps its end.
func (p *pair) expireBut(window bool, end span) {
	old := p.valueEnd
	p.expire(end)
	if window && p.hasValue && old != never {
		p.valueEnd = old
	}
}

// newEnd gives the pair of a limiter whose rate has just been set the end that
// the rate has, whatever was there before; a window keeps its own.
func (m *module) newEnd(c *call, window bool) {
	p := c.pair()
	end := c.configEnd
	if end == never && c.config["type"] == "1" {
		end = c.after(c.interval())
	}
	if end != never {
		p.expireBut(window, end)
		return
	}
	p.rowsEnd = never
	if !window {
		p.valueEnd = never
	}
}

// recount makes the value of a limiter whose configuration was lost by what is in
// use: of which rate it was the rest nobody knows. A value that counts nothing is
// no window.
func (m *module) recount(c *call) {
	p := c.pair()
	window := m.isWindow(c, p)
	free := c.rate()
	if _, rest := c.split(p.rows, c.interval()); len(rest) > 0 {
		free -= sum(p.rows)
	} else {
		p.setRows(nil)
		window = window && (m.windowed || p.value < c.rate())
	}
	// A value that counts nothing may be none of a window.
	counts := m.windowed || len(p.rows) > 0 || p.value < c.rate()
	switch {
	case window && counts:
		p.value = min(p.value, free)
	case len(p.rows) == 0:
		p.delValue()
	default:
		p.set(free)
		if m.windowed {
			p.valueEnd = c.after(c.interval())
		}
	}
}

// tryAcquireAtOnce takes permits that are free without a look at what has run
// out; the flag tells whether they are.
func (m *module) tryAcquireAtOnce(c *call, permits int64) (answer, bool) {
	if c.config == nil || m.thorough {
		return answer{}, false
	}
	p := c.pair()
	if permits < 1 || !p.hasValue || permits > p.value || p.value > c.rate() {
		return answer{}, false
	}
	window := m.isWindow(c, p)
	if len(p.rows) == 0 && !window {
		p.value = c.rate() // value there, set gone
	}
	m.grant(c, p, permits)
	goTail(c, p, true, window)
	return say(true), true
}

// refuseAtOnce refuses where the oldest member alone tells the wait, and changes
// nothing: also a value to which Redisson gave no end stays without one. The flag
// tells whether it may.
func (m *module) refuseAtOnce(c *call, permits int64) (answer, bool) {
	if c.config == nil || m.thorough || c.config["type"] != "0" || c.keepAlive() > 0 {
		return answer{}, false
	}
	p := c.pair()
	if permits < 1 || permits > c.rate() || !p.hasValue || permits <= p.value || p.value > c.rate() || len(p.rows) == 0 {
		return answer{}, false
	}
	oldest, newest := p.rows[0], p.rows[len(p.rows)-1]
	if oldest.layout != codec.LayoutD2 || c.past(oldest.at.add(c.interval())) || newest.at.from > c.now.to ||
		p.value+oldest.permits < permits {
		return answer{}, false
	}
	return say(false), true
}

// grant takes permits; without a member where there is only the window.
func (m *module) grant(c *call, p *pair, permits int64) {
	if !p.hasValue {
		p.set(c.rate())
		if m.windowed {
			p.valueEnd = c.after(c.interval())
		}
	}
	if m.windowed {
		p.value -= permits
	} else {
		c.grant(p, permits)
	}
}

// tryAcquire takes permits if they are free. With audit, a refusal means that
// not even leaked permits were left.
func (m *module) tryAcquire(c *call, permits int64, fallback *rateConfig, audit bool) answer {
	granted, _, problem := m.take(c, permits, fallback, audit)
	if problem != "" {
		return say(problem)
	}
	return say(granted)
}

func (m *module) take(c *call, permits int64, fallback *rateConfig, audit bool) (granted bool, u upToDate, problem string) {
	if permits < 1 {
		// tryAcquire(-5) mints permits; 0 leaves junk members.
		return false, u, illegal
	}
	rate := c.rate()
	if c.config == nil {
		if fallback == nil {
			return false, u, notInitialized
		}
		rate = fallback.rate
	}
	if permits > rate {
		return false, u, exceedsRate
	}
	made := c.config == nil
	if made {
		c.setConfig(*fallback)
		m.recount(c)
	}
	p := c.pair()
	if made {
		// unlink takes the configuration alone: what is left may have an end.
		window := m.isWindow(c, p)
		p.rowsEnd = never
		if !window {
			p.valueEnd = never
		}
	}
	u = m.settle(c, p)
	if permits > u.free && audit && len(p.rows) > 0 && !m.windowed {
		m.repay(c, p)
		u.free = p.value
	}
	granted = permits <= u.free
	if granted {
		m.grant(c, p, permits)
		u.free -= permits
	}
	if m.windowed || u.window {
		m.endWindow(c, p) // nothing else would ever fill it
	}
	goTail(c, p, true, m.windowed || u.window)
	return granted, u, ""
}

// decision is Take: tryAcquire, with figures.
func (m *module) decision(c *call, permits int64, audit bool) answer {
	granted, u, problem := m.take(c, permits, nil, audit)
	if problem != "" {
		return say(problem)
	}
	p, interval := c.pair(), c.interval()
	until := func(at span) span { return span{at.from - c.now.to, at.to - c.now.from} }
	retry, reset := span{0, 0}, span{interval, interval}
	switch {
	case m.windowed || u.window:
		if u.free < c.rate() {
			reset = until(p.valueEnd)
		}
		if !granted {
			retry = until(p.valueEnd)
		}
	case !granted:
		rows := append([]row(nil), p.rows...)
		sortRows(rows)
		reset = until(rows[len(rows)-1].at.add(interval))
		retry = span{interval, interval} // all there is would not do
		free := p.value
		for _, r := range rows {
			if free += r.permits; free >= permits {
				retry = until(r.at.add(interval))
				break
			}
		}
	}
	return say(granted, c.rate(), max(0, u.free)).with(retry, reset)
}

func (m *module) release(c *call, permits int64) answer {
	switch {
	case permits < 0:
		return say(illegal)
	case m.windowed:
		return say(unsupported)
	case permits == 0:
		return say("done")
	case c.config == nil:
		return say(notInitialized)
	}
	p := c.pair()
	u := m.settle(c, p)
	goTail(c, p, true, u.window)
	if len(p.rows) == 0 {
		return say("done")
	}

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
			mine := rows[i].owner == c.who || !m.marks
			if mine != own || rows[i].member == "" {
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
	if len(inUse) == 0 && !u.window {
		p.value = c.rate()
	}
	return say("done")
}

// withPermits returns the member of the same id that stands for so many. Ours in
// layout C hold the permits twice.
func withPermits(member string, permits int64) string {
	text := string(binary.LittleEndian.AppendUint32(nil, uint32(permits)))
	if len(member) == 20 && member[9:13] == member[16:] {
		member = member[:9] + text + member[13:]
	}
	return member[:len(member)-4] + text
}

func (m *module) availablePermits(c *call) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	p := c.pair()
	u := m.settle(c, p)
	if !p.hasValue && !m.windowed && (c.config["type"] == "1" || c.configEnd != never) {
		p.set(u.free)
	}
	if len(p.rows) > 0 {
		m.repay(c, p)
		u.free = p.value
	}
	if m.windowed {
		m.endWindow(c, p)
	}
	// availablePermits creates a value with no TTL beside an expiring config.
	goTail(c, p, false, m.windowed || u.window)
	return say(max(0, u.free))
}

func (m *module) trySetRate(c *call, cfg rateConfig) answer {
	if c.config != nil {
		// trySetRate=false adds keepAliveTime to an older limiter.
		return say(false)
	}
	c.setConfig(cfg)
	m.recount(c)
	window := m.isWindow(c, c.pair())
	if cfg.keepAlive > 0 {
		c.configEnd = c.after(cfg.keepAlive)
	}
	m.newEnd(c, window)
	return say(true)
}

// setRate is SetRate, or UpdateRate with updateOnly.
func (m *module) setRate(c *call, cfg rateConfig, keepState, updateOnly bool) answer {
	if keepState && m.windowed {
		return say(unsupported)
	}
	set := say("done")
	if updateOnly {
		set = say(true)
	}
	lost := c.config == nil
	if updateOnly && lost {
		return say(false)
	}
	kept := keepState && (lost || c.config["type"] == cfg.kind)
	oldRate := c.rate()
	c.setConfig(cfg)
	// setRate with keepAliveTime 0 leaves an old TTL that kills the limiter.
	newEnd := never
	if cfg.keepAlive > 0 {
		newEnd = c.after(cfg.keepAlive)
	}
	if !kept {
		c.configEnd = newEnd
		// Plain setRate with another type leaves the other mode's keys.
		for _, p := range c.own() {
			p.del()
		}
		return set
	}
	p := c.pair()
	if lost {
		m.recount(c)
	} else {
		if p.hasValue {
			// updateRate(keepState) clamps at 0: the debt is kept here.
			p.value = min(p.value, oldRate) + cfg.rate - oldRate
			// A client's own value may be the rest of a rate that others have changed since.
			if cfg.kind == "1" {
				p.value = min(p.value, cfg.rate-sum(p.rows))
			}
		}
		m.settle(c, p)
		if len(p.rows) > 0 {
			m.repay(c, p)
		}
	}
	window := m.isWindow(c, p)
	c.configEnd = newEnd
	m.newEnd(c, window)
	return set
}

func goConfig(c *call) answer {
	if c.config == nil {
		return say(notInitialized)
	}
	return say(typeName(c.config["type"]), c.rate(), c.interval(), c.keepAlive())
}

// expire sets the end of all keys; a window keeps its own. PER_CLIENT: keys of
// clients that are gone stay as long as the limiter.
func (m *module) expire(c *call, end span) answer {
	there := c.config != nil
	shared, own := c.pairs[""], c.pairs[c.who.id]
	ends := map[*pair]span{shared: end, own: end}
	windows := make(map[*pair]bool)
	for _, p := range c.own() {
		windows[p] = m.isWindow(c, p)
		there = there || p.hasValue || len(p.rows) > 0
	}
	valueEnd, rowsEnd := own.valueEnd, own.rowsEnd
	if c.config != nil {
		c.configEnd = end
		m.endKept(c, windows[c.pair()])
	}
	if c.config["type"] == "1" {
		ends[own] = earlier(end, c.idle())
	}
	for _, p := range c.own() {
		p.expireBut(windows[p], ends[p])
	}
	if c.config["type"] != "1" {
		own.valueEnd, own.rowsEnd = earlier(own.valueEnd, valueEnd), earlier(own.rowsEnd, rowsEnd)
	}
	c.expireKeys(c.now)
	return say(there)
}

// endKept is endWindow of the value in use, where it keeps its end as a window.
func (m *module) endKept(c *call, window bool) {
	if window {
		m.endWindow(c, c.pair())
	}
}

// clearExpire takes the limiter's end away. PER_CLIENT: keys of clients that are
// gone stay for ever.
func (m *module) clearExpire(c *call) answer {
	shared, own := c.pairs[""], c.pairs[c.who.id]
	window, ownWindow := m.isWindow(c, shared), m.isWindow(c, own)
	had := c.configEnd != never || shared.rowsEnd != never || !window && shared.valueEnd != never
	if c.config != nil {
		m.endKept(c, c.pair() == shared && window || c.pair() == own && ownWindow)
	}
	c.configEnd, shared.rowsEnd = never, never
	if !window {
		shared.valueEnd = never
	}
	if c.config["type"] == "1" {
		own.expireBut(ownWindow, c.idle())
	}
	return say(had)
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
