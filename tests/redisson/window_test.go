package redisson_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Redisson before 3.13.3 keeps no set: the value counts a fixed window and ends
// with it.
const windowed = "3.12.3"

func TestWindowIsSharedBothWays(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, limitertest.Every(10, time.Minute))
		require.Equal(t, []string{l.Name()}, limitertest.LimiterKeys(t, rdb, l.Name()))
		limitertest.MustAcquire(t, l, 3)
		assert.Equal(t, time.Minute, rdb.PTTL(t.Context(), limitertest.KeysOf(l).Value).Val())
		time.Sleep(20 * time.Second)
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 4))
		assert.EqualValues(t, 3, limitertest.Available(t, l))
		limitertest.MustAcquire(t, l, 2)
		require.False(t, limitertest.AsRedisson3123(t, rdb, l, 2))
		limitertest.MustRefuse(t, l, 2)
		assert.Equal(t, []string{l.Name(), limitertest.KeysOf(l).Value}, limitertest.LimiterKeys(t, rdb, l.Name()), "no set is kept")
		assert.Equal(t, 40*time.Second, rdb.PTTL(t.Context(), limitertest.KeysOf(l).Value).Val(), "the window's end stays")

		d, err := l.Take(t.Context(), 2)
		require.NoError(t, err)
		assert.False(t, d.Granted)
		assert.EqualValues(t, 10, d.Limit)
		assert.EqualValues(t, 1, d.Remaining)
		assert.Equal(t, 40*time.Second, d.RetryAfter)
		assert.Equal(t, 40*time.Second, d.ResetAfter)

		// All permits come back together, at the end of the window.
		began := time.Now()
		granted, err := l.TryAcquire(t.Context(), 10, 50*time.Second)
		require.NoError(t, err)
		assert.True(t, granted)
		assert.Equal(t, 40*time.Second, time.Since(began).Round(time.Second))
		require.False(t, limitertest.AsRedisson3123(t, rdb, l, 1))
		time.Sleep(61 * time.Second)
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 9))
		require.NoError(t, l.Acquire(t.Context(), 1))
		limitertest.MustRefuse(t, l, 1)
	})
}

func TestWindowRefusesWhatNeedsARecord(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, limitertest.Every(10, time.Minute))
		limitertest.MustAcquire(t, l, 3)
		limitertest.RequireUntouched(t, rdb, l.Name(), func() {
			err := l.Release(t.Context(), 1)
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			assert.ErrorContains(t, err, l.Name())
			assert.ErrorContains(t, err, windowed)
			err = l.SetRate(t.Context(), limitertest.Every(20, time.Minute), rratelimiter.KeepState())
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			_, err = l.UpdateRate(t.Context(), limitertest.Every(20, time.Minute), rratelimiter.KeepState())
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			_, err = l.TryAcquire(t.Context(), 11, 0)
			require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
		})
	})
}

func TestWindowOfEachClient(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		a := newOldLimiter(t, rdb, windowed, limitertest.PerClient(5, time.Minute))
		b := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(windowed)).RateLimiter(a.Name())
		limitertest.MustAcquire(t, a, 5)
		time.Sleep(30 * time.Second)
		limitertest.MustRefuse(t, a, 1)
		limitertest.MustAcquire(t, b, 4)
		time.Sleep(31 * time.Second)
		limitertest.MustAcquire(t, a, 5)
		assert.EqualValues(t, 1, limitertest.Available(t, b))
		time.Sleep(30 * time.Second)
		assert.EqualValues(t, 5, limitertest.Available(t, b))
		limitertest.MustRefuse(t, a, 1)
	})
}

func TestWindowWithARateSetOnTheWay(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, limitertest.Every(10, time.Minute))
		limitertest.MustAcquire(t, l, 8)
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(4, time.Minute)))
		assert.EqualValues(t, 4, limitertest.Available(t, l))
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 4))
		limitertest.MustRefuse(t, l, 1)

		// A rate that somebody lowers in the hash alone holds at once.
		time.Sleep(time.Minute + time.Millisecond)
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 1))
		require.NoError(t, rdb.HSet(t.Context(), l.Name(), "rate", 2).Err())
		limitertest.MustAcquire(t, l, 2)
		limitertest.MustRefuse(t, l, 1)
	})
}

// No time to live of the limiter moves the end of a window: its permits come
// back then.
func TestWindowKeepsItsEnd(t *testing.T) {
	t.Parallel()
	for _, version := range []string{windowed, "4.7.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := newOldLimiter(t, rdb, version, limitertest.Every(10, time.Minute))
				value := limitertest.KeysOf(l).Value
				window := func() time.Duration { return rdb.PTTL(t.Context(), value).Val() }
				require.True(t, limitertest.AsRedisson3123(t, rdb, l, 4))
				for _, op := range []func() error{
					func() error { _, err := l.Expire(t.Context(), time.Hour); return err },
					func() error { _, err := l.ExpireAt(t.Context(), time.Now().Add(2*time.Hour)); return err },
					func() error { _, err := l.ClearExpire(t.Context()); return err },
					func() error { _, err := l.AvailablePermits(t.Context()); return err },
					func() error { _, err := l.TrySetRate(t.Context(), limitertest.Every(3, time.Second)); return err },
				} {
					require.NoError(t, op())
					assert.Equal(t, time.Minute, window())
				}
				// The rate is lost and set again, as after a delete by that release.
				require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
				limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Minute))
				assert.Equal(t, time.Minute, window())

				assert.EqualValues(t, 6, limitertest.Available(t, l))
				if version != windowed {
					return // to this Client an end of the limiter before the window's is that of all keys
				}
				_, err := l.Expire(t.Context(), 10*time.Second)
				require.NoError(t, err)
				assert.Equal(t, time.Minute, window())
				for range 2 {
					limitertest.MustAcquire(t, l, 3)
					assert.Equal(t, time.Minute, window())
				}
				limitertest.MustRefuse(t, l, 1)
				assert.EqualValues(t, 0, limitertest.Available(t, l))
				assert.Equal(t, time.Minute, window())
				time.Sleep(10*time.Second + time.Millisecond)
				assert.NotContains(t, limitertest.LimiterKeys(t, rdb, l.Name()), l.Name())
				limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Minute))
				limitertest.MustRefuse(t, l, 1)
			})
		})
	}
}

// A Client that was not told of the old release reads its state right all the
// same.
func TestWindowIsReadByEveryClient(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Minute))
		assert.EqualValues(t, 10, limitertest.Available(t, l))
		assert.Equal(t, []string{l.Name()}, limitertest.LimiterKeys(t, rdb, l.Name()), "a value without an end would never be full again")
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 7))
		assert.EqualValues(t, 3, limitertest.Available(t, l))
		limitertest.MustRefuse(t, l, 4)
		d, err := l.Take(t.Context(), 4)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, d.RetryAfter)
		time.Sleep(30 * time.Second)
		limitertest.MustAcquire(t, l, 1)
		limitertest.MustAcquire(t, l, 1)
		limitertest.MustRefuse(t, l, 2)
		assert.EqualValues(t, 1, limitertest.Available(t, l))
		time.Sleep(31 * time.Second)
		// The value is gone with the window; what the Client took is still in use.
		assert.EqualValues(t, 8, limitertest.Available(t, l))
		time.Sleep(30 * time.Second)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
	})
}

// A value that lost its end would be full never again.
func TestWindowWithoutAnEndGetsOne(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, limitertest.Every(10, time.Minute))
		require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, 0, 0).Err())
		granted, err := l.TryAcquire(t.Context(), 1, 2*time.Minute)
		require.NoError(t, err)
		assert.True(t, granted)
	})
}

// Nothing tells whether a call without an answer has run.
func TestWindowRepeatsNothing(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false, rratelimiter.WithRedissonVersion(windowed))
	w.On(lua.Acquire, redistest.DropAnswer)
	_, err := w.TryAcquire(t.Context(), 3, 0)
	require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
	assert.Equal(t, 1, w.Sent(lua.Acquire))
	free, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
	assert.EqualValues(t, 7, free)
	limitertest.MustAcquire(t, w.Other, 7)
	limitertest.MustRefuse(t, w.Other, 1)
}

func TestWindowManyCallersTogether(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := newOldLimiter(t, rdb, windowed, limitertest.Every(100, time.Hour))
		var mu sync.Mutex
		var wg sync.WaitGroup
		granted := 0
		for range 300 {
			wg.Go(func() {
				ok, err := l.TryAcquire(t.Context(), 1, 0)
				assert.NoError(t, err)
				if ok {
					mu.Lock()
					granted++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		assert.Equal(t, 100, granted)
	})
}

// Who goes away while the request is on its way gets its permits back, in the
// window that they are of.
func TestWindowGivesBack(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false, rratelimiter.WithRedissonVersion(windowed))
	limitertest.MustAcquire(t, w.Other, 2)
	got := w.CancelledInFlight(t, []int64{1, 4, 2}, []bool{false, true, true})
	assert.EqualValues(t, 1, limitertest.Sum(got))
	assert.Eventually(t, func() bool {
		free, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
		return free == 7
	}, time.Minute, time.Millisecond)
}

func TestWindowGivesNothingBackToTheNextOne(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false, rratelimiter.WithRedissonVersion(windowed))
	ctx, cancel := context.WithCancel(t.Context())
	gone, back := make(chan struct{}), make(chan struct{})
	w.OnScript(func(s *lua.Script, _ int) redistest.Action {
		switch s {
		case lua.Acquire:
			cancel()
			<-gone
		case lua.GiveBack:
			defer close(back)
			// Another window has begun meanwhile.
			assert.NoError(t, w.Redis.Set(t.Context(), w.Keys.Value, 5, 2*time.Hour).Err())
		}
		return redistest.Pass
	})
	_, err := w.TryAcquire(ctx, 4, 0)
	close(gone)
	require.ErrorIs(t, err, context.Canceled)
	<-back
	w.Proxy.Settle(t)
	free, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
	assert.EqualValues(t, 5, free)
}

// A keep-alive time that ends with the window makes it no other value.
func TestWindowWithAKeepAliveTime(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := newOldLimiter(t, rdb, windowed, rratelimiter.Config{Type: kind, Rate: 1, Interval: time.Minute, KeepAlive: time.Minute})
			limitertest.MustAcquire(t, l, 1)
			for range 6 {
				limitertest.MustRefuse(t, l, 1)
				time.Sleep(9 * time.Second)
			}
			time.Sleep(6*time.Second + time.Millisecond)
			limitertest.MustAcquire(t, l, 1)
		})
	})
}

// Until the server has removed it, the value counts, also in the last
// millisecond of its window.
func TestWindowUpToItsLastMillisecond(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const windows = 40
		l := newOldLimiter(t, rdb, windowed, limitertest.Every(1, 5*time.Millisecond))
		granted := 0
		began := time.Now()
		var took time.Duration
		for took < windows*5*time.Millisecond {
			if limitertest.Try(t, l, 1) {
				granted++
			}
			took = time.Since(began)
		}
		// Windows are counted in whole milliseconds: one may be a part shorter.
		assert.LessOrEqual(t, granted, int(took/(4*time.Millisecond))+1)
	})
}
