package engine

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// request is one caller's ask, until it is answered.
type request struct {
	lane.Pending
	decide.Ask
	place // in the line

	ctx      context.Context // for the Redis client's hooks, if the request goes by itself
	limiter  *Limiter
	queue    *queue
	deadline time.Time     // when it gives up; zero: never
	tryTime  time.Duration // how long it waits for an answer to a try
	timed    bool          // its time may be shorter than that of a call

	refused bool // it was refused, and waits
	answer  decide.Answer
	err     error
	sent    time.Time // when the batch that brought the answer was sent
	alive   time.Time // when to ask again after that, to keep the limiter alive; zero if that needs no requests
}

// The pool holds no channels: they must not outlive a bubble of testing/synctest.
var requests sync.Pool

func (e *Engine) newRequest(ctx context.Context, l *Limiter, ask *decide.Ask) *request {
	r, ok := requests.Get().(*request)
	if !ok {
		r = &request{}
	}
	r.ctx, r.limiter, r.Ask, r.Asked = ctx, l, *ask, ask.Start
	if r.Asked.IsZero() {
		r.Asked = time.Now()
	}
	r.since, r.tryTime = r.Asked, e.conn.Timeout
	if ask.MayWait && ask.Within > 0 {
		r.tryTime = min(ask.Within, r.tryTime)
	}
	switch {
	case ask.MayWait && ask.Timeout > 0:
		r.deadline = r.since.Add(ask.Timeout)
		r.Last = r.deadline.Add(e.grace)
	case ask.Within > 0 && !ask.MayWait:
		r.Last = r.since.Add(ask.Within)
	}
	r.timed = ask.Within > 0 || !r.Last.IsZero()
	return r
}

// finish gives the caller an answer that is not its batch's, and counts it out.
func (r *request) finish(a decide.Answer, err error) {
	r.answer, r.err = a, err
	r.queue.users--
	r.MarkAnswered(nil)
}

// overdue reports whether the caller's time is over.
func (r *request) overdue(now time.Time) bool { return !r.deadline.IsZero() && !now.Before(r.deadline) }

// hopeless reports whether a refusal of a request that was sent then ends the wait: no permits are free before
// the caller must have them.
func (r *request) hopeless(a lane.Result, sent time.Time) bool {
	wait := a.Decision.RetryAfter
	return !r.Until.IsZero() && wait > 0 && sent.Add(wait).After(r.Until)
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
	look := lane.Sooner(lane.Sooner(r.since.Add(r.tryTime), r.Last), r.deadline) // passes change Asked meanwhile
	// A flight with a call that is not repeated is not ended before its time.
	answered, err := r.Await(ctx, e.lanes, r, look, e.rules.KeepsNoMembers())
	if !answered {
		r.err = err
	}
	return answered
}

// Lock implements [lane.Waiter], as do the following methods.
func (r *request) Lock() { r.queue.lock() }

// Unlock unlocks the request's queue.
func (r *request) Unlock() { r.queue.unlock() }

// Leave takes back a request whose caller goes away. What it is granted later goes back.
func (r *request) Leave() bool {
	if r.State == lane.Answered {
		return false
	}
	r.answer = decide.Answer{Unanswered: !r.refused && !r.inLine}
	r.queue.withdraw(r)
	return true
}

// TimeUp tells of the timeout of one that waits for permits, or of the time for an answer.
func (r *request) TimeUp(now time.Time, _ time.Duration) (end time.Time, err error) {
	q, over := r.queue, r.overdue(now)
	end, err = r.Pending.TimeUp(now, r.tryTime)
	switch {
	case r.State == lane.Sent || !r.inLine:
	case over && q.sendFinalTry(r, now):
		return r.Last, nil
	case over:
		return now, nil
	case q.dueSince.IsZero(): // no request is under way
		return lane.Sooner(now.Add(r.tryTime), r.deadline), nil
	default:
		if due := q.dueSince.Add(r.tryTime); end.Before(due) {
			end = due
		}
		end = lane.Sooner(end, r.deadline)
	}
	if r.refused && over {
		err = nil
	}
	return end, err
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
	} else {
		q.gathered.take(&r.place)
	}
}

// sendFinalTry reports whether a request in line whose caller's patience has just ended is sent a last
// time: the line asks at this moment.
func (q *queue) sendFinalTry(r *request, now time.Time) bool {
	if q.passing || !q.line.stillAsks(r, now) || !now.Before(r.Last) {
		return false
	}
	q.line.overdue = append(q.line.overdue, &r.place)
	q.next(now)
	return true
}
