package limit

import "github.com/rratelimiter/rratelimiter/internal/failure"

// Failure says what answers a call while Redis does not decide: see WithFailure of a Client or of one limiter, and
// WithFailure of packages httplimit and grpclimit. The zero Failure is [FailClosed].
type Failure = failure.Failure

// FailClosed makes calls fail with ErrUnavailable. Middleware answers 503, or codes.Unavailable.
func FailClosed() Failure { return Failure{} }

// FailOpen grants all calls: nothing is limited while Redis does not decide.
func FailOpen() Failure { return failure.Open() }

// FailLocal lets a limiter in this process's memory decide, with the given share of the rate: above 0 and
// at most 1. With a share of 1/n, n programs together keep to the rate. If the share is less than one permit,
// one permit comes in a longer interval. A call for more permits than the share has is refused.
//
// A RateLimiter takes the rate that Redis reported last, or else that of its WithDefault or of Keyed's Config;
// a sliding log the threshold that Redis reported last for the key; other limiters of this module the rate of
// their Config. For any other limiter, middleware takes the limit that it reported last. If none is known yet,
// calls fail as with FailClosed.
//
// A Client limits 32,768 keys or names that hold permits each by itself. Those that come beyond that share such limits
// with others until their permits are free again: none gets more than its own.
func FailLocal(share float64) Failure { return failure.Local(share) }
