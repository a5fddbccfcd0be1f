package outage

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Guard is what all policies of a program's limiters share: the local limiters, what they
// have granted without a charge, and the callers who wait.
type Guard struct {
	uncharged *local.Limiter // permits that callers have and Redis was not charged for, by Account
	locals    *local.Limiter
	clock     *clock.Clock
	closed    chan struct{}
	close     func()
}

// NewGuard returns a Guard that uses the clock.
func NewGuard(c *clock.Clock) *Guard {
	g := &Guard{uncharged: local.New(c), locals: local.New(c), clock: c, closed: make(chan struct{})}
	g.close = sync.OnceFunc(func() { close(g.closed) })
	return g
}

// Account is the handles of a limiter that let calls through for the same reasons: what
// one of them let through, another may release. Programs may make a handle for each request.
type Account struct {
	Limiter string
	Shadow  bool
	Failure limit.Failure // FailClosed if the handle has no policy
}

// AddUncharged notes permits that Redis was not charged for: what callers release of them must
// not be others' permits. They are none any more after the limiter's interval; 0 if unknown.
func (g *Guard) AddUncharged(of Account, n int64, interval time.Duration) {
	if interval <= 0 {
		interval = time.Hour
	}
	g.uncharged.Take(of, n, local.Rule{Permits: math.MaxInt64, Window: interval})
}

// TakeUncharged returns how many of n permits, at most, are some that Redis was not charged
// for; they are no longer.
func (g *Guard) TakeUncharged(of Account, n int64) (taken int64) { return g.uncharged.GiveBack(of, n) }

// Close ends all waits, and those to come.
func (g *Guard) Close() { g.close() }

// wait returns after d, when ctx ends, or with limit.ErrClosed.
func (g *Guard) wait(ctx context.Context, d time.Duration) error {
	due, stop := g.clock.After(d)
	defer stop()
	select {
	case <-due:
		return nil
	case <-g.closed:
		return limit.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
