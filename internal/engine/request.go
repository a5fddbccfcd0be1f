package engine

import (
	"context"
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
