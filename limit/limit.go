// Package limit holds what all limiters of this module have in common: the [Decision], the one-method interface
// [Limiter] that middleware takes, errors, policies for outages ([Failure]) and the [Observer].
package limit

import (
	"context"
	"time"
)

// Decision is the answer to one request for permits.
type Decision struct {
	// Granted reports whether the caller may go on: because the permits were taken, or
	// because WithFailure or WithShadow let it through.
	Granted bool

	// Limit is the most permits that one window can grant; 0 if unknown, for example for a grant by [FailOpen].
	Limit int64

	// Remaining is how many permits are free after this decision, never below 0.
	Remaining int64

	// RetryAfter is how long it takes until the same request could pass, if other requests take no permits meanwhile.
	// 0 when Granted. The longest Duration stands for never, as InfDuration does in golang.org/x/time/rate.
	RetryAfter time.Duration

	// ResetAfter is how long it takes until the limiter is full again, if no permits are
	// taken meanwhile. 0 if it is full now.
	ResetAfter time.Duration
}

// Limiter decides whether n permits may be taken for a key.
//
// Take never waits for permits. It is safe for concurrent use.
type Limiter interface {
	Take(ctx context.Context, key string, n int64) (Decision, error)
}

// Returner is a Limiter whose grants can be undone, for callers that need grants from
// several limiters and give back what they got if one refuses.
type Returner interface {
	Limiter

	// TakeReturnable is Take with a grant that can be undone. If permits were granted,
	// giveBack returns them as if they had not been taken, unless they have run out
	// meanwhile. Call it at most once, and soon. It is nil if nothing was granted.
	TakeReturnable(ctx context.Context, key string, n int64) (d Decision, giveBack func(context.Context) error, err error)
}

// Reserver is a Limiter whose grants can be settled once their cost is known.
type Reserver interface {
	Limiter

	// TakeReserved takes an estimate. settle sets the actual cost of the grant, once; 0 undoes it.
	TakeReserved(ctx context.Context, key string, n int64) (d Decision, settle func(ctx context.Context, actual int64) error, err error)
}

// Windowed is a Limiter that knows the length of its window: the interval of a KeyedLimiter, the window of a fixed
// window or a sliding log, the time in which an empty token bucket fills.
type Windowed interface {
	Limiter

	// Window returns that length, as configured.
	Window() time.Duration
}
