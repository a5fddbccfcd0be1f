package redisson_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestReleasesLeaveRoundTripsToRequests(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, every(10, time.Hour))
		rdb.AddHook(limitertest.Slow(time.Millisecond))
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = l.Release(ctx, 1)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		start := time.Now()
		limitertest.MustAcquire(t, l, 1)
		assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
		stop()
		wg.Wait()
	})
}

func TestOneTryIsNotHeldUpByALongLine(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, rdb)
		l := client.RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, l, every(1000, 10*time.Second))
		limitertest.MustAcquire(t, l, 1000)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() { _ = l.Acquire(ctx, int64(100+i%2)) })
		}
		synctest.Wait()
		time.Sleep(9900 * time.Millisecond)
		rdb.AddHook(limitertest.Slow(time.Millisecond))
		for range 200 {
			start := time.Now()
			_, err := l.Take(t.Context(), 1)
			require.NoError(t, err)
			assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
		}
		stop()
		wg.Wait()
	})
}
