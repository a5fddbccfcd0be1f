package redisson_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A value whose end is that of an earlier Expire is nobody's window.
func TestKeepStateAfterExpireIsNoWindow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(2 * time.Second)
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(10, time.Second), rratelimiter.KeepState()))
		limitertest.MustAcquire(t, l, 10)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
		time.Sleep(10 * time.Minute)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
		assert.True(t, limitertest.Try(t, l, 1))
	})
}

// The config is lost alone (Redisson's unlink) and made anew.
func TestAConfigMadeAnewAfterExpireIsNoWindow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
		require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
		limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Second))
		limitertest.MustAcquire(t, l, 10)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
		time.Sleep(10 * time.Minute)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
	})
}

// A Client that was not told of the window leaves it alone.
func TestReleaseFillsNoWindow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Minute))
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 7))
		limitertest.MustAcquire(t, l, 1)
		require.NoError(t, l.Release(t.Context(), 1))
		assert.EqualValues(t, 3, limitertest.Available(t, l))
	})
}

// The limiter's own end is not the window's.
func TestTakeMovesNoWindowsEnd(t *testing.T) {
	t.Parallel()
	for _, keep := range []time.Duration{0, 10 * time.Minute} {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Rate: 10, Interval: time.Minute, KeepAlive: keep})
			if keep == 0 {
				_, err := l.Expire(t.Context(), time.Hour)
				require.NoError(t, err)
			}
			require.True(t, limitertest.AsRedisson3123(t, rdb, l, 7))
			for range 2 {
				d, err := l.Take(t.Context(), 1)
				require.NoError(t, err)
				require.True(t, d.Granted)
				assert.Equal(t, time.Minute, rdb.PTTL(t.Context(), limitertest.KeysOf(l).Value).Val())
			}
			limitertest.MustRefuse(t, l, 2)
			assert.EqualValues(t, 1, limitertest.Available(t, l))
			limitertest.MustRefuse(t, l, 2)
		})
	}
}

// A value without an end gets one an interval away, not the limiter's.
func TestAvailablePermitsMakesNoLongWindow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, limitertest.Every(10, time.Second))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 10))
		require.NoError(t, rdb.Persist(t.Context(), limitertest.KeysOf(l).Value).Err()) // clearExpire of old
		assert.EqualValues(t, 0, limitertest.Available(t, l))
		time.Sleep(2 * time.Second)
		assert.True(t, limitertest.Try(t, l, 1))
	})
}

// The value that the other Client made has the limiter's end.
func TestWindowedBesideAClientThatWasNotTold(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
		_, err := l.Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		limitertest.MustAcquire(t, l, 3)
		w := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(windowed)).RateLimiter(l.Name())
		limitertest.MustAcquire(t, w, 7)
		time.Sleep(2 * time.Second)
		assert.True(t, limitertest.Try(t, w, 1))
	})
}

// A client that never comes back leaves nothing behind, migrated or not.
func TestMigratedWindowOfAClientLeavesNoKeys(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(windowed), rratelimiter.WithClientID("gone")).RateLimiter("z")
		limitertest.MustTrySetRate(t, l, limitertest.PerClient(10, time.Minute))
		limitertest.MustAcquire(t, l, 3)
		_, err := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("gone")).Migrate(t.Context(), "z")
		require.NoError(t, err)
		time.Sleep(24 * time.Hour)
		assert.Equal(t, []string{"z"}, limitertest.LimiterKeys(t, rdb, "z"))
	})
}

// What the Client has in use ends before the window, but gives it nothing.
func TestRetryAfterBesideAWindow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Minute))
		limitertest.MustAcquire(t, l, 5)
		time.Sleep(50 * time.Second)
		rdb.Del(t.Context(), limitertest.KeysOf(l).Value)
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 8))
		d, err := l.Take(t.Context(), 5)
		require.NoError(t, err)
		require.False(t, d.Granted)
		time.Sleep(d.RetryAfter + time.Millisecond) // Redis keeps a key to the end of its last millisecond
		assert.True(t, limitertest.Try(t, l, 5), "told to wait %v", d.RetryAfter)
	})
}
