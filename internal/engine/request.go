package engine

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
)

// answer is the answer that a caller gets.
type answer struct {
	outage.Answer

	AtLeast, Unasked bool          // see lane.Answer
	sent             time.Time     // when the request was last sent
	keep             time.Duration // the keep-alive time that was restarted then; 0 for none
	err              error
}

// alive is when to ask again to keep the limiter alive; zero if that needs no requests.
func (a answer) alive() time.Time {
	if a.keep == 0 {
		return time.Time{}
	}
	return a.sent.Add(a.keep / keepAliveShare)
}

// refused reports whether Redis refused the request.
func (a answer) refused() bool { return a.err == nil && !a.Granted }

// request is one caller's question, until it is answered.
type request struct {
	lane.Pending
	outage.Question

	ctx      context.Context // for the Redis client's hooks, if the request goes by itself
	limiter  *Limiter
	queue    *queue
	since    time.Time // when the caller asked
	deadline time.Time // when it gives up; zero: never

	prev, next *request // in the line
	inLine     bool
	pass       int  // the line's pass in which it was last sent
	refused    bool // it was refused, and waits
	byBatch    bool // its batch counts its caller out
	answer     answer
}

// The pool holds no channels: they must not outlive a bubble of testing/synctest.
var requests sync.Pool

func newRequest(ctx context.Context, c *clock.Clock, l *Limiter, q outage.Question) *request {
	r, ok := requests.Get().(*request)
	if !ok {
		r = &request{}
	}
	r.ctx, r.limiter, r.Question, r.Asked = ctx, l, q, time.Now()
	r.since = c.At(r.Asked)
	if q.Waits && q.Timeout > 0 {
		r.deadline = r.since.Add(q.Timeout)
	}
	return r
}

// tell gives the caller its answer before its batch does, if it was sent.
func (r *request) tell(a answer) {
	r.answer = a
	r.byBatch = r.byBatch || r.State == lane.Sent
	r.Tell()
}

// overdue reports whether the caller's time is over.
func (r *request) overdue(now time.Time) bool { return !r.deadline.IsZero() && !now.Before(r.deadline) }

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
	r.answer = answer{Answer: outage.Answer{Unanswered: !r.refused && !r.inLine}}
	q.withdraw(r)
	return true
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

// answerBy is how long a caller with a deadline (zero: none) waits for an answer that must come by
// end.
func (e *Engine) answerBy(end, deadline time.Time) time.Time {
	if last := deadline.Add(e.grace); !deadline.IsZero() && last.Before(end) {
		return last
	}
	return end
}

// keepAliveShare is the part of a keep-alive time, one in so many, after which those who wait ask
// again: each request restarts that time, and the rest is for the request to arrive.
const keepAliveShare = 2

// letGo counts a request's caller out, unless its batch does that. A request that the line may still
// know is not reused.
func (e *Engine) letGo(q *queue, r *request, answered bool) {
	if !r.byBatch {
		e.leave(q)
	}
	if answered && !r.Waits {
		*r = request{}
		requests.Put(r)
	}
}
