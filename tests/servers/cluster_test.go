package servers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// startCluster starts a cluster of one master that serves all slots.
func startCluster(t *testing.T) (*redis.ClusterClient, *redistest.Server) {
	t.Helper()
	server := redistest.StartRedis(t, "--cluster-enabled", "yes")
	node := server.Client(t, nil)
	require.NoError(t, node.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		info, err := node.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, time.Minute, 10*time.Millisecond)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}, ReadOnly: true})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, server
}

func TestClusterServesNamesWhoseKeysShareASlot(t *testing.T) {
	t.Parallel()
	rdb, _ := startCluster(t)
	client := rratelimiter.New(rdb)
	for _, name := range []string{"orders", "a{b}c", "{{a}}", "orders:with:colons"} {
		limiter := client.RateLimiter(name)
		set, err := limiter.TrySetRate(t.Context(), rratelimiter.PerHour(3))
		require.NoError(t, err, name)
		require.True(t, set, name)
		for i := range 4 {
			granted, err := limiter.TryAcquire(t.Context(), 1, 0)
			require.NoError(t, err, name)
			assert.Equal(t, i < 3, granted, name)
		}
		require.NoError(t, limiter.Release(t.Context(), 2), name)
		free, err := limiter.AvailablePermits(t.Context())
		require.NoError(t, err, name)
		assert.EqualValues(t, 2, free, name)
		gone, err := limiter.Delete(t.Context())
		require.NoError(t, err, name)
		assert.True(t, gone, name)
	}
}

func TestClusterRefusesNamesWhoseKeysFallApart(t *testing.T) {
	t.Parallel()
	cluster, server := startCluster(t)
	for what, rdb := range map[string]rratelimiter.Redis{"cluster client": cluster, "plain client": server.Client(t, nil)} {
		client := rratelimiter.New(rdb)
		for _, name := range []string{"foo}bar", "a}", "a{b", "{}x", "x{}"} {
			limiter := client.RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerSecond(1)))
			_, setErr := limiter.TrySetRate(t.Context(), rratelimiter.PerSecond(1))
			_, tryErr := limiter.TryAcquire(t.Context(), 1, 0)
			_, readErr := limiter.Config(t.Context())
			_, deleteErr := limiter.Delete(t.Context())
			for _, err := range []error{setErr, tryErr, readErr, deleteErr} {
				require.ErrorIs(t, err, rratelimiter.ErrUnsupported, "%s %s", what, name)
				assert.ErrorContains(t, err, "hash tag")
				assert.ErrorContains(t, err, name)
			}
		}
	}
	size, err := server.Client(t, nil).DBSize(t.Context()).Result()
	require.NoError(t, err)
	assert.Zero(t, size, "nothing was written")
}

func TestClusterRename(t *testing.T) {
	t.Parallel()
	rdb, _ := startCluster(t)
	client := rratelimiter.New(rdb)
	limiter := client.RateLimiter("{shop}orders", rratelimiter.WithDefault(rratelimiter.PerHour(5)))
	_, err := limiter.TryAcquire(t.Context(), 2, 0)
	require.NoError(t, err)
	require.NoError(t, limiter.Rename(t.Context(), "{shop}sales"))
	free, err := client.RateLimiter("{shop}sales").AvailablePermits(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 3, free)
	require.ErrorIs(t, client.RateLimiter("{shop}sales").Rename(t.Context(), "elsewhere"), rratelimiter.ErrUnsupported)
}
