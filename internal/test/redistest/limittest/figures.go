package limittest

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	permits = 10
	window  = 6 * time.Second
)

// spend brings a limiter to a random state.
func spend(t *testing.T, draw *rand.Rand, l limit.Limiter, key string) {
	t.Helper()
	for range 1 + draw.IntN(8) {
		Take(t, l, key, 1+draw.Int64N(permits))
		time.Sleep(time.Duration(draw.Int64N(int64(window / 3))).Truncate(100 * time.Microsecond))
	}
}

// At RetryAfter the request passes, at ResetAfter all permits are free, and not a millisecond before.
func testRetryAndReset(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l, draw := k.on(rdb, permits, window), rand.New(rand.NewPCG(6, 2))
		require.Equal(t, window, l.Window())
		refused := 0
		for i := range 120 {
			key, n := Key(t), 1+draw.Int64N(permits)
			spend(t, draw, l, key)
			d := Take(t, l, key, n)
			require.Equal(t, !d.Granted, d.RetryAfter > 0)
			require.Positive(t, d.ResetAfter)
			require.LessOrEqual(t, d.RetryAfter, d.ResetAfter)
			require.LessOrEqual(t, d.ResetAfter, window)
			after, all := d.RetryAfter, d.Granted || i%2 == 0
			if all {
				n, after = permits, d.ResetAfter
			}
			if !d.Granted {
				refused++
				require.LessOrEqual(t, d.Remaining, n)
			}
			time.Sleep(after - time.Millisecond)
			early := Take(t, l, key, n)
			require.False(t, early.Granted, "%d permits %v after %+v", n, after-time.Millisecond, d)
			require.Equal(t, time.Millisecond, early.RetryAfter)
			require.True(t, !all || early.ResetAfter == time.Millisecond)
			time.Sleep(time.Millisecond)
			now := Take(t, l, key, n)
			require.True(t, now.Granted, "%d permits %v after %+v", n, after, d)
			require.True(t, !all || now.Remaining == 0)
		}
		assert.Greater(t, refused, 24)
		assert.Less(t, refused, 96)
	})
}

// A grant that is given back has not been.
func testGiveBack(t *testing.T, k Kind) {
	atRest(t, func(t *testing.T, rdb redistest.Client) {
		l, key, ctx := k.on(rdb, permits, time.Hour), Key(t), t.Context()
		giveBack := Returnable(t, l, key, 3)
		assert.Equal(t, int64(3), Take(t, l, key, 4).Remaining)
		refused, none, err := l.TakeReturnable(ctx, key, 4)
		require.NoError(t, err)
		assert.False(t, refused.Granted)
		assert.Nil(t, none)
		require.NoError(t, giveBack(ctx))
		assert.Equal(t, int64(5), Take(t, l, key, 1).Remaining)
		assert.True(t, Take(t, l, key, 5).Granted)
		assert.False(t, Take(t, l, key, 1).Granted)
		key = Key(t)
		require.NoError(t, Returnable(t, l, key, permits)(ctx))
		assert.True(t, Take(t, l, key, permits).Granted)
		assert.False(t, Take(t, l, key, 1).Granted)
	})
}

// atRest is redistest.Everywhere with a miniredis in virtual time, for tests that a machine which pauses would disturb.
func atRest(t *testing.T, test func(t *testing.T, rdb redistest.Client)) {
	t.Helper()
	t.Run("virtual time", func(t *testing.T) {
		t.Parallel()
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { test(t, rdb) })
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		test(t, redistest.CurrentClient(t))
	})
}

// A grant that has run out is not given back: others have its permits.
func testGiveBackTooLate(t *testing.T, k Kind) {
	for _, window := range append(k.Shortest, window) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			l, ctx := k.on(rdb, permits, window), t.Context()
			for key, spent := range map[string]int64{"orders": 4, "sales": permits} {
				giveBack := Returnable(t, l, key, spent)
				time.Sleep(window)
				require.True(t, Take(t, l, key, permits).Granted)
				require.NoError(t, giveBack(ctx))
				assert.False(t, Take(t, l, key, 1).Granted)
			}
			giveBack := Returnable(t, l, "users", 4)
			time.Sleep(3 * window)
			require.NoError(t, giveBack(ctx))
			assert.Empty(t, rdb.Keys(ctx, "users*").Val(), "nothing is left behind")
			require.True(t, Take(t, l, "users", permits).Granted)
			assert.False(t, Take(t, l, "users", 1).Granted)
		})
	}
}

// A window has the right length, to the millisecond if the kind counts those. The server's clock counts, whatever the process's clock says.
func testShortWindows(t *testing.T, k Kind) {
	for _, window := range append(k.Shortest, time.Minute) {
		redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
			l := k.on(rdb, 3, window)
			if window == time.Minute {
				step(40 * 365 * 24 * time.Hour)
			}
			for range 5 {
				assert.Equal(t, 3, Grants(t, l, "orders", 5))
				assert.Equal(t, window, Take(t, l, "orders", 1).RetryAfter)
				time.Sleep(window)
			}
		})
	}
}

// Around a window's edge twice the limit passes, unless the kind counts otherwise.
func testEdge(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := k.on(rdb, 10, time.Minute)
		assert.True(t, Take(t, l, "orders", 1).Granted)
		time.Sleep(59900 * time.Millisecond)
		burst := Grants(t, l, "orders", 20)
		time.Sleep(100 * time.Millisecond)
		burst += Grants(t, l, "orders", 20)
		assert.Equal(t, k.AtEdge, burst)
	})
}

// The largest figures count exactly, and the longest window is one that Redis takes for a time to live.
func testLargestFigures(t *testing.T, k Kind) {
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		if k.Most > 0 && k.Type != "zset" { // a log does not take that many at once
			l, key := k.on(rdb, k.Most, 1000*time.Hour), Key(t)
			assert.Equal(t, k.Most-1, Take(t, l, key, 1).Remaining)
			assert.Equal(t, int64(1), Take(t, l, key, k.Most-2).Remaining)
			assert.False(t, Take(t, l, key, 2).Granted)
			assert.Equal(t, int64(0), Take(t, l, key, 1).Remaining)
			assert.False(t, Take(t, l, key, 1).Granted)
			key = Key(t)
			assert.Equal(t, int64(1), Take(t, l, key, k.Most-1).Remaining)
			assert.Equal(t, int64(0), Take(t, l, key, 1).Remaining)
		}
		if k.Longest > 0 {
			l, key := k.on(rdb, 3, k.Longest), Key(t)
			assert.Equal(t, k.Longest, Take(t, l, key, 1).ResetAfter)
			assert.True(t, Take(t, l, key, 2).Granted)
			assert.Positive(t, Take(t, l, key, 1).RetryAfter)
		}
	})
}

// everything is all that Redis holds.
func everything(t *testing.T, rdb redistest.Client) map[string]value {
	t.Helper()
	all := map[string]value{}
	for _, key := range redistest.Keys(t, rdb, "*") {
		all[key] = read(t, rdb, key)
	}
	return all
}

// Peek answers what Take does at the same moment, and leaves all as it is.
func testPeek(t *testing.T, k Kind) {
	redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(by time.Duration)) {
		l, draw := k.on(rdb, permits, window), rand.New(rand.NewPCG(3, 9))
		granted := 0
		for i := range 110 {
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
			free := limitertest.Must(l.Peek(t.Context(), key, 0))(t)
			peeked, peekErr := l.Peek(t.Context(), key, n)
			require.Equal(t, before, everything(t, rdb))
			require.True(t, free.Granted)
			require.Zero(t, free.RetryAfter)
			require.Equal(t, free.Remaining == permits, free.ResetAfter == 0)
			if peeked.Granted {
				require.Equal(t, free.Remaining-n, peeked.Remaining)
			} else if peekErr == nil {
				require.Equal(t, limit.Decision{Granted: true, Limit: permits, Remaining: peeked.Remaining, ResetAfter: peeked.ResetAfter}, free)
			}
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
		assert.Less(t, granted, 95)
	})
	for _, n := range []int64{-1, math.MinInt64} {
		d, err := k.on(Unreachable(t), permits, window).Peek(t.Context(), "orders", n)
		require.ErrorIs(t, err, limit.ErrInvalidPermits)
		assert.Zero(t, d)
	}
}

// TakeUpTo takes the free permits, at most as many as asked for.
func testTakeUpTo(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l, draw := k.on(rdb, permits, window), rand.New(rand.NewPCG(4, 1))
		for range 50 {
			key, n := Key(t), 1+draw.Int64N(2*permits)
			spend(t, draw, l, key)
			one := limitertest.Must(l.Peek(t.Context(), key, 1))(t)
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
			require.Equal(t, limitertest.Must(l.Peek(t.Context(), key, permits))(t).ResetAfter == 0, taken == 0 && free == permits)
		}
	})
	for _, n := range []int64{0, -1, math.MinInt64} {
		taken, d, err := k.on(Unreachable(t), permits, window).TakeUpTo(t.Context(), "orders", n)
		require.ErrorIs(t, err, limit.ErrInvalidPermits)
		assert.Zero(t, d)
		assert.Zero(t, taken)
	}
}

// Reset frees all, for everyone who shares the key.
func testReset(t *testing.T, k Kind) {
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		l, key, other := k.on(rdb, permits, window), Key(t), Key(t)
		Take(t, l, key, 7)
		Take(t, l, other, 4)
		require.NoError(t, l.Reset(t.Context(), key))
		d := Take(t, k.on(rdb, permits, window), key, permits)
		assert.True(t, d.Granted)
		assert.Equal(t, int64(5), Take(t, l, other, 1).Remaining)
		require.NoError(t, l.Reset(t.Context(), Key(t)), "nothing was taken")
		require.ErrorIs(t, l.Reset(t.Context(), ""), limit.ErrInvalidConfig)
	})
}
