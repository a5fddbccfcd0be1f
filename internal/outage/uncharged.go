package outage

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Uncharged counts permits that callers have and Redis was not charged for, by
// account: what they release of them must not be others' permits. Permits that an
// interval has passed over are none any more.
type Uncharged struct {
	Clock *clock.Clock // nil: the machine's

	mu  sync.Mutex
	all map[Account][]permits // oldest first
}

// Account is the handles of a limiter that let calls through for the same reasons: what
// one of them let through, another may release. Handles are made anew for each request.
type Account struct {
	Limiter string
	Shadow  bool
	Failure limit.Failure // FailClosed if the handle has no policy
}

type permits struct {
	n      int64
	expire time.Time
}

const (
	// grain is how exactly the ends of permits are kept, as a share of the interval.
	grain = 32

	// maxAccounts is how many accounts are kept; of more, some are forgotten.
	maxAccounts = 1 << 16
)

// Add notes permits, of a limiter of that interval; 0 stands for one that is not known.
func (u *Uncharged) Add(of Account, n int64, interval time.Duration) {
	if interval <= 0 {
		interval = time.Hour
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = make(map[Account][]permits)
	}
	now := u.Clock.Now()
	u.prune(of, now)
	all, expire := u.all[of], now.Add(interval)
	if last := len(all) - 1; last >= 0 && expire.Sub(all[last].expire) < interval/grain {
		all[last].n += n
		return
	}
	if len(all) == 0 && len(u.all) >= maxAccounts {
		for other := range u.all {
			delete(u.all, other)
			break
		}
	}
	u.all[of] = append(all, permits{n, expire})
}

// Take returns how many of n permits, at most, are some that Redis was not charged
// for; they are no longer.
func (u *Uncharged) Take(of Account, n int64) (taken int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.all) == 0 {
		return 0
	}
	u.prune(of, u.Clock.Now())
	all := u.all[of]
	for len(all) > 0 && taken < n {
		last := &all[len(all)-1]
		part := min(last.n, n-taken)
		taken += part
		if last.n -= part; last.n == 0 {
			all = all[:len(all)-1]
		}
	}
	u.keep(of, all)
	return taken
}

// Undo returns what undoes a grant that was added: those permits are nobody's any more.
func (u *Uncharged) Undo(of Account, n int64) func(context.Context) error {
	return func(context.Context) error {
		u.Take(of, n)
		return nil
	}
}

// prune forgets what has run out, of that account and of another one: those that
// nobody asks for go too, in time.
func (u *Uncharged) prune(of Account, now time.Time) {
	for other := range u.all {
		u.pruneOne(other, now)
		break
	}
	u.pruneOne(of, now)
}

func (u *Uncharged) pruneOne(of Account, now time.Time) {
	all := u.all[of]
	for len(all) > 0 && !now.Before(all[0].expire) {
		all = all[1:]
	}
	u.keep(of, all)
}

func (u *Uncharged) keep(of Account, all []permits) {
	if len(all) == 0 {
		delete(u.all, of)
	} else {
		u.all[of] = all
	}
}
