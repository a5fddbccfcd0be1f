package grpclimit

import (
	"fmt"

	"github.com/rratelimiter/rratelimiter/limit"
)

// CheckServer returns the error that a server's interceptors with these arguments would pass to
// [WithErrorHandler] with every call because of bad options, and nil if the options are right. Call it
// when the program starts. It includes the limiter's own error if that has a method Err() error, as all
// limiters of this module do. It asks no limiter.
func CheckServer(limiter limit.Limiter, opts ...Option) error {
	return newGate(limiter, false, opts).check()
}

// CheckClient is CheckServer for a client's interceptors.
func CheckClient(limiter limit.Limiter, opts ...Option) error {
	return newGate(limiter, true, opts).check()
}

func (g *gate) check() error {
	if g.invalid != nil {
		return g.invalid
	}
	if err := g.Err(); err != nil {
		return fmt.Errorf("grpclimit: %w", err)
	}
	return nil
}
