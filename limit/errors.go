package limit

import "errors"

// Errors that limiters have in common, to test for with [errors.Is]. A returned error
// wraps one of them, names the limiter and says what to do.
var (
	// ErrPermitsExceedRate: the call asked for more permits than the limiter ever has at once,
	// so waiting does not help.
	ErrPermitsExceedRate = errors.New("permits exceed the rate")

	// ErrInvalidPermits: the number of permits is out of range.
	ErrInvalidPermits = errors.New("invalid number of permits")

	// ErrInvalidConfig: a limit, rate, interval, key, name or option is out of range.
	ErrInvalidConfig = errors.New("invalid configuration")

	// ErrCorrupt: what Redis holds under the limiter's keys is not a limiter's state. The
	// message names the key. Nothing was changed.
	ErrCorrupt = errors.New("corrupt state")

	// ErrUnknownOutcome: the answer to a call that may have run was lost, and repeating the
	// call is not safe. Read the state before calling again.
	ErrUnknownOutcome = errors.New("outcome unknown")

	// ErrUnavailable: Redis did not decide. It did not answer in time, can't be reached, or can't
	// decide for now, for example while it loads its data or fails over. A refusal is never this
	// error. If permits may have been taken, the error is ErrUnknownOutcome too.
	ErrUnavailable = errors.New("no decision from Redis")

	// ErrUnsupported: the server, or the placement of the keys in a cluster, does not allow the call.
	ErrUnsupported = errors.New("unsupported")

	// ErrNotInitialized: the limiter has no rate. Limiters whose rate is set in the program never return it.
	ErrNotInitialized = errors.New("limiter has no rate")

	// ErrNotReplicated: too few replicas confirmed the grant in time, so a failover could have
	// lost it. The caller has no permits; they are given back. What a Renew was to keep stays in use.
	ErrNotReplicated = errors.New("not replicated")

	// ErrSettled: the reservation is already settled, or is being settled now.
	ErrSettled = errors.New("reservation is settled")

	// ErrClosed: the limiter's Client was closed.
	ErrClosed = errors.New("client is closed")
)
