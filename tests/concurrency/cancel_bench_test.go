package concurrency_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// BenchmarkCancel measures what it costs to cancel a caller, where as many as
// there are iterations wait for one limiter and are cancelled at once: the same
// for few as for many.
//
//	go test -run '^$' -bench Cancel -benchtime 1000x ./tests/concurrency
//	go test -run '^$' -bench Cancel -benchtime 20000x ./tests/concurrency
func BenchmarkCancel(b *testing.B) {
	for _, bench := range []struct {
		name string
		held bool // an answer is on its way while they come and go
		call func(ctx context.Context, l, beside *rratelimiter.RateLimiter, c *rratelimiter.Client) error
	}{
		{"in line", false, func(ctx context.Context, l, _ *rratelimiter.RateLimiter, _ *rratelimiter.Client) error {
			return l.Acquire(ctx, 1)
		}},
		{"one try", true, func(ctx context.Context, l, _ *rratelimiter.RateLimiter, _ *rratelimiter.Client) error {
			_, err := l.TryAcquire(ctx, 1, 0)
			return err
		}},
		{"release", true, func(ctx context.Context, l, _ *rratelimiter.RateLimiter, _ *rratelimiter.Client) error {
			return l.Release(ctx, 1)
		}},
		{"several limits", false, func(ctx context.Context, l, beside *rratelimiter.RateLimiter, c *rratelimiter.Client) error {
			_, err := c.TryAcquireAll(ctx, 1, time.Hour, l, beside)
			return err
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			_, m := redistest.Mini(b)
			proxy := redistest.MiniProxy(b, m)
			rdb := proxy.Client(b, &redis.Options{ReadTimeout: time.Hour})
			client := limitertest.NewClient(b, rdb)
			name := redistest.Name(b)
			l, beside := client.RateLimiter(name), client.RateLimiter(limitertest.Besides(name))
			for _, l := range []*rratelimiter.RateLimiter{l, beside} {
				limitertest.MustTrySetRate(b, l, rratelimiter.PerHour(1))
				limitertest.MustAcquire(b, l, 1)
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var all, first sync.WaitGroup
			letGo := make(chan struct{})
			sent := limitertest.CountCommands(rdb)
			if bench.held {
				proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, redistest.Pass.When(letGo)))
				first.Go(func() { _, _ = l.TryAcquire(b.Context(), 1, 0) })
				require.Eventually(b, func() bool { return sent.Scripts() == 1 }, time.Minute, time.Millisecond)
			}
			for range b.N {
				all.Go(func() {
					if err := bench.call(ctx, l, beside, client); err == nil {
						b.Error("a caller was not cancelled")
					}
				})
			}
			wait := func() bool { return limitertest.Queued(client, name) == b.N || sent.Scripts() >= b.N && !bench.held }
			require.Eventually(b, wait, time.Minute, time.Millisecond)
			b.ResetTimer()
			cancel()
			all.Wait()
			b.StopTimer()
			close(letGo)
			first.Wait()
		})
	}
}
