package servers_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// waits returns how many WAITs a server has run.
func waits(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	found := regexp.MustCompile(`cmdstat_wait:calls=(\d+)`).FindStringSubmatch(info)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// awaitAvailable waits until so many permits are free.
func awaitAvailable(t *testing.T, l *rratelimiter.RateLimiter, want int64) {
	t.Helper()
	var free int64
	assert.Eventually(t, func() bool {
		free = limitertest.Available(t, l)
		return free == want
	}, 30*time.Second, 10*time.Millisecond)
	assert.Equal(t, want, free)
}

func TestWithReplicasAGrantCountsOnceAReplicaHasIt(t *testing.T) {
	t.Parallel()
	r := startReplica(t)
	rdb := r.client(t)
	told := &limitertest.Recorder{}
	client := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, 200*time.Millisecond), rratelimiter.WithObserver(told))
	l := client.RateLimiter("{a}", rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
	other := client.RateLimiter("{a}b", rratelimiter.WithDefault(limitertest.Every(20, time.Hour)))
	limitertest.MustAcquire(t, l, 3)
	ok, err := client.TryAcquireAll(t.Context(), 1, 0, l, other)
	require.NoError(t, err)
	require.True(t, ok)
	limitertest.MustRefuse(t, l, 7)

	close(r.silent)
	for name, call := range map[string]func(ctx context.Context) error{
		"TryAcquire": func(ctx context.Context) error { return limitertest.Second(l.TryAcquire(ctx, 1, 0)) },
		"Acquire":    func(ctx context.Context) error { return l.Acquire(ctx, 2) },
		"Take":       func(ctx context.Context) error { return limitertest.Second(l.Take(ctx, 1)) },
		"TakeUpTo": func(ctx context.Context) error {
			taken, d, err := l.TakeUpTo(ctx, 100)
			assert.Zero(t, taken)
			assert.False(t, d.Granted)
			return err
		},
		"TryAcquireAll": func(ctx context.Context) error {
			return limitertest.Second(client.TryAcquireAll(ctx, 1, time.Second, l, other))
		},
	} {
		began := time.Now()
		err := call(t.Context())
		require.ErrorIs(t, err, rratelimiter.ErrNotReplicated, name)
		require.NotErrorIs(t, err, rratelimiter.ErrUnavailable, name)
		require.ErrorContains(t, err, "0 of the 1 replicas", name)
		assert.Less(t, time.Since(began), 2*time.Second, name)
		awaitAvailable(t, l, 6)
		awaitAvailable(t, other, 19)
	}
	limitertest.MustRefuse(t, l, 7)
	require.ErrorIs(t, limitertest.Second(l.Take(t.Context(), 11)), rratelimiter.ErrPermitsExceedRate)
	assert.Eventually(t, func() bool {
		events := told.Events()
		return len(events) == 1 && events[0].Kind == limit.ReplicasBehind
	}, time.Minute, 10*time.Millisecond)
	failed := 0
	for _, d := range told.Decisions() {
		if d.Kind == limit.KindNotReplicated {
			failed++
		}
	}
	assert.Equal(t, 6, failed, "five calls, one of which asks two limiters")

	r.takeOver(t)
	afterFailover(t, l)
	assert.EqualValues(t, 6, limitertest.Available(t, l))
	assert.EqualValues(t, 19, limitertest.Available(t, other))
}

// What a lease takes ahead is a grant like any other.
func TestWithReplicasALeaseOfWhatReplicasHave(t *testing.T) {
	t.Parallel()
	r := startReplica(t)
	told := &limitertest.Recorder{}
	client := limitertest.NewClient(t, r.client(t), rratelimiter.WithReplicas(1, 50*time.Millisecond), rratelimiter.WithObserver(told))
	burst := func(l *rratelimiter.RateLimiter) (granted, failed int64) {
		var ok, not atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 40 {
					switch ok1, err := l.TryAcquire(t.Context(), 1, 0); {
					case ok1:
						ok.Add(1)
					case assert.ErrorIs(t, err, rratelimiter.ErrNotReplicated):
						not.Add(1)
					}
				}
			})
		}
		wg.Wait()
		return ok.Load(), not.Load()
	}
	option := rratelimiter.WithLease(rratelimiter.Lease{Permits: 1000})
	a := client.RateLimiter("a", rratelimiter.WithDefault(limitertest.Every(100_000, time.Hour)), option)
	granted, failed := burst(a)
	assert.EqualValues(t, 320, granted)
	assert.Zero(t, failed)
	require.Eventually(t, func() bool { return len(told.Leases()) > 0 }, time.Minute, 10*time.Millisecond)

	b := client.RateLimiter("b", rratelimiter.WithDefault(limitertest.Every(100_000, time.Hour)), option)
	close(r.silent)
	granted, failed = burst(b)
	assert.Zero(t, granted)
	assert.EqualValues(t, 320, failed)
	awaitAvailable(t, b, 100_000)
	for _, lease := range told.Leases() {
		assert.Equal(t, "a", lease.Limiter)
	}
}

func TestWithReplicasCallersOfOneFlightWaitOnce(t *testing.T) {
	t.Parallel()
	r := startReplica(t)
	for _, pool := range []int{2, 10} {
		told := &limitertest.Recorder{}
		rdb := r.master.Client(t, &redis.Options{PoolSize: pool})
		client := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, time.Second), rratelimiter.WithObserver(told))
		const callers, rounds, rate = 64, 20, 1000
		l := client.RateLimiter(redistest.Name(t), rratelimiter.WithDefault(limitertest.Every(rate, time.Hour)))
		before := waits(t, rdb)
		var granted atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range rounds {
					ok, err := l.TryAcquire(t.Context(), 1, 0)
					if assert.NoError(t, err) && ok {
						granted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, client.Close(t.Context()))
		assert.EqualValues(t, rate, granted.Load(), "those beyond the rate are refused")
		after := waits(t, rdb) - before
		assert.Eventually(t, func() bool { return len(told.Flights()) == after }, time.Minute, 10*time.Millisecond,
			"%d WAITs, %d flights", after, len(told.Flights()))
		assert.Less(t, after, callers*rounds/2)
		t.Logf("pool of %d: %d calls, %d round trips, as many WAITs", pool, callers*rounds, after)
	}
}

func TestWithReplicasWhereThereAreNone(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t).Client(t, nil)
	l := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, 10*time.Millisecond), rratelimiter.WithFailure(limit.FailOpen())).
		RateLimiter("a", rratelimiter.WithDefault(limitertest.Every(2, time.Hour)))
	for range 5 {
		_, err := l.Take(t.Context(), 1)
		require.ErrorIs(t, err, rratelimiter.ErrNotReplicated, "no outage")
		require.ErrorContains(t, err, "see that replicas are connected")
		awaitAvailable(t, l, 2)
	}
	limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter("a"), 2)
	limitertest.MustRefuse(t, l, 1)

	shadow := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, 10*time.Millisecond), rratelimiter.WithShadow()).
		RateLimiter("b", rratelimiter.WithDefault(limitertest.Every(2, time.Hour)))
	limitertest.MustAcquire(t, shadow, 1)
	awaitAvailable(t, shadow, 2)
}

// A server whose user may not WAIT grants nothing that is not known to be durable.
func TestWithReplicasWithoutTheRight(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := redistest.AddUser(t, server, nil, redistest.LeastCommands, redistest.KeysOf("a"))
	l := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, 10*time.Millisecond)).
		RateLimiter("a", rratelimiter.WithDefault(limitertest.Every(2, time.Hour)))
	_, err := l.Take(t.Context(), 1)
	require.ErrorIs(t, err, rratelimiter.ErrNotReplicated)
	require.ErrorContains(t, err, "NOPERM")
	awaitAvailable(t, l, 2)
}

// Each master of a cluster is waited for by itself, and limiters whose slot goes
// elsewhere are followed.
func TestWithReplicasOnACluster(t *testing.T) {
	t.Parallel()
	const masters, rate = 3, 100
	cluster := redistest.StartCluster(t, masters, 1)
	rdb := cluster.Client(t, nil)
	client := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, 300*time.Millisecond))
	var limiters []*rratelimiter.RateLimiter
	for i := range 30 {
		limiters = append(limiters, client.RateLimiter(fmt.Sprintf("l%d", i), rratelimiter.WithDefault(limitertest.Every(rate, time.Hour))))
	}
	all := func(check func(l *rratelimiter.RateLimiter, err error)) {
		var wg sync.WaitGroup
		for _, l := range limiters {
			wg.Go(func() { check(l, limitertest.Second(l.TryAcquire(t.Context(), 1, 0))) })
		}
		wg.Wait()
	}
	fine := func(_ *rratelimiter.RateLimiter, err error) { assert.NoError(t, err) }
	for range 5 {
		all(fine)
	}
	sum := 0
	for _, node := range cluster.Nodes() {
		n := waits(t, node.Client(t, nil))
		assert.Equal(t, node.IsMaster(t), n > 0, "%d WAITs", n)
		sum += n
	}
	assert.LessOrEqual(t, sum, 5*len(limiters))

	slot := cluster.Slot(t, limiters[0].Name())
	_, replicas := cluster.Owner(t, slot)
	cluster.Failover(t, replicas[0], false)
	require.Eventually(t, func() bool {
		return limitertest.Second(limiters[0].TryAcquire(t.Context(), 1, 0)) == nil
	}, 30*time.Second, 10*time.Millisecond)
	all(fine)

	master, replicas := cluster.Owner(t, slot)
	require.Len(t, replicas, 1)
	replicas[0].Kill()
	require.Eventually(t, func() bool {
		info, err := master.Client(t, nil).Info(t.Context(), "replication").Result()
		return err == nil && regexp.MustCompile(`connected_slaves:0`).MatchString(info)
	}, 30*time.Second, 10*time.Millisecond)
	all(func(l *rratelimiter.RateLimiter, err error) {
		if owner, _ := cluster.Owner(t, cluster.Slot(t, l.Name())); owner == master {
			assert.ErrorIs(t, err, rratelimiter.ErrNotReplicated)
			return
		}
		assert.NoError(t, err)
	})
}
