package servers_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestACLOfOneLimiter(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"orders", "{shop}orders"} {
		limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
			server := redistest.StartRedis(t)
			admin := server.Client(t, nil)
			rdb := redistest.AddUser(t, server, nil, redistest.LeastCommands, redistest.KeysOf(name), redistest.KeysOf(limitertest.Besides(name)))
			cfg := rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour}
			for op, call := range limitertest.Operations {
				l := limitertest.NewClient(t, rdb).RateLimiter(name)
				require.NoError(t, l.SetRate(t.Context(), cfg))
				limitertest.MustAcquire(t, l, 3)
				require.NoError(t, call(t.Context(), l), op)
				require.NoError(t, admin.FlushAll(t.Context()).Err())
			}
			denied, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
			require.NoError(t, err)
			for _, entry := range denied {
				// go-redis introduces itself, and does without it.
				assert.Contains(t, []any{"client", "client|setinfo", "client|maint_notifications"}, entry.(map[any]any)["object"])
			}
			other := limitertest.NewClient(t, rdb).RateLimiter(name + "x")
			require.ErrorContains(t, limitertest.Second(other.TrySetRate(t.Context(), cfg)), "NOPERM")
			assert.Empty(t, limitertest.ReadState(t, admin, name+"x"))
		})
	}
}

func TestACLOnSeveralServers(t *testing.T) {
	t.Parallel()
	for what, connect := range map[string]func(t *testing.T, rules string) rratelimiter.Redis{
		"cluster": func(t *testing.T, rules string) rratelimiter.Redis {
			return redistest.StartCluster(t, 3, 0).AddUser(t, nil, rules, redistest.ClusterCommands)
		},
		"ring": func(t *testing.T, rules string) rratelimiter.Redis {
			// With a heartbeat, unlike the client of a test.
			opt := &redis.RingOptions{HeartbeatFrequency: 10 * time.Millisecond}
			return redistest.StartRing(t, 3).AddUser(t, opt, rules, redistest.RingCommands)
		},
		"sentinel": func(t *testing.T, rules string) rratelimiter.Redis {
			s := redistest.StartSentinel(t, 1, 30*time.Second)
			user := redistest.AddUser(t, s.Master(t), nil, rules).Options().Username
			return s.Client(t, &redis.FailoverOptions{Username: user, Password: user})
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			client := limitertest.NewClient(t, connect(t, redistest.LeastCommands+" "+redistest.KeysWithPrefix("shop:")))
			for i := range 20 {
				l := client.RateLimiter("shop:" + strconv.Itoa(i))
				limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Hour))
				for op, call := range limitertest.Operations {
					require.NoError(t, l.SetRate(t.Context(), limitertest.Every(10, time.Hour)))
					limitertest.MustAcquire(t, l, 3)
					require.NoError(t, call(t.Context(), l), op)
				}
			}
		})
	}
}

// startNode starts a cluster of one master.
func startNode(t *testing.T) (*redis.ClusterClient, *redistest.Server) {
	t.Helper()
	cluster := redistest.StartCluster(t, 1, 0)
	return cluster.Client(t, &redis.ClusterOptions{ReadOnly: true}), cluster.Nodes()[0]
}

func TestClusterServesNamesWhoseKeysShareASlot(t *testing.T) {
	t.Parallel()
	rdb, _ := startNode(t)
	client := limitertest.NewClient(t, rdb)
	for _, name := range []string{"orders", "a{b}c", "{{a}}", "orders:with:colons"} {
		l := client.RateLimiter(name)
		limitertest.MustTrySetRate(t, l, limitertest.Hourly(3))
		assert.Equal(t, 3, limitertest.Grants(t, l, 4), name)
		require.NoError(t, l.Release(t.Context(), 2), name)
		assert.EqualValues(t, 2, limitertest.Available(t, l), name)
		gone, err := l.Delete(t.Context())
		require.NoError(t, err, name)
		assert.True(t, gone, name)
	}
	l := client.RateLimiter("{shop}orders", rratelimiter.WithDefault(limitertest.Hourly(5)))
	limitertest.MustAcquire(t, l, 2)
	require.NoError(t, l.Rename(t.Context(), "{shop}sales"))
	l = client.RateLimiter("{shop}sales")
	assert.EqualValues(t, 3, limitertest.Available(t, l))
	require.ErrorIs(t, l.Rename(t.Context(), "elsewhere"), rratelimiter.ErrUnsupported)
}

func TestClusterRefusesNamesWhoseKeysFallApart(t *testing.T) {
	t.Parallel()
	cluster, server := startNode(t)
	for what, rdb := range map[string]rratelimiter.Redis{"cluster client": cluster, "plain client": server.Client(t, nil)} {
		client := limitertest.NewClient(t, rdb)
		for _, name := range []string{"foo}bar", "a}", "a{b", "{}x", "x{}"} {
			l := client.RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerSecond(1)))
			for _, op := range []string{"TrySetRate", "TryAcquire", "Config", "Delete"} {
				err := limitertest.Operations[op](t.Context(), l)
				require.ErrorIs(t, err, rratelimiter.ErrUnsupported, "%s %s %s", what, name, op)
				assert.ErrorContains(t, err, "hash tag")
				assert.ErrorContains(t, err, name)
			}
		}
	}
	assert.Empty(t, redistest.Keys(t, cluster, "*"), "nothing was written")
}
