package rratelimiter

import (
	"fmt"
	"time"

	sizes "github.com/rratelimiter/rratelimiter/internal/lease"
)

// Lease says how many permits a handle takes ahead, and for how long: see
// [WithLease].
type Lease struct {
	// Permits is the most that one lease holds: 1 to MaxPermits.
	Permits int64

	// Life is how long a lease lives, from the moment at which it was asked for.
	// It must be shorter than the limiter's interval, and is half of that at most.
	// 0 stands for a twentieth of the interval.
	Life time.Duration
}

// WithLease has a handle take permits ahead: a request that goes to Redis brings
// more than it asks for, charged at once, and TryAcquire and Acquire are served
// from these without a round trip, as long as the lease lives. The guarantee:
// what is charged obeys the limit exactly, and what is used obeys the rate for
// each span of the interval less the lease's life.
//
// How many permits are taken ahead follows the handle's demand: at most a 16th
// of what is free, fewer where requests are refused or permits are left over, and
// none where demand is low or an answer takes as long as a lease lives. Permits
// not used are given back at the end of the lease's life, by Client.Close, and
// before a Release, Reset, SetRate, UpdateRate, Delete, Rename or change of the time to
// live through the same Client. A request for more permits than the lease has
// left ends it too. While callers stand in line, nothing is taken ahead.
//
// To others, Take, Peek, AvailablePermits and TryAcquireAll included, permits of a lease
// are in use. Changes by other programs are noticed when the lease ends, and a
// limiter with a KeepAlive time may go earlier by the lease's life. A lease belongs
// to its handle, so keep the handle. Bad values, WithDefault's interval not above
// Life among them, are ErrInvalidConfig; beside Redissons before 3.35 leases are
// ErrUnsupported.
func WithLease(lease Lease) LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		switch {
		case lease.Permits < 1 || lease.Permits > MaxPermits:
			return fmt.Errorf("%w: WithLease: %d permits are not between 1 and %d", ErrInvalidConfig, lease.Permits, int64(MaxPermits))
		case lease.Life < 0:
			return fmt.Errorf("%w: WithLease: the life %v is below 0", ErrInvalidConfig, lease.Life)
		case !l.client.rules.Merge:
			return fmt.Errorf("%w: WithLease: one member for many requests is read right by Redisson 3.35 and newer only, and WithRedissonVersion names %s",
				ErrUnsupported, l.client.rules.Version)
		}
		l.facts.Lease = &sizes.Sizer{Most: lease.Permits, Want: lease.Life}
		return nil
	})
}

// checkLease is for what can only be said of all options together.
func (l *RateLimiter) checkLease() error {
	if l.facts.Lease != nil && l.fallback.Interval > 0 && l.facts.Lease.Want >= l.fallback.Interval {
		return fmt.Errorf("%w: WithLease: the life %v is not shorter than the interval %v", ErrInvalidConfig, l.facts.Lease.Want, l.fallback.Interval)
	}
	return nil
}
