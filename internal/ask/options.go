package ask

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Options are those that HTTP and gRPC middleware have in common.
type Options struct {
	Prefix   string         // of each key
	Tagged   bool           // the parts of a key are its hash tag
	Timeout  time.Duration  // 0: none
	Failure  *limit.Failure // nil: FailClosed, and each request is asked about
	Fallback limit.Limiter  // nil: none
	Shadow   bool
	Settled  bool // handlers settle what requests cost

	observer *observe.Observer
}

// SetPrefix does what WithPrefix says.
func (o *Options) SetPrefix(prefix string) error {
	if prefix == "" {
		return errors.New("WithPrefix: the prefix is empty")
	}
	o.Prefix = prefix
	return nil
}

// SetTimeout does what WithTimeout says.
func (o *Options) SetTimeout(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("WithTimeout: %v", d)
	}
	o.Timeout = d
	return nil
}

// SetFailure does what WithFailure says.
func (o *Options) SetFailure(f limit.Failure) error {
	o.Failure = &f
	if err := f.Check(); err != nil {
		return fmt.Errorf("WithFailure: %w", err)
	}
	return nil
}

// SetFallback does what WithFallback says.
func (o *Options) SetFallback(limiter limit.Limiter) error {
	if limiter == nil {
		return errors.New("WithFallback: the limiter is nil")
	}
	o.Fallback = limiter
	return nil
}

// SetTagged does what WithHashTag says.
func (o *Options) SetTagged() error {
	o.Tagged = true
	return nil
}

// SetShadow does what WithShadow says.
func (o *Options) SetShadow() error {
	o.Shadow = true
	return nil
}

// SetSettled does what WithSettle says.
func (o *Options) SetSettled() error {
	o.Settled = true
	return nil
}

// SetObserver does what WithObserver says.
func (o *Options) SetObserver(to limit.Observer) error {
	if to == nil {
		return errors.New("WithObserver: the observer is nil")
	}
	o.observer = observe.New(to, nil)
	return nil
}

// Begin tells a limiter how its keys begin. The brace of a hash tag ends a prefix.
func (o *Options) Begin(limiter limit.Limiter, prefix string) {
	if o.Tagged {
		prefix += "{"
	}
	observe.Begins(limiter, prefix)
}

// CheckTag tells why keys of that prefix can't have a hash tag, if they are to.
func (o *Options) CheckTag(prefix string) error {
	if o.Tagged && strings.ContainsAny(prefix, "{}") {
		return fmt.Errorf("WithHashTag: the prefix %q has braces", prefix)
	}
	return nil
}

// SetKey does what WithKey says.
func SetKey[F any](key *[]F, parts []F) error {
	switch {
	case len(parts) == 0:
		return errors.New("WithKey: there is no key function")
	case AnyNil(parts):
		return errors.New("WithKey: a key function is nil")
	}
	*key = parts
	return nil
}

// SetFunc sets a function that an option gives, which the error calls by name.
func SetFunc[F any](to *F, f F, name string) error {
	if isNil(f) {
		return errors.New(name + " is nil")
	}
	*to = f
	return nil
}

// AnyNil reports whether one of the functions is nil.
func AnyNil[F any](funcs []F) bool { return slices.ContainsFunc(funcs, isNil[F]) }

// isNil reports whether a function is nil: a type parameter can't be compared with
// it.
func isNil[F any](f F) bool { return reflect.ValueOf(f).IsNil() }

// Apply has the options change settings, and returns what is wrong with them.
func Apply[S any, O ~func(*S) error](settings *S, options []O) error {
	var faults []error
	for _, option := range options {
		if option == nil {
			faults = append(faults, errors.New("an option is nil"))
			continue
		}
		faults = append(faults, option(settings))
	}
	return errors.Join(faults...)
}

// Invalid makes the faults of all options one limit.ErrInvalidConfig, and is nil
// where there are none. The text begins with the name of the package.
func Invalid(name string, faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%s: %w: %w", name, limit.ErrInvalidConfig, err)
	}
	return nil
}
