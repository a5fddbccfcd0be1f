package tokenbucket_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// Keys that a cluster has in different slots are refused, and the error says
// what to name them.
func TestClusterKeysApart(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t, "--cluster-enabled", "yes")
	plain := server.Client(t, nil)
	require.NoError(t, plain.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		info, err := plain.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, time.Minute, 10*time.Millisecond)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	for what, l := range map[string]*tokenbucket.Limiter{"cluster client": threeInTenSeconds(rdb), "plain client": threeInTenSeconds(plain)} {
		_, giveBack, err := l.TakeReturnable(t.Context(), "user1", 1)
		require.ErrorIs(t, err, limit.ErrUnsupported, what)
		assert.ErrorContains(t, err, `"user1"`)
		assert.ErrorContains(t, err, `"user1_time"`)
		assert.ErrorContains(t, err, `"{user1}"`)
		assert.Nil(t, giveBack)
	}
	assert.Empty(t, redistest.Keys(t, rdb, "*"))

	l := threeInTenSeconds(rdb)
	for _, key := range []string{"{user1}", "limit:{user1}:/orders", "{a}{b}"} {
		assert.Equal(t, 10, limittest.Grants(t, l, key, 12), key)
	}
}

// On a Ring such keys would lie on two servers.
func TestRingKeysApart(t *testing.T) {
	t.Parallel()
	// The shards are one server: it is the client that parts the keys.
	addr := redistest.Shared(t).Addr()
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": addr, "two": addr}})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	l, refused := threeInTenSeconds(rdb), 0
	for range 30 {
		key := redistest.Name(t)
		d, err := l.Take(t.Context(), key, 1)
		if errors.Is(err, limit.ErrUnsupported) {
			refused++
			assert.ErrorContains(t, err, fmt.Sprintf("%q", "{"+key+"}"))
		} else {
			require.NoError(t, err)
			assert.Equal(t, int64(9), d.Remaining)
			assert.Equal(t, 9, limittest.Grants(t, l, key, 12))
		}
		assert.Equal(t, 10, limittest.Grants(t, l, "{"+key+"}", 12))
	}
	assert.Positive(t, refused)
}
