package redisson_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A repeat whose attempt was granted tells each refused request its own wait.
func TestWaitsOfARepeatBesideARequestAboveTheRate(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
		member := "\x10" + strings.Repeat("i", 16) + "\x03\x00\x00\x00"
		now := float64(limitertest.ServerNow(t, rdb))
		keys := limitertest.KeysOf(l)
		require.NoError(t, rdb.ZAdd(t.Context(), keys.Permits, redis.Z{Score: now - 1000, Member: member}).Err())
		require.NoError(t, rdb.Set(t.Context(), keys.Value, 7, 0).Err())
		reply, err := rdb.Eval(t.Context(), lua.Acquire.Source, keys.List(),
			"\x10"+strings.Repeat("i", 16)+"\x1b\x00\x00\x00", 27, "", "", 60_000, "", 0, 3, 1, 16, 1, 8, 1).Int64Slice()
		require.NoError(t, err)
		require.Len(t, reply, 7, "one wait, that of the request for 8")
		assert.EqualValues(t, 3, reply[2])
		assert.InDelta(t, time.Hour.Milliseconds(), reply[6], 5000)
	})
}

// A repeat that finds its attempt need not reclaim all that has run out; what is
// left of it makes no wait.
func TestWaitsOfARepeatBesideMembersThatRanOut(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1000, time.Minute))
		keys := limitertest.KeysOf(l)
		limitertest.AddGrants(t, rdb, keys.Permits, time.Hour, 600, 1)
		member := "\x10" + strings.Repeat("i", 16) + "\x03\x00\x00\x00"
		require.NoError(t, rdb.ZAdd(t.Context(), keys.Permits,
			redis.Z{Score: float64(limitertest.ServerNow(t, rdb) - 1000), Member: member}).Err())
		require.NoError(t, rdb.Set(t.Context(), keys.Value, 0, 0).Err())
		reply, err := rdb.Eval(t.Context(), lua.Acquire.Source, keys.List(),
			"\x10"+strings.Repeat("i", 16)+"\x93\x01\x00\x00", 403, "", "", 60_000, "", 0, 3, 1, 400, 1).Int64Slice()
		require.NoError(t, err)
		require.Len(t, reply, 7)
		assert.EqualValues(t, 3, reply[2])
		assert.EqualValues(t, 1, max(reply[6], -reply[6]), "at once, or a page on")
	})
}

// What ran out while the value sufficed piles up to a 64th of the rate at most: a
// Redisson sweeps all of it in one call.
func TestGrantsSweepWhatHasRunOut(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(3200, time.Second))
		for range 300 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(1100 * time.Millisecond)
			assert.LessOrEqual(t, rdb.ZCard(t.Context(), limitertest.KeysOf(l).Permits).Val(), int64(3200/64+1))
		}
	})
}

func TestAnsweredAttemptsAreForgottenAfterAMinute(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
		note := strconv.FormatInt(limitertest.ServerNow(t, rdb), 10) + ":" + strings.Repeat("ab", 16) + ";"
		require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", note).Err())
		time.Sleep(59 * time.Second)
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, note, rdb.HGet(t.Context(), l.Name(), "answered").Val())
		time.Sleep(2 * time.Second)
		limitertest.MustAcquire(t, l, 1)
		assert.False(t, rdb.HExists(t.Context(), l.Name(), "answered").Val())
	})
}

func TestPerClientPairsGoBeforeALongLivedConfig(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.PerClient(10, time.Minute))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(61 * time.Second)
		assert.Len(t, limitertest.LimiterKeys(t, rdb, l.Name()), 1, "the config alone")
	})
}

func TestARefusalDatesMembersOfTheFutureAnew(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(2, time.Minute))
		limitertest.MustAcquire(t, l, 1)
		limitertest.MustRefuse(t, l, 2)
		limitertest.MustAcquire(t, l, 1)
		keys := limitertest.KeysOf(l)
		newest := rdb.ZRange(t.Context(), keys.Permits, -1, -1).Val()[0]
		require.NoError(t, rdb.ZAddXX(t.Context(), keys.Permits,
			redis.Z{Score: float64(limitertest.ServerNow(t, rdb) + time.Hour.Milliseconds()), Member: newest}).Err())
		limitertest.MustRefuse(t, l, 1)
		assert.Equal(t, limitertest.ServerNow(t, rdb), int64(rdb.ZScore(t.Context(), keys.Permits, newest).Val()))
	})
}
