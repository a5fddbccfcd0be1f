package servers_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// BenchmarkWithReplicas measures what durable grants cost: callers without, with one
// WAIT for each round trip, and with a write and a WAIT for each call on a connection of
// the caller's own.
//
//	go test -run '^$' -bench WithReplicas ./tests/servers
func BenchmarkWithReplicas(b *testing.B) {
	master := redistest.StartRedis(b)
	follow(b, master, redistest.StartRedis(b), master.Addr())
	for _, of := range []struct{ limiters, callers int }{{1, 1}, {1, 8}, {1, 64}, {1, 256}, {1000, 64}} {
		for _, way := range []string{"plain", "WithReplicas", "WAIT-each"} {
			b.Run(fmt.Sprintf("limiters=%d/callers=%d/%s", of.limiters, of.callers, way), func(b *testing.B) {
				benchmarkDurable(b, master, of.limiters, of.callers, way)
			})
		}
	}
}

func benchmarkDurable(b *testing.B, master *redistest.Server, count, callers int, way string) {
	b.Helper()
	rdb, own := master.Client(b, nil), master.Client(b, &redis.Options{PoolSize: callers})
	ctx := context.Background()
	var opts []rratelimiter.Option
	if way == "WithReplicas" {
		opts = append(opts, rratelimiter.WithReplicas(1, time.Second))
	}
	client := limitertest.NewClient(b, rdb, opts...)
	var limiters []*rratelimiter.RateLimiter
	for range count {
		l := client.RateLimiter(redistest.Name(b), rratelimiter.WithDefault(rratelimiter.PerSecond(1_000_000)))
		require.NoError(b, l.Acquire(ctx, 1))
		limiters = append(limiters, l)
	}
	var next atomic.Int64
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			conn := own.Conn()
			defer func() { _ = conn.Close() }()
			var took []time.Duration
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				start := time.Now()
				ok, err := limiters[int(n)%count].TryAcquire(ctx, 1, 0)
				if way == "WAIT-each" && err == nil {
					pipe := conn.Pipeline()
					pipe.Set(ctx, "marker", "", 0)
					pipe.Do(ctx, "wait", 1, 1000)
					_, err = pipe.Exec(ctx)
				}
				if err != nil || !ok {
					b.Error(ok, err)
					return
				}
				took = append(took, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}
