package concurrency_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// BenchmarkCancel measures what it costs to cancel a caller, where as many as
// there are iterations wait for one limiter and are cancelled at once: the same
// for few as for many.
//
//	go test -run '^$' -bench Cancel -benchtime 1000x ./tests/concurrency
//	go test -run '^$' -bench Cancel -benchtime 20000x ./tests/concurrency
func BenchmarkCancel(b *testing.B) {
	ofBoth := func(ctx context.Context, l, beside *rratelimiter.RateLimiter, c *rratelimiter.Client) error {
		_, err := c.TryAcquireAll(ctx, 1, time.Hour, l, beside)
		return err
	}
	for _, bench := range []struct {
		name string
		held *lua.Script // whose answers are on their way while they come and go; nil for none
		call func(ctx context.Context, l, beside *rratelimiter.RateLimiter, c *rratelimiter.Client) error
	}{
		{"in line", nil, func(ctx context.Context, l, _ *rratelimiter.RateLimiter, _ *rratelimiter.Client) error {
			return l.Acquire(ctx, 1)
		}},
		{"one try", lua.Acquire, func(ctx context.Context, l, _ *rratelimiter.RateLimiter, _ *rratelimiter.Client) error {
			_, err := l.TryAcquire(ctx, 1, 0)
			return err
		}},
		{"release", lua.Acquire, func(ctx context.Context, l, _ *rratelimiter.RateLimiter, _ *rratelimiter.Client) error {
			return l.Release(ctx, 1)
		}},
		{"several limits", nil, ofBoth},
		{"several limits, behind a release", lua.Release, ofBoth},
	} {
		b.Run(bench.name, func(b *testing.B) {
			_, m := redistest.Mini(b)
			proxy := redistest.MiniProxy(b, m)
			rdb := proxy.Client(b, &redis.Options{ReadTimeout: time.Hour})
			client := limitertest.NewClient(b, rdb, rratelimiter.WithCallTimeout(time.Minute))
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
			proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if bench.held == nil || !c.Contains(bench.held.SHA) {
					return redistest.Pass
				}
				return redistest.Pass.When(letGo)
			})
			if bench.held == lua.Release {
				first.Go(func() { _ = l.Release(b.Context(), 1) })
			} else if bench.held != nil {
				first.Go(func() { _, _ = l.TryAcquire(b.Context(), 1, 0) })
			}
			require.Eventually(b, func() bool { return bench.held == nil || sent.Scripts() == 1 }, time.Minute, time.Millisecond)
			for range b.N {
				all.Go(func() {
					if err := bench.call(ctx, l, beside, client); err == nil {
						b.Error("a caller was not cancelled")
					}
				})
			}
			there := func() bool { return limitertest.Waiting(client, name) == b.N || sent.Scripts() >= b.N }
			if bench.held != nil {
				there = func() bool { return engine.Of(client).Active() > b.N }
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
