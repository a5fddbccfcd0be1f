package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// keys are what a value of --keys names, on a server that is known later.
type keys func(client *rratelimiter.Client) dashboard.Other

// parseKeys reads the values of --keys.
func parseKeys(texts []string) ([]keys, error) {
	var all []keys
	for _, text := range texts {
		one, err := parseKey(text)
		if err != nil {
			return nil, fmt.Errorf("--keys %q: %w", text, err)
		}
		all = append(all, one)
	}
	return all, nil
}

func parseKey(text string) (keys, error) {
	kind, rest, _ := strings.Cut(text, ":")
	at := strings.LastIndexByte(rest, '=')
	if at < 1 {
		return nil, fmt.Errorf("want KIND:PREFIX=LIMIT/WINDOW, such as fixed-window:api:=500/30s")
	}
	o, rate := dashboard.Other{Name: kind, Prefix: rest[:at]}, rest[at+1:]
	switch kind {
	case "fixed-window":
		cfg, err := parseWindow(rate)
		return func(client *rratelimiter.Client) dashboard.Other {
			o.Limiter = fixedwindow.New(client, cfg)
			return o
		}, err
	case "sliding-log":
		var named bool
		if rate, o.Thresholds, named = strings.Cut(rate, ","); named && o.Thresholds == "" {
			return nil, errors.New("no hash of thresholds follows the comma")
		}
		permits, window, err := parseRate(rate)
		return func(client *rratelimiter.Client) dashboard.Other {
			o.Limiter = slidinglog.New(client, slidinglog.Config{Limit: permits, Window: window, Thresholds: o.Thresholds})
			return o
		}, err
	case "token-bucket":
		cfg, err := parseBucket(rate)
		return func(client *rratelimiter.Client) dashboard.Other {
			o.Limiter = tokenbucket.New(client, cfg)
			return o
		}, err
	}
	return nil, fmt.Errorf("%q is none of fixed-window, sliding-log, token-bucket", kind)
}

// parseBucket reads a bucket such as 40+5/1s: its capacity, and its refill as a rate.
func parseBucket(text string) (cfg tokenbucket.Config, err error) {
	capacity, refill, _ := strings.Cut(text, "+")
	if cfg.Capacity, err = strconv.ParseInt(capacity, 10, 64); err != nil || cfg.Capacity < 1 {
		return cfg, fmt.Errorf("%q is no capacity: want CAPACITY+REFILL/INTERVAL, such as 40+5/1s", capacity)
	}
	cfg.Refill, cfg.Interval, err = parseRate(refill)
	return cfg, err
}
