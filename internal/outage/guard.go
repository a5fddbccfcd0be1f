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
	Uncharged Uncharged

	locals *local.Limiter
	clock  *clock.Clock
	closed chan struct{}
	close  func()
}

// NewGuard returns a Guard that goes by the clock.
func NewGuard(c *clock.Clock) *Guard {
	g := &Guard{Uncharged: NewUncharged(c), locals: local.New(c), clock: c, closed: make(chan struct{})}
	g.close = sync.OnceFunc(func() { close(g.closed) })
	return g
}

// Uncharged counts permits that callers have and Redis was not charged for, by
// account: what they release of them must not be others' permits. Permits that an
// interval has passed over are none any more.
type Uncharged struct{ permits *local.Limiter }

// NewUncharged returns an Uncharged that goes by the clock.
func NewUncharged(c *clock.Clock) Uncharged { return Uncharged{local.New(c)} }

// Account is the handles of a limiter that let calls through for the same reasons: what
// one of them let through, another may release. Handles are made anew for each request.
type Account struct {
	Limiter string
	Shadow  bool
	Failure limit.Failure // FailClosed if the handle has no policy
}

// Add notes permits, of a limiter of that interval; 0 stands for one that is not known.
func (u Uncharged) Add(of Account, n int64, interval time.Duration) {
	if interval <= 0 {
		interval = time.Hour
	}
	u.permits.Take(of, n, local.Rule{Permits: math.MaxInt64, Window: interval})
}

// Take returns how many of n permits, at most, are some that Redis was not charged
// for; they are no longer.
func (u Uncharged) Take(of Account, n int64) (taken int64) { return u.permits.GiveBack(of, n) }

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
