package middleware

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Options are the options that HTTP and gRPC middleware have in common.
type Options struct {
	Middleware string // its name, for observers and in errors

	Prefix   string         // of each key
	Tagged   bool           // the parts of a key are its hash tag
	Timeout  time.Duration  // 0: none
	Failure  *limit.Failure // nil: FailClosed, and each request asks the limiter
	Fallback limit.Limiter  // nil: none
	Shadow   bool

	observer *observe.Observer
	crowd    crowd // requests that wait
}

// set sets the value of an option, unless it is bad.
func set[T any](to *T, value T, bad bool, format string, args ...any) error {
	if bad {
		return fmt.Errorf(format, args...)
	}
	*to = value
	return nil
}

// SetPrefix implements WithPrefix.
func (o *Options) SetPrefix(prefix string) error {
	return set(&o.Prefix, prefix, prefix == "", "WithPrefix: the prefix is empty")
}

// SetTimeout implements WithTimeout.
func (o *Options) SetTimeout(d time.Duration) error {
	return set(&o.Timeout, d, d < 0, "WithTimeout: %v is below 0", d)
}

// SetFailure implements WithFailure.
func (o *Options) SetFailure(f limit.Failure) error {
	if err := outage.CheckFailure(f); err != nil {
		return err
	}
	o.Failure = &f
	return nil
}

// SetFallback implements WithFallback.
func (o *Options) SetFallback(limiter limit.Limiter) error {
	return set(&o.Fallback, limiter, limiter == nil, "WithFallback: the limiter is nil")
}

// SetTagged implements WithHashTag.
func (o *Options) SetTagged() error {
	o.Tagged = true
	return nil
}

// SetShadow implements WithShadow.
func (o *Options) SetShadow() error {
	o.Shadow = true
	return nil
}

// SetObserver implements WithObserver.
func (o *Options) SetObserver(to limit.Observer) error {
	return set(&o.observer, observe.New(to, nil), to == nil, "WithObserver: the observer is nil")
}

// SetKey implements WithKey.
func SetKey[F any](key *[]F, parts []F) error {
	if len(parts) == 0 {
		return errors.New("WithKey: there is no key function")
	}
	return set(key, parts, AnyNil(parts), "WithKey: a key function is nil")
}

// SetFunc sets a function given by an option; name is its name in errors.
func SetFunc[F any](to *F, f F, name string) error { return set(to, f, isNil(f), "%s is nil", name) }

// AnyNil reports whether one of the functions is nil.
func AnyNil[F any](funcs []F) bool { return slices.ContainsFunc(funcs, isNil[F]) }

// isNil reports whether a function is nil: a type parameter can't be compared with nil.
func isNil[F any](f F) bool { return reflect.ValueOf(f).IsNil() }

// Apply applies the options to settings, and returns their errors.
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

// Invalid joins the faults of all options into one limit.ErrInvalidConfig, nil if there are none. Its
// text begins with the name of the package.
func Invalid(name string, faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%s: %w: %w", name, limit.ErrInvalidConfig, err)
	}
	return nil
}

// fault says why a key function was not made properly. It is a limit.ErrInvalidConfig whose text does
// not say so: the list of bad options that it becomes part of does.
type fault struct{ error }

// Is reports whether target is limit.ErrInvalidConfig.
func (fault) Is(target error) bool { return target == limit.ErrInvalidConfig }

// Fault makes err the reason why a key function was not made properly.
func Fault(err error) error { return fault{err} }
