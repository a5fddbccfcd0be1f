package concurrency_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// BenchmarkTryAcquire measures one caller, granted and refused, against the
// floor: a script of the same arguments that does nothing.
//
//	go test -run '^$' -bench TryAcquire -count 5 ./tests/concurrency
func BenchmarkTryAcquire(b *testing.B) {
	rdb := redistest.Redis(b)
	ctx := context.Background()
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	client := rratelimiter.New(rdb)
	granting := client.RateLimiter(redistest.Name(b))
	refusing := client.RateLimiter(redistest.Name(b))
	for limiter, cfg := range map[*rratelimiter.RateLimiter]rratelimiter.Config{
		granting: rratelimiter.PerSecond(1_000_000),
		refusing: rratelimiter.PerHour(1),
	} {
		if err := limiter.SetRate(ctx, cfg); err != nil {
			b.Fatal(err)
		}
		if err := limiter.Acquire(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}

	floor := redis.NewScript("return 1")
	name := redistest.Name(b)
	keys := []string{name, name + ":1", name + ":2", name + ":3", name + ":4"}
	measure(b, "floor", func() error {
		return floor.EvalSha(ctx, rdb, keys, "012345678901234567890", "1").Err()
	}, floor.Load(ctx, rdb).Err())
	for _, test := range []struct {
		name    string
		limiter *rratelimiter.RateLimiter
		ctx     context.Context
	}{
		{"granted", granting, ctx},
		{"refused", refusing, ctx},
		{"granted/cancellable", granting, cancellable},
		{"refused/cancellable", refusing, cancellable},
	} {
		measure(b, test.name, func() error {
			_, err := test.limiter.TryAcquire(test.ctx, 1, 0)
			return err
		}, nil)
	}
}

// measure runs f in a benchmark of its own that reports the median, too.
func measure(b *testing.B, name string, f func() error, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
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

// BenchmarkTryAcquireTogether measures many callers of one limiter.
func BenchmarkTryAcquireTogether(b *testing.B) {
	rdb := redistest.Redis(b)
	ctx := context.Background()
	limiter := rratelimiter.New(rdb).RateLimiter(redistest.Name(b), rratelimiter.WithDefault(rratelimiter.PerSecond(1_000_000)))
	b.SetParallelism(128)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := limiter.TryAcquire(ctx, 1, 0); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// What a name costs: calls that are answered from memory, which take the least
// themselves, do not learn of it; those that ask Redis do.
func BenchmarkClientName(b *testing.B) {
	for name, opts := range map[string][]rratelimiter.Option{
		"without": nil,
		"with":    {rratelimiter.WithClientName("orders-7f9c")},
	} {
		client := rratelimiter.New(redistest.Redis(b), opts...)
		l := client.RateLimiter(redistest.Name(b), rratelimiter.WithDefault(rratelimiter.PerSecond(1_000_000)))
		measure(b, name, func() error {
			_, err := l.TryAcquire(context.Background(), 1, 0)
			return err
		}, nil)
		if err := client.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// What an observer costs: calls that are answered from memory, which take the least
// themselves.
func BenchmarkObserver(b *testing.B) {
	for name, opts := range map[string][]rratelimiter.Option{
		"absent":  nil,
		"present": {rratelimiter.WithObserver(limit.NoObserver{})},
	} {
		b.Run(name, func(b *testing.B) {
			ctx := b.Context()
			client := rratelimiter.New(redistest.Redis(b), opts...)
			l := client.RateLimiter(redistest.Name(b), rratelimiter.WithDefault(rratelimiter.PerHour(1)), rratelimiter.WithRefusalCache())
			for range 2 {
				if _, err := l.TryAcquire(ctx, 1, 0); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if granted, err := l.TryAcquire(ctx, 1, 0); granted || err != nil {
					b.Fatal(granted, err)
				}
			}
		})
	}
}
