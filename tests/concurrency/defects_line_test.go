package concurrency_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestDefectACancelledTryAcquireKeepsItsPermits(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		synctest.Test(t, func(t *testing.T) {
			rdb, m := redistest.Mini(t)
			proxy := redistest.MiniProxy(t, m)
			l := limitertest.NewLimiter(t, proxy.Client(t, nil), rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
			limitertest.MustAcquire(t, l, 1)
			answer := make(chan struct{})
			proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(answer)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := l.TryAcquire(ctx, 5, 0)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			all := limitertest.LimiterKeys(t, rdb, l.Name())
			value, _ := limitertest.StoredValue(t, rdb, all[len(all)-1])
			require.EqualValues(t, 4, value, "the permits were taken")
			close(answer)
			synctest.Wait()
			assert.EqualValues(t, 9, limitertest.Available(t, l))
		})
	})
}

func TestDefectEveryWaiterPollsByItself(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, time.Second))
		sent := limitertest.CountCommands(rdb)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { assert.NoError(t, l.Acquire(t.Context(), 1)) })
		}
		wg.Wait()
		assert.Less(t, sent.Scripts(), 3*100, "one poll for each permit that comes free, and a few more")
	})
}

func TestDefectALargeRequestStarvesBehindSmallOnes(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(5, time.Second))
		limitertest.MustAcquire(t, l, 2)
		time.Sleep(500 * time.Millisecond)
		limitertest.MustAcquire(t, l, 3)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			assert.NoError(t, l.Acquire(t.Context(), 5))
			assert.Equal(t, time.Second, time.Since(start))
			cancel()
		})
		synctest.Wait()
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = l.Acquire(ctx, 1)
				}
			})
		}
		wg.Wait()
	})
}

func TestDefectTheWaitIsThatForOnePermit(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(5, 10*time.Second))
		for range 5 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(time.Second)
		}
		for permits := int64(1); permits <= 5; permits++ {
			d, err := l.Take(t.Context(), permits)
			require.NoError(t, err)
			assert.Equal(t, time.Duration(4+permits)*time.Second, d.RetryAfter)
		}
	})
}

func TestDefectAWaiterForManyPermitsPollsForEachOne(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(5, 10*time.Second))
		for range 5 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(time.Second)
		}
		limitertest.MustRefuse(t, l, 1)
		sent := limitertest.CountCommands(rdb)
		start := time.Now()
		require.NoError(t, l.Acquire(t.Context(), 5))
		assert.Equal(t, 9*time.Second, time.Since(start))
		assert.LessOrEqual(t, sent.Scripts(), 2)
	})
}

func TestDefectOneMemberForEachPermit(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(2_000_000, time.Hour))
		limitertest.MustAcquire(t, l, 1_000_000)
		assert.EqualValues(t, 1, rdb.ZCard(t.Context(), limitertest.KeysOf(l).Permits).Val())
	})
}

// One who is the last to be asked for in a round may leave before that: then the
// round is over, and the line must not look for someone to ask without end.
func TestTheLastOfARoundLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(10, time.Minute))
		limitertest.MustAcquire(t, s.Other, 5)
		head := s.StartAcquire(t.Context(), 10)
		s.Until(30 * time.Second)
		limitertest.MustAcquire(t, s.Other, 1)
		round := s.Hold(t, lua.Acquire, 1)
		s.Until(60500 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		last := s.StartAcquire(ctx, 10)
		release := s.Go(func() (bool, error) { return true, s.Release(t.Context(), 1) })
		released := s.Hold(t, lua.Release, 1)
		round()
		assert.Equal(t, "waits", head.Outcome(), "it was refused")
		cancel()
		synctest.Wait()
		last.RequireEnd(t, context.Canceled, 60500*time.Millisecond)
		released()
		assert.Equal(t, "true at 1m0.5s", release.Outcome())
		s.Until(2 * time.Minute)
		assert.Equal(t, "true at 1m0.5s", head.Outcome())
	})
}
