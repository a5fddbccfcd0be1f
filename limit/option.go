package limit

import (
	"fmt"
	"time"
)

// Option configures a limiter of keys. A bad option does not panic: every call of
// the limiter reports it, as [ErrInvalidConfig], before Redis is touched.
type Option func(*Options) error

// Options are what the options of a limiter come to.
type Options struct {
	// CallTimeout is how long a question to Redis may go unanswered.
	CallTimeout time.Duration
}

// WithCallTimeout bounds how long a question to Redis may go unanswered: all its
// attempts and the time before it is sent together. After that the call ends in
// [ErrUnavailable]. 3 seconds unless set; at least 3 milliseconds.
func WithCallTimeout(d time.Duration) Option {
	return func(o *Options) error {
		if d < 3*time.Millisecond {
			return fmt.Errorf("%w: WithCallTimeout: %v is below 3ms", ErrInvalidConfig, d)
		}
		o.CallTimeout = d
		return nil
	}
}
