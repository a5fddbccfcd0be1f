package limitertest

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// Java does to a limiter's keys what Redisson 4.7.0 does, its mistakes
// included, one command after another: for tests in which nobody else is at
// work meanwhile.
type Java struct {
	Redis redis.UniversalClient
	Name  string
	ID    string        // of its Redisson instance
	Fast  time.Duration // how far its clock is ahead of the server's
}

// errNilArithmetic is what its scripts fail with where a request is refused and
// nothing is in use.
var errNilArithmetic = errors.New("attempt to perform arithmetic on a nil value")

// pair returns the rate, the interval in ms and the two keys in use.
func (j Java) pair(t testing.TB) (rate, interval int64, valueKey, permitsKey string) {
	t.Helper()
	set := redisson.KeysOf(j.Name, j.ID)
	cfg, err := j.Redis.HGetAll(t.Context(), set.Config).Result()
	require.NoError(t, err)
	rate, err = strconv.ParseInt(cfg["rate"], 10, 64)
	require.NoError(t, err)
	interval, err = strconv.ParseInt(cfg["interval"], 10, 64)
	require.NoError(t, err)
	if cfg["type"] == "1" {
		return rate, interval, set.ClientValue, set.ClientPermits
	}
	return rate, interval, set.Value, set.Permits
}

// TryAcquire asks for permits and returns whether they were granted, else the
// wait.
func (j Java) TryAcquire(t testing.TB, permits int64) (granted bool, wait time.Duration, err error) {
	t.Helper()
	return j.Resend(t, permits, NewMember(t, codec.LayoutD2, uint32(permits)))
}

// Resend is TryAcquire with a given member: with the same one again it is the
// second copy of a request.
func (j Java) Resend(t testing.TB, permits int64, member string) (granted bool, wait time.Duration, err error) {
	t.Helper()
	rate, interval, valueKey, permitsKey := j.pair(t)
	now := ServerNow(t, j.Redis) + j.Fast.Milliseconds()
	value, there := StoredValue(t, j.Redis, valueKey)
	if !there {
		value = rate
		require.NoError(t, j.Redis.Set(t.Context(), valueKey, value, 0).Err())
	} else if out := j.sweep(t, permitsKey, now-interval); out > 0 {
		if value += out; value > rate {
			value = rate - InUse(t, j.Redis, permitsKey)
		}
		require.NoError(t, j.Redis.Set(t.Context(), valueKey, value, 0).Err())
	}
	defer j.tail(t, valueKey, permitsKey)
	if value >= permits {
		require.NoError(t, j.Redis.ZAdd(t.Context(), permitsKey, redis.Z{Score: float64(now), Member: member}).Err())
		require.NoError(t, j.Redis.DecrBy(t.Context(), valueKey, permits).Err())
		return true, 0, nil
	}
	first, err := j.Redis.ZRangeWithScores(t.Context(), permitsKey, 0, 0).Result()
	require.NoError(t, err)
	if len(first) == 0 {
		return false, 0, errNilArithmetic
	}
	return false, time.Duration(3+interval-(now-int64(first[0].Score))) * time.Millisecond, nil
}

// sweep removes the members of that score and below, and returns their permits.
func (j Java) sweep(t testing.TB, permitsKey string, score int64) int64 {
	t.Helper()
	before := InUse(t, j.Redis, permitsKey)
	require.NoError(t, j.Redis.ZRemRangeByScore(t.Context(), permitsKey, "-inf", fmt.Sprint(score)).Err())
	return before - InUse(t, j.Redis, permitsKey)
}

// tail puts the configuration's time to live on the pair.
func (j Java) tail(t testing.TB, valueKey, permitsKey string) {
	t.Helper()
	keepAlive, err := j.Redis.HGet(t.Context(), j.Name, "keepAliveTime").Int64()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	ttl := time.Duration(keepAlive) * time.Millisecond
	if ttl > 0 {
		require.NoError(t, j.Redis.PExpire(t.Context(), j.Name, ttl).Err())
	} else {
		ttl, err = j.Redis.PTTL(t.Context(), j.Name).Result()
		require.NoError(t, err)
	}
	if ttl > 0 {
		require.NoError(t, j.Redis.PExpire(t.Context(), valueKey, ttl).Err())
		require.NoError(t, j.Redis.PExpire(t.Context(), permitsKey, ttl).Err())
	}
}

// Release raises the value and leaves the set alone.
func (j Java) Release(t testing.TB, permits int64) {
	t.Helper()
	rate, _, valueKey, permitsKey := j.pair(t)
	value, there := StoredValue(t, j.Redis, valueKey)
	if !there {
		value = rate
	}
	require.NoError(t, j.Redis.SetArgs(t.Context(), valueKey, min(rate, value+permits), redis.SetArgs{KeepTTL: true}).Err())
	j.tail(t, valueKey, permitsKey)
}

// AvailablePermits reclaims without looking at the rate, and writes a value
// with no time to live.
func (j Java) AvailablePermits(t testing.TB) int64 {
	t.Helper()
	rate, interval, valueKey, permitsKey := j.pair(t)
	value, there := StoredValue(t, j.Redis, valueKey)
	if !there {
		require.NoError(t, j.Redis.Set(t.Context(), valueKey, rate, 0).Err())
		return rate
	}
	if out := j.sweep(t, permitsKey, ServerNow(t, j.Redis)+j.Fast.Milliseconds()-interval); out > 0 {
		value += out
		require.NoError(t, j.Redis.Set(t.Context(), valueKey, value, 0).Err())
	}
	return value
}

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
