package limit

import (
	"fmt"
	"log/slog"
	"time"
)

// Option configures a limiter of keys. A bad option does not panic: every call of
// the limiter reports it, as [ErrInvalidConfig], before Redis is touched.
type Option func(*Options) error

// Options are what the options of a limiter come to.
type Options struct {
	// CallTimeout is how long a question to Redis may go unanswered.
	CallTimeout time.Duration

	// Name is what observers call the limiter.
	Name string

	// Failure is what answers while Redis does not decide; nil: ErrUnavailable does,
	// and each call is sent.
	Failure *Failure

	// Shadow makes the limiter refuse no call.
	Shadow bool

	// Observer receives what the limiter does, and Logger rare events. Both may be nil.
	Observer Observer
	Logger   *slog.Logger
}

// WithCallTimeout bounds how long a question to Redis may go unanswered: all its attempts and the time
// before it is sent together. After that the call ends in [ErrUnavailable]. The default is 3 seconds, the
// least 3 milliseconds.
func WithCallTimeout(d time.Duration) Option {
	return func(o *Options) error {
		if d < 3*time.Millisecond {
			return fmt.Errorf("%w: WithCallTimeout: %v is below 3ms", ErrInvalidConfig, d)
		}
		o.CallTimeout = d
		return nil
	}
}

// WithName sets what observers call the limiter. The default is the name of its package.
func WithName(name string) Option {
	return func(o *Options) error {
		if name == "" {
			return fmt.Errorf("%w: WithName: the name is empty", ErrInvalidConfig)
		}
		o.Name = name
		return nil
	}
}

// WithObserver sets the [Observer] that receives what the limiter does.
func WithObserver(observer Observer) Option {
	return func(o *Options) error {
		if observer == nil {
			return fmt.Errorf("%w: WithObserver: the observer is nil", ErrInvalidConfig)
		}
		o.Observer = observer
		return nil
	}
}

// WithLogger sets the log for rare events: see [EventKind].
func WithLogger(log *slog.Logger) Option {
	return func(o *Options) error {
		if log == nil {
			return fmt.Errorf("%w: WithLogger: the logger is nil", ErrInvalidConfig)
		}
		o.Logger = log
		return nil
	}
}

// WithFailure sets what answers while Redis does not decide, in place of [ErrUnavailable]. After three
// calls in a row that a server left undecided no more are sent to it: the policy answers at once, while
// one probe at a time looks for the server to be back. What is granted so is not charged.
func WithFailure(f Failure) Option {
	return func(o *Options) error {
		o.Failure = &f
		if err := f.Check(); err != nil {
			return fmt.Errorf("WithFailure: %w", err)
		}
		return nil
	}
}

// WithShadow makes the limiter decide, charge and report, but refuse no call: to see what a limit would
// do. What it would have refused, or could not decide, is granted and not charged. Mistakes, and contexts
// that end, stay errors.
func WithShadow() Option {
	return func(o *Options) error {
		o.Shadow = true
		return nil
	}
}
