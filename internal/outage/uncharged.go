package outage

import (
	"math"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Uncharged counts permits that callers have and Redis was not charged for, by
// account: what they release of them must not be others' permits. Permits that an
// interval has passed over are none any more.
type Uncharged struct {
	Clock *clock.Clock // nil: the machine's

	once    sync.Once
	permits *local.Limiter // with no limit
}

// Account is the handles of a limiter that let calls through for the same reasons: what
// one of them let through, another may release. Handles are made anew for each request.
type Account struct {
	Limiter string
	Shadow  bool
	Failure limit.Failure // FailClosed if the handle has no policy
}

func (u *Uncharged) all() *local.Limiter {
	u.once.Do(func() { u.permits = local.New(u.Clock) })
	return u.permits
}

// Add notes permits, of a limiter of that interval; 0 stands for one that is not known.
func (u *Uncharged) Add(of Account, n int64, interval time.Duration) {
	if interval <= 0 {
		interval = time.Hour
	}
	u.all().Take(of, n, local.Rule{Permits: math.MaxInt64, Window: interval})
}

// Take returns how many of n permits, at most, are some that Redis was not charged
// for; they are no longer.
func (u *Uncharged) Take(of Account, n int64) (taken int64) { return u.all().GiveBack(of, n) }
