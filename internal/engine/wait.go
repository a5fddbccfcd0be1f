package engine

import (
	"context"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// grace is how much longer than its timeout a caller waits for an answer under way, if that does not
// wait for replicas.
const grace = 100 * time.Millisecond

// await waits for the answer, the end of the caller's patience, or ctx.
func (r *request) await(ctx context.Context) (a answer, answered bool) {
	e := r.queue.engine
	look := e.clock.Machine(r.since).Add(e.conn.Timeout()) // passes change Asked meanwhile
	if end := e.clock.Machine(r.deadline); !end.IsZero() && end.Before(look) {
		look = end
	}
	// A flight with a call that is not repeated is not ended before its time.
	hurry := !r.deadline.IsZero() || e.rules.KeepsNoMembers()
	answered, err := r.Await(ctx, e.lanes, r, look, hurry)
	if !answered {
		r.answer.err = err
	}
	return r.answer, answered
}

// Leave takes back a request whose caller goes away. What it is granted later goes back.
func (r *request) Leave() bool {
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.State == lane.Answered {
		return false
	}
	r.answer = answer{unanswered: !r.refused && !r.inLine}
	q.withdraw(r)
	return true
}

// withdraw is Leave for a request that has no answer. q.mu is held.
func (q *queue) withdraw(r *request) {
	r.byBatch = r.State == lane.Sent
	r.State = lane.Gone
	switch {
	case r.byBatch:
	case r.inLine:
		q.line.remove(r)
		q.next(q.engine.clock.Now())
	default:
		if q.left++; q.left > len(q.gathered)/2 {
			q.gathered = slices.DeleteFunc(q.gathered, func(r *request) bool { return r.State != lane.Gathered })
			q.left = 0
		}
	}
}

// TimeUp checks whether the caller's time is over: the timeout of one that waits for permits, or the
// time for an answer.
func (r *request) TimeUp(timeout time.Duration) (look time.Time, left bool, err error) {
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.State == lane.Answered {
		return time.Time{}, false, nil
	}
	now, since := time.Now(), r.Since()
	end := since.Add(timeout)
	here, deadline := q.engine.clock.At(now), q.engine.clock.Machine(r.deadline)
	over := r.overdue(here)
	switch {
	case r.State == lane.Sent || !r.inLine:
		end = q.engine.answerBy(end, deadline)
	case over && q.asksLast(r, here):
		return deadline.Add(q.engine.grace), false, nil
	case over:
		q.withdraw(r)
		return now, true, nil
	case q.dueSince.IsZero(): // no request is under way
		return clock.Sooner(now.Add(timeout), deadline), false, nil
	default:
		if end.Before(q.dueSince.Add(timeout)) {
			end = q.dueSince.Add(timeout)
		}
		end = clock.Sooner(end, deadline)
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

// asksLast reports whether a request in line whose caller's patience has just ended is sent a last
// time: the line asks at this moment. q.mu is held.
func (q *queue) asksLast(r *request, now time.Time) bool {
	if q.pass != nil || !q.line.stillAsks(r) || !now.Before(r.deadline.Add(q.engine.grace)) {
		return false
	}
	q.next(now)
	return true
}

// answerBy is how long a caller with a deadline (zero: none) waits for an answer that must come by
// end.
func (e *Engine) answerBy(end, deadline time.Time) time.Time {
	if last := deadline.Add(e.grace); !deadline.IsZero() && last.Before(end) {
		return last
	}
	return end
}
