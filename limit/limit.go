// Package limit holds what every limiter of this module shows to its callers:
// a [Decision], and the one-method interface [Limiter] that middleware takes.
package limit

import (
	"context"
	"time"
)

// Decision is the answer to one request for permits.
type Decision struct {
	// Granted tells whether the permits were taken.
	Granted bool

	// Limit is the most permits that one window can grant.
	Limit int64

	// Remaining is how many permits are free after this decision, never below 0.
	Remaining int64

	// RetryAfter is how long it takes until the same request could pass,
	// provided that nobody else takes permits meanwhile. 0 when Granted.
	RetryAfter time.Duration

	// ResetAfter is how long it takes until the limiter is full again,
	// provided that nobody takes permits meanwhile. 0 when it is full now.
	ResetAfter time.Duration
}

// Limiter decides whether n permits may be taken for a key.
//
// Take never waits for permits. It is safe for use by several goroutines.
type Limiter interface {
	Take(ctx context.Context, key string, n int64) (Decision, error)
}
