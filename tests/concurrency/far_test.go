package concurrency_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// farRedis returns a client of a miniredis that takes so long for each round trip, and one
// beside it.
func farRedis(t *testing.T, trip time.Duration) (far, near *redis.Client) {
	t.Helper()
	near, m := redistest.Mini(t)
	far = redistest.MiniClient(t, m, &redis.Options{PoolSize: 20, MaxConcurrentDials: 1})
	far.AddHook(around(func(_ context.Context, _ []redis.Cmder, next func() error) error {
		defer time.Sleep(trip)
		return next()
	}))
	return far, near
}

// What callers were granted who had gone is free again within the time of a call, however
// many went at once.
func TestHundredsOfCallersWhoLeave(t *testing.T) {
	t.Parallel()
	const callers, waves, trip, callTime = 600, 6, 100 * ms, 1500 * ms
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
				all[i] = byDefault(client, fmt.Sprint("limiter", i), cfg)
			}
			cancelled(func(ctx context.Context, i int) { _, _ = all[i%limiters].TryAcquire(ctx, 1, 0) })
			time.Sleep(callTime)
			for _, l := range all {
				inUse += limitertest.InUse(t, near, limitertest.KeysOf(l).Permits)
			}
			return inUse
		}
	}
	bubbles(t, map[string]func(t *testing.T, far, near *redis.Client) (inUse int64){
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
	}, func(t *testing.T, leave func(t *testing.T, far, near *redis.Client) int64) {
		far, near := farRedis(t, trip)
		assert.Zero(t, leave(t, far, near), "permits in use that no caller has")
	})
}

// Releases of hundreds of limiters at once all come through, and none waits for those of
// other limiters.
func TestHundredsOfReleases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const releases = 400
		far, near := farRedis(t, 100*ms)
		client := limitertest.NewClient(t, far)
		all := make([]*rratelimiter.RateLimiter, releases)
		together(releases, func(i int) {
			all[i] = byDefault(client, fmt.Sprint("limiter", i), limitertest.Every(10, time.Hour))
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
		const trip, releases = 10 * ms, 100
		far, _ := farRedis(t, trip)
		client := limitertest.NewClient(t, far, rratelimiter.WithRedissonVersion("3.15.5"))
		busy := byDefault(client, "busy", limitertest.Every(100_000, time.Hour))
		free := byDefault(client, "free", limitertest.Every(releases, time.Hour))
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
		far, _ := farRedis(t, 100*ms)
		client := limitertest.NewClient(t, far, rratelimiter.WithCallTimeout(time.Second))
		together(600, func(i int) {
			l := client.RateLimiter(fmt.Sprint("limiter", i), rratelimiter.WithRate(limitertest.Every(10, time.Hour)))
			granted, err := l.TryAcquire(t.Context(), 1, 0)
			assert.NoError(t, err)
			assert.True(t, granted)
		})
	})
}

// Whatever is in doubt at the same time, nothing waits for another that waits for
// it: each call ends in time, and all that was granted and not given back is in use.
func TestNothingInDoubtWaitsForAnother(t *testing.T) {
	t.Parallel()
	seeds := uint64(20)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, m := redistest.Mini(t)
				proxy := redistest.MiniProxy(t, m)
				rdb := proxy.Client(t, &redis.Options{PoolSize: 256, ReadTimeout: 700 * ms})
				c := limitertest.NewClient(t, rdb)
				var all []*rratelimiter.RateLimiter
				for _, name := range []string{"{a}1", "{a}2", "{a}3"} {
					opts := []rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(100, time.Minute))}
					if name == "{a}3" {
						opts = append(opts, rratelimiter.WithLease(rratelimiter.Lease{Permits: 8, Life: time.Second}))
					}
					l := c.RateLimiter(name, opts...)
					require.NoError(t, l.Acquire(t.Context(), 1))
					all = append(all, l)
				}
				dice := rand.New(rand.NewPCG(seed, 0))
				proxy.OnCommand(func(cmd redistest.Command) redistest.Action {
					late := time.Duration(1+dice.IntN(20)) * ms
					switch n := dice.IntN(12); {
					case cmd.Name() != "evalsha":
						return redistest.Pass
					case n == 0:
						return redistest.DropAnswer.After(late)
					case n == 1:
						return redistest.Cut.After(late)
					case n == 2:
						return redistest.Swallow
					}
					return redistest.Pass.After(late)
				})
				var wg sync.WaitGroup
				for worker := range uint64(24) {
					wg.Go(func() {
						draw := rand.New(rand.NewPCG(seed, 1+worker))
						for range 12 {
							ctx, cancel := context.WithCancel(t.Context())
							if draw.IntN(3) == 0 {
								time.AfterFunc(time.Duration(draw.IntN(100))*ms, cancel)
							}
							l, bound := all[draw.IntN(3)], 3*time.Second
							start := time.Now()
							switch draw.IntN(9) {
							case 0, 1:
								_, _ = l.TryAcquire(ctx, 1+draw.Int64N(4), 0)
							case 2:
								_, _ = l.TryAcquire(ctx, 1+draw.Int64N(40), 300*ms)
								bound = 400 * ms
							case 3:
								_, _ = l.Take(ctx, 1)
								bound *= 2 // a second question may be what its figures take
							case 4, 5:
								_ = l.Release(ctx, 1+draw.Int64N(8))
								bound *= 3 // in several calls, behind the end of a lease
							case 6:
								order := draw.Perm(3)
								_, _ = c.TryAcquireAll(ctx, 1, time.Duration(draw.IntN(2))*200*ms, all[order[0]], all[order[1]])
							case 7:
								_ = l.SetRate(ctx, limitertest.Every(100, time.Minute), rratelimiter.KeepState())
								bound *= 2 // behind the end of a lease
							case 8:
								_, _ = c.Migrate(ctx, l.Name())
								bound *= 2
							}
							assert.LessOrEqual(t, time.Since(start), bound)
							cancel()
						}
					})
				}
				wg.Wait()
				proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Pass })
				time.Sleep(10 * time.Second)
				for _, l := range all {
					start := time.Now()
					require.NoError(t, l.SetRate(t.Context(), limitertest.Every(100, time.Minute)))
					limitertest.MustAcquire(t, l, 100)
					require.NoError(t, l.Release(t.Context(), 100))
					assert.Less(t, time.Since(start), 10*ms)
				}
			})
		})
	}
}
