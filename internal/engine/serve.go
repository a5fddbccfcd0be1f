package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Acquire asks Redis for permits, and waits for them if the ask says so. It fills the Answer, which is a zero one.
func (e *Engine) Acquire(ctx context.Context, l *Limiter, ask *outage.Ask, a *outage.Answer) error {
	a.By = limit.FromRedis
	before := l.Refusals.Now()
	r := newRequest(ctx, l, ask)
	e.book.Used(r.Asked)
	q, err := e.lock(ctx, l)
	if err != nil {
		return err
	}
	to := q.lane.Load()
	alone := q.submit(r, to)
	q.unlock()
	if ask.Waits {
		outage.Entered(ctx)
	}
	if alone != nil {
		to.SendOne(ctx, alone, !r.deadline.IsZero() || r.Within > 0)
	}
	answered := r.await(ctx)
	*a, err = r.answer, r.err
	a.By = cmp.Or(a.By, limit.FromRedis)
	if answered && !r.Waits { // the line may still know one that waits
		if err == nil && !a.Granted {
			l.Refusals.Note(leastOf(ask), r.sent, before, a.Decision, r.alive)
		}
		*r = request{}
		requests.Put(r)
	}
	return err
}

// submit adds a request. It returns the call that the caller must send itself, if there is one.
func (q *queue) submit(r *request, to *lane.Lane) (alone *lane.Call) {
	r.queue, r.Mu = q, &q.engine.mu
	q.users++
	switch {
	case q.serveFromLease(r):
		r.finish(r.answer, nil)
	case r.Waits && q.line.count > 0:
		q.line.join(r, to.Fresh())
		r.Wait()
		q.next(r.since)
	default:
		q.gathered = append(q.gathered, r)
		if len(q.gathered) == 1 && !q.listed && !q.blocked() && q.calls < maxCalls && to.TryReserve() {
			if !q.engine.conn.Inline() || !r.deadline.IsZero() {
				r.Wait() // another goroutine makes the call
			}
			return q.makeBatch(r.since)
		}
		if !q.listed || len(q.leases.unused) > 0 {
			q.next(r.since)
		}
		r.WaitOn(q.wave)
	}
	return nil
}

// await waits for the answer, the end of the caller's patience, or ctx.
func (r *request) await(ctx context.Context) (answered bool) {
	e := r.queue.engine
	look := sooner(r.since.Add(r.patience(e.conn.Timeout())), r.deadline) // passes change Asked meanwhile
	// A flight with a call that is not repeated is not ended before its time.
	hurry := !r.deadline.IsZero() || r.Within > 0 || e.rules.KeepsNoMembers()
	answered, err := r.Await(ctx, e.lanes, r, look, hurry)
	if !answered {
		r.err = err
	}
	return answered
}

// Leave takes back a request whose caller goes away. What it is granted later goes back.
func (r *request) Leave() bool {
	q := r.queue
	q.engine.mu.Lock()
	defer q.unlock()
	if r.State == lane.Answered {
		return false
	}
	r.answer = outage.Answer{Unanswered: !r.refused && !r.inLine}
	q.withdraw(r)
	return true
}

// TimeUp checks whether the caller's time is over: the timeout of one that waits for permits, or the
// time for an answer.
func (r *request) TimeUp(timeout time.Duration) (look time.Time, left bool, err error) {
	q := r.queue
	q.engine.mu.Lock()
	defer q.unlock()
	if r.State == lane.Answered {
		return time.Time{}, false, nil
	}
	timeout = r.patience(timeout)
	now, since := time.Now(), r.Since(timeout)
	end := since.Add(timeout)
	over := r.overdue(now)
	switch {
	case r.State == lane.Sent || !r.inLine:
		end = q.engine.answerBy(end, r.deadline)
	case over && q.sendFinalTry(r, now):
		return r.deadline.Add(q.engine.grace), false, nil
	case over:
		q.withdraw(r)
		return now, true, nil
	case q.dueSince.IsZero(): // no request is under way
		return sooner(now.Add(timeout), r.deadline), false, nil
	default:
		if end.Before(q.dueSince.Add(timeout)) {
			end = q.dueSince.Add(timeout)
		}
		end = sooner(end, r.deadline)
	}
	if now.Before(end) {
		return end, false, nil
	}
	if !r.refused || !over {
		err = lane.NoAnswer(now.Sub(since), r.State == lane.Sent)
	}
	q.withdraw(r)
	return now, true, err
}

// sooner returns the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// answerBy is how long a caller with a deadline (zero: none) waits for an answer that must come by
// end.
func (e *Engine) answerBy(end, deadline time.Time) time.Time {
	if last := deadline.Add(e.grace); !deadline.IsZero() && last.Before(end) {
		return last
	}
	return end
}

// withdraw is Leave for a request that has no answer. The batch of one that was sent counts it out.
func (q *queue) withdraw(r *request) {
	sent := r.State == lane.Sent
	r.State = lane.Gone
	if sent {
		return
	}
	q.users--
	if r.inLine {
		q.line.remove(r)
		q.next(time.Now())
	} else if q.cancelled++; q.cancelled > len(q.gathered)/2 {
		q.gathered = slices.DeleteFunc(q.gathered, func(r *request) bool { return r.State != lane.Gathered })
		q.cancelled = 0
	}
}

// sendFinalTry reports whether a request in line whose caller's patience has just ended is sent a last
// time: the line asks at this moment.
func (q *queue) sendFinalTry(r *request, now time.Time) bool {
	if q.passing || !q.line.stillAsks(r) || !now.Before(r.deadline.Add(q.engine.grace)) {
		return false
	}
	q.next(now)
	return true
}

// NextCall makes a call for a flight.
func (q *queue) NextCall(now time.Time) (c *lane.Call, more bool) {
	q.engine.mu.Lock()
	defer q.unlock()
	q.listed, q.wave, q.dueSince = false, nil, time.Time{}
	if q.blocked() || q.calls >= maxCalls {
		return nil, false
	}
	c = q.makeBatch(now)
	if c == nil {
		q.next(now)
		return nil, false
	}
	q.listed = q.hasWork(now) && !q.blocked() && q.calls < maxCalls
	return c, q.listed
}

// makeBatch makes a batch: first of requests in the line, if it is due, then of those that gathered.
func (q *queue) makeBatch(now time.Time) *lane.Call {
	b := newBatch(q)
	if !q.passing && q.line.due(now) {
		if len(q.gathered) > 0 {
			b.reserved = lane.MaxRuns / 2 // a long line leaves room for the others
		}
		b.filling = true
		q.line.fill(now, b.add)
		b.reserved, b.filling = 0, false
		q.line.cost += time.Duration(len(b.requests))*costOfRequest + time.Duration(len(b.Runs()))*costOfRun
		b.pass = len(b.requests) > 0
		if !b.pass {
			q.line.answeredBatch(now) // the requests left to ask for have gone
		}
	}
	kept, full := q.gathered[:0], false
	for _, r := range q.gathered {
		switch {
		case !full && r.State != lane.Gathered:
		case full || !b.add(r, false):
			full = full || b.accepts(r) // what can't share the call goes with another of the flight
			kept = append(kept, r)
		}
	}
	clear(q.gathered[len(kept):])
	q.gathered, q.cancelled = kept, 0
	if len(b.requests) == 0 {
		b.free()
		return nil
	}
	for _, r := range b.requests {
		r.State, r.Batch = lane.Sent, &b.Batch
	}
	b.audit, b.freed = b.limiter().auditDue(now), q.freed
	b.ahead = q.prefetch(b, now)
	q.leases.sent(b)
	q.calls++
	q.jobs.requestsNext = false
	b.prepare()
	if b.Count == 1 {
		b.call.By(b.requests[0].ctx)
	}
	if b.pass {
		q.passing = true
	}
	return &b.call
}

// grantAll answers the batch in the usual case: all its requests are granted, with nothing else to say about them.
func (b *batch) grantAll(o lane.Outcome) bool {
	if o.Taken != b.Sum || b.figures || b.settled || b.pass || b.queue.leases.used || b.call.Unreplicated() != nil {
		return false
	}
	for _, r := range b.requests {
		if r.State != lane.Sent || r.Undo {
			return false
		}
	}
	b.queue.updateFiguresBy(b, o, nil)
	for _, r := range b.requests {
		r.answer.Granted, r.answer.Taken, r.State = true, r.Permits, lane.Answered
	}
	return true
}

// record records how the batch ended, and computes its answers.
func (b *batch) record(o lane.Outcome, err error) {
	if b.ahead.permits > 0 {
		b.DropLast()
	}
	if err != nil {
		return
	}
	b.answers = b.Answers(b.answers[:0], o)
	if b.audit && (len(o.Waits) > 0 || b.upToAlone && o.Taken < b.Sum) {
		b.limiter().auditDone(time.Now(), o.Interval)
	}
}

// complete gives the callers of a batch their answers.
func (q *queue) complete(b *batch, o lane.Outcome, err error) {
	if err != nil || o.Taken > 0 {
		q.engine.Granted(q.config)
	}
	q.engine.mu.Lock()
	defer q.unlock()
	now := time.Now()
	if err != nil || !b.grantAll(o) {
		q.completeEach(b, o, err, now)
	}
	q.calls--
	q.next(now)
	q.wakeAll(b)
	b.free()
}

// completeEach sets the answers of a batch, and gives back what nobody wants any more.
func (q *queue) completeEach(b *batch, o lane.Outcome, err error, now time.Time) {
	b.record(o, err)
	short := b.call.Unreplicated()
	var unwanted []share
	b.recordForPlanner(o, err, now)
	q.updateFiguresBy(b, o, err)
	granted, doubtful, lined := int64(0), int64(0), false
	for i, r := range b.requests {
		var a lane.Answer
		failed := err
		if err == nil {
			a = b.answers[i]
		}
		if a.Exceeds {
			failed = errExceeds(r.Permits, o.Limit)
		}
		if a.Decision.Granted {
			granted += a.Taken
			if r.State != lane.Sent || short != nil {
				unwanted = append(unwanted, share{i, a.Taken})
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
			q.answer(b, i, lane.Answer{}, o, short)
		case r.Waits && failed == nil && !a.Decision.Granted && !q.engine.closed && !r.overdue(now) && !r.hopeless(a, b.sent):
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
	back := q.keepLease(b, o, granted, len(unwanted) > 0 || short != nil)
	for _, one := range b.grants(unwanted, back, o) {
		q.giveBack(one)
	}
}

// enqueueWaiter puts a refused request in line.
func (q *queue) enqueueWaiter(b *batch, r *request, a lane.Answer, o lane.Outcome, now time.Time) {
	r.State, r.refused = lane.Gathered, true
	if r.inLine {
		q.line.refused(r, a, o.Interval, aliveBy(b.sent, o.Keep))
		return
	}
	q.line.enter(r, a, o.Interval, aliveBy(b.sent, o.Keep), now)
	if q.freed != b.freed {
		q.line.permitsFreed() // the refusal may be older than that
	}
}

// answer sets the answer of a batch's request.
func (q *queue) answer(b *batch, place int, told lane.Answer, o lane.Outcome, err error) {
	r := b.requests[place]
	a := &r.answer
	a.Decision, a.Taken = told.Decision, told.Taken
	if r.inLine {
		q.line.drop(r)
	}
	if q.engine.closed && r.Waits && err == nil && !a.Granted {
		err = limit.ErrClosed
	}
	switch {
	case !a.Granted:
		a.RetryAfter = b.delayRetry(r, a.RetryAfter)
	case r.Undo:
		a.Undo = q.undo(b.grants([]share{{place, a.Taken}}, 0, o)[0])
	case r.Reserve:
		reserved := b.grants([]share{{place, a.Taken}}, 0, o)[0]
		a.Settle = q.engine.Settler(r.limiter, reserved.member, a.Taken, reserved.hold, b.sent, time.Now())
		a.Held = reserved.hold.Early > 0
	}
	r.err, r.State = err, lane.Answered
	r.sent, r.alive = b.sent, aliveBy(b.sent, o.Keep)
}

// wakeAll wakes the callers of a finished batch, and counts out those that it has answered and those who
// have gone.
func (q *queue) wakeAll(b *batch) {
	for _, r := range b.requests {
		switch {
		case r.State == lane.Answered && !r.Answered():
			q.users--
			r.MarkAnswered(b.call.Wave())
		case r.State == lane.Gone:
			q.users--
		}
	}
}
