package compat_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Redisson does all that it does beside a Client that has a name, whose key is the only
// one that comes. What it has taken is told as its own.
func TestRedissonDoesNotMindNames(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	java, goes := newJava(t, server.URL()), newGo(t, rdb, rratelimiter.WithClientName("orders-7f9c"))
	set := layout.KeysOf("orders", "")
	require.True(t, java.TrySetRate("orders", rratelimiter.PerHour(100)))
	goes.TrySetRate("orders", rratelimiter.PerHour(1))
	require.True(t, goes.Try("orders", 10))
	require.True(t, java.Try("orders", 4))
	require.True(t, java.Try("orders", 3))
	require.Eventually(t, func() bool { return rdb.Exists(t.Context(), clients.Key).Val() == 1 }, 20*time.Second, time.Millisecond)
	assert.ElementsMatch(t, []string{set.Config, set.Value, set.Permits, clients.Key}, rdb.Keys(t.Context(), "*").Val())

	e, limiter := engine.OfHandle(goes.RateLimiter("orders"))
	users, err := e.Users(t.Context(), limiter, false)
	require.NoError(t, err)
	require.Len(t, users.Shares, 2)
	assert.Equal(t, "orders-7f9c", users.Shares[0].Name)
	assert.EqualValues(t, 10, users.Shares[0].Permits)
	assert.Equal(t, clients.Share{Kind: clients.Redisson, Permits: 7}, users.Shares[1])

	require.EqualValues(t, 83, java.Available("orders"))
	require.False(t, java.Try("orders", 84))
	require.True(t, java.Wait("orders", 1, time.Second))
	java.Release("orders", 1)
	java.KeepState("orders", rratelimiter.PerHour(200))
	require.True(t, java.UpdateRate("orders", rratelimiter.PerHour(300), true))
	rate, interval := java.Rate("orders")
	assert.EqualValues(t, 300, rate)
	assert.Equal(t, time.Hour, interval)
	require.True(t, java.Expire("orders", time.Hour))
	assert.Positive(t, java.TTL("orders"))
	require.True(t, java.Exists("orders"))
	java.SetRate("orders", rratelimiter.PerHour(5))
	require.True(t, goes.Try("orders", 5))
	require.True(t, java.Delete("orders"))
	assert.Equal(t, []string{clients.Key}, rdb.Keys(t.Context(), "*").Val())
}
