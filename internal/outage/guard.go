package outage

import (
	"cmp"
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/recent"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Rates are the limits that answers have reported, by key, for limiters whose keys have limits of their own.
type Rates struct {
	last  atomic.Int64 // the last above 0, of any key
	known *recent.Map[string, int64]
}

// maxRates is how many bytes they take at most.
const maxRates = 4 << 20

// NewRates returns Rates that know none.
func NewRates() *Rates { return &Rates{known: recent.New[string, int64](maxRates)} }

// Learn notes the limit of a key.
func (r *Rates) Learn(key string, most int64) {
	if most > 0 && r.last.Load() != most {
		r.last.Store(most)
	}
	if known, ok := r.known.Get(key); !ok || known != most {
		r.known.Add(strings.Clone(key), most, len(key), func(known int64) bool { return known == most })
	}
}

// Of returns the limit of a key, and whether it is known; last is the last one of any key, 0 if there is none.
func (r *Rates) Of(key string) (most int64, known bool, last int64) {
	most, known = r.known.Get(key)
	return most, known, r.last.Load()
}

// Guard is what all policies of a program's limiters share: the local limiters, what they
// have granted without a charge, and the callers who wait.
type Guard struct {
	uncharged *local.Limiter // permits that callers have and Redis was not charged for, by account
	locals    *local.Limiter
	closed    chan struct{}
	close     func()
	waiting   sync.RWMutex // each caller who waits has a part of it
}

// NewGuard returns a Guard that has granted nothing.
func NewGuard() *Guard {
	g := &Guard{uncharged: local.New(), locals: local.New(), closed: make(chan struct{})}
	g.close = sync.OnceFunc(func() { close(g.closed) })
	return g
}

// account is the handles of a limiter that let calls through for the same reasons: what
// one of them let through, another may release. Programs may make a handle for each request.
type account struct {
	limiter string
	shadow  bool
	failure limit.Failure // FailClosed if the handle has no policy
}

func (p *Policy) account(limiter string) account {
	a := account{limiter: limiter, shadow: p.Shadow}
	if p.Failure != nil {
		a.failure = *p.Failure
	}
	return a
}

// Allow notes permits of a limiter that a caller has and Redis was not charged for, and returns what undoes that. What
// callers release of them must not be others' permits. They are none any more after the limiter's interval; if
// that is unknown, after an hour.
func (p *Policy) Allow(l decide.Limiter, permits int64) (undo func(context.Context) error) {
	if !l.Releases || permits == 0 {
		return func(context.Context) error { return nil }
	}
	p.Guard.uncharged.Take(p.account(l.Name), permits, permits, local.Rule{Permits: math.MaxInt64, Window: cmp.Or(l.Rule.Window, time.Hour)})
	return func(context.Context) error {
		p.Released(l.Name, permits)
		return nil
	}
}

// Released removes up to so many permits that Redis was not charged for, and returns how many.
func (p *Policy) Released(limiter string, permits int64) int64 {
	return p.Guard.uncharged.GiveBack(p.account(limiter), permits)
}

// Close ends all waits, and those to come. It returns when no caller waits.
func (g *Guard) Close() {
	g.close()
	g.waiting.Lock()
	g.waiting.Unlock() //nolint:gocritic,staticcheck // nothing is done under it
}

// wait returns after d, when ctx ends, or with limit.ErrClosed.
func (g *Guard) wait(ctx context.Context, d time.Duration) error {
	g.waiting.RLock()
	defer g.waiting.RUnlock()
	select {
	case <-time.After(d):
		return nil
	case <-g.closed:
		return limit.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
