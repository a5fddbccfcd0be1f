package servers_test

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// follow makes a server the replica of another.
func follow(t *testing.T, master, replica *redistest.Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	require.NoError(t, replica.Client(t, nil).ReplicaOf(t.Context(), host, port).Err())
	require.Eventually(t, func() bool {
		info, err := master.Client(t, nil).Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "state=online") && strings.Contains(info, "lag=0")
	}, 30*time.Second, 10*time.Millisecond)
	awaitFirstAck(t, master)
}

// WAIT goes to the shard of the limiter, though it has no key.
func TestWithReplicasOnARing(t *testing.T) {
	t.Parallel()
	ring := redistest.StartRing(t, 2)
	follow(t, ring.Servers[0], redistest.StartRedis(t)) // the other one has no replica
	rdb := ring.Client(t, nil)
	client := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, 50*time.Millisecond), rratelimiter.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	granted := 0
	for i := range 20 {
		l := client.RateLimiter(fmt.Sprintf("l%d", i), rratelimiter.WithDefault(limitertest.Every(5, time.Hour)))
		ok, err := l.TryAcquire(t.Context(), 1, 0)
		shard, failed := rdb.GetShardClientForKey(l.Name())
		require.NoError(t, failed)
		if shard.Options().Addr == ring.Servers[0].Addr() {
			granted++
			require.NoError(t, err)
			assert.True(t, ok)
			continue
		}
		require.ErrorIs(t, err, rratelimiter.ErrNotReplicated)
		awaitAvailable(t, l, 5)
	}
	assert.NotZero(t, granted)
	assert.NotEqual(t, 20, granted)
}

// A repeat that finds the grant of an attempt whose answer was lost is waited for, by
// the mark that it leaves. A second repeat leaves none, so that nobody can tell.
func TestWithReplicasAfterLostAnswers(t *testing.T) {
	t.Parallel()
	for lost := range 3 {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			t.Parallel()
			r := startReplica(t)
			proxy := redistest.StartProxy(t, r.master.Addr())
			client := limitertest.NewClient(t, proxy.Client(t, &redis.Options{PoolSize: 3}), rratelimiter.WithReplicas(1, 300*time.Millisecond))
			l := client.RateLimiter("a")
			limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Hour))
			limitertest.MustAcquire(t, l, 1) // the script is known, and that the limiter is shared
			seen := 0
			proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if name := c.Name(); name == "evalsha" && limitertest.ScriptOf(c.Args[1]) == lua.Acquire {
					if seen++; seen <= lost {
						return redistest.DropAnswer
					}
				}
				return redistest.Pass
			})
			ok, err := l.TryAcquire(t.Context(), 4, 0)
			if lost == 2 {
				require.ErrorIs(t, err, rratelimiter.ErrNotReplicated)
				awaitAvailable(t, l, 9)
				return
			}
			require.NoError(t, err)
			require.True(t, ok)
			r.takeOver(t)
			other := limitertest.NewClient(t, r.client(t)).RateLimiter("a")
			afterFailover(t, other)
			assert.EqualValues(t, 5, limitertest.Available(t, other))
		})
	}
}

// Replicas that do not confirm are no outage, however short callers' timeouts are.
func TestWithReplicasThatDoNotConfirmIsNoOutage(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t).Client(t, nil) // has none
	told := &limitertest.Recorder{}
	client := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, 300*time.Millisecond),
		rratelimiter.WithFailure(limit.FailOpen()), rratelimiter.WithObserver(told))
	l, other := client.RateLimiter("{a}"), client.RateLimiter("{a}b")
	plain := limitertest.NewClient(t, rdb) // has the server know the scripts
	a, b := plain.RateLimiter("{a}"), plain.RateLimiter("{a}b")
	limitertest.MustTrySetRate(t, a, limitertest.Every(10, time.Hour))
	limitertest.MustTrySetRate(t, b, limitertest.Every(10, time.Hour))
	limitertest.MustAcquire(t, a, 1)
	require.NoError(t, limitertest.Second(plain.TryAcquireAll(t.Context(), 1, 0, a, b)))
	_, err := client.TryAcquireAll(t.Context(), 1, 10*time.Millisecond, l, other)
	require.ErrorIs(t, err, rratelimiter.ErrNotReplicated)
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			_, err := l.TryAcquire(t.Context(), 1, 10*time.Millisecond)
			assert.ErrorIs(t, err, rratelimiter.ErrNotReplicated)
		})
	}
	callers.Wait()
	for _, e := range told.Events() {
		assert.NotEqual(t, limit.AskedNoMore, e.Kind)
	}
	awaitAvailable(t, a, 8)
}
