package rratelimiter_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
)

// A value whose end is that of an earlier Expire is nobody's window.
func TestKeepStateAfterExpireIsNoWindow(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(10, time.Second))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		mustAcquire(t, l, 1)
		time.Sleep(2 * time.Second)
		require.NoError(t, l.SetRate(t.Context(), every(10, time.Second), rratelimiter.KeepState()))
		mustAcquire(t, l, 10)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 10, available(t, l))
		time.Sleep(10 * time.Minute)
		assert.EqualValues(t, 10, available(t, l))
		assert.True(t, try(t, l, 1))
	})
}

// The config is lost alone (Redisson's unlink) and made anew.
func TestAConfigMadeAnewAfterExpireIsNoWindow(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(10, time.Second))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		mustAcquire(t, l, 1)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 10, available(t, l))
		require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
		mustTrySetRate(t, l, every(10, time.Second))
		mustAcquire(t, l, 10)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 10, available(t, l))
		time.Sleep(10 * time.Minute)
		assert.EqualValues(t, 10, available(t, l))
	})
}

// A Client that was not told of the window leaves it alone.
func TestReleaseFillsNoWindow(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(10, time.Minute))
		require.True(t, asRedisson3123(t, rdb, l, 7))
		mustAcquire(t, l, 1)
		require.NoError(t, l.Release(t.Context(), 1))
		assert.EqualValues(t, 3, available(t, l))
	})
}

// The limiter's own end is not the window's.
func TestTakeMovesNoWindowsEnd(t *testing.T) {
	t.Parallel()
	for _, keep := range []time.Duration{0, 10 * time.Minute} {
		virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := newLimiter(t, rdb, rratelimiter.Config{Rate: 10, Interval: time.Minute, KeepAlive: keep})
			if keep == 0 {
				_, err := l.Expire(t.Context(), time.Hour)
				require.NoError(t, err)
			}
			require.True(t, asRedisson3123(t, rdb, l, 7))
			for range 2 {
				d, err := l.Take(t.Context(), 1)
				require.NoError(t, err)
				require.True(t, d.Granted)
				assert.Equal(t, time.Minute, rdb.PTTL(t.Context(), keysOf(l).Value).Val())
			}
			mustRefuse(t, l, 2)
			assert.EqualValues(t, 1, available(t, l))
			mustRefuse(t, l, 2)
		})
	}
}

// A value without an end gets one an interval away, not the limiter's.
func TestAvailablePermitsMakesNoLongWindow(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, every(10, time.Second))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		require.True(t, asRedisson3123(t, rdb, l, 10))
		require.NoError(t, rdb.Persist(t.Context(), keysOf(l).Value).Err()) // clearExpire of old
		assert.EqualValues(t, 0, available(t, l))
		time.Sleep(2 * time.Second)
		assert.True(t, try(t, l, 1))
	})
}

// The value that the other Client made has the limiter's end.
func TestWindowedBesideAClientThatWasNotTold(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(10, time.Second))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		mustAcquire(t, l, 3)
		w := newClient(t, rdb, rratelimiter.WithRedissonVersion(windowed)).RateLimiter(l.Name())
		mustAcquire(t, w, 7)
		time.Sleep(2 * time.Second)
		assert.True(t, try(t, w, 1))
	})
}

// A client that never comes back leaves nothing behind, migrated or not.
func TestMigratedWindowOfAClientLeavesNoKeys(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newClient(t, rdb, rratelimiter.WithRedissonVersion(windowed), rratelimiter.WithClientID("gone")).RateLimiter("z")
		mustTrySetRate(t, l, perClient(10, time.Minute))
		mustAcquire(t, l, 3)
		_, err := newClient(t, rdb, rratelimiter.WithClientID("gone")).Migrate(t.Context(), "z")
		require.NoError(t, err)
		time.Sleep(24 * time.Hour)
		assert.Equal(t, []string{"z"}, limiterKeys(t, rdb, "z"))
	})
}

// What the Client has in use ends before the window, but gives it nothing.
func TestRetryAfterBesideAWindow(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(10, time.Minute))
		mustAcquire(t, l, 5)
		time.Sleep(50 * time.Second)
		rdb.Del(t.Context(), keysOf(l).Value)
		require.True(t, asRedisson3123(t, rdb, l, 8))
		d, err := l.Take(t.Context(), 5)
		require.NoError(t, err)
		require.False(t, d.Granted)
		time.Sleep(d.RetryAfter + time.Millisecond) // Redis keeps a key to the end of its last millisecond
		assert.True(t, try(t, l, 5), "told to wait %v", d.RetryAfter)
	})
}
