package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// parseRate reads a rate such as 100/1s: permits, a slash, and the interval as
// a Go duration.
func parseRate(s string) (permits int64, interval time.Duration, err error) {
	before, after, found := strings.Cut(s, "/")
	if !found {
		return 0, 0, fmt.Errorf("rate %q: want permits/interval, such as 100/1s or 5/500ms", s)
	}
	permits, err = strconv.ParseInt(before, 10, 64)
	if err != nil || permits < 1 || permits > rratelimiter.MaxRate {
		return 0, 0, fmt.Errorf("rate %q: %q is not a number of permits, 1 to %d", s, before, int64(rratelimiter.MaxRate))
	}
	interval, err = time.ParseDuration(after)
	if err != nil {
		return 0, 0, fmt.Errorf("rate %q: %q is not an interval, such as 1s, 500ms or 1h", s, after)
	}
	if interval < time.Millisecond || interval%time.Millisecond != 0 {
		return 0, 0, fmt.Errorf("rate %q: interval %v is not a whole number of milliseconds, at least 1", s, interval)
	}
	return permits, interval, nil
}

// parseType reads the value of --type.
func parseType(s string) (rratelimiter.RateType, error) {
	switch s {
	case "overall":
		return rratelimiter.Overall, nil
	case "per-client":
		return rratelimiter.PerClient, nil
	}
	return 0, fmt.Errorf("--type %q: want overall or per-client", s)
}
