package limit

import "errors"

// Errors that limiters have in common, to test for with [errors.Is]. What is
// returned wraps one of them and says which limiter it speaks of and what to do.
var (
	// ErrPermitsExceedRate: more permits were asked for than the limiter ever has at once, so
	// that no waiting could bring them.
	ErrPermitsExceedRate = errors.New("permits exceed the rate")

	// ErrInvalidPermits: the number of permits is out of range.
	ErrInvalidPermits = errors.New("invalid number of permits")

	// ErrInvalidConfig: a limit, rate, interval, key, name or option is out of range.
	ErrInvalidConfig = errors.New("invalid configuration")

	// ErrCorrupt: what Redis holds under the limiter's keys is not a limiter's state. The
	// message names the key. Nothing was changed.
	ErrCorrupt = errors.New("corrupt state")

	// ErrUnknownOutcome: the answer to a call that may have run was lost, and the call can't be
	// repeated safely. Read the state before calling again.
	ErrUnknownOutcome = errors.New("outcome unknown")

	// ErrUnavailable: Redis did not decide. It gave no answer in time, can't be reached, or can't
	// decide for now, as while it loads its data or fails over. A refusal is never this. If
	// permits may have been taken it is ErrUnknownOutcome too.
	ErrUnavailable = errors.New("no decision from Redis")

	// ErrUnsupported: the server, or the way in which a cluster spreads the keys, can't do what
	// was asked.
	ErrUnsupported = errors.New("unsupported")

	// ErrNotInitialized: the limiter has no rate. Limiters that have theirs from the program
	// never say so.
	ErrNotInitialized = errors.New("limiter has no rate")

	// ErrNotReplicated: too few replicas confirmed in time that they have what was granted, so
	// that a failover could have lost it. The caller has no permits: those that were taken go back.
	ErrNotReplicated = errors.New("not replicated")

	// ErrSettled: the reservation was settled before, or is being settled now.
	ErrSettled = errors.New("reservation is settled")

	// ErrClosed: what the limiter belongs to was closed.
	ErrClosed = errors.New("client is closed")
)
