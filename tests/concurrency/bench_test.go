package concurrency_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

var refusing = rratelimiter.PerHour(1)

// benchmarked returns a limiter that has been asked once.
func benchmarked(
	b *testing.B, cfg rratelimiter.Config, client []rratelimiter.Option, opts ...rratelimiter.LimiterOption,
) *rratelimiter.RateLimiter {
	b.Helper()
	c := limitertest.NewClient(b, redistest.Redis(b), client...)
	l := c.RateLimiter(redistest.Name(b), append(opts, rratelimiter.WithDefault(cfg))...)
	limitertest.MustAcquire(b, l, 1)
	return l
}

// BenchmarkObserver measures what an observer costs the cheapest calls, those from memory.
func BenchmarkObserver(b *testing.B) {
	for name, opts := range map[string][]rratelimiter.Option{
		"absent":  nil,
		"present": {rratelimiter.WithObserver(limit.NoObserver{})},
	} {
		b.Run(name, func(b *testing.B) {
			l, ctx := benchmarked(b, refusing, opts, rratelimiter.WithRefusalCache()), b.Context()
			limitertest.MustRefuse(b, l, 1)
			b.ReportAllocs()
			for b.Loop() {
				if granted, err := l.TryAcquire(ctx, 1, 0); granted || err != nil {
					b.Fatal(granted, err)
				}
			}
		})
	}
}

// BenchmarkStall measures how long the longest script call of each row of boundedTests holds
// up a server:
//
//	go test -run '^$' -bench Stall -benchtime 5x -timeout 60m ./tests/concurrency
//
// ms-median and ms-least are of the longest call of each run. RRL_REDIS_SERVER names the server.
func BenchmarkStall(b *testing.B) {
	// Logging takes time itself, and a script's commands are logged too: log from 25 us.
	server := redistest.StartServer(b, redistest.Default,
		"--slowlog-log-slower-than", "25", "--slowlog-max-len", "1000000")
	rdb := server.Client(b, &redis.Options{ReadTimeout: time.Minute})
	loadScripts(b, rdb)
	freed := func() bool {
		return rdb.InfoMap(b.Context(), "memory").Item("Memory", "lazyfree_pending_objects") == "0"
	}
	for name, tt := range boundedTests {
		b.Run(name, func(b *testing.B) {
			var longest []time.Duration
			for b.Loop() {
				require.NoError(b, rdb.FlushAll(b.Context()).Err())
				c := tt.newCrowd(b, rdb)
				require.Eventually(b, freed, time.Minute, 10*time.Millisecond)
				require.NoError(b, rdb.Do(b.Context(), "SLOWLOG", "RESET").Err())
				for _, step := range tt.steps {
					step(b, c)
				}
				longest = append(longest, longestScript(b, rdb))
			}
			slices.Sort(longest)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ms(longest[len(longest)/2]), "ms-median")
			b.ReportMetric(ms(longest[0]), "ms-least")
		})
	}
}

func loadScripts(b *testing.B, rdb *redis.Client) {
	b.Helper()
	for _, s := range lua.All() {
		require.NoError(b, rdb.ScriptLoad(context.Background(), s.Source).Err())
	}
}

// longestScript returns how long the longest script call took since the slow log was reset,
// 0 if all were faster than what is logged.
func longestScript(b *testing.B, rdb *redis.Client) (longest time.Duration) {
	b.Helper()
	logged, err := rdb.SlowLogGet(b.Context(), 1_000_000).Result()
	require.NoError(b, err)
	for _, entry := range logged {
		if name := entry.Args[0]; name == "evalsha" || name == "eval" {
			longest = max(longest, entry.Duration)
		}
	}
	return longest
}
