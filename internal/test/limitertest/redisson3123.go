package limitertest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
)

// AsRedisson3123 takes permits as that release does, with plain commands, and
// tells whether they were free.
func AsRedisson3123(t testing.TB, rdb *redis.Client, l *rratelimiter.RateLimiter, permits int64) bool {
	t.Helper()
	k := KeysOf(l)
	value, ok := StoredValue(t, rdb, k.Value)
	if !ok {
		rate := rdb.HGet(t.Context(), k.Config, "rate").Val()
		interval, err := rdb.HGet(t.Context(), k.Config, "interval").Int64()
		require.NoError(t, err)
		require.NoError(t, rdb.Set(t.Context(), k.Value, rate, time.Duration(interval)*time.Millisecond).Err())
	} else if value < permits {
		return false
	}
	require.NoError(t, rdb.DecrBy(t.Context(), k.Value, permits).Err())
	return true
}
