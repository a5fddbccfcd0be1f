package faults_test

import (
	"context"
	"fmt"
	"strings"
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
)

// What is asked of a master that hangs delays nobody who asks another, whatever
// the question.
func TestAMasterThatHangsDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	waiters := 100
	if testing.Short() {
		waiters = 20
	}
	for name := range questions(rratelimiter.New(nil), nil, "") {
		if strings.HasSuffix(name, "Threshold") {
			continue // those of all keys are on one server
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hook := &hanging{}
				ring := miniRing(t, func(shard string, rdb *redis.Client) {
					if shard == "hangs" {
						rdb.AddHook(hook)
					}
				})
				c := limitertest.NewClient(t, ring)
				hangs := func(key string) bool {
					shard, err := ring.GetShardClientForKey(key)
					require.NoError(t, err)
					return shard.Options().Addr == "hangs"
				}
				thresholds := "thresholds"
				for hangs(thresholds) {
					thresholds += "+"
				}
				ask := questions(c, ring, thresholds)[name]
				var bad, good []string
				for i := 0; len(bad) < waiters || len(good) < 10; i++ {
					key := fmt.Sprintf("{key%d}", i)
					if hangs(key) {
						bad = append(bad, key)
						continue
					}
					good = append(good, key)
					l := c.RateLimiter(key, rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
					require.NoError(t, l.Acquire(t.Context(), 1))
				}
				require.NoError(t, ask(t.Context(), good[0]))
				hook.hang(true)
				var wg sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				defer func() {
					cancel()
					wg.Wait()
					time.Sleep(time.Minute) // what was sent ends
				}()
				for _, key := range bad[:waiters] {
					wg.Go(func() {
						for ctx.Err() == nil {
							_ = ask(ctx, key)
							time.Sleep(100 * time.Millisecond)
						}
					})
				}
				for _, key := range good[1:] {
					time.Sleep(250 * time.Millisecond)
					start := time.Now()
					require.NoError(t, ask(t.Context(), key))
					assert.LessOrEqual(t, time.Since(start), 10*time.Millisecond)
				}
			})
		})
	}
}

// miniRing returns a ring of two shards in memory, "hangs" and "works".
func miniRing(t *testing.T, prepare func(shard string, rdb *redis.Client)) *redis.Ring {
	t.Helper()
	ring := redis.NewRing(&redis.RingOptions{
		Addrs:              map[string]string{"hangs": "hangs", "works": "works"},
		HeartbeatFrequency: 1000 * time.Hour,
		HeartbeatFn:        func(context.Context, *redis.Client) bool { return true },
		PoolSize:           256, // nobody waits for a connection, which bubbles do not allow
		NewClient: func(opt *redis.Options) *redis.Client {
			_, m := redistest.Mini(t)
			shard := opt.Addr
			rdb := redistest.MiniClient(t, m, opt)
			rdb.Options().Addr = shard
			prepare(shard, rdb)
			return rdb
		},
	})
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

// A cluster of which a master hangs answers for the others. A client that is new, and
// does not know yet who serves what, ends its callers' calls in time nevertheless.
func TestAMasterOfAClusterHangs(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	for name, opt := range map[string]*redis.ClusterOptions{
		"by default":            {},
		"ContextTimeoutEnabled": {ContextTimeoutEnabled: true},
	} {
		rdb := cluster.Client(t, opt)
		client := limitertest.NewClient(t, rdb)
		var bad, good []*rratelimiter.RateLimiter
		hangs, _ := cluster.Owner(t, cluster.Slot(t, "a"))
		for i := range 60 {
			l := client.RateLimiter(fmt.Sprintf("%s:%d", redistest.Name(t), i), rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
			require.NoError(t, l.Acquire(t.Context(), 1))
			if owner, _ := cluster.Owner(t, cluster.Slot(t, l.Name())); owner == hangs {
				bad = append(bad, l)
			} else {
				good = append(good, l)
			}
		}
		hangs.Freeze(t)
		var wg sync.WaitGroup
		for _, l := range bad {
			wg.Go(func() {
				_, err := l.TryAcquire(t.Context(), 1, 200*time.Millisecond)
				assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
				_, err = l.AvailablePermits(t.Context())
				assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
			})
		}
		time.Sleep(500 * time.Millisecond)
		slowest := time.Duration(0)
		for _, l := range good {
			start := time.Now()
			ok, err := l.TryAcquire(t.Context(), 1, 0)
			require.NoError(t, err)
			assert.True(t, ok)
			slowest = max(slowest, time.Since(start))
			_, err = l.AvailablePermits(t.Context())
			require.NoError(t, err)
			require.NoError(t, l.Release(t.Context(), 1))
		}
		wg.Wait()
		fresh := limitertest.NewClient(t, cluster.Client(t, opt))
		for _, l := range []*rratelimiter.RateLimiter{bad[0], good[0]} {
			for range 20 {
				wg.Go(func() {
					start := time.Now()
					ok, err := fresh.RateLimiter(l.Name()).TryAcquire(t.Context(), 1, 200*time.Millisecond)
					assert.Less(t, time.Since(start), 3*time.Second)
					assert.Equal(t, ok, err == nil)
					if err != nil {
						assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
					}
				})
			}
		}
		wg.Wait()
		t.Logf("%s: slowest %v", name, slowest)
		hangs.Thaw(t)
		time.Sleep(3 * time.Second)
	}
}
