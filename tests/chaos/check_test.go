package chaos_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
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
			if r.mixed(pool) && r.damaged(l) {
				continue
			}
			if l.counted() {
				r.checkCount(pool, s)
			} else {
				r.checkWindows(pool)
			}
			if !r.mixed(pool) {
				r.checkRefusals(pool)
			}
		}
	}
}

// A pool is a limiter, or one Client's part if each has permits of its own, and the calls that
// asked for its permits or changed it, as they count.
type pool struct {
	*limiter

	id    string // of the Client; empty if all share
	calls []*call
}

func (p *pool) String() string {
	if p.kind == perClient {
		return p.name + " of " + p.id
	}
	return p.name
}

func (r *round) pools(l *limiter) (all []*pool) {
	ids := []string{""}
	if l.kind == perClient {
		ids = sorted(r.ids)
	}
	for _, id := range ids {
		p := &pool{limiter: l, id: id}
		for i := range r.calls {
			if c := &r.calls[i]; slices.Contains(c.Limiters, l.name) && (id == "" || id == c.Client) {
				p.calls = append(p.calls, c.counted(l.name))
			}
		}
		all = append(all, p)
	}
	return all
}

// rates are the lowest and the highest rate that the limiter may have had.
func (r *round) rates(l *limiter) (least, most int64) {
	least, most = l.config.Rate, l.config.Rate
	for i := range r.calls {
		if c := &r.calls[i]; c.Config.Rate > 0 && slices.Contains(c.Limiters, l.name) {
			least, most = min(least, c.Config.Rate), max(most, c.Config.Rate)
		}
	}
	return least + l.borrow, most + l.borrow
}

func (r *round) highest(l *limiter) int64 {
	_, most := r.rates(l)
	return most
}

// lostCalls reports whether calls for the limiter's permits may have been given up, or what they were granted behind their
// callers' backs not given back: its own time was over, or, for the limiters that can't repeat, an answer got lost.
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
		return c.takes() && (r.mood == gentle || r.limiter(c.Limiters[0]).isRate()) && c.of(op.Unknown, op.Unavailable)
	})
}

// lost is what Redis may have forgotten of the limiter's permits in use, at most: all that the rate allows, and what
// settlements charged, free or not.
func (r *round) lost(l *limiter, charged int64) int64 {
	sum := int64(0)
	for _, e := range r.events {
		sum += e.lost[l.name] + int64(e.forgot)*(r.highest(l)+charged)
	}
	return sum
}

func (r *round) damaged(l *limiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.events, func(e event) bool {
		_, lost := e.lost[l.name]
		return lost || e.forgot > 0
	})
}

// checkAnswers checks that every call was answered in time, and that no answer is one that no fault explains. What this machine
// holds up is allowed for: three times as long as it has kept a goroutine from running at worst.
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
		if c.Outcome == op.Failed {
			r.violate("answered", c.Limiters[0], "an answer that nothing explains: %v", c)
		}
		if c.Outcome == op.Missing && !r.mayBeMissing(c) {
			r.violate("answered", c.Limiters[0], "the limiter has gone: %v", c)
		}
	}
}

func (r *round) mayBeMissing(c *call) bool {
	return slices.ContainsFunc(c.Limiters, func(name string) bool {
		l := r.limiter(name)
		return l.config.KeepAlive > 0 || r.damaged(l) || l.byDefault && !c.takes()
	})
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
	reported := map[string]bool{}
	more := 0
	for _, v := range r.violations {
		whose := v.limiter + " " + v.client
		about := v.check + " " + whose
		if reported[about] || len(reported) >= 2*enough {
			more++ // a violation mostly stays
			continue
		}
		reported[about] = true
		fmt.Fprintf(&text, "\n\n%s: %s", v.check, v.text)
		if l := r.limiter(v.limiter); l != nil && !reported[whose] {
			reported[whose] = true
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
		if c.Start > until || !slices.Contains(c.Limiters, l.name) || id != "" && c.Client != id && c.Config.Rate == 0 {
			continue
		}
		if c.takes() && c.Timeout == 0 && (c.refused() || c.Outcome == op.Exceeds) {
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

// Of a limiter that programs with Redisson use the checks look at all but the sum of value and members, and at refusals:
// grants, ours and theirs together, are bounded by the rate; members are those of permits that callers hold. If Redis lost
// keys, Redisson grants what it then finds, and nothing is checked.

// mixed reports whether programs with Redisson may have asked for the pool's permits.
func (r *round) mixed(p *pool) bool {
	return p.redisson != "" && (p.kind == overall || r.ids[p.id])
}

// checkState checks what Redis holds of a limiter at any moment, since each script is one: the value is the rate at most, value
// and permits in use are the rate together, and what must have a time to live has one.
//
// Where Redis lost keys the sum is not looked at. A client's own pair follows a new rate, or a new end, only when that client
// comes by: there the sum is not looked at once the rate has changed, and the end only by whether there is one.
func (r *round) checkState(p *pool, s *state) {
	if !p.isRate() {
		r.checkKeyLives(p, s)
		return
	}
	if !s.config.There {
		return
	}
	rate, err := s.config.Field("rate")
	if err != nil {
		r.violatePool(p, "state", "%v\n%v", err, s)
		return
	}
	if !r.mixed(p) {
		r.checkSum(p, s, rate)
	}
	if !r.ids[p.id] {
		r.checkLives(p, s)
	}
}

func (r *round) checkSum(p *pool, s *state, rate int64) {
	exact := true
	if p.kind == perClient {
		if least, most := r.rates(p.limiter); least < most {
			rate, exact = most, false
		}
	}
	if p.kind == perClient && p.overrides && !s.pair.HasValue {
		return // a client's own value goes with an override, for its next request to sum up, and none may have come
	}
	if why := s.pair.Broken(rate, exact); why != "" && !r.damaged(p.limiter) {
		r.violatePool(p, "sum", "%s\n%v", why, s)
	}
}

// checkLives: a time to live of the config is one of value and set too, and none is none; a client's own pair always has one. A
// server that was stopped between two commands of a script, before Redis 7.2, counts the times to live from different moments.
func (r *round) checkLives(p *pool, s *state) {
	for _, k := range []model.Key{s.value, s.permits} {
		if !k.There {
			continue
		}
		switch {
		case p.kind == perClient:
			if k.TTL < 0 {
				r.violatePool(p, "lives", "a client's own pair lives for ever\n%v", s)
			}
		case r.damaged(p.limiter):
		case (s.config.TTL < 0) != (k.TTL < 0), s.config.TTL >= 0 && (s.config.TTL-k.TTL).Abs() > time.Second:
			r.violatePool(p, "lives", "its keys end at different times\n%v", s)
		}
	}
}

// checkKeyLives checks that the keys of the other limiters end, no later than their rule can need, unless the clock was set.
func (r *round) checkKeyLives(p *pool, s *state) {
	longest := p.config.Interval
	if p.kind == bucket {
		longest *= time.Duration((p.config.Rate+p.borrow)/p.refill + 2)
	}
	for _, k := range []model.Key{s.value, s.permits} {
		if k.There && (k.TTL < 0 || k.TTL > longest+time.Second && r.mood != stepping) {
			r.violatePool(p, "lives", "a key lives for %v, of %v at most\n%v", k.TTL, longest, s)
		}
	}
}

// watch looks at what Redis holds of the limiters while all goes on.
func (r *round) watch() {
	for {
		for _, l := range r.limiters {
			select {
			case <-r.over.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			// Of those whose pairs clients have for themselves, at the end only.
			if l.kind == perClient {
				continue
			}
			ctx, cancel := context.WithTimeout(r.over, time.Second)
			s, err := l.read(ctx, r.admin, "")
			cancel()
			switch {
			case err == nil:
				r.checkNow(l, s)
			case s != nil:
				r.violate("state", l.name, "%v\n%v", err, s)
			}
		}
	}
}

// checkNow is checkState beside calls and faults that go on, whose records are not whole.
func (r *round) checkNow(l *limiter, s *state) {
	if r.mood == losing || r.damaged(l) || !l.isRate() || !s.config.There {
		return
	}
	p := &pool{limiter: l}
	if rate, err := s.config.Field("rate"); err == nil && l.redisson == "" {
		r.checkSum(p, s, rate)
	}
	r.checkLives(p, s)
}

// checkConnections waits until the servers have no connection of the round's Clients.
func (r *round) checkConnections() {
	const patience = time.Minute
	for _, s := range r.arena.masters(r.t) {
		rdb := s.Client(r.t, &redistest.Options{MaxRetries: -1})
		var left []string
		for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
			list, err := rdb.ClientList(r.t.Context()).Result()
			require.NoError(r.t, err)
			left = nil
			for line := range strings.Lines(list) {
				if strings.Contains(line, "name="+roundConnection) {
					left = append(left, line)
				}
			}
			if len(left) == 0 {
				break
			}
		}
		if len(left) > 0 {
			r.violate("leftovers", "", "connections that stay: %v", left)
		}
	}
}

// checkGoroutines waits until there are no more goroutines than before the round.
func checkGoroutines(t *testing.T, p *plan, before int) {
	t.Helper()
	for until := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			stacks := make([]byte, 1<<20)
			t.Errorf("-seed %d -round %d: %d goroutines, and %d before:\n%s",
				p.seed, p.number, runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
			return
		}
	}
}

// state is what Redis holds of a limiter, or of one client's part if each has its own.
type state struct {
	config, value, permits model.Key

	pair  *model.Pair // of a RateLimiter
	inUse int64       // those included that have run out and were not reclaimed
}

func (s *state) String() string {
	return fmt.Sprintf("config %v\nvalue %v\nset %v: %d permits", s.config, s.value, s.permits, s.inUse)
}

// read returns what Redis holds of the limiter, and removes keys.
func (l *limiter) read(ctx context.Context, rdb redis.Scripter, id string, remove ...any) (*state, error) {
	config, value, permits := l.keys(id)
	keys := []string{value, permits}
	if config != "" {
		keys = append(keys, config)
	}
	now, all, err := model.Look(ctx, rdb, keys, remove...)
	if err != nil {
		return nil, err
	}
	s := &state{value: all[0], permits: all[1]}
	if l.isRate() {
		s.config = all[2]
		if s.pair, err = model.PairOf(s.value, s.permits, now); err == nil {
			s.inUse = s.pair.Grants().InUse()
		}
		return s, err
	}
	s.inUse, err = l.countUse(s)
	return s, err
}

// countUse returns how many permits the state of another limiter says are in use.
func (l *limiter) countUse(s *state) (int64, error) {
	switch {
	case l.kind == bucket && s.permits.There && !s.value.There:
		return l.config.Rate + l.borrow, nil // so it is taken
	case l.kind == bucket && s.value.There:
		tokens, err := s.value.Number()
		return l.config.Rate - tokens, err
	case !s.permits.There:
		return 0, nil
	case l.kind == window:
		return s.value.Number()
	}
	return int64(len(s.permits.Content) / 2), nil
}
