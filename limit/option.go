package limit

import (
	"fmt"
	"log/slog"
	"time"
)

// Option configures a limiter of keys. A bad option does not panic: every call of
// the limiter reports it, as [ErrInvalidConfig], before Redis is touched.
type Option func(*Options) error

// Options are the values that a limiter's options set.
type Options struct {
	// CallTimeout bounds how long a call to Redis may go unanswered.
	CallTimeout time.Duration

	// Name is the limiter's name for observers.
	Name string

	// Failure says what answers while Redis does not decide; nil: calls return ErrUnavailable, and each call is sent.
	Failure *Failure

	// Shadow makes the limiter refuse no call.
	Shadow bool

	// Observer receives what the limiter does, and Logger rare events. Both may be nil.
	Observer Observer
	Logger   *slog.Logger
}

// option sets values, unless err says why they are bad.
func option(err error, set func(*Options)) Option {
	return func(o *Options) error {
		if err == nil {
			set(o)
		}
		return err
	}
}

// invalid returns ErrInvalidConfig if a value is bad.
func invalid(bad bool, format string, args ...any) error {
	if !bad {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalidConfig, fmt.Sprintf(format, args...))
}

// WithCallTimeout bounds how long a call to Redis may go unanswered, all its attempts and the time before it is sent
// included. After that the call returns [ErrUnavailable]. The default is 3 seconds, the least 3 milliseconds.
func WithCallTimeout(d time.Duration) Option {
	return option(invalid(d < 3*time.Millisecond, "WithCallTimeout: %v is below 3ms", d), func(o *Options) { o.CallTimeout = d })
}

// WithName sets the limiter's name for observers. The default is the name of its package.
func WithName(name string) Option {
	return option(invalid(name == "", "WithName: the name is empty"), func(o *Options) { o.Name = name })
}

// WithObserver sets the [Observer] that receives what the limiter does.
func WithObserver(observer Observer) Option {
	return option(invalid(observer == nil, "WithObserver: the observer is nil"), func(o *Options) { o.Observer = observer })
}

// WithLogger sets the log for rare events: see [EventKind].
func WithLogger(log *slog.Logger) Option {
	return option(invalid(log == nil, "WithLogger: the logger is nil"), func(o *Options) { o.Logger = log })
}

// WithFailure sets what answers while Redis does not decide, in place of [ErrUnavailable]. After three
// undecided calls in a row no more calls are sent to that server: the policy answers at once, while one
// probe at a time checks whether the server is back. Such grants are not charged.
func WithFailure(f Failure) Option {
	err := f.Check()
	if err != nil {
		err = fmt.Errorf("WithFailure: %w", err)
	}
	return option(err, func(o *Options) { o.Failure = &f })
}

// WithShadow makes the limiter decide, charge and report, but refuse no call, to see what a limit would
// do. What it would have refused, or could not decide, is granted and not charged. Calls with mistakes,
// and calls whose context ends, still return errors.
func WithShadow() Option {
	return option(nil, func(o *Options) { o.Shadow = true })
}
