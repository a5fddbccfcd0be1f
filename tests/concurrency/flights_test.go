package concurrency_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// newFarScene is limitertest.NewHeldScene, where several flights may be under way.
func newFarScene(t *testing.T, cfg rratelimiter.Config) *limitertest.HeldScene {
	t.Helper()
	return limitertest.NewHeldSceneOf(t, cfg, &redis.Options{ReadTimeout: time.Minute, PoolSize: 256})
}

// Releases of a limiter that wait for what is in doubt go as one call, and hold
// back what gathers behind them.
func TestReleasesThatGatherGoAsOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFarScene(t, limitertest.Every(100, time.Hour))
		limitertest.MustAcquire(t, s.RateLimiter, 50)
		letGo := s.Hold(t, lua.Acquire, 1)
		before := s.Sent.Scripts()
		held := s.StartTryAcquire(t.Context(), 1, 0)
		var all []*limitertest.Caller
		for i := range 6 {
			all = append(all, s.Go(func() (bool, error) { return true, s.Release(t.Context(), int64(1+i)) }))
		}
		behind := s.StartTryAcquire(t.Context(), 2, 0)
		assert.Equal(t, "waits", behind.Outcome())
		s.Until(500 * time.Millisecond)
		assert.Equal(t, 1, s.Sent.Scripts()-before)
		letGo()
		assert.Equal(t, "true at 500ms", held.Outcome())
		for _, c := range all {
			assert.Equal(t, "true at 500ms", c.Outcome())
		}
		assert.Equal(t, "true at 500ms", behind.Outcome())
		assert.Equal(t, 3, s.Sent.Scripts()-before, "the request, the releases and what was behind them")
		s.CheckInUse(t, 100, 50+1-21+2)
	})
}

// A Release waits for its own limiter's flights, and holds up nobody else.
func TestAReleaseWaitsForItsLimiterOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFarScene(t, limitertest.Every(100, time.Hour))
		other := s.Client.RateLimiter("another", rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
		limitertest.MustAcquire(t, s.RateLimiter, 10)
		limitertest.MustAcquire(t, other, 10)
		letGo := s.Hold(t, lua.Acquire, 1)
		held := s.StartTryAcquire(t.Context(), 1, 0)
		release := s.Go(func() (bool, error) { return true, s.Release(t.Context(), 1) })
		s.Until(100 * time.Millisecond)
		require.NoError(t, other.Release(t.Context(), 3))
		limitertest.MustAcquire(t, other, 1)
		ok, err := s.Client.TryAcquireAll(t.Context(), 1, 0, other)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.Equal(t, 100*time.Millisecond, s.Now())
		assert.Equal(t, "waits", release.Outcome())
		letGo()
		assert.Equal(t, "true at 100ms", held.Outcome())
		assert.Equal(t, "true at 100ms", release.Outcome())
		s.CheckInUse(t, 100, 10)
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
				rdb := proxy.Client(t, &redis.Options{PoolSize: 256, ReadTimeout: 700 * time.Millisecond})
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
					late := time.Duration(1+dice.IntN(20)) * time.Millisecond
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
								time.AfterFunc(time.Duration(draw.IntN(100))*time.Millisecond, cancel)
							}
							l, bound := all[draw.IntN(3)], 3*time.Second
							start := time.Now()
							switch draw.IntN(9) {
							case 0, 1:
								_, _ = l.TryAcquire(ctx, 1+draw.Int64N(4), 0)
							case 2:
								_, _ = l.TryAcquire(ctx, 1+draw.Int64N(40), 300*time.Millisecond)
								bound = 400 * time.Millisecond
							case 3:
								_, _ = l.Take(ctx, 1)
								bound *= 2 // a second question may be what its figures take
							case 4, 5:
								_ = l.Release(ctx, 1+draw.Int64N(8))
								bound *= 3 // in several calls, behind the end of a lease
							case 6:
								order := draw.Perm(3)
								_, _ = c.TryAcquireAll(ctx, 1, time.Duration(draw.IntN(2))*200*time.Millisecond, all[order[0]], all[order[1]])
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
					assert.Less(t, time.Since(start), 10*time.Millisecond)
				}
			})
		})
	}
}
