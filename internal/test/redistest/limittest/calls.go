package limittest

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// everything is all that Redis holds.
func everything(t *testing.T, rdb redis.UniversalClient) map[string]value {
	t.Helper()
	all := map[string]value{}
	for _, key := range redistest.Keys(t, rdb, "*") {
		all[key] = read(t, rdb, key)
	}
	return all
}

// Peek answers what Take does at the same moment, and leaves all as it is.
func testPeek(t *testing.T, k Kind) {
	redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(by time.Duration)) {
		l, draw := k.New(rdb, permits, window), rand.New(rand.NewPCG(3, 9))
		granted := 0
		for i := range 150 {
			key := Key(t)
			spend(t, draw, l, key)
			for _, key := range redistest.Keys(t, rdb, "*"+strings.Trim(key, "{}")+"*") {
				if draw.IntN(10) == 0 {
					require.NoError(t, rdb.Persist(t.Context(), key).Err())
				}
			}
			if i%10 == 9 {
				step(time.Duration(draw.Int64N(int64(window)) - int64(window/2)).Truncate(time.Millisecond))
			}
			n, before := 1+draw.Int64N(permits+1), everything(t, rdb)
			peeked, peekErr := l.Peek(t.Context(), key, n)
			require.Equal(t, before, everything(t, rdb))
			took, err := l.Take(t.Context(), key, n)
			require.Equal(t, took, peeked, "%d permits", n)
			if err != nil {
				require.ErrorIs(t, err, limit.ErrPermitsExceedRate)
				require.EqualError(t, peekErr, strings.Replace(err.Error(), "Take", "Peek", 1))
				continue
			}
			require.NoError(t, peekErr)
			if took.Granted {
				granted++
			}
			require.NoError(t, rdb.FlushAll(t.Context()).Err())
		}
		assert.Greater(t, granted, 20)
		assert.Less(t, granted, 130)
	})
}

// TakeUpTo takes what is free, and no more than it is asked for.
func testTakeUpTo(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l, draw := k.New(rdb, permits, window), rand.New(rand.NewPCG(4, 1))
		for range 100 {
			key, n := Key(t), 1+draw.Int64N(2*permits)
			spend(t, draw, l, key)
			one, err := l.Peek(t.Context(), key, 1)
			require.NoError(t, err)
			free := one.Remaining
			if one.Granted {
				free++
			}
			taken, d, err := l.TakeUpTo(t.Context(), key, n)
			require.NoError(t, err)
			require.Equal(t, min(n, free), taken)
			require.Equal(t, taken > 0, d.Granted)
			require.Equal(t, free-taken, d.Remaining)
			require.Equal(t, one.RetryAfter, d.RetryAfter)
			after, err := l.Peek(t.Context(), key, permits)
			require.NoError(t, err)
			require.Equal(t, after.ResetAfter == 0, taken == 0 && free == permits)
		}
	})
	for _, n := range []int64{0, -1, math.MinInt64} {
		taken, d, err := k.New(Unreachable(t), permits, window).TakeUpTo(t.Context(), "orders", n)
		require.ErrorIs(t, err, limit.ErrInvalidPermits)
		assert.Zero(t, d)
		assert.Zero(t, taken)
	}
}

// A TakeUpTo whose answer is lost takes its permits once, and tells how many; or its
// caller is told that nobody knows.
func testTakeUpToLost(t *testing.T, k Kind) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, k, permits)
		Take(t, h.other, "orders", 3)
		h.proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.DropAnswer))
		taken, d, err := h.TakeUpTo(t.Context(), "orders", 20)
		h.proxy.OnCommand(nil)
		if k.Once {
			require.NoError(t, err)
			assert.Equal(t, int64(7), taken)
			assert.True(t, d.Granted)
		} else {
			require.ErrorIs(t, err, limit.ErrUnknownOutcome)
			assert.Zero(t, taken)
		}
		refused := Take(t, h.other, "orders", 1)
		assert.False(t, refused.Granted)
	})
}

// Reset frees all, for whoever shares the key.
func testReset(t *testing.T, k Kind) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, k, permits)
		Take(t, h.other, "orders", 3)
		sent := 0
		h.proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Name() != "unlink" && c.Name() != "evalsha" && c.Name() != "eval" {
				return redistest.Pass
			}
			if sent++; c.Name() == "evalsha" && sent == 1 {
				return redistest.Pass // the server does not know the script
			}
			return redistest.DropAnswer
		})
		require.ErrorIs(t, h.Reset(t.Context(), "orders"), limit.ErrUnknownOutcome)
		h.proxy.OnCommand(nil)
		d := Take(t, h.other, "orders", permits)
		assert.True(t, d.Granted)
	})
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l, key, other := k.New(rdb, permits, window), Key(t), Key(t)
		Take(t, l, key, 7)
		Take(t, l, other, 4)
		require.NoError(t, l.Reset(t.Context(), key))
		d := Take(t, k.New(rdb, permits, window), key, permits)
		assert.True(t, d.Granted)
		assert.Equal(t, int64(5), Take(t, l, other, 1).Remaining)
		require.NoError(t, l.Reset(t.Context(), Key(t)), "nothing was taken")
		require.ErrorIs(t, l.Reset(t.Context(), ""), limit.ErrInvalidConfig)
	})
}
