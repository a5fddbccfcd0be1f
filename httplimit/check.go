package httplimit

import (
	"fmt"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Check returns the error that [New] with these arguments would pass to [WithErrorHandler] with
// every request because of bad options, and nil if the options are right. Call it when the program
// starts. It includes the limiter's own error if that has a method Err() error, as all limiters of
// this module do. It asks no limiter.
func Check(limiter limit.Limiter, opts ...Option) error {
	return newGate(limiter, false, opts).check()
}

// CheckTransport is Check for [NewTransport].
func CheckTransport(limiter limit.Limiter, opts ...Option) error {
	return newGate(limiter, true, opts).check()
}

func (m *gate) check() error {
	if m.err != nil {
		return m.err
	}
	if err := m.Err(); err != nil {
		return fmt.Errorf("httplimit: %w", err)
	}
	return nil
}
