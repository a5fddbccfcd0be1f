package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// parseRate reads a rate such as 100/1s: permits, a slash, and the interval as
// [words.ParseDuration] reads it.
func parseRate(s string) (permits int64, interval time.Duration, err error) {
	before, after, found := strings.Cut(s, "/")
	if !found {
		return 0, 0, fmt.Errorf("rate %q: want permits/interval, such as 100/s, 5/500ms or 1000/1d", s)
	}
	permits, err = strconv.ParseInt(before, 10, 64)
	if err != nil || permits < 1 || permits > rratelimiter.MaxRate {
		return 0, 0, fmt.Errorf("rate %q: %q is not a number of permits, 1 to %d", s, before, int64(rratelimiter.MaxRate))
	}
	interval, err = words.ParseDuration(after)
	if err != nil || interval < time.Millisecond {
		return 0, 0, fmt.Errorf("rate %q: %q is not an interval from 1ms to 106751d, such as s, 500ms, 1m30s or 1d", s, after)
	}
	if interval%time.Millisecond != 0 {
		return 0, 0, fmt.Errorf("rate %q: %q is not a whole number of milliseconds", s, after)
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
