package limit

import (
	"fmt"
	"time"
)

// Rate is the configuration of a RateLimiter, as an [Event] reports it.
type Rate struct {
	Permits   int64
	Interval  time.Duration
	KeepAlive time.Duration
	PerClient bool
}

// String returns the rate as it appears in logs.
func (r Rate) String() string {
	text := fmt.Sprintf("%d in %v", r.Permits, r.Interval)
	if r.PerClient {
		text += " per client"
	}
	if r.KeepAlive != 0 {
		text += fmt.Sprintf(", kept alive for %v", r.KeepAlive)
	}
	return text
}
