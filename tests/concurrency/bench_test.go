package concurrency_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// measure runs f in a benchmark of its own that reports the median, too.
func measure(b *testing.B, name string, f func() error) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
	})
}

var granting, refusing = rratelimiter.PerSecond(1_000_000), rratelimiter.PerHour(1)

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

// BenchmarkTryAcquire measures one caller, granted and refused, also of a Client with a name,
// against the floor: a script of the same arguments that does nothing.
//
//	go test -run '^$' -bench TryAcquire -count 5 ./tests/concurrency
func BenchmarkTryAcquire(b *testing.B) {
	rdb, ctx := redistest.Redis(b), context.Background()
	floor, name := redis.NewScript("return 1"), redistest.Name(b)
	require.NoError(b, floor.Load(ctx, rdb).Err())
	keys := []string{name, name + ":1", name + ":2", name + ":3", name + ":4"}
	measure(b, "floor", func() error {
		return floor.EvalSha(ctx, rdb, keys, "012345678901234567890", "1").Err()
	})
	named := rratelimiter.WithClientName("orders-7f9c")
	for name, l := range map[string]*rratelimiter.RateLimiter{
		"granted": benchmarked(b, granting, nil), "refused": benchmarked(b, refusing, nil),
		"granted/named": benchmarked(b, granting, []rratelimiter.Option{named}),
	} {
		measure(b, name, func() error { return limitertest.Second(l.TryAcquire(ctx, 1, 0)) })
		measure(b, name+"/cancellable", func() error { return limitertest.Second(l.TryAcquire(b.Context(), 1, 0)) })
	}
}

// BenchmarkTogether measures callers that come together, those of one limiter that ask
// Redis and those that are answered from memory.
//
//	go test -run '^$' -bench Together -cpu 2 ./tests/concurrency
func BenchmarkTogether(b *testing.B) {
	for name, bench := range map[string]struct {
		cfg         rratelimiter.Config
		opts        []rratelimiter.LimiterOption
		parallelism int
		want        bool
	}{
		"TryAcquire": {granting, nil, 128, true},
		"Lease":      {limitertest.Every(1<<40, time.Second), []rratelimiter.LimiterOption{limitertest.Ahead(0)}, 4, true},
		"Refusal":    {refusing, []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}, 4, false},
	} {
		b.Run(name, func(b *testing.B) {
			l, ctx := benchmarked(b, bench.cfg, nil, bench.opts...), b.Context()
			b.SetParallelism(bench.parallelism)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if ok, err := l.TryAcquire(ctx, 1, 0); ok != bench.want || err != nil {
						b.Error(ok, err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
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

// BenchmarkCancel measures what it costs to cancel a caller if as many as there are iterations
// wait for one limiter and are cancelled at once: the same for few as for many.
//
//	go test -run '^$' -bench Cancel -benchtime 20000x ./tests/concurrency
func BenchmarkCancel(b *testing.B) {
	for _, bench := range []struct {
		name string
		call string      // one of limitertest.Operations; "" for TryAcquireAll
		held *lua.Script // whose answers are on their way while they come and go; nil for none
		by   string      // what calls it
	}{
		{"in line", "Acquire", nil, ""},
		{"one try", "TryAcquire", lua.Acquire, "TryAcquire"},
		{"release", "Release", lua.Acquire, "TryAcquire"},
		{"several limits", "", nil, ""},
		{"several limits, behind a release", "", lua.Release, "Release"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			_, m := redistest.Mini(b)
			proxy := redistest.MiniProxy(b, m)
			rdb := proxy.Client(b, &redis.Options{ReadTimeout: time.Hour})
			client := limitertest.NewClient(b, rdb, rratelimiter.WithCallTimeout(time.Minute))
			f := limitertest.NewFamilyOf(b, client, rratelimiter.PerHour(1), rratelimiter.PerHour(1))
			require.True(b, f.Try(b, 1))
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var all, first sync.WaitGroup
			letGo := make(chan struct{})
			sent := limitertest.CountCommands(rdb)
			there := func() bool { return limitertest.Waiting(client, f.Limiters[0].Name()) == b.N || sent.Scripts() >= b.N }
			if bench.held != nil {
				proxy.OnCommand(with(bench.held.SHA, redistest.Pass.When(letGo)))
				first.Go(func() { _ = limitertest.Operations[bench.by](b.Context(), f.Limiters[0]) })
				require.Eventually(b, func() bool { return sent.Scripts() == 1 }, time.Minute, time.Millisecond)
				there = func() bool { return engine.Of(client).Active() > b.N }
			}
			call := func() error { return limitertest.Second(client.TryAcquireAll(ctx, 1, time.Hour, f.Limiters...)) }
			if one := limitertest.Operations[bench.call]; one != nil {
				call = func() error { return one(ctx, f.Limiters[0]) }
			}
			for range b.N {
				all.Go(func() { assert.Error(b, call(), "a caller was not cancelled") })
			}
			require.Eventually(b, there, 10*time.Minute, time.Millisecond)
			b.ResetTimer()
			cancel()
			all.Wait()
			b.StopTimer()
			close(letGo)
			first.Wait()
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
