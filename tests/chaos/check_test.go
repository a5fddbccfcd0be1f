package chaos_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// check looks at all that the round's records and the servers tell, once all is quiet.
func (r *round) check() {
	r.checkAnswers()
	for _, l := range r.limiters {
		for _, pool := range r.pools(l) {
			s, err := l.read(r.t.Context(), r.admin, pool.id)
			if err != nil {
				r.violate("state", l.name, "reading what Redis holds: %v", err)
				continue
			}
			r.checkState(pool, s)
			if l.wild || r.mixed(pool) && r.damaged(l) {
				continue
			}
			if l.counted() {
				r.checkCount(pool, s)
				r.checkOrder(pool, s)
			} else {
				r.checkWindows(pool)
			}
			if !r.mixed(pool) {
				r.checkRefusals(pool)
			}
		}
	}
}

// A pool is a limiter, in the hands of one Client where each has permits of its own, and
// the calls that asked for its permits or changed it.
type pool struct {
	*limiter

	id    string // of the Client; empty where all share
	calls []*call
}

func (p *pool) String() string {
	if p.kind == perClient {
		return p.name + " of " + p.id
	}
	return p.name
}

func (r *round) pools(l *limiter) []*pool {
	all := map[string]*pool{"": {limiter: l}}
	if l.kind == perClient {
		clear(all)
		for id := range r.ids {
			all[id] = &pool{limiter: l, id: id}
		}
	}
	for i := range r.calls {
		c := &r.calls[i]
		if !slices.Contains(c.Limiters, l.name) {
			continue
		}
		for _, p := range all {
			if p.id == "" || p.id == c.Client {
				p.calls = append(p.calls, c)
			}
		}
	}
	pools := make([]*pool, 0, len(all))
	for _, id := range sorted(all) {
		pools = append(pools, all[id])
	}
	return pools
}

// highest is the highest rate that the limiter may have had.
func (r *round) highest(l *limiter) int64 {
	most := l.config.Rate
	for i := range r.calls {
		if c := &r.calls[i]; c.Rate > 0 && slices.Contains(c.Limiters, l.name) {
			most = max(most, c.Rate)
		}
	}
	return most + l.borrow
}

// rateChanged tells whether a call may have set another rate.
func (r *round) rateChanged(l *limiter) bool {
	return slices.ContainsFunc(r.calls, func(c call) bool { return c.Rate > 0 && slices.Contains(c.Limiters, l.name) })
}

// lostCalls tells whether calls for the limiter's permits may have been given up, or what
// they were granted behind their callers' backs not given back: its own time was over, or,
// for the limiters that can't repeat, an answer got lost.
func (r *round) lostCalls(l *limiter) bool {
	switch r.mood {
	case gentle:
	case dropping:
		if !l.isRate() {
			return true
		}
	default:
		return true
	}
	return slices.ContainsFunc(r.calls, func(c call) bool {
		return c.takes() && r.limiter(c.Limiters[0]).isRate() && (c.Answer == unknown || c.Answer == unavailable)
	})
}

// lost is what Redis may have forgotten of the limiter's permits in use, at most.
func (r *round) lost(l *limiter) int64 {
	sum := int64(0)
	for _, e := range r.events {
		sum += e.lost[l.name] + int64(e.forgot)*r.highest(l)
	}
	return sum
}

// damaged tells whether Redis may have lost keys of the limiter.
func (r *round) damaged(l *limiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.events, func(e event) bool {
		_, lost := e.lost[l.name]
		return lost || e.forgot > 0
	})
}

// checkAnswers checks that every call was answered in time, and that no answer is one
// that no fault explains. What this machine holds up is allowed for: three times as long
// as it has kept a goroutine from running at worst.
func (r *round) checkAnswers() {
	slack := r.slack()
	for i := range r.calls {
		c := &r.calls[i]
		if c.Redisson != "" {
			continue // counted apart
		}
		if took := c.End - c.Start; took > c.Bound+slack {
			r.violate("answered", c.Limiters[0], "took %v, over %v and %v for this machine: %v", took, c.Bound, slack, c)
		}
		if c.Answer == failed {
			r.violate("answered", c.Limiters[0], "an answer that nothing explains: %v", c)
		}
		if c.Answer == missing && !r.mayBeMissing(c) {
			r.violate("answered", c.Limiters[0], "the limiter has gone: %v", c)
		}
	}
}

// mayBeMissing tells whether the limiters of the call may have lost their configuration.
func (r *round) mayBeMissing(c *call) bool {
	return slices.ContainsFunc(c.Limiters, func(name string) bool {
		l := r.limiter(name)
		return l.wild || l.config.KeepAlive > 0 || r.damaged(l) || l.byDefault && !c.takes()
	})
}

// report fails the test with what is wrong, and with what happened.
func (r *round) report() {
	if len(r.violations) > 0 {
		r.t.Error(r.text())
	}
}

func (r *round) text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n%s, %s, %v, faults:", r.repeat(), r.servers, r.mood, r.length)
	for _, w := range r.weather {
		fmt.Fprintf(&text, " %s;", w.name)
	}
	for _, f := range r.faults {
		fmt.Fprintf(&text, " %s;", f.name)
	}
	const enough = 10
	told := map[string]bool{}
	more := 0
	for _, v := range r.violations {
		whose := v.limiter + " " + v.client
		about := v.check + " " + whose
		if told[about] || len(told) >= 2*enough {
			more++ // what is wrong once mostly stays so
			continue
		}
		told[about] = true
		fmt.Fprintf(&text, "\n\n%s: %s", v.check, v.text)
		if l := r.limiter(v.limiter); l != nil && !told[whose] && v.check != orderCheck {
			told[whose] = true
			fmt.Fprintf(&text, "\n%v\n%s", l, r.history(l, v.client, v.at))
		}
	}
	if more > 0 {
		fmt.Fprintf(&text, "\n\nand %d more", more)
	}
	return text.String()
}

// history is what happened to a limiter and around it until a moment, a line each. Of many
// calls those that surely did nothing are left out.
func (r *round) history(l *limiter, id string, until time.Duration) string {
	type line struct {
		at   int64
		text string
	}
	var lines []line
	for _, e := range r.events {
		if e.kind != contextEnded && e.start <= until {
			lines = append(lines, line{int64(e.start), e.String()})
		}
	}
	brief := 0
	for i := range r.calls {
		c := &r.calls[i]
		if c.Start > until || !slices.Contains(c.Limiters, l.name) || id != "" && c.Client != id && c.Rate == 0 {
			continue
		}
		if c.takes() && c.Timeout == 0 && (c.Answer == refused || c.Answer == exceeds) {
			brief++
			continue
		}
		lines = append(lines, line{int64(c.Start), c.String()})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(line.text + "\n")
	}
	fmt.Fprintf(&text, "and %d calls that took nothing", brief)
	return text.String()
}
