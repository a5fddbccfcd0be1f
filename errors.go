package rratelimiter

import (
	"github.com/rratelimiter/rratelimiter/limit"
)

// Errors to test for with [errors.Is]. What is returned wraps one of them and
// says which limiter it speaks of and what to do. Those that package limit has
// too are the same.
var (
	// ErrNotInitialized: the limiter has no rate yet. Call TrySetRate first, or
	// give the handle one by WithDefault.
	ErrNotInitialized = limit.ErrNotInitialized

	// ErrPermitsExceedRate: more permits were asked for than one interval has,
	// so that no waiting could ever bring them.
	ErrPermitsExceedRate = limit.ErrPermitsExceedRate

	// ErrInvalidPermits: the number of permits is out of range.
	ErrInvalidPermits = limit.ErrInvalidPermits

	// ErrInvalidConfig: a rate, interval, keep-alive time, time to live, name
	// or option is out of range, or limiters can't go together in one decision.
	ErrInvalidConfig = limit.ErrInvalidConfig

	// ErrCorrupt: what Redis holds under the limiter's keys is not a limiter's
	// state. The message names key and field. Nothing was changed. SetRate cures
	// it, but for a config of another type, and Delete always does.
	ErrCorrupt = limit.ErrCorrupt

	// ErrUnknownOutcome: the answer to a call that may have run was lost, and
	// the call is not one that can be repeated safely. Read the state before
	// calling again.
	ErrUnknownOutcome = limit.ErrUnknownOutcome

	// ErrUnavailable: Redis did not decide: it gave no answer in time, can't be
	// reached, or answers nobody for now. A refusal is never
	// this. Where permits may have been taken, it is ErrUnknownOutcome
	// too.
	ErrUnavailable = limit.ErrUnavailable

	// ErrUnsupported: the server, the cluster's layout or the oldest Redisson
	// that shares the limiter can't do what was asked.
	ErrUnsupported = limit.ErrUnsupported

	// ErrNotReplicated: too few replicas confirmed in time that they have what was
	// granted: see [WithReplicas]. The caller has no permits: those that were taken go
	// back.
	ErrNotReplicated = limit.ErrNotReplicated

	// ErrSettled: the reservation was settled before, or is being settled now. See
	// [Reservation.Settle].
	ErrSettled = limit.ErrSettled

	// ErrClosed: the Client was closed.
	ErrClosed = limit.ErrClosed
)
