package outage

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/limit"
)

// InShadow tells whether a limiter that only watches grants what it would have refused,
// or failed to decide because of err: whatever is not the caller's mistake or wish.
func InShadow(ctx context.Context, granted bool, err error) bool {
	if errors.Is(err, limit.ErrUnavailable) {
		return ctx.Err() == nil // a deadline that err tells of may be that of an attempt
	}
	for _, stays := range []error{limit.ErrInvalidPermits, limit.ErrInvalidConfig, limit.ErrUnsupported, limit.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, stays) {
			return false
		}
	}
	return !granted
}
