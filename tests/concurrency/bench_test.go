package concurrency_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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

var (
	granting = rratelimiter.PerSecond(1_000_000)
	refusing = rratelimiter.PerHour(1)
)

// benchmarked returns a limiter that has been asked once.
func benchmarked(b *testing.B, cfg rratelimiter.Config, client []rratelimiter.Option, opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
	c := limitertest.NewClient(b, redistest.Redis(b), client...)
	l := c.RateLimiter(redistest.Name(b), append(opts, rratelimiter.WithDefault(cfg))...)
	limitertest.MustAcquire(b, l, 1)
	return l
}

// BenchmarkTryAcquire measures one caller, granted and refused, against the
// floor: a script of the same arguments that does nothing.
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
	for name, cfg := range map[string]rratelimiter.Config{"granted": granting, "refused": refusing} {
		l := benchmarked(b, cfg, nil)
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

// BenchmarkClientName measures what a name costs calls that ask Redis.
func BenchmarkClientName(b *testing.B) {
	for name, opts := range map[string][]rratelimiter.Option{
		"without": nil,
		"with":    {rratelimiter.WithClientName("orders-7f9c")},
	} {
		l := benchmarked(b, granting, opts)
		measure(b, name, func() error { return limitertest.Second(l.TryAcquire(context.Background(), 1, 0)) })
	}
}

// BenchmarkObserver measures what an observer costs calls that are answered from memory,
// which take the least themselves.
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

// BenchmarkCancel measures what it costs to cancel a caller if as many as
// there are iterations wait for one limiter and are cancelled at once: the same
// for few as for many.
//
//	go test -run '^$' -bench Cancel -benchtime 1000x ./tests/concurrency
//	go test -run '^$' -bench Cancel -benchtime 20000x ./tests/concurrency
func BenchmarkCancel(b *testing.B) {
	type call func(ctx context.Context, f *limitertest.Family) error
	tries := func(ctx context.Context, f *limitertest.Family) error {
		return limitertest.Second(f.Limiters[0].TryAcquire(ctx, 1, 0))
	}
	releases := func(ctx context.Context, f *limitertest.Family) error { return f.Limiters[0].Release(ctx, 1) }
	waits := func(ctx context.Context, f *limitertest.Family) error { return f.Limiters[0].Acquire(ctx, 1) }
	waitsForAll := func(ctx context.Context, f *limitertest.Family) error {
		return limitertest.Second(f.Client.TryAcquireAll(ctx, 1, time.Hour, f.Limiters...))
	}
	for _, bench := range []struct {
		name string
		call call
		held *lua.Script // whose answers are on their way while they come and go; nil for none
		by   call        // what calls it
	}{
		{"in line", waits, nil, nil},
		{"one try", tries, lua.Acquire, tries},
		{"release", releases, lua.Acquire, tries},
		{"several limits", waitsForAll, nil, nil},
		{"several limits, behind a release", waitsForAll, lua.Release, releases},
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
				first.Go(func() { _ = bench.by(b.Context(), f) })
				require.Eventually(b, func() bool { return sent.Scripts() == 1 }, time.Minute, time.Millisecond)
				there = func() bool { return engine.Of(client).Active() > b.N }
			}
			for range b.N {
				all.Go(func() {
					if err := bench.call(ctx, f); err == nil {
						b.Error("a caller was not cancelled")
					}
				})
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
