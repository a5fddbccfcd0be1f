package faults_test

import (
	"context"
	"fmt"
	"net"
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
	"github.com/rratelimiter/rratelimiter/limit"
)

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
				var hook *hanging
				ring := miniRing(t, func(shard string, rdb *redis.Client) {
					if shard == "hangs" {
						hook = newHanging(rdb)
					}
				})
				c := limitertest.NewClient(t, ring)
				bad, good, thresholds := keysByShard(t, ring, waiters, 10)
				for _, key := range good {
					l := c.RateLimiter(key, rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
					require.NoError(t, l.Acquire(t.Context(), 1))
				}
				ask := questions(c, ring, thresholds)[name]
				require.NoError(t, ask(t.Context(), good[0]))
				hook.hang(true)
				var wg sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				defer func() {
					cancel()
					wg.Wait()
					time.Sleep(time.Minute) // what was sent ends
				}()
				for _, key := range bad {
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

// keysByShard returns so many keys of the shard that hangs and of the other one, and a
// key of the latter for thresholds.
func keysByShard(t *testing.T, ring *redis.Ring, ofBad, ofGood int) (bad, good []string, thresholds string) {
	t.Helper()
	hangs := func(key string) bool {
		shard, err := ring.GetShardClientForKey(key)
		require.NoError(t, err)
		return shard.Options().Addr == "hangs"
	}
	for thresholds = "thresholds"; hangs(thresholds); thresholds += "+" {
	}
	for i := 0; len(bad) < ofBad || len(good) < ofGood; i++ {
		key := fmt.Sprintf("{key%d}", i)
		if hangs(key) {
			bad = append(bad, key)
		} else {
			good = append(good, key)
		}
	}
	return bad[:ofBad], good[:ofGood], thresholds
}

// miniRing returns a ring of two shards in memory, "hangs" and "works".
func miniRing(t *testing.T, prepare func(shard string, rdb *redis.Client)) *redis.Ring {
	t.Helper()
	ring := redis.NewRing(&redis.RingOptions{
		Addrs:              map[string]string{"hangs": "hangs", "works": "works"},
		HeartbeatFrequency: 1000 * time.Hour,
		HeartbeatFn:        func(context.Context, *redis.Client) bool { return true },
		PoolSize:           256, // no caller waits for a connection, which bubbles do not allow
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
	for _, punctual := range []bool{false, true} {
		opt := &redis.ClusterOptions{ContextTimeoutEnabled: punctual}
		rdb := cluster.Client(t, opt)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(5*time.Second)) // of those that get no answer
		var bad, good []*rratelimiter.RateLimiter
		hangs, _ := cluster.Owner(t, cluster.Slot(t, "a"))
		for i := range 60 {
			byDefault := rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))
			l := client.RateLimiter(fmt.Sprintf("%s:%d", redistest.Name(t), i), byDefault)
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
				assert.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 1, 200*time.Millisecond)), rratelimiter.ErrUnavailable)
				assert.ErrorIs(t, limitertest.Second(l.AvailablePermits(t.Context())), rratelimiter.ErrUnavailable)
			})
		}
		time.Sleep(500 * time.Millisecond)
		for _, l := range good {
			limitertest.MustAcquire(t, l, 1)
			limitertest.Available(t, l)
			require.NoError(t, l.Release(t.Context(), 1))
		}
		wg.Wait()
		checkFresh(t, limitertest.NewClient(t, cluster.Client(t, opt)), bad[0].Name(), good[0].Name())
		hangs.Thaw(t)
		answers := func() bool { return limitertest.Second(bad[0].Exists(t.Context())) == nil }
		require.Eventually(t, answers, time.Minute, 10*time.Millisecond)
	}
}

func checkFresh(t *testing.T, fresh *rratelimiter.Client, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for _, name := range names {
		for range 20 {
			wg.Go(func() {
				ok, err := fresh.RateLimiter(name).TryAcquire(ctx, 1, 200*time.Millisecond)
				assert.NoError(t, ctx.Err(), "the call ends by itself")
				assert.Equal(t, ok, err == nil)
				if err != nil {
					assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
				}
			})
		}
	}
	wg.Wait()
}

// A cluster that is down costs a caller no more than the time of a call, what its client
// needs to learn of that included. Once the policy decides, no caller waits.
func TestAClusterIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:7000", "10.0.0.2:7000"}, PoolSize: 256,
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done() // no packet comes back
				return nil, ctx.Err()
			},
		})
		defer func() {
			assert.NoError(t, rdb.Close())
			time.Sleep(time.Minute)
		}()
		const callTime = 500 * time.Millisecond
		client := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(callTime))
		slowest := func(calls int, ask func() error) (slowest time.Duration) {
			for range calls {
				start := time.Now()
				assert.NoError(t, ask())
				slowest = max(slowest, time.Since(start))
				time.Sleep(10 * time.Millisecond)
			}
			return slowest
		}
		plain := client.RateLimiter("plain", rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
		assert.LessOrEqual(t, slowest(5, func() error {
			assert.ErrorIs(t, limitertest.Second(plain.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrUnavailable)
			assert.ErrorIs(t, limitertest.Second(plain.Config(t.Context())), rratelimiter.ErrUnavailable)
			return nil
		}), 2*callTime, "two calls")
		guarded := client.RateLimiter("guarded", rratelimiter.WithFailure(limit.FailOpen()))
		ask := func() error { return limitertest.Second(guarded.TryAcquire(t.Context(), 1, 0)) }
		assert.LessOrEqual(t, slowest(5, ask), callTime)
		assert.LessOrEqual(t, slowest(200, ask), 5*time.Millisecond, "a probe's begin at most")
	})
}
