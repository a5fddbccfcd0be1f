package grpclimit

import (
	"fmt"

	"github.com/rratelimiter/rratelimiter/limit"
)

// CheckServer returns what a server's interceptors with these arguments would report to
// [WithErrorHandler] with every call because of bad options, for a program to stop as it starts.
// It is nil if all are sound. What is wrong with a limiter itself is there too, if it has a method
// Err() error as those of this module have. No limiter is asked.
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
	if err := g.limit.Err(); err != nil {
		return fmt.Errorf("grpclimit: %w", err)
	}
	return nil
}
