package rratelimiter

import "github.com/rratelimiter/rratelimiter/limit"

// Errors to test for with [errors.Is]; package limit says what each means. A returned error
// wraps one of them, names the limiter and says what to do.
var (
	ErrNotInitialized    = limit.ErrNotInitialized // call TrySetRate first, or use [WithDefault]
	ErrPermitsExceedRate = limit.ErrPermitsExceedRate
	ErrInvalidPermits    = limit.ErrInvalidPermits
	ErrInvalidConfig     = limit.ErrInvalidConfig // also if limiters can't go together in one decision

	// ErrCorrupt: SetRate cures it unless the config key is of another Redis type, and Delete always does.
	ErrCorrupt = limit.ErrCorrupt

	ErrUnknownOutcome = limit.ErrUnknownOutcome
	ErrUnavailable    = limit.ErrUnavailable
	ErrUnsupported    = limit.ErrUnsupported   // also if the oldest Redisson that shares the limiter can't do it
	ErrNotReplicated  = limit.ErrNotReplicated // see [WithReplicas]
	ErrSettled        = limit.ErrSettled       // see [Reservation.Settle]
	ErrClosed         = limit.ErrClosed
)
