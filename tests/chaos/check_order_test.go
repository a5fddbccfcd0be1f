package chaos_test

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rratelimiter/rratelimiter/internal/test/linear"
)

// orderTime is how long an order of a limiter's calls is searched for, about.
const orderTime = 700 * time.Millisecond

// orderCheck is the name of a check whose violations tell all calls that matter.
const orderCheck = "order"

// checkOrder has the model of a limiter look for an order of its calls that explains all
// answers. It does so where nothing is lost and nothing comes back by itself, of the calls
// that ask Redis each time; where a limiter gets its rate from the first one that asks, not
// of those that are also asked for together with others. Redisson's calls are not in the
// model.
//
// Where the search takes too long it says nothing of the calls after a while, or of none.
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
		r.violatePool(p, orderCheck, "%v", h.Shrunk())
	}
}

// An order is what came of the search for one.
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

// brings tells whether handles give the limiter its rate.
func (l *limiter) brings() bool { return l.byDefault || l.kind == keyed }

// historyOf returns the calls on the limiter as the model takes them, and what is free
// when they are over.
func (r *round) historyOf(p *pool, s *state) *linear.History {
	h := &linear.History{About: p.limiter.String(), Phantom: true}
	if !p.brings() {
		h.Start = linear.Full(p.config.Rate, p.config.Interval.Milliseconds())
	}
	moment := r.moments(p)
	for _, c := range p.calls {
		record, some := r.recordOf(p, c)
		if some {
			record.Began, record.Ended = moment(c.Start), moment(c.End)
			h.Records = append(h.Records, record)
		}
	}
	slices.SortStableFunc(h.Records, func(a, b linear.Record) int { return cmp.Compare(a.Began, b.Began) })
	if rate, err := s.config.Field("rate"); err == nil {
		last := linear.Record{Call: linear.Call{Name: linear.Available}, Final: true}
		last.Outcome, last.Free = linear.Done, max(0, rate-s.inUse)
		last.Began, last.Ended = moment(r.now()), moment(r.now())+1
		h.Records = append(h.Records, last)
	}
	for i := range h.Records {
		h.Records[i].Number = i + 1
	}
	return h
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

var linearNames = map[string]linear.CallName{
	opTry: linear.Try, opWait: linear.Try, opAcquire: linear.Acquire, opTake: linear.Take, opUpTo: linear.UpTo, opPeek: linear.Peek, opReset: linear.Reset, opAll: linear.All, opRelease: linear.Release,
	opUpdate: linear.Update, opSetKeep: linear.Set, opTrySet: linear.TrySet, opAvailable: linear.Available,
}

// recordOf returns a call as the model takes it, if it has it.
func (r *round) recordOf(p *pool, c *call) (record linear.Record, some bool) {
	name, some := linearNames[c.Op]
	if !some {
		return record, false
	}
	record.Call = linear.Call{Name: name, Permits: c.Permits, Timeout: c.Timeout, Keep: c.Op == opUpdate || c.Op == opSetKeep}
	if c.Op == opUpTo {
		record.Permits = c.Asked
		if c.Answer == granted {
			record.Taken = c.Permits
		}
	}
	record.Client = slices.IndexFunc(r.clients, func(plan clientPlan) bool { return plan.name == c.Worker })
	switch {
	case (c.takes() || c.Op == opPeek || c.Op == opReset) && p.brings():
		record.ByDefault, record.Config = true, p.config
	case c.Rate > 0:
		record.Config = p.configOf(c)
	}
	if c.Answer == killed && c.Timeout == 0 {
		record.Timeout = c.Ends // over before the process was, it may have been given back
	}
	record.Doubts = r.doubts(c)
	record.OK, record.Free = c.Answer == granted || c.Did, c.Free
	record.Outcome = outcomeOf(c, record.Doubts > 0)
	return record, true
}

// outcomeOf returns what the model is told of a call's answer.
func outcomeOf(c *call, doubtful bool) linear.Outcome {
	// What a call that waited was granted too late is given back behind its back.
	late := c.takes() && (c.Timeout > 0 || c.Op == opAcquire)
	switch c.Answer {
	case granted, done:
		return linear.Done
	case refused:
		if late && doubtful {
			return linear.Cancelled
		}
		return linear.Done
	case gone:
		return linear.Cancelled
	case closed, unavailable:
		if late {
			return linear.Cancelled
		}
		return linear.Unsent
	case missing:
		return linear.NoRate
	case exceeds:
		return linear.Exceeds
	case killed:
		if c.Op == opAvailable || c.Op == opPeek {
			return linear.Unsent
		}
	}
	return linear.Unknown
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
