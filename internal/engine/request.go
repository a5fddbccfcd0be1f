package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
)

// request is one caller's ask, until it is answered.
type request struct {
	lane.Pending
	outage.Ask

	ctx      context.Context // for the Redis client's hooks, if the request goes by itself
	limiter  *Limiter
	queue    *queue
	since    time.Time // when the caller asked
	deadline time.Time // when it gives up; zero: never

	prev, next *request // in the line
	inLine     bool
	pass       int  // the line's pass in which it was last sent
	refused    bool // it was refused, and waits
	answer     outage.Answer
	err        error
	sent       time.Time // when the batch that brought the answer was sent
	alive      time.Time // when to ask again after that, to keep the limiter alive; zero if that needs no requests
}

// The pool holds no channels: they must not outlive a bubble of testing/synctest.
var requests sync.Pool

func newRequest(ctx context.Context, l *Limiter, q *outage.Ask) *request {
	r, ok := requests.Get().(*request)
	if !ok {
		r = &request{}
	}
	r.ctx, r.limiter, r.Ask, r.Asked = ctx, l, *q, time.Now()
	r.since = r.Asked
	if q.Waits && q.Timeout > 0 {
		r.deadline = r.since.Add(q.Timeout)
	}
	return r
}

// finish gives the caller an answer that is not its batch's, and counts it out.
func (r *request) finish(a outage.Answer, err error) {
	r.answer, r.err = a, err
	r.queue.users--
	r.MarkAnswered(nil)
}

// patience returns how long the caller waits for an answer, if a call may take timeout.
func (r *request) patience(timeout time.Duration) time.Duration {
	if r.Within > 0 {
		return min(r.Within, timeout)
	}
	return timeout
}

// overdue reports whether the caller's time is over.
func (r *request) overdue(now time.Time) bool { return !r.deadline.IsZero() && !now.Before(r.deadline) }

// hopeless reports whether a refusal of a request that was sent then ends the wait: no permits are free before
// the caller must have them.
func (r *request) hopeless(a lane.Answer, sent time.Time) bool {
	return !r.Until.IsZero() && !a.Unasked && sent.Add(a.Decision.RetryAfter).After(r.Until)
}

// aliveBy is when to ask again to keep a limiter alive whose keep-alive time, 0 for none, was restarted by
// a call sent then; zero if that needs no requests.
func aliveBy(sent time.Time, keep time.Duration) time.Time {
	if keep == 0 {
		return time.Time{}
	}
	return sent.Add(keep / keepAliveShare)
}

// keepAliveShare is the part of a keep-alive time, one in so many, after which those who wait ask
// again: each request restarts that time, and the rest is for the request to arrive.
const keepAliveShare = 2

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
	if r.State == lane.Answered {
		return false
	}
	r.answer = outage.Answer{Unanswered: !r.refused && !r.inLine}
	r.queue.withdraw(r)
	return true
}

// TimeUp checks whether the caller's time is over: the timeout of one that waits for permits, or the
// time for an answer.
func (r *request) TimeUp(timeout time.Duration) (look time.Time, left bool, err error) {
	q := r.queue
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

// withdraw is Leave for a request that has no answer. The batch of one that was sent counts it out.
func (q *queue) withdraw(r *request) {
	sent := r.State == lane.Sent
	r.State = lane.Gone
	if sent {
		return
	}
	defer q.tidy()
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
