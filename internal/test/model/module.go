package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/codec"
)

// A Module is what this module decides as the option WithRedissonVersion has it, beside the oldest
// Redisson that shares the limiters. If that is not what Redisson does, a comment says which of
// Redisson's defects is the reason. When keys end it knows of those that have just been renewed.
type Module struct {
	Layout   codec.Layout // of the members that it writes
	windowed bool         // the value's key alone is the limiter: a fixed window
	thorough bool         // each acquire takes back all that has run out
}

// A way is how a call may be carried out.
type way struct {
	lazy  bool // what has run out stays while that makes no difference
	audit bool // leaked permits are looked for: a handle of long standing, that did so less than an interval ago, does not
}

// Beside returns the module that shares limiters with a release.
func Beside(oldest *Release) *Module {
	return &Module{Layout: oldest.Layout, windowed: !oldest.KeepsSet, thorough: !oldest.SumsUp}
}

// do has an operation change the state.
func (m *Module) do(c *Call, op Op, how way) Answer {
	switch op.Do {
	case "tryAcquire", "withDefault":
		taken, _, problem := m.take(c, op, how)
		return orProblem(Say(taken > 0), problem)
	case "acquireAll":
		return m.acquireAll(c, op, how)
	case "take", "takeUpTo":
		return m.decision(c, op, way{audit: how.audit})
	case "reserve":
		if m.windowed && op.Permits > 0 {
			return Say(Unsupported)
		}
		c.early = max(0, c.Interval()-op.Hold)
		return m.decision(c, op, way{audit: how.audit})
	case "peek":
		on := c.clone()
		if op.Permits == 0 {
			return m.free(on)
		}
		return m.decision(on, op, way{audit: true})
	case "availablePermits":
		return m.availablePermits(c)
	case "release":
		return m.release(c, op.Permits)
	case "settle":
		return m.settleRow(c, op)
	}
	return m.change(c, op)
}

// Check returns the fault of what a call of ours came to: its answer, and the limiters' states; "" if there is none.
func (m *Module) Check(before *Call, op Op, got Answer, after ...*State) string {
	var wanted []string
	for _, how := range []way{{audit: true}, {lazy: !m.thorough, audit: true}, {lazy: !m.thorough}, {}} {
		if !how.audit && !op.Held && op.Do != "acquireAll" && op.Do != "wait" {
			continue // it has just been made
		}
		c, do := before.clone(), m.do
		if op.Do == "wait" {
			do = func(c *Call, op Op, how way) Answer { return m.wait(c, op, how, got) }
		}
		why := ""
		if a := do(c, op, how); a.Text != got.Text || !slices.Equal(a.Times, got.Times) {
			why = fmt.Sprintf("the answer is %v", a)
		}
		for i, s := range append([]*State{c.State}, c.To...) {
			why = cmp.Or(why, differ(s, after[i]), m.lives(op, got, &Call{State: after[i], Who: before.Who}))
		}
		if why == "" {
			return m.sound(op, got, before, &Call{State: after[0], Who: before.Who})
		}
		wanted = append(wanted, why)
	}
	return strings.Join(slices.Compact(wanted), "\nor ")
}

// differ returns in what a state differs from the one that is wanted.
func differ(want, got *State) string {
	if !maps.Equal(want.Config, got.Config) {
		return fmt.Sprintf("the configuration is %v", want.Config)
	}
	for id, p := range want.Pairs {
		if a, b := p.free(want.Rate()), got.Pairs[id].free(want.Rate()); a != b {
			return fmt.Sprintf("%d permits are free, not %d, of client %q", a, b, id)
		}
		if a, b := written(p), written(got.Pairs[id]); !slices.Equal(a, b) {
			return fmt.Sprintf("in use are %v, not %v, of client %q", a, b, id)
		}
	}
	return ""
}

// lives returns what is wrong with the ends of a limiter that a call has kept alive, or given a rate. A window keeps its own,
// and a refusal that looks at the oldest member alone changes nothing.
func (m *Module) lives(op Op, got Answer, c *Call) string {
	sets := strings.Contains(strings.ToLower(op.Do), "rate") && got.Text != "false"
	if c.Config == nil || !sets && !renews[op.Do] || op.Do == "release" && op.Permits == 0 || strings.HasPrefix(got.Text, "error") {
		return ""
	}
	p, end, keepAlive := c.Pair(), c.ConfigEnd, c.KeepAlive()
	window := m.isWindow(c, p)
	if (sets || keepAlive > 0) && !window && end != keepAlive {
		return fmt.Sprintf("the limiter ends in %d ms", end)
	}
	if idle := cmp.Or(keepAlive, c.Interval()); c.PerClient() && (end == 0 || idle < end) {
		end = idle
	}
	if end == 0 || keepAlive == 0 && !c.PerClient() && strings.Contains(got.Text, "false") {
		return ""
	}
	if len(p.Rows) > 0 && p.RowsEnd != end || p.HasValue && !window && p.ValueEnd != end {
		return fmt.Sprintf("value and members end in %d and %d ms, not in %d", p.ValueEnd, p.RowsEnd, end)
	}
	return ""
}

// renews are the calls that keep limiters alive.
var renews = map[string]bool{
	"tryAcquire": true, "withDefault": true, "take": true, "takeUpTo": true, "reserve": true, "acquireAll": true, "wait": true, "release": true,
	"settle": true,
}

// written returns the rows without what only their writers know.
func written(p *Pair) (all []Row) {
	for _, r := range p.Rows {
		all = append(all, Row{Grant: Grant{At: r.At, By: r.By, Permits: r.Permits}, Layout: r.Layout})
	}
	slices.SortFunc(all, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.By, b.By), cmp.Compare(a.Permits, b.Permits))
	})
	return all
}

// wait is a call that waits for TTL, and got that answer, after some ms: it is granted at the first moment
// at which it may be, and keeps its limiters alive.
func (m *Module) wait(c *Call, op Op, how way, got Answer) Answer {
	op.Do = "tryAcquire"
	if len(op.To) > 0 {
		op.Do = "acquireAll"
	}
	after := got.Times[0]
	if first := m.do(c, op, how); after == 0 || first.Text != "false" {
		return first.With(0)
	}
	if got.Text == "true" && m.do(m.later(c.clone(), after-1), op, how).Text == got.Text {
		return Say("granted before").With(after)
	}
	a := m.do(m.later(c, after), op, how)
	if a.Text == "false" {
		after = op.TTL
	}
	return a.With(after)
}

// later returns the call that many ms later. Until then its limiters are kept alive, and pairs live as long.
func (m *Module) later(c *Call, ms int64) *Call {
	for _, s := range append([]*State{c.State}, c.To...) {
		on := &Call{State: s, Who: c.Who}
		p := on.Pair()
		window, end := m.isWindow(on, p), p.ValueEnd
		if s.KeepAlive() > 0 {
			s.ConfigEnd = 0
		}
		if p.expire(s.ConfigEnd); window {
			p.ValueEnd = end
		}
		s.Pass(ms, 0)
	}
	return c
}

// sound returns the fault after a call of ours that concerned permits, "" if there is none:
// whatever else is there, calls neither mint permits nor lose any, and bring back what others
// have lost. Redisson relies on it.
func (m *Module) sound(op Op, got Answer, before, c *Call) string {
	if !aboutPermits[op.Do] || c.Config == nil || op.Do == "release" && op.Permits <= 0 || strings.HasPrefix(got.Text, "error") {
		return ""
	}
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

// aboutPermits are the operations that look at permits in use.
var aboutPermits = map[string]bool{
	"tryAcquire": true, "take": true, "withDefault": true, "release": true, "availablePermits": true, "settle": true, "takeUpTo": true,
}

// isWindow reports whether the value is a fixed window of a Redisson that keeps no
// set: it ends before all the rest, an interval away at most. If such a Redisson shares
// the limiters, every value is one.
func (m *Module) isWindow(c *Call, p *Pair) bool {
	if m.windowed {
		return p.HasValue
	}
	if !p.HasValue || p.ValueEnd == 0 || c.Config == nil || p != c.Pairs[""] || p.ValueEnd-c.Now > c.Interval() {
		return false
	}
	later := func(end int64) bool { return end == 0 || end-p.ValueEnd > 1000 }
	return later(c.ConfigEnd) && later(p.RowsEnd)
}

// windowEnd returns when a window ends: one that can't have its end, an interval from now.
func windowEnd(c *Call, p *Pair) int64 {
	if p.ValueEnd == 0 || p.ValueEnd-c.Now > c.Interval() {
		return c.after(c.Interval())
	}
	return p.ValueEnd
}

// upToDate is what a pair holds once it is up to date.
type upToDate struct {
	free   int64
	window bool // the value is one, and what is taken of it comes back as a whole
}

// BringUpToDate brings the pair in use up to date.
func (m *Module) BringUpToDate(c *Call) { m.bringUpToDate(c, c.Pair()) }

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
		p.set(rate - sum(p.Rows)) // value gone, set there: from the set
		p.ValueEnd = end
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

// recoverLeaked gives back permits that leaked: those neither free nor in use.
func (m *Module) recoverLeaked(c *Call, p *Pair) int64 {
	if len(p.Rows) > 0 && !m.windowed && !m.isWindow(c, p) {
		// A resent acquire loses its permit for good, and so do rows that another
		// rate has left behind.
		p.Value = max(p.Value, c.Rate()-sum(p.Rows))
	}
	return p.free(c.Rate())
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
	}
	switch {
	case window && (m.windowed || len(p.Rows) > 0 || p.Value < c.Rate()):
		p.Value = min(p.Value, free)
	case len(p.Rows) == 0:
		p.DelValue()
	default:
		p.set(free)
	}
}
