package engine

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
)

// answer is the answer that a caller gets.
type answer struct {
	outage.Answer

	Unasked bool          // see lane.Answer
	sent    time.Time     // when the request was last sent
	keep    time.Duration // the keep-alive time that was restarted then; 0 for none
	err     error
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
	answer     answer
}

// The pool holds no channels: they must not outlive a bubble of testing/synctest.
var requests sync.Pool

func newRequest(ctx context.Context, l *Limiter, q outage.Question) *request {
	r, ok := requests.Get().(*request)
	if !ok {
		r = &request{}
	}
	r.ctx, r.limiter, r.Question, r.Asked = ctx, l, q, time.Now()
	r.since = r.Asked
	if q.Waits && q.Timeout > 0 {
		r.deadline = r.since.Add(q.Timeout)
	}
	return r
}

// finish gives the caller an answer that is not its batch's, and counts it out.
func (r *request) finish(a answer) {
	r.answer = a
	r.queue.users--
	r.Tell()
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

// hopeless reports whether a refusal ends the wait: no permits are free before the caller must have them.
func (r *request) hopeless(a answer) bool {
	return !r.Until.IsZero() && !a.Unasked && a.sent.Add(a.RetryAfter).After(r.Until)
}

// keepAliveShare is the part of a keep-alive time, one in so many, after which those who wait ask
// again: each request restarts that time, and the rest is for the request to arrive.
const keepAliveShare = 2
