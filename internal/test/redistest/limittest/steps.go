package limittest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// requireWithin checks that a decision and what is stored speak of no more than a
// window.
func requireWithin(t *testing.T, rdb redis.UniversalClient, d limit.Decision) {
	t.Helper()
	require.LessOrEqual(t, d.RetryAfter, window)
	require.LessOrEqual(t, d.ResetAfter, window)
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		ttl := rdb.PTTL(t.Context(), key).Val()
		require.Positive(t, ttl, "time to live of %s", key)
		require.LessOrEqual(t, ttl, window, "time to live of %s", key)
	}
}

// A clock that goes back takes nothing away and gives nothing: from the first
// call on, refused or not, all is as by the clock that it is now.
func testClockGoesBack(t *testing.T, k Kind) {
	for _, back := range []time.Duration{1001 * time.Millisecond, 2 * time.Second, time.Hour, 1000 * time.Hour} {
		for name, spent := range map[string]int64{"granted": 7, "refused": permits} {
			t.Run(name+" "+back.String(), func(t *testing.T) {
				t.Parallel()
				redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
					l := k.New(rdb, permits, window)
					require.True(t, Take(t, l, "orders", spent).Granted)
					time.Sleep(time.Second)
					step(-back)
					d := Take(t, l, "orders", 1)
					assert.Equal(t, spent < permits, d.Granted)
					requireWithin(t, rdb, d)
					assert.Equal(t, max(0, permits-spent-1), d.Remaining)

					d = Take(t, l, "orders", permits)
					assert.False(t, d.Granted)
					requireWithin(t, rdb, d)
					time.Sleep(d.RetryAfter - time.Millisecond)
					assert.False(t, Take(t, l, "orders", permits).Granted)
					time.Sleep(time.Millisecond)
					d = Take(t, l, "orders", permits)
					assert.True(t, d.Granted)
					requireWithin(t, rdb, d)
				})
			})
		}
	}
}

// However often the clock goes back and forward again, the next moment that is
// told is at most a window away, and right.
func testClockGoesBackAndForth(t *testing.T, k Kind) {
	redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
		l, draw := k.New(rdb, permits, window), rand.New(rand.NewPCG(6, 7))
		refused := 0
		for range 300 {
			switch by := time.Duration(draw.Int64N(int64(time.Hour))).Truncate(time.Millisecond); draw.IntN(8) {
			case 0:
				step(-by)
			case 1:
				step(by)
			case 2:
				time.Sleep(time.Duration(draw.Int64N(int64(window))).Truncate(time.Millisecond))
			}
			n := 1 + draw.Int64N(permits)
			d := Take(t, l, "orders", n)
			requireWithin(t, rdb, d)
			if !d.Granted && draw.IntN(3) == 0 {
				refused++
				time.Sleep(d.RetryAfter)
				d = Take(t, l, "orders", n)
				require.True(t, d.Granted)
				requireWithin(t, rdb, d)
			}
		}
		assert.Greater(t, refused, 20)
	})
}

// What is given back by a clock that has gone back is what was taken, or nothing:
// never what others have.
func testGiveBackByAClockSetBack(t *testing.T, k Kind) {
	for name, tc := range map[string]struct {
		between     func(t *testing.T, rdb *redis.Client, l limit.Limiter, step func(time.Duration))
		least, most int64 // free permits after
		writes      bool  // what is given back
	}{
		"at once": {func(_ *testing.T, _ *redis.Client, _ limit.Limiter, step func(time.Duration)) { step(-time.Hour) }, 7, 7, true},
		"others came by": {func(t *testing.T, _ *redis.Client, l limit.Limiter, step func(time.Duration)) {
			step(-time.Hour)
			require.True(t, Take(t, l, "orders", 2).Granted)
		}, 1, 5, false},
		"all is back": {func(t *testing.T, _ *redis.Client, l limit.Limiter, step func(time.Duration)) {
			step(-time.Hour)
			require.False(t, Take(t, l, "orders", permits).Granted)
			time.Sleep(window)
			require.True(t, Take(t, l, "orders", permits).Granted)
		}, 0, 0, false},
		"all was back before": {func(t *testing.T, _ *redis.Client, l limit.Limiter, step func(time.Duration)) {
			time.Sleep(window)
			require.True(t, Take(t, l, "orders", permits).Granted)
			step(-time.Hour)
		}, 0, 0, false},
		"the same time comes again": {func(t *testing.T, rdb *redis.Client, l limit.Limiter, step func(time.Duration)) {
			const past = window + time.Millisecond
			all := rdb.Keys(t.Context(), "*").Val()
			time.Sleep(past)
			// A server drops what has run out when it meets it.
			require.Zero(t, rdb.Exists(t.Context(), all...).Val())
			step(-past)
			require.True(t, Take(t, l, "orders", permits).Granted)
		}, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
				l := k.New(rdb, permits, window)
				_, giveBack, err := l.TakeReturnable(t.Context(), "orders", 4)
				require.NoError(t, err)
				require.True(t, Take(t, l, "orders", 3).Granted)
				tc.between(t, rdb, l, step)
				require.NoError(t, giveBack(t.Context()))
				if tc.writes {
					requireWithin(t, rdb, limit.Decision{})
				}
				d := Take(t, l, "orders", permits)
				require.False(t, d.Granted)
				requireWithin(t, rdb, d)
				assert.GreaterOrEqual(t, d.Remaining, tc.least)
				assert.LessOrEqual(t, d.Remaining, tc.most)
				time.Sleep(window)
				assert.True(t, Take(t, l, "orders", permits).Granted)
				assert.False(t, Take(t, l, "orders", 1).Granted)
			})
		})
	}
}
