package rratelimiter_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A repeat whose attempt was granted tells each refused request its own wait.
func TestWaitsOfARepeatBesideARequestAboveTheRate(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := newLimiter(t, rdb, every(10, time.Hour))
		member := "\x10" + strings.Repeat("i", 16) + "\x03\x00\x00\x00"
		now := float64(serverNow(t, rdb))
		keys := keysOf(l)
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
		l := newLimiter(t, rdb, every(1000, time.Minute))
		keys := keysOf(l)
		addGrants(t, rdb, keys.Permits, time.Hour, 600, 1)
		member := "\x10" + strings.Repeat("i", 16) + "\x03\x00\x00\x00"
		require.NoError(t, rdb.ZAdd(t.Context(), keys.Permits,
			redis.Z{Score: float64(serverNow(t, rdb) - 1000), Member: member}).Err())
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
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(3200, time.Second))
		for range 300 {
			mustAcquire(t, l, 1)
			time.Sleep(1100 * time.Millisecond)
			assert.LessOrEqual(t, rdb.ZCard(t.Context(), keysOf(l).Permits).Val(), int64(3200/64+1))
		}
	})
}

func TestAnsweredAttemptsAreForgottenAfterAMinute(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(10, time.Hour))
		note := strconv.FormatInt(serverNow(t, rdb), 10) + ":" + strings.Repeat("ab", 16) + ";"
		require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", note).Err())
		time.Sleep(59 * time.Second)
		mustAcquire(t, l, 1)
		assert.Equal(t, note, rdb.HGet(t.Context(), l.Name(), "answered").Val())
		time.Sleep(2 * time.Second)
		mustAcquire(t, l, 1)
		assert.False(t, rdb.HExists(t.Context(), l.Name(), "answered").Val())
	})
}

func TestPerClientPairsGoBeforeALongLivedConfig(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, perClient(10, time.Minute))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		mustAcquire(t, l, 1)
		time.Sleep(61 * time.Second)
		assert.Len(t, limiterKeys(t, rdb, l.Name()), 1, "the config alone")
	})
}

func TestARefusalDatesMembersOfTheFutureAnew(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(2, time.Minute))
		mustAcquire(t, l, 1)
		mustRefuse(t, l, 2)
		mustAcquire(t, l, 1)
		keys := keysOf(l)
		newest := rdb.ZRange(t.Context(), keys.Permits, -1, -1).Val()[0]
		require.NoError(t, rdb.ZAddXX(t.Context(), keys.Permits,
			redis.Z{Score: float64(serverNow(t, rdb) + time.Hour.Milliseconds()), Member: newest}).Err())
		mustRefuse(t, l, 1)
		assert.Equal(t, serverNow(t, rdb), int64(rdb.ZScore(t.Context(), keys.Permits, newest).Val()))
	})
}
