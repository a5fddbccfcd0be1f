package concurrency_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// BenchmarkTryAcquire measures what options and a timeout cost 256 callers that are granted their permits at once.
//
//	go test -run '^$' -bench TryAcquire -cpu 1,2 ./tests/concurrency
func BenchmarkTryAcquire(b *testing.B) {
	rdb := redistest.StartRedis(b).Client(b, nil)
	const plenty = 1 << 40
	for _, of := range []struct {
		name    string
		timeout time.Duration
		keys    int
		opts    []rratelimiter.LimiterOption
	}{
		{"plain", 0, 1, nil},
		{"timeout", time.Second, 1, nil},
		{"open", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailOpen())}},
		{"local", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailLocal(0.5))}},
		{"leased", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}},
		{"two leased", 0, 2, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}},
		{"sixteen leased", 0, 16, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}},
	} {
		b.Run(of.name, func(b *testing.B) {
			client := limitertest.NewClient(b, rdb)
			limiters := make([]*rratelimiter.RateLimiter, of.keys)
			for i := range limiters {
				opts := append([]rratelimiter.LimiterOption{rratelimiter.WithDefault(rratelimiter.PerHour(plenty))}, of.opts...)
				limiters[i] = client.RateLimiter(fmt.Sprint(redistest.Name(b), i), opts...)
				limitertest.MustAcquire(b, limiters[i], 1)
			}
			var callers atomic.Int64
			b.SetParallelism(128)
			b.ReportAllocs()
			b.RunParallel(func(next *testing.PB) {
				l := limiters[int(callers.Add(1))%of.keys]
				for next.Next() {
					if ok, err := l.TryAcquire(b.Context(), 1, of.timeout); err != nil || !ok {
						b.Error(ok, err)
						return
					}
				}
			})
			require.NoError(b, client.Close(b.Context()))
		})
	}
}
