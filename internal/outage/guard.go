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

	// What follows is for a test's clock.
	asked  clock.Sleeper // those who ask a server
	mu     sync.Mutex
	inside int                          // callers
	waits  map[chan time.Time]time.Time // until when; the channel is closed then
}

// NewGuard returns a Guard that goes by the clock. asked are the callers who ask a server,
// as a test's clock sees them; nil if no caller waits by the Guard.
func NewGuard(c *clock.Clock, asked clock.Sleeper) *Guard {
	g := &Guard{
		Uncharged: NewUncharged(c), locals: local.New(c), clock: c, closed: make(chan struct{}),
		asked: asked, waits: make(map[chan time.Time]time.Time),
	}
	g.close = sync.OnceFunc(func() { close(g.closed) })
	if asked != nil {
		c.Join(g)
	}
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

// enter counts a caller who may wait, until leave is called.
func (g *Guard) enter() (leave func()) {
	if g.clock == nil {
		return func() {}
	}
	count := func(change int) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.inside += change
	}
	count(1)
	return func() { count(-1) }
}

// Close ends all waits, and those to come.
func (g *Guard) Close() { g.close() }

// wait returns after d, when ctx ends, or with limit.ErrClosed.
func (g *Guard) wait(ctx context.Context, d time.Duration) error {
	due, stop := g.after(d)
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

// after returns what tells that d is over, and what ends that.
func (g *Guard) after(d time.Duration) (due <-chan time.Time, stop func()) {
	if g.clock == nil {
		timer := time.NewTimer(d)
		return timer.C, func() { timer.Stop() }
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	woken := make(chan time.Time)
	g.waits[woken] = g.clock.Now().Add(d)
	return woken, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.waits, woken)
	}
}

// Rest tells a test's clock whether all callers wait, here or where they ask: see
// [clock.Sleeper].
func (g *Guard) Rest() (waiting int, next time.Time, rests bool) {
	g.mu.Lock()
	inside, waiting := g.inside, len(g.waits)
	for _, until := range g.waits {
		if next.IsZero() || until.Before(next) {
			next = until
		}
	}
	g.mu.Unlock()
	asking, _, rests := g.asked.Rest()
	return waiting, next, rests && inside <= waiting+asking
}

// Moved wakes those whose time has come.
func (g *Guard) Moved() {
	now := g.clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for woken, until := range g.waits {
		if !until.After(now) {
			delete(g.waits, woken)
			close(woken)
		}
	}
}
