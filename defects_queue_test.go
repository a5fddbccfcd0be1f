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

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestDefectACancelledTryAcquireKeepsItsPermits(t *testing.T) {
	t.Parallel()
	bothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		synctest.Test(t, func(t *testing.T) {
			rdb, m := redistest.Mini(t)
			proxy := redistest.MiniProxy(t, m)
			l := newLimiter(t, proxy.Client(t, nil), rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
			mustAcquire(t, l, 1)
			answer := make(chan struct{})
			proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(answer)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := l.TryAcquire(ctx, 5, 0)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			all := limiterKeys(t, rdb, l.Name())
			value, _ := storedValue(t, rdb, all[len(all)-1])
			require.EqualValues(t, 4, value, "the permits were taken")
			close(answer)
			synctest.Wait()
			assert.EqualValues(t, 9, available(t, l))
		})
	})
}

func TestDefectEveryWaiterPollsByItself(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(1, time.Second))
		sent := countCommands(rdb)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { assert.NoError(t, l.Acquire(t.Context(), 1)) })
		}
		wg.Wait()
		assert.Less(t, sent.scripts(), 3*100, "one poll for each permit that comes free, and a few more")
	})
}

func TestDefectALargeRequestStarvesBehindSmallOnes(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(5, time.Second))
		mustAcquire(t, l, 2)
		time.Sleep(500 * time.Millisecond)
		mustAcquire(t, l, 3)
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
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(5, 10*time.Second))
		for range 5 {
			mustAcquire(t, l, 1)
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
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(5, 10*time.Second))
		for range 5 {
			mustAcquire(t, l, 1)
			time.Sleep(time.Second)
		}
		mustRefuse(t, l, 1)
		sent := countCommands(rdb)
		start := time.Now()
		require.NoError(t, l.Acquire(t.Context(), 5))
		assert.Equal(t, 9*time.Second, time.Since(start))
		assert.LessOrEqual(t, sent.scripts(), 2)
	})
}

func TestDefectOneMemberForEachPermit(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(2_000_000, time.Hour))
		mustAcquire(t, l, 1_000_000)
		assert.EqualValues(t, 1, rdb.ZCard(t.Context(), keysOf(l).Permits).Val())
	})
}

// One who is the last to be asked for in a round may leave before that: then the
// round is over, and the line must not look for someone to ask without end.
func TestTheLastOfARoundLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(10, time.Minute))
		mustAcquire(t, s.other, 5)
		head := s.acquire(t.Context(), 10)
		s.until(30 * time.Second)
		mustAcquire(t, s.other, 1)
		round := s.hold(t, lua.Acquire, 1)
		s.until(60500 * ms)
		ctx, cancel := context.WithCancel(t.Context())
		last := s.acquire(ctx, 10)
		release := s.call(func() (bool, error) { return true, s.Release(t.Context(), 1) })
		released := s.hold(t, lua.Release, 1)
		round()
		assert.Equal(t, "waits", head.outcome(), "it was refused")
		cancel()
		synctest.Wait()
		last.requireEnd(t, context.Canceled, 60500*ms)
		released()
		assert.Equal(t, "true at 1m0.5s", release.outcome())
		s.until(2 * time.Minute)
		assert.Equal(t, "true at 1m0.5s", head.outcome())
	})
}
