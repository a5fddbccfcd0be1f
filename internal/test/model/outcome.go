package model

import (
	"reflect"
	"slices"
)

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

// An Outcome is what an operation may come to.
type Outcome struct {
	Answer

	*State              // of the limiter
	To         []*State // of the others
	Miscounted bool     // rows were taken for permits, and their numbers differ
}

func outcomes(c *Call, may []Possible) (all []Outcome) {
	for _, some := range may {
		with := *c
		with.State, with.To = c.Clone(), nil
		for _, other := range c.To {
			with.To = append(with.To, other.Clone())
		}
		answer, given := some(&with)
		o := Outcome{Answer: answer, State: with.State, To: with.To, Miscounted: with.Miscounted}
		if given && !slices.ContainsFunc(all, func(as Outcome) bool { return reflect.DeepEqual(as, o) }) {
			all = append(all, o)
		}
	}
	return all
}

// Outcomes returns what an operation may come to. What the call holds stays as it is.
func (r *Release) Outcomes(c *Call, op Op) []Outcome { return outcomes(c, r.may(op)) }

// Outcomes returns what an operation may come to. What the call holds stays as it is.
func (m *Module) Outcomes(c *Call, op Op) []Outcome { return outcomes(c, m.may(op)) }
