package chaos_test

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/linear"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// checkCount compares the permits that are in use, if nothing comes back by itself, with the
// callers' answers. Between two figures they must lie:
//
//   - at least what was certainly granted, less what was given back or may have been;
//     fewer would mean that permits can be granted twice. What Redis lost comes off.
//   - at most what was granted or may have been, less what was certainly given back; more
//     would mean that permits got lost. That is unknown if Redis lost data, since a repeat can
//     take again what was lost, and for leases if any call got lost: it is unknown how many
//     a lease had. If a process was killed, that is what its calls of that moment may have
//     been granted, and what a lease may hold.
//
// A Reset frees what is in use when it happens, and what callers release of that later
// may be others': only what was granted behind the last one is in use for sure, and only
// what was granted before one is surely not.
func (r *round) checkCount(p *pool, s *state) {
	const check = "count"
	exact := !r.lostCalls(p.limiter)
	var sure, maybe, back, maybeBack, charged int64
	begun, over := p.resets()
	for _, c := range p.calls {
		if c.Name == charge {
			charged += c.Permits
		}
		switch {
		case c.granted() && c.End < begun: // it is free
		case over > 0 && c.granted() && c.Start <= over:
			maybe += c.Permits
		case over > 0 && c.Name == op.Release:
			maybeBack += c.Permits
		case c.Name == op.Release && c.Redisson != "":
			maybeBack += c.Permits // to the value, if it leaves the members
		case c.Name == op.Release && c.Outcome == op.Done:
			back += c.Permits
		case c.Name == op.Release && c.of(op.Unknown, op.Killed):
			maybeBack += c.Permits
		case !c.takes():
		case c.granted():
			sure += c.Permits
		case c.Outcome == op.Unknown, (!exact || c.Redisson != "") && p.mayKeep(c), r.cutOff(p, c):
			maybe += c.Permits
		}
	}
	lost := r.lost(p.limiter, charged)
	low, high := sure-back-maybeBack-lost, sure+maybe-back+r.strandedLeases(p.limiter)
	if s.inUse < low {
		r.violatePool(p, check, "%d permits are in use, of at least %d: some can be granted twice\n"+
			"granted %d, maybe %d more; given back %d, maybe %d more; lost by Redis %d\n%v",
			s.inUse, low, sure, maybe, back, maybeBack, lost, s)
	}
	if most := r.highest(p.limiter) + lost + r.minted(p) + charged; sure-back-maybeBack > most {
		r.violatePool(p, check, "callers hold %d permits, of %d at most", sure-back-maybeBack, most)
	}
	if r.damaged(p.limiter) || p.lease > 0 && !exact {
		return
	}
	if s.inUse > high {
		r.violatePool(p, check, "%d permits are in use, of %d at most: some are lost\n"+
			"granted %d, maybe %d more; given back %d, maybe %d more\n%v",
			s.inUse, high, sure, maybe, back, maybeBack, s)
	}
}

// resets tells of the pool's Resets when the last that was answered began, and when all
// of them were over, 0 where there was none.
func (p *pool) resets() (begun, over time.Duration) {
	for _, c := range p.calls {
		switch {
		case c.Name != op.Reset || c.of(op.Missing, op.Unavailable, op.Closed, op.Gone):
		case c.Outcome == op.Done:
			begun, over = max(begun, c.Start), max(over, c.End)
		default:
			over = math.MaxInt64
		}
	}
	return begun, over
}

// mayKeep reports whether permits may stay in use after a call that got none: they are given
// back after its answer, which may fail if calls get lost.
func (p *pool) mayKeep(c *call) bool {
	return c.Outcome == op.Gone || c.Waits() && (c.refused() || c.of(op.Closed, op.Unavailable))
}

// checkRefusals checks that no call was refused what must have been free: all that calls
// before, and beside, may have in use leaves room for it at the lowest rate there was.
//
// What was granted is in use until it was certainly given back, or, if permits run out, for an interval after its
// answer; what may have been granted is taken to be in use to the end. It looks at calls that ask once: those that
// wait may be refused for one before them. It says nothing of leases, which hold unseen permits, of refusals
// remembered, which do not see others' releases, of buckets, which fill slowly, if keys got lost or the clock was
// set, of limiters other than RateLimiters if calls got lost, since those can't tell a refused attempt from one
// that never came, and if permits run out while requests are doubled: the first copy may be refused, and the
// second take permits that no caller gets.
func (r *round) checkRefusals(p *pool) {
	doubled := slices.ContainsFunc(r.events, func(e event) bool { return e.kind == doubledRequest })
	if doubled && !p.counted() {
		return
	}
	if p.lease > 0 || p.refusals || p.kind == bucket && !p.counted() || r.mood == stepping || r.damaged(p.limiter) ||
		!p.isRate() && r.lostCalls(p.limiter) {
		return
	}
	var taken, back []change
	_, reset := p.resets()
	for _, c := range p.calls {
		switch {
		case reset > 0 && c.Name == op.Release: // what it names may have been free before
		case c.Name == op.Release && c.Outcome == op.Done && p.counted():
			back = append(back, change{c.End, c.Permits})
		case !c.takes():
		case c.granted():
			taken = append(taken, change{c.Start, c.Permits})
			back = append(back, change{c.End + p.config.Interval + p.late() + 2*time.Millisecond, c.Permits})
		case c.of(op.Unknown, op.Killed) || p.mayKeep(c):
			taken = append(taken, change{c.Start, c.Permits})
		}
	}
	before, since := sums(taken), sums(back)
	lowest, _ := r.rates(p.limiter)
	for _, c := range p.calls {
		if !c.refused() || c.Timeout > 0 || len(c.Limiters) > 1 {
			continue
		}
		// A call whose grant a Reset undid, before its answer came, is refused when it is repeated.
		undoes := func(o *call) bool { return o.Name == op.Reset && o.Start < c.End && c.Start < o.End }
		inUse := before(c.End) - since(c.Start)
		if inUse+c.Permits > lowest || r.lostCalls(p.limiter) && slices.ContainsFunc(p.calls, undoes) {
			continue
		}
		r.violatePool(p, "refused", "at most %d of %d permits were in use: %v", inUse, lowest, c)
		return
	}
}

// change is permits taken or given back at a moment.
type change struct {
	at      time.Duration
	permits int64
}

// sums returns what tells the sum of all changes before a moment.
func sums(all []change) func(time.Duration) int64 {
	slices.SortFunc(all, func(a, b change) int { return int(a.at - b.at) })
	running := make([]int64, len(all)+1)
	for i, c := range all {
		running[i+1] = running[i] + c.permits
	}
	return func(at time.Duration) int64 {
		return running[sort.Search(len(all), func(i int) bool { return all[i].at >= at })]
	}
}

// checkWindows looks at the grants from outside: a call that was granted permits took them
// at some moment between its beginning and its end, so all calls that lie wholly within a
// span took theirs in it.
//
// What a span may see is the highest rate there was, once more for each time that Redis
// may have forgotten all that was in use, or a Reset freed it, and what was given back in it. The span is
// shorter than the interval by what the server's clock was set forward, by a lease's life,
// and by the millisecond in which a grant is dated. This can't see grants of calls that
// lie across the span's ends.
func (r *round) checkWindows(p *pool) {
	if worst := r.worstSpan(p); worst.sum > worst.allowed+r.minted(p) {
		r.violatePool(p, "window", "%d permits were granted in %v from %s ms on, of %d at most",
			worst.sum, worst.length, millis(worst.start), worst.allowed+r.minted(p))
	}
}

// A span is a time, the permits that were granted in it, and how many may have been.
type span struct {
	start, length time.Duration
	sum, allowed  int64
}

// worstSpan is the span, from a grant on, that saw the most permits more than it may see.
func (r *round) worstSpan(p *pool) (worst span) {
	var grants []*call
	for _, c := range p.calls {
		if c.granted() && c.Name != charge {
			grants = append(grants, c)
		}
	}
	for _, first := range grants {
		for _, length := range p.spans() {
			if s := r.span(p, grants, first.Start, length); s.sum-s.allowed > worst.sum-worst.allowed || worst.length == 0 {
				worst = s
			}
		}
	}
	return worst
}

// spans are the lengths of the server's time that are looked at.
func (p *pool) spans() []time.Duration {
	interval := p.config.Interval - p.lease
	if p.kind == bucket {
		return []time.Duration{interval / 2, interval, 2 * interval}
	}
	return []time.Duration{interval}
}

// span returns what calls that were granted permits took in a span.
func (r *round) span(p *pool, grants []*call, start, length time.Duration) span {
	s := span{start: start, length: length, allowed: r.allowance(p, length)}
	end := start + length - 2*time.Millisecond
	for _, e := range r.events {
		if e.start > end {
			continue
		}
		if e.end >= start {
			end -= e.forward
			s.allowed += e.lost[p.name]
		}
		// Servers that part ways may do so until the round is over.
		s.allowed += int64(e.forgot) * r.highest(p.limiter)
	}
	for _, c := range p.calls {
		if c.Name == op.Reset && c.Start <= end && (c.End >= start || c.Outcome != op.Done) {
			s.allowed += r.highest(p.limiter)
		}
		back := c.Name == op.Release && (c.Outcome == op.Done && c.End >= start || c.of(op.Unknown, op.Killed))
		if back && c.Start <= end {
			s.allowed += c.Permits
		}
	}
	for _, c := range grants {
		if c.Start >= start && c.End <= end {
			s.sum += c.Permits
		}
	}
	return s
}

// allowance is how many permits a span of that length may see.
func (r *round) allowance(p *pool, length time.Duration) int64 {
	most := r.highest(p.limiter)
	switch p.kind {
	case window:
		return 2 * most // of one at its end and of the next at its beginning
	case bucket:
		// The first refill may come up to a second early.
		refills := int64((length+time.Second)/p.config.Interval) + 1
		return most + refills*p.refill
	}
	return most
}

// orderTime is how long an order of a limiter's calls is searched for, about.
const orderTime = 700 * time.Millisecond

// orderCheck is the name of a check whose violations tell all calls that matter.
const orderCheck = "order"

// checkOrder has the model of a limiter look for an order of its calls that explains all
// answers. It does so if nothing is lost and nothing comes back by itself, for the calls that
// ask Redis each time; where a limiter gets its rate from the first one that asks, not of those
// that are also asked for together with others. Redisson's calls are not in the model.
//
// If the search takes too long, it leaves out the calls after some point, or all.
func (r *round) checkOrder(p *pool, s *state) {
	switch {
	case r.mood == losing || r.mood == stepping || r.damaged(p.limiter) || r.mixed(p):
		return
	case p.kind != overall && p.kind != keyed || !p.counted() || p.lease > 0 || p.refusals:
		return
	case p.brings() && len(p.family) > 0:
		return
	}
	h := r.historyOf(p, s)
	result, ordered := h.Check(orderTime)
	r.orders = append(r.orders, order{p.kind, result, len(h.Records), ordered})
	if result == porcupine.Illegal {
		r.violatePool(p, orderCheck, "%v", h)
	}
}

// An order is the result of the search for one.
type order struct {
	kind    kind
	result  porcupine.CheckResult
	calls   int
	ordered int // the first ones, that have an order
}

// found tells in a word how far an order was found.
func (o *order) found() string {
	switch {
	case o.result == porcupine.Illegal:
		return "none"
	case o.result == porcupine.Ok:
		return "whole"
	case o.ordered > 0:
		return "part"
	}
	return "undecided"
}

// brings reports whether handles give the limiter its rate.
func (l *limiter) brings() bool { return l.byDefault || l.kind == keyed }

// historyOf returns the calls on the limiter as the model takes them, and what is free
// when they are over.
func (r *round) historyOf(p *pool, s *state) *linear.History {
	h := &linear.History{About: p.limiter.String(), Phantom: true}
	if !p.brings() {
		h.Start = linear.Full(p.config.Rate, p.config.Interval.Milliseconds())
	}
	moment, reserved := r.moments(p), map[string]int{}
	for i, c := range p.made {
		if c.Name == op.Reserve {
			reserved[c.Reservation] = i + 1
		}
	}
	for i, c := range p.made {
		record, some := r.recordOf(p, c)
		if !some {
			continue
		}
		record.Began, record.Ended = moment(c.Start), moment(c.End)
		record.Reservation = reserved[c.Reservation]
		if c.Lasts > 0 {
			record.Override = i + 1
			h.Records = append(h.Records, endOf(record, c, moment))
		}
		h.Records = append(h.Records, record)
	}
	slices.SortStableFunc(h.Records, func(a, b linear.Record) int { return cmp.Compare(a.Began, b.Began) })
	if rate, err := s.config.Field("rate"); err == nil {
		last := linear.Record{Call: linear.Call{Op: available}, Final: true}
		last.Outcome, last.Free = op.Done, max(0, rate-s.inUse)
		last.Began, last.Ended = moment(r.now()), moment(r.now())+1
		h.Records = append(h.Records, last)
	}
	for i := range h.Records {
		h.Records[i].Number = i + 1
	}
	return h
}

// endOf returns the end of an override, which the server's clock brings in whole milliseconds after it was set.
// It may come between the moment before the first at which it can have come and that moment.
func endOf(override linear.Record, c *call, moment func(time.Duration) int64) linear.Record {
	end := override
	end.Name, end.Began, end.Ended = linear.End, moment(c.Start+c.Lasts-time.Millisecond)-1, moment(c.End+c.Lasts+time.Millisecond)+1
	return end
}

func TestHistoryOf_OverrideMayEndWhileCallThatSeesItsEndIsOnItsWay(t *testing.T) {
	t.Parallel()
	config, override := rratelimiter.Config{Rate: 9, Interval: time.Hour}, rratelimiter.Config{Rate: 5, Interval: time.Hour}
	p := &pool{limiter: &limiter{name: "l", config: config}}
	p.made = []*call{
		{Op: op.Op{Name: op.Set, Config: override, Keep: true, Lasts: 9 * time.Millisecond}, Answer: op.Answer{Outcome: op.Done, OK: true}, End: 1},
		{Op: op.Op{Name: op.Available}, Answer: op.Answer{Outcome: op.Done, Free: 9}, Start: 2, End: 9 * time.Millisecond},
	}
	p.calls = p.made
	r := &round{began: time.Now()}
	result, _ := r.historyOf(p, &state{}).Check(orderTime)
	require.Equal(t, porcupine.Ok, result)
}

// moments returns what counts the moments at which calls began and ended.
func (r *round) moments(p *pool) func(time.Duration) int64 {
	var all []time.Duration
	for _, c := range p.calls {
		all = append(all, c.Start, c.End)
	}
	slices.Sort(all)
	return func(at time.Duration) int64 {
		i, _ := slices.BinarySearch(all, at)
		return int64(i)
	}
}

// recordOf returns a call as the model takes it, if it has it.
func (r *round) recordOf(p *pool, c *call) (record linear.Record, some bool) {
	if !linear.Has(c.Name) {
		return record, false
	}
	record.Op, record.Answer = c.Op, c.Answer
	record.Permits, record.Keep = c.asks(p.name), c.Keep || c.Lasts > 0
	record.Limit = 0 // figures are of Redis's moment, and what is doubtful here is a guess
	record.Client = slices.IndexFunc(r.clients, func(plan clientPlan) bool { return plan.name == c.Worker })
	if p.brings() {
		if c.Config.Rate == 0 && c.Name != op.Release {
			record.ByDefault, record.Config = true, p.config
		}
		if c.Lasts > 0 {
			record.Base = p.config.Rate
		}
	}
	if c.Outcome == op.Killed && c.Timeout == 0 {
		record.Timeout = c.Ends // over before the process was, it may have been given back
	}
	record.Doubts = r.doubts(c)
	record.Outcome = outcomeOf(c, record.Doubts > 0)
	return record, true
}

// outcomeOf returns a call's outcome as the model takes it.
func outcomeOf(c *call, doubtful bool) op.Outcome {
	// What a call that waited was granted too late is given back behind its back.
	late := c.takes() && c.Waits()
	switch {
	case late && (c.refused() && doubtful || c.of(op.Closed, op.Unavailable)):
		return op.Gone
	case c.Outcome == op.Closed, c.Outcome == op.Killed && (c.Name == op.Available || c.Name == op.Peek):
		return op.Unavailable
	case c.of(op.Killed, op.Failed):
		return op.Unknown
	}
	return c.Outcome
}

// doubts returns how many requests of the call may have gone without an answer: no more
// than there was reason to repeat it.
func (r *round) doubts(c *call) (doubts int) {
	took := c.End - c.Start
	for _, plan := range r.clients {
		if plan.name == c.Worker && took > plan.callTimeout/4 {
			doubts++
		}
	}
	if r.mood == gentle {
		return doubts
	}
	for i := range r.events {
		e := &r.events[i]
		if e.kind == contextEnded || e.kind == clientClosed || e.start > c.End || e.end < c.Start {
			continue
		}
		ofOthers := slices.ContainsFunc(r.clients, func(plan clientPlan) bool { return e.text == plan.name && plan.name != c.Worker })
		if !ofOthers {
			doubts++
		}
	}
	return doubts
}
