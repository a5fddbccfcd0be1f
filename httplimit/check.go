package httplimit

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Check returns what [New] with these arguments would report to [WithErrorHandler] with every
// request because of bad options, for a program to stop as it starts. It is nil if all are sound.
// What is wrong with a limiter itself is there too, if it has a method Err() error as those of
// this module have. No limiter is asked.
func Check(limiter limit.Limiter, opts ...Option) error {
	return newMiddleware(limiter, false, opts).check()
}

// CheckTransport is Check for [NewTransport].
func CheckTransport(limiter limit.Limiter, opts ...Option) error {
	return newMiddleware(limiter, true, opts).check()
}

func (m *middleware) check() error {
	if m.err != nil {
		return m.err
	}
	var faults []error
	keys := slices.Clone(m.keys)
	for _, p := range m.policies {
		keys = append(keys, p.keys...)
		faults = append(faults, p.limit.Err())
	}
	for _, key := range keys {
		faults = append(faults, faultOf(key))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("httplimit: %w", err)
	}
	return nil
}
