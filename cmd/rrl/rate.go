package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// parseRate reads a rate such as 100/1s: permits, a slash, and the interval as
// [words.ParseDuration] reads it.
func parseRate(s string) (permits int64, interval time.Duration, err error) {
	before, after, found := strings.Cut(s, "/")
	if !found {
		return 0, 0, fmt.Errorf("rate %q: want permits/interval, such as 100/s, 5/500ms or 1000/1d", s)
	}
	if permits, err = parsePermits(s, before); err != nil {
		return 0, 0, err
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

// parsePermits reads the permits of a rate.
func parsePermits(rate, text string) (int64, error) {
	permits, err := strconv.ParseInt(text, 10, 64)
	if err != nil || permits < 1 || permits > rratelimiter.MaxRate {
		return 0, fmt.Errorf("rate %q: %q is not a number of permits, 1 to %d", rate, text, int64(rratelimiter.MaxRate))
	}
	return permits, nil
}

var calendars = map[string]func(*time.Location) fixedwindow.Calendar{
	"daily": fixedwindow.Daily, "monthly": fixedwindow.Monthly,
	"weekly": func(loc *time.Location) fixedwindow.Calendar { return fixedwindow.Weekly(loc, time.Monday) },
}

// parseWindow reads the rule of a fixed window: a rate, or the permits of each day, week (from Monday on) or month in a
// time zone, which is UTC if it is left out, such as 1000/daily or 1000/monthly@Europe/Berlin.
func parseWindow(s string) (fixedwindow.Config, error) {
	before, after, _ := strings.Cut(s, "/")
	name, zone, _ := strings.Cut(after, "@")
	calendar := calendars[name]
	if calendar == nil {
		permits, window, err := parseRate(s)
		return fixedwindow.Config{Limit: permits, Window: window}, err
	}
	permits, err := parsePermits(s, before)
	if err != nil {
		return fixedwindow.Config{}, err
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return fixedwindow.Config{}, fmt.Errorf("rate %q: %w", s, err)
	}
	return fixedwindow.Config{Limit: permits, Calendar: calendar(loc)}, nil
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
