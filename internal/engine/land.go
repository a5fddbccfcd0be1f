package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/limit"
)

// complete gives the callers of a batch their answers.
func (q *queue) complete(b *batch, o lane.Outcome, err error) {
	if err != nil || o.Taken > 0 {
		q.engine.Granted(q.config)
	}
	whole := err == nil && o.Taken == b.Sum && b.ahead.limiter == nil && !b.figures && !b.reserves && !b.pass && b.call.Short == nil
	if !whole {
		b.record(o, err)
	}
	var log *merge.Log
	if err == nil {
		log = b.grantedLog(o)
	}
	now := time.Now()
	q.lock()
	all := whole && b.grantAll(o)
	if !all {
		q.completeEach(b, o, err, now)
	}
	if b.own { // soon the requests are their callers' again
		b.noteEach(log, now)
	}
	q.calls--
	q.next(now)
	if !all {
		q.forget(b)
	}
	q.wakeAll(b)
	q.unlock()
	if !b.own {
		b.limiter.noteMember(log, b.member, o.Taken, b.sent, now, b.shared)
	}
	b.free()
}

// grantAll answers the batch in the usual case: all its requests are granted, with nothing else to say about them.
func (b *batch) grantAll(o lane.Outcome) bool {
	usual := b.queue.leases == nil
	for _, r := range b.requests {
		usual = usual && r.State == lane.Sent && !r.Undo
	}
	if !usual {
		b.record(o, nil)
		return false
	}
	for _, r := range b.requests {
		r.answer.Granted, r.answer.Taken, r.State = true, r.Permits, lane.Answered
	}
	return true
}

// completeEach sets the answers of a batch, and gives back what is not wanted any more.
func (q *queue) completeEach(b *batch, o lane.Outcome, err error, now time.Time) {
	short := b.call.Short
	var unwanted []grant
	merged := int64(0) // permits of unwanted grants that share a member
	b.recordForPlanner(o, err, now)
	q.updateFiguresBy(b, o, err)
	granted, doubtful, lined := int64(0), int64(0), false
	for i, r := range b.requests {
		var a lane.Result
		failed := err
		if err == nil {
			a = b.results[i]
		}
		if a.Exceeds {
			failed = errExceeds(r.Permits, o.Limit)
		}
		if a.Decision.Granted {
			granted += a.Taken
			switch {
			case r.State == lane.Sent && short == nil:
			case b.own:
				unwanted = append(unwanted, b.grant(i, a.Taken, o))
			default:
				merged += a.Taken
			}
		}
		switch {
		case r.State != lane.Sent:
			if errors.Is(err, limit.ErrUnknownOutcome) && !r.UpTo {
				doubtful += r.Permits
			}
			if r.inLine {
				q.line.remove(r)
			}
		case b.mixed && errors.Is(err, limit.ErrNotInitialized):
			r.State = lane.Gathered
			q.line.askUnmixed(r)
		case a.Decision.Granted && short != nil:
			q.answer(b, i, lane.Result{}, o, short)
		case r.MayWait && failed == nil && !a.Decision.Granted && !q.engine.lanes.Closed() && !r.overdue(now) && !r.hopeless(a, b.sent):
			q.enqueueWaiter(b, r, a, o, now)
			lined = true
		default:
			q.answer(b, i, a, o, failed)
		}
	}
	if b.pass {
		q.passing, q.line.unmixed = false, q.line.unmixed && err != nil
		q.line.answeredBatch(now)
	}
	if lined {
		q.endLeases()
	}
	if doubtful > 0 {
		q.engine.givenUp(q, doubtful, err)
	}
	if merged > 0 {
		unwanted = append(unwanted, b.grant(0, merged, o))
	}
	for _, one := range unwanted {
		q.giveBack(one)
	}
	if b.ahead.limiter != nil {
		q.keepLease(b, o, granted, merged > 0 || short != nil)
	}
}

// record records how the batch ended, and computes the results of its requests.
func (b *batch) record(o lane.Outcome, err error) {
	if b.ahead.permits > 0 {
		b.DropLast()
	}
	if err != nil {
		return
	}
	b.results = b.Results(b.results[:0], o)
	if b.audit && (len(o.RetryAfters) > 0 || b.upToAlone && o.Taken < b.Sum) {
		b.limiter.auditDone(time.Now(), o.Interval)
	}
}

// enqueueWaiter puts a refused request in line.
func (q *queue) enqueueWaiter(b *batch, r *request, a lane.Result, o lane.Outcome, now time.Time) {
	r.State, r.refused = lane.Gathered, true
	if r.inLine {
		q.line.refused(r, a, o.Interval, aliveBy(b.sent, o.Keep))
		return
	}
	q.line.enter(r, a, o.Interval, aliveBy(b.sent, o.Keep), now)
	if q.changes.Load() != b.changes { // the refusal is too old
		q.line.again = true
	}
}

// answer sets the answer of a batch's request.
func (q *queue) answer(b *batch, place int, told lane.Result, o lane.Outcome, err error) {
	r := b.requests[place]
	a := &r.answer
	a.Decision, a.Taken = told.Decision, told.Taken
	if r.inLine {
		q.line.drop(r)
	}
	if q.engine.lanes.Closed() && r.MayWait && err == nil && !a.Granted {
		err = limit.ErrClosed
	}
	switch {
	case !a.Granted:
		a.RetryAfter = b.delayRetry(r, a.RetryAfter)
	case r.Undo:
		a.Undo = q.undo(b.grant(place, a.Taken, o))
	case r.Reserve:
		reserved := b.grant(place, a.Taken, o)
		q.engine.Reserved(a, r.limiter, reserved.member, a.Taken, reserved.hold, b.sent, time.Now(), b.call.Doubts() > 0)
	}
	r.err, r.State = err, lane.Answered
	r.sent, r.alive = b.sent, aliveBy(b.sent, o.Keep)
}

// forget drops the requests of a finished batch that it has not answered, and counts out callers who have gone. Those who
// wait on may leave before all are awake.
func (q *queue) forget(b *batch) {
	b.requests = slices.DeleteFunc(b.requests, func(r *request) bool {
		if r.State == lane.Gone {
			q.users--
		}
		return r.State != lane.Answered || r.Answered()
	})
}

// wakeAll wakes the callers whom a batch has answered, and counts them out.
func (q *queue) wakeAll(b *batch) {
	for i, r := range b.requests {
		if i > 0 && i%lane.MaxWalk == 0 {
			q.pause()
		}
		q.users--
		r.MarkAnswered(b.call.Wave)
	}
}
