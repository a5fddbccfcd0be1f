package engine

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// Wish is what a caller wants of a limiter.
type Wish struct {
	Permits int64
	Waits   bool          // until the permits are granted or the timeout is over
	Timeout time.Duration // 0 with Waits: none
	Figures bool          // the answer's figures are wanted

	// UpTo, where it is not nil, has as many permits taken as are free, at most Permits,
	// and is set to how many.
	UpTo *int64

	// Unanswered is set where ctx ends before Redis has said anything, a refusal
	// included; or nil.
	Unanswered *bool

	Undo *func(context.Context) error // is to be set to what undoes a grant; or nil
}

// answer is what a caller is told.
type answer struct {
	lane.Answer

	sent time.Time     // when the request was asked for last
	keep time.Duration // the keep-alive time that was started anew then; 0 for none
	err  error
}

// alive is when to ask again to keep the limiter alive; zero where it lives without.
func (a answer) alive() time.Time {
	if a.keep == 0 {
		return time.Time{}
	}
	return a.sent.Add(a.keep / keepAliveShare)
}

// refused tells whether Redis refused the request.
func (a answer) refused() bool { return a.err == nil && !a.Decision.Granted }

// request is one caller's wish, until it is answered.
type request struct {
	lane.Pending
	Wish

	ctx      context.Context // for the Redis client's hooks, if the request goes by itself
	limiter  *Limiter
	group    *group
	since    time.Time // when the caller asked
	deadline time.Time // when it gives up; zero: never
	asked    time.Time // when the question under way began, by the machine's clock

	prev, next *request // in the line
	inLine     bool
	round      int  // the line's round in which it was asked for last
	refused    bool // it was refused, and waits
	byBatch    bool // its batch counts its caller out
	unknown    bool // nobody else knows it any more
	answer     answer
}

// The pool holds no channels, which would not outlive a bubble of
// testing/synctest.
var requests sync.Pool

func newRequest(ctx context.Context, c *clock.Clock, l *Limiter, w Wish) *request {
	r, ok := requests.Get().(*request)
	if !ok {
		r = &request{}
	}
	r.ctx, r.limiter, r.Wish, r.asked = ctx, l, w, time.Now()
	r.since = c.At(r.asked)
	if w.Waits && w.Timeout > 0 {
		r.deadline = r.since.Add(w.Timeout)
	}
	return r
}

// watched tells whether the engine's watch ends the request, rather than a timer
// of its own.
func (r *request) watched() bool { return r.deadline.IsZero() }

// tell gives the caller its answer, before its batch does if it is sent.
func (r *request) tell(a answer) {
	r.answer = a
	r.byBatch = r.byBatch || r.State == lane.Sent
	r.Tell()
}

// overdue tells whether the caller's time is over.
func (r *request) overdue(now time.Time) bool { return !r.deadline.IsZero() && !now.Before(r.deadline) }
