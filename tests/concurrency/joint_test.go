package concurrency_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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

// joint counts the calls that decide about several limiters, and the limiters.
type joint struct{ calls, limiters atomic.Int64 }

func (j *joint) count(args []any) {
	if len(args) > 2 && (args[1] == lua.AcquireMany.SHA || args[1] == lua.AcquireMany.Source) {
		j.calls.Add(1)
		n, _ := args[2].(int)
		j.limiters.Add(int64(n / 3))
	}
}

func (j *joint) DialHook(next redis.DialHook) redis.DialHook { return next }

func (j *joint) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		j.count(cmd.Args())
		return next(ctx, cmd)
	}
}

func (j *joint) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			j.count(cmd.Args())
		}
		return next(ctx, cmds)
	}
}

// crowdOn has many callers ask limiters of so many permits an hour, until all
// have been refused often. It returns how many permits each granted.
func crowdOn(t *testing.T, limiters []*rratelimiter.RateLimiter, callers, tries int) []int64 {
	t.Helper()
	granted := make([]atomic.Int64, len(limiters))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range tries {
				i := rand.IntN(len(limiters))
				permits := 1 + rand.Int64N(3)
				ok, err := limiters[i].TryAcquire(context.Background(), permits, 0)
				assert.NoError(t, err)
				if ok {
					granted[i].Add(permits)
				}
			}
		})
	}
	wg.Wait()
	all := make([]int64, len(limiters))
	for i := range granted {
		all[i] = granted[i].Load()
	}
	return all
}

func limitersOf(t *testing.T, rdb redis.UniversalClient, n int, cfg rratelimiter.Config) []*rratelimiter.RateLimiter {
	t.Helper()
	client := limitertest.NewClient(t, rdb)
	limiters := make([]*rratelimiter.RateLimiter, n)
	for i := range limiters {
		limiters[i] = client.RateLimiter(redistest.Name(t), rratelimiter.WithDefault(cfg))
	}
	return limiters
}

// Callers of different limiters are decided about in one script call, and each
// limiter grants just what it would have granted to them one after another.
func TestCallersOfManyLimitersShareCalls(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		j := &joint{}
		rdb.AddHook(j)
		const rate = 100
		limiters := limitersOf(t, rdb, 10, limitertest.Every(rate, time.Hour))
		for i, granted := range crowdOn(t, limiters, 32, 60) {
			keys := limitertest.KeysOf(limiters[i])
			assert.LessOrEqual(t, granted, int64(rate))
			assert.Greater(t, granted, int64(rate-3), "what fits is granted")
			assert.Equal(t, granted, limitertest.InUse(t, rdb, keys.Permits))
			assert.Equal(t, fmt.Sprint(rate-granted), rdb.Get(t.Context(), keys.Value).Val())
		}
		if _, isCluster := rdb.(*redis.ClusterClient); isCluster {
			assert.Zero(t, j.calls.Load(), "keys of different slots can't share a call")
		} else {
			assert.Positive(t, j.calls.Load())
			assert.Greater(t, j.limiters.Load(), j.calls.Load())
		}
	})
}

// Answers that are lost, calls that never arrive and connections that break
// leave no caller with a wrong answer, and no permits lost.
func TestCallersOfManyLimitersShareABadLine(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	proxy := redistest.StartProxy(t, server.Addr())
	var calls atomic.Int64
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() != "evalsha" {
			return redistest.Pass
		}
		switch n := calls.Add(1); {
		case n > 200 && n%149 == 7:
			return redistest.DropAnswer
		case n > 200 && n%149 == 80:
			return redistest.Cut
		}
		return redistest.Pass.After(200 * time.Microsecond)
	})
	j := &joint{}
	rdb := proxy.FairClient(t, &redis.Options{ReadTimeout: 300 * time.Millisecond})
	rdb.AddHook(j)
	const rate = 150
	limiters := limitersOf(t, rdb, 12, limitertest.Every(rate, time.Hour))
	granted := crowdOn(t, limiters, 32, 40)
	proxy.Settle(t)
	direct := server.Client(t, nil)
	for i := range limiters {
		keys := limitertest.KeysOf(limiters[i])
		assert.Equal(t, granted[i], limitertest.InUse(t, direct, keys.Permits), "granted and in use")
		assert.Equal(t, fmt.Sprint(rate-granted[i]), direct.Get(t.Context(), keys.Value).Val())
	}
	assert.Positive(t, j.calls.Load())
}

// What is wrong with one limiter is told to its own callers, and does not put
// others in doubt.
func TestADamagedLimiterAmongOthers(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		limiters := limitersOf(t, rdb, 8, limitertest.Every(10_000, time.Hour))
		crowdOn(t, limiters, 8, 10)
		damaged := limiters[3]
		require.NoError(t, rdb.Del(t.Context(), limitertest.KeysOf(damaged).Permits).Err())
		require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(damaged).Permits, "text", 0).Err())
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for range 20 {
					l := limiters[rand.IntN(len(limiters))]
					_, err := l.TryAcquire(context.Background(), 1, 0)
					if l == damaged {
						assert.ErrorIs(t, err, rratelimiter.ErrCorrupt)
					} else {
						assert.NoError(t, err)
					}
				}
			})
		}
		wg.Wait()
		for _, l := range limiters {
			assert.False(t, rdb.HExists(t.Context(), limitertest.KeysOf(l).Config, "answered").Val(), "no attempt was in doubt")
		}
	})
}

// panicky is a hook that panics in pipelines, and holds single commands back.
type panicky struct {
	hold chan struct{}
	off  atomic.Bool
}

func (*panicky) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *panicky) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		<-p.hold
		return next(ctx, cmd)
	}
}

func (p *panicky) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !p.off.Load() {
			panic("a hook that panics")
		}
		return next(ctx, cmds)
	}
}

// A hook of the application's that panics on a goroutine of ours is an error for
// the callers of that flight, and nothing to others.
func TestAHookThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		limiters := limitersOf(t, rdb, 6, limitertest.Every(100, time.Hour))
		hook := &panicky{hold: make(chan struct{})}
		rdb.AddHook(hook)
		var callers sync.WaitGroup
		var unknown atomic.Int64
		for _, l := range limiters {
			callers.Go(func() {
				if _, err := l.TryAcquire(context.Background(), 1, 0); err != nil {
					assert.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
					unknown.Add(1)
				}
			})
			synctest.Wait()
		}
		close(hook.hold)
		callers.Wait()
		assert.Positive(t, unknown.Load())
		hook.off.Store(true)
		for _, l := range limiters {
			limitertest.MustAcquire(t, l, 1)
		}
	})
}
