// Package choosing writes what docs/choosing.md shows of the limiters: one trace
// of calls answered by each of them, as a picture and a table, and what each
// costs the server. go test ./internal/docs/choosing -update writes it anew.
package choosing_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// What all are set to, each in its own terms.
const (
	perWindow = 60
	window    = time.Minute
	capacity  = 20
	borrow    = 10
)

// candidate is a limiter as the page compares it.
type candidate struct {
	name, setting string
	make          func(rdb redis.UniversalClient, most, tokens int64) limit.Limiter
	keys          func(key string) []string // that its state is in
}

var candidates = []candidate{
	{
		name: "RateLimiter", setting: "60 a minute",
		make: func(rdb redis.UniversalClient, most, _ int64) limit.Limiter {
			return rratelimiter.New(rdb).Keyed("", rratelimiter.PerMinute(most))
		},
		keys: func(key string) []string { return []string{key, "{" + key + "}:value", "{" + key + "}:permits"} },
	},
	{
		name: "sliding log", setting: "60 a minute",
		make: func(rdb redis.UniversalClient, most, _ int64) limit.Limiter {
			return slidinglog.New(rdb, slidinglog.Config{Limit: most, Window: window})
		},
		keys: itself,
	},
	{
		name: "fixed window, counter", setting: "60 a minute",
		make: func(rdb redis.UniversalClient, most, _ int64) limit.Limiter {
			return fixedwindow.New(rdb, fixedwindow.Config{Limit: most, Window: window})
		},
		keys: itself,
	},
	{
		name: "token bucket", setting: "20 tokens, 1 more a second",
		make: func(rdb redis.UniversalClient, _, tokens int64) limit.Limiter {
			return tokenbucket.New(rdb, tokenbucket.Config{Capacity: tokens, Refill: 1, Interval: time.Second})
		},
		keys: withTime,
	},
	{
		name: "token bucket that lends", setting: "the same, 10 tokens to borrow",
		make: func(rdb redis.UniversalClient, _, tokens int64) limit.Limiter {
			return tokenbucket.New(rdb, tokenbucket.Config{Capacity: tokens, Refill: 1, Interval: time.Second, Borrow: borrow})
		},
		keys: withTime,
	},
}

func itself(key string) []string { return []string{key} }

func withTime(key string) []string { return []string{key, key + "_time"} }

// traceEnd is when the picture ends.
const traceEnd = 4*time.Minute + 30*time.Second

// trace returns the moments of the calls, each for one permit: few calls, a
// burst around the end of the first minute, more calls than the limit for a
// while, nothing, and a burst.
func trace() []time.Duration {
	var all []time.Duration
	add := func(from, to, apart time.Duration) {
		for at := from; at < to; at += apart {
			all = append(all, at)
		}
	}
	add(0, 55*time.Second, 5*time.Second)
	add(55*time.Second, 65*time.Second, 50*time.Millisecond)
	add(65*time.Second, 150*time.Second, 500*time.Millisecond)
	add(240*time.Second, 245*time.Second, 50*time.Millisecond)
	return all
}

// answers is what a limiter made of the trace.
type answers struct {
	candidate
	granted []time.Duration
	longest time.Duration // the longest wait that a refusal named
}

// run has each limiter answer the trace, in virtual time.
func run(t *testing.T) []answers {
	t.Helper()
	all := make([]answers, len(candidates))
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		limiters := make([]limit.Limiter, len(candidates))
		for i, c := range candidates {
			all[i].candidate = c
			limiters[i] = c.make(rdb, perWindow, capacity)
		}
		key, start := redistest.Name(t), time.Now()
		for _, at := range trace() {
			time.Sleep(at - time.Since(start))
			for i, l := range limiters {
				d, err := l.Take(t.Context(), key+candidates[i].name, 1)
				require.NoError(t, err)
				if d.Granted {
					all[i].granted = append(all[i].granted, at)
				}
				all[i].longest = max(all[i].longest, d.RetryAfter)
			}
		}
	})
	return all
}

// span is a stretch of a trace that ends with a grant.
type span struct {
	from, to time.Duration
	granted  int
}

// fullest returns the span shorter than length in which most was granted; the
// first of those.
func fullest(granted []time.Duration, length time.Duration) span {
	var best span
	for i, to := range granted {
		first, _ := slices.BinarySearch(granted, to-length+1)
		if n := i - first + 1; n > best.granted {
			best = span{granted[first], to, n}
		}
	}
	return best
}
