// Package limit holds what all limiters of this module have in common: the
// [Decision], the one-method interface [Limiter] that middleware takes, errors,
// options, policies for outages ([Failure]) and the [Observer].
package limit

import (
	"context"
	"time"
)

// Decision is the answer to one request for permits.
type Decision struct {
	// Granted reports whether the permits were taken or, by WithFailure or WithShadow,
	// the caller may go on as if they had been.
	Granted bool

	// Limit is the most permits that one window can grant; 0 if it is not known, as of a
	// grant by [FailOpen].
	Limit int64

	// Remaining is how many permits are free after this decision, never below 0.
	Remaining int64

	// RetryAfter is how long it takes until the same request could pass, if no other
	// request takes permits meanwhile. 0 when Granted.
	RetryAfter time.Duration

	// ResetAfter is how long it takes until the limiter is full again, if no permits are
	// taken meanwhile. 0 when it is full now.
	ResetAfter time.Duration
}

// Limiter decides whether n permits may be taken for a key.
//
// Take never waits for permits. It is safe for use by several goroutines.
type Limiter interface {
	Take(ctx context.Context, key string, n int64) (Decision, error)
}

// Returner is a Limiter whose grants can be undone, for callers that need the
// consent of several limiters and do not get it from all.
type Returner interface {
	Limiter

	// TakeReturnable is Take. If permits were granted, giveBack undoes that, as if they had
	// not been taken; it does nothing if they have run out meanwhile. Call it once at most,
	// and soon. It is nil if nothing was granted.
	TakeReturnable(ctx context.Context, key string, n int64) (d Decision, giveBack func(context.Context) error, err error)
}

// Reserver is a Limiter whose grants can be settled when it is known what they cost.
type Reserver interface {
	Limiter

	// TakeReserved is Take of an estimate. settle sets the cost of what was granted, once; 0 undoes it.
	TakeReserved(ctx context.Context, key string, n int64) (d Decision, settle func(ctx context.Context, actual int64) error, err error)
}

// Windowed is a Limiter that knows how long the span is that its limit speaks
// of: the interval of a KeyedLimiter, the window of a fixed window or a sliding
// log, the time in which an empty token bucket fills.
type Windowed interface {
	Limiter

	// Window returns the length of that span, as it is configured.
	Window() time.Duration
}

// Suffixed is a Limiter that keeps a second Redis key for each of its keys: the key with KeySuffix behind
// it. A key that itself ends so is another one's second: if keys come from outside, make sure that none
// does.
type Suffixed interface {
	Limiter

	// KeySuffix returns the suffix, which is not empty.
	KeySuffix() string
}
