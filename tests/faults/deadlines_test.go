package faults_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// go-redis with ContextTimeoutEnabled closes a connection at the deadline. So that of a caller who has less time than an
// attempt does not reach it: the caller leaves, and the connection stays for those that come.
func TestShortDeadlines_EndNoConnection(t *testing.T) {
	t.Parallel()
	names := questions(rratelimiter.New(nil, limitertest.Patient()), nil, "")
	names["windows"] = nil // of Redissons before 3.13.3
	for name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, m := redistest.Mini(t)
				rdb := redistest.MiniClient(t, m, &redistest.Options{ContextTimeoutEnabled: true})
				var mu sync.Mutex
				shortest := time.Hour
				rdb.AddHook(redistest.Hook(func(ctx context.Context, _ []redis.Cmder, next func() error) error {
					mu.Lock()
					deadline, _ := ctx.Deadline()
					shortest = min(shortest, time.Until(deadline))
					mu.Unlock()
					time.Sleep(100 * time.Millisecond)
					return next()
				}))
				c := limitertest.NewClient(t, rdb)
				ask := questions(c, rdb, "thresholds")[name]
				if name == "windows" {
					c = limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.12.0"))
					byDefault := rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))
					ask = func(ctx context.Context, key string) error {
						return limitertest.Second(c.RateLimiter(key, byDefault).TryAcquire(ctx, 1, 0))
					}
				}
				for range 5 {
					start := time.Now()
					_, err := within(t, 50*time.Millisecond, func(ctx context.Context) (any, error) { return nil, ask(ctx, "{key}") })
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					assert.Equal(t, 50*time.Millisecond, time.Since(start))
					time.Sleep(time.Second)
				}
				mu.Lock()
				defer mu.Unlock()
				assert.GreaterOrEqual(t, shortest, 900*time.Millisecond, "a third of a call's time")
			})
		})
	}
}
