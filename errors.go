package rratelimiter

import "github.com/rratelimiter/rratelimiter/limit"

// Errors to test for with [errors.Is]; package limit says what each means. A returned error
// wraps one of them, names the limiter and says what to do.
var (
	// ErrNotInitialized: the limiter has no rate yet. Call TrySetRate first, or use [WithDefault].
	ErrNotInitialized = limit.ErrNotInitialized

	ErrPermitsExceedRate = limit.ErrPermitsExceedRate
	ErrInvalidPermits    = limit.ErrInvalidPermits

	// ErrInvalidConfig: a rate, interval, keep-alive time, time to live, name or option is out of
	// range, or limiters can't go together in one decision.
	ErrInvalidConfig = limit.ErrInvalidConfig

	// ErrCorrupt: what Redis holds under the limiter's keys is not a limiter's state. The message
	// names key and field. Nothing was changed. SetRate cures it unless the config key is of another
	// Redis type, and Delete always does.
	ErrCorrupt = limit.ErrCorrupt

	ErrUnknownOutcome = limit.ErrUnknownOutcome
	ErrUnavailable    = limit.ErrUnavailable

	// ErrUnsupported: the server, the cluster's layout or the oldest Redisson that shares the
	// limiter can't do what was asked.
	ErrUnsupported = limit.ErrUnsupported

	ErrNotReplicated = limit.ErrNotReplicated // see [WithReplicas]
	ErrSettled       = limit.ErrSettled       // see [Reservation.Settle]
	ErrClosed        = limit.ErrClosed
)
