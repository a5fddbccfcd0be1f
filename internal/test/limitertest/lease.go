package limitertest

import (
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// Ahead is the option of leases that are as large as may be.
func Ahead(life time.Duration) rratelimiter.LimiterOption {
	return rratelimiter.WithLease(rratelimiter.Lease{Permits: 1 << 20, Life: life})
}
