package ask

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Question is what one limit is asked about one request: its limiter, and where
// that fails its fallback.
type Question struct {
	Key      string
	Next     limit.Limiter // to be asked; nil once the question is settled
	Asked    limit.Limiter // the last
	State    State
	Decision limit.Decision              // where granted or refused; the Limit alone where too costly
	GiveBack func(context.Context) error // nil where nothing can be given back
	Failure  error                       // of the limiter, even if its fallback answered
}

// State is what the limit says.
type State int

// What a limit can say.
const (
	Unsettled State = iota
	Granted
	Refused   // for now
	TooCostly // for ever: the request costs more than the limit
	Closed    // no answer: the request must not pass
	Open      // no answer: the limit is left out
)

// Begin asks the limiter that is next. See [Begin].
func (q *Question) Begin(ctx context.Context, n int64, timeout time.Duration) *Call {
	q.Asked = q.Next
	return Begin(ctx, q.Next, q.Key, n, timeout)
}

// Settle makes what the limiter said the answer, or its fallback the next to be
// asked. The context is that of the request, which outlasts that of the call.
func (q *Question) Settle(ctx context.Context, o Outcome, how Failure) {
	q.Next = nil
	switch {
	case failed(o.Err) && q.Failure != nil:
		q.Failure = errors.Join(q.Failure, fmt.Errorf("fallback: %w", o.Err))
		q.State = Closed
	case errors.Is(o.Err, limit.ErrInvalidConfig):
		// Whatever how says: to pass would hide the mistake.
		q.Failure = o.Err
		q.State = Closed
	case failed(o.Err):
		q.Failure = o.Err
		switch {
		case how.Open:
			q.State = Open
		case how.Fallback != nil && ctx.Err() == nil:
			q.Next = how.Fallback
		default:
			q.State = Closed
		}
	case o.Err != nil:
		q.State = TooCostly
		q.Decision.Limit = o.Decision.Limit // more it may not know
	case o.Decision.Granted && o.Decision.Limit == 0:
		q.State = Open // the limiter itself lets all pass for now
	default:
		q.Decision, q.GiveBack, q.State = o.Decision, o.GiveBack, Refused
		if o.Decision.Granted {
			q.State = Granted
		}
	}
}

// failed tells whether err leaves open what the limiter would say. It does not
// where a request costs too much: with n above 0 that is the only number of
// permits that can be out of range.
func failed(err error) bool {
	return err != nil && !errors.Is(err, limit.ErrPermitsExceedRate) && !errors.Is(err, limit.ErrInvalidPermits)
}
