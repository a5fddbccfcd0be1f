package concurrency_test

import (
	"context"
	"fmt"
	"slices"
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
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// distance is how long each round trip of a client takes.
type distance time.Duration

func (distance) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d distance) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer time.Sleep(time.Duration(d))
		return next(ctx, cmd)
	}
}

func (d distance) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer time.Sleep(time.Duration(d))
		return next(ctx, cmds)
	}
}

// farRedis returns a client of a miniredis at that distance, and one beside it.
func farRedis(t *testing.T, trip time.Duration) (far, near *redis.Client) {
	t.Helper()
	near, m := redistest.Mini(t)
	far = redistest.MiniClient(t, m, &redis.Options{PoolSize: 20, MaxConcurrentDials: 1})
	far.AddHook(distance(trip))
	return far, near
}

// together has each of so many callers do something at the same time.
func together(callers int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// What callers were granted who had gone is free again within the time of a call, however
// many went at once.
func TestHundredsOfCallersWhoLeave(t *testing.T) {
	t.Parallel()
	const callers, waves, trip, callTime = 600, 6, 100 * time.Millisecond, 1500 * time.Millisecond
	cfg := limitertest.Every(100_000, time.Hour)
	cancelled := func(take func(ctx context.Context, i int)) {
		for wave := range waves {
			ctx, cancel := context.WithTimeout(context.Background(), trip/2)
			together(callers/waves, func(i int) { take(ctx, wave*callers/waves+i) })
			cancel()
			time.Sleep(trip / 2)
		}
	}
	limiters := func(beside string, limiters int) func(*testing.T, *redis.Client, *redis.Client) int64 {
		return func(t *testing.T, far, near *redis.Client) (inUse int64) {
			client := limitertest.NewClient(t, far, rratelimiter.WithRedissonVersion(beside), rratelimiter.WithCallTimeout(callTime))
			all := make([]*rratelimiter.RateLimiter, limiters)
			for i := range all {
				all[i] = client.RateLimiter(fmt.Sprint("limiter", i), rratelimiter.WithDefault(cfg))
			}
			cancelled(func(ctx context.Context, i int) { _, _ = all[i%limiters].TryAcquire(ctx, 1, 0) })
			time.Sleep(callTime)
			for _, l := range all {
				inUse += limitertest.InUse(t, near, limitertest.KeysOf(l).Permits)
			}
			return inUse
		}
	}
	for name, leave := range map[string]func(t *testing.T, far, near *redis.Client) (inUse int64){
		"one limiter":                     limiters("3.35.0", 1),
		"as many limiters":                limiters("3.35.0", callers),
		"one limiter beside old releases": limiters("3.15.5", 1),
		"keys of a sliding log": func(_ *testing.T, far, near *redis.Client) (inUse int64) {
			l := slidinglog.New(far, slidinglog.Config{Limit: 10, Window: time.Hour}, limit.WithCallTimeout(callTime))
			cancelled(func(ctx context.Context, i int) { _, _ = l.Take(ctx, fmt.Sprint("log", i), 1) })
			time.Sleep(callTime)
			for i := range callers {
				inUse += near.ZCard(context.Background(), fmt.Sprint("log", i)).Val()
			}
			return inUse
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				far, near := farRedis(t, trip)
				assert.Zero(t, leave(t, far, near), "permits in use that nobody has")
			})
		})
	}
}

// Releases of hundreds of limiters at once all come through, and none waits for those of
// other limiters.
func TestHundredsOfReleases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const releases = 400
		far, near := farRedis(t, 100*time.Millisecond)
		client := limitertest.NewClient(t, far)
		all := make([]*rratelimiter.RateLimiter, releases)
		together(releases, func(i int) {
			all[i] = client.RateLimiter(fmt.Sprint("limiter", i), rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
			assert.NoError(t, all[i].Acquire(t.Context(), 1))
		})
		together(releases, func(i int) { assert.NoError(t, all[i].Release(t.Context(), 1)) })
		for _, l := range all {
			require.Zero(t, limitertest.InUse(t, near, limitertest.KeysOf(l).Permits))
		}
	})
}

// A Release takes some round trips, whatever goes back for others meanwhile.
func TestAReleaseBesideOthersGiveBacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const trip, releases = 10 * time.Millisecond, 100
		far, _ := farRedis(t, trip)
		client := limitertest.NewClient(t, far, rratelimiter.WithRedissonVersion("3.15.5"))
		busy := client.RateLimiter("busy", rratelimiter.WithDefault(limitertest.Every(100_000, time.Hour)))
		free := client.RateLimiter("free", rratelimiter.WithDefault(limitertest.Every(releases, time.Hour)))
		limitertest.MustAcquire(t, free, releases)
		ctx, cancel := context.WithTimeout(t.Context(), trip/2)
		defer cancel()
		together(2000, func(int) { _, _ = busy.TryAcquire(ctx, 1, 0) })
		var took []time.Duration
		for range releases {
			start := time.Now()
			require.NoError(t, free.Release(t.Context(), 1))
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		assert.LessOrEqual(t, took[releases/2], 3*trip)
		assert.LessOrEqual(t, took[releases-1], 10*trip)
	})
}

// First calls of hundreds of handles that set a rate come through.
func TestHundredsOfHandlesWithARate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far, _ := farRedis(t, 100*time.Millisecond)
		client := limitertest.NewClient(t, far, rratelimiter.WithCallTimeout(time.Second))
		together(600, func(i int) {
			l := client.RateLimiter(fmt.Sprint("limiter", i), rratelimiter.WithRate(limitertest.Every(10, time.Hour)))
			granted, err := l.TryAcquire(t.Context(), 1, 0)
			assert.NoError(t, err)
			assert.True(t, granted)
		})
	})
}
