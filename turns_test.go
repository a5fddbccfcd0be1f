package rratelimiter_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// slow makes each command of a client take a while.
type slow time.Duration

func (slow) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Duration(s))
		return next(ctx, cmd)
	}
}

func (slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestReleasesLeaveRoundTripsToRequests(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(10, time.Hour))
		rdb.AddHook(slow(time.Millisecond))
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
		mustAcquire(t, l, 1)
		assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
		stop()
		wg.Wait()
	})
}

func TestOneTryIsNotHeldUpByALongLine(t *testing.T) {
	t.Parallel()
	redistest.SkipSlow(t)
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := newClient(t, rdb)
		l := client.RateLimiter(redistest.Name(t))
		mustTrySetRate(t, l, every(1000, 10*time.Second))
		mustAcquire(t, l, 1000)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() { _ = l.Acquire(ctx, int64(100+i%2)) })
		}
		synctest.Wait()
		time.Sleep(9900 * time.Millisecond)
		rdb.AddHook(slow(time.Millisecond))
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
