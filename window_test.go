package rratelimiter_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Redisson before 3.13.3 keeps no set: the value counts a fixed window and ends
// with it.
const windowed = "3.12.3"

// asRedisson3123 takes permits as that release does, with plain commands, and
// tells whether they were free.
func asRedisson3123(t testing.TB, rdb *redis.Client, l *rratelimiter.RateLimiter, permits int64) bool {
	t.Helper()
	k := keysOf(l)
	value, ok := storedValue(t, rdb, k.Value)
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

func TestWindowIsSharedBothWays(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, every(10, time.Minute))
		require.Equal(t, []string{l.Name()}, limiterKeys(t, rdb, l.Name()))
		mustAcquire(t, l, 3)
		assert.Equal(t, time.Minute, rdb.PTTL(t.Context(), keysOf(l).Value).Val())
		time.Sleep(20 * time.Second)
		require.True(t, asRedisson3123(t, rdb, l, 4))
		assert.EqualValues(t, 3, available(t, l))
		mustAcquire(t, l, 2)
		require.False(t, asRedisson3123(t, rdb, l, 2))
		mustRefuse(t, l, 2)
		assert.Equal(t, []string{l.Name(), keysOf(l).Value}, limiterKeys(t, rdb, l.Name()), "no set is kept")
		assert.Equal(t, 40*time.Second, rdb.PTTL(t.Context(), keysOf(l).Value).Val(), "the window's end stays")

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
		require.False(t, asRedisson3123(t, rdb, l, 1))
		time.Sleep(61 * time.Second)
		require.True(t, asRedisson3123(t, rdb, l, 9))
		require.NoError(t, l.Acquire(t.Context(), 1))
		mustRefuse(t, l, 1)
	})
}

func TestWindowRefusesWhatNeedsARecord(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, every(10, time.Minute))
		mustAcquire(t, l, 3)
		requireUntouched(t, rdb, l.Name(), func() {
			err := l.Release(t.Context(), 1)
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			assert.ErrorContains(t, err, l.Name())
			assert.ErrorContains(t, err, windowed)
			err = l.SetRate(t.Context(), every(20, time.Minute), rratelimiter.KeepState())
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			_, err = l.UpdateRate(t.Context(), every(20, time.Minute), rratelimiter.KeepState())
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			_, err = l.TryAcquire(t.Context(), 11, 0)
			require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
		})
	})
}

func TestWindowOfEachClient(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		a := newOldLimiter(t, rdb, windowed, perClient(5, time.Minute))
		b := newClient(t, rdb, rratelimiter.WithRedissonVersion(windowed)).RateLimiter(a.Name())
		mustAcquire(t, a, 5)
		time.Sleep(30 * time.Second)
		mustRefuse(t, a, 1)
		mustAcquire(t, b, 4)
		time.Sleep(31 * time.Second)
		mustAcquire(t, a, 5)
		assert.EqualValues(t, 1, available(t, b))
		time.Sleep(30 * time.Second)
		assert.EqualValues(t, 5, available(t, b))
		mustRefuse(t, a, 1)
	})
}

func TestWindowWithARateSetOnTheWay(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, every(10, time.Minute))
		mustAcquire(t, l, 8)
		require.NoError(t, l.SetRate(t.Context(), every(4, time.Minute)))
		assert.EqualValues(t, 4, available(t, l))
		require.True(t, asRedisson3123(t, rdb, l, 4))
		mustRefuse(t, l, 1)

		// A rate that somebody lowers in the hash alone holds at once.
		time.Sleep(time.Minute + time.Millisecond)
		require.True(t, asRedisson3123(t, rdb, l, 1))
		require.NoError(t, rdb.HSet(t.Context(), l.Name(), "rate", 2).Err())
		mustAcquire(t, l, 2)
		mustRefuse(t, l, 1)
	})
}

// No time to live of the limiter moves the end of a window: its permits come
// back then.
func TestWindowKeepsItsEnd(t *testing.T) {
	t.Parallel()
	for _, version := range []string{windowed, "4.7.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := newOldLimiter(t, rdb, version, every(10, time.Minute))
				value := keysOf(l).Value
				window := func() time.Duration { return rdb.PTTL(t.Context(), value).Val() }
				require.True(t, asRedisson3123(t, rdb, l, 4))
				for _, op := range []func() error{
					func() error { _, err := l.Expire(t.Context(), time.Hour); return err },
					func() error { _, err := l.ExpireAt(t.Context(), time.Now().Add(2*time.Hour)); return err },
					func() error { _, err := l.ClearExpire(t.Context()); return err },
					func() error { _, err := l.AvailablePermits(t.Context()); return err },
					func() error { _, err := l.TrySetRate(t.Context(), every(3, time.Second)); return err },
				} {
					require.NoError(t, op())
					assert.Equal(t, time.Minute, window())
				}
				// The rate is lost and set again, as after a delete by that release.
				require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
				mustTrySetRate(t, l, every(10, time.Minute))
				assert.Equal(t, time.Minute, window())

				assert.EqualValues(t, 6, available(t, l))
				if version != windowed {
					return // to this Client an end of the limiter before the window's is that of all keys
				}
				_, err := l.Expire(t.Context(), 10*time.Second)
				require.NoError(t, err)
				assert.Equal(t, time.Minute, window())
				for range 2 {
					mustAcquire(t, l, 3)
					assert.Equal(t, time.Minute, window())
				}
				mustRefuse(t, l, 1)
				assert.EqualValues(t, 0, available(t, l))
				assert.Equal(t, time.Minute, window())
				time.Sleep(10*time.Second + time.Millisecond)
				assert.NotContains(t, limiterKeys(t, rdb, l.Name()), l.Name())
				mustTrySetRate(t, l, every(10, time.Minute))
				mustRefuse(t, l, 1)
			})
		})
	}
}

// A Client that was not told of the old release reads its state right all the
// same.
func TestWindowIsReadByEveryClient(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(10, time.Minute))
		assert.EqualValues(t, 10, available(t, l))
		assert.Equal(t, []string{l.Name()}, limiterKeys(t, rdb, l.Name()), "a value without an end would never be full again")
		require.True(t, asRedisson3123(t, rdb, l, 7))
		assert.EqualValues(t, 3, available(t, l))
		mustRefuse(t, l, 4)
		d, err := l.Take(t.Context(), 4)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, d.RetryAfter)
		time.Sleep(30 * time.Second)
		mustAcquire(t, l, 1)
		mustAcquire(t, l, 1)
		mustRefuse(t, l, 2)
		assert.EqualValues(t, 1, available(t, l))
		time.Sleep(31 * time.Second)
		// The value is gone with the window; what the Client took is still in use.
		assert.EqualValues(t, 8, available(t, l))
		time.Sleep(30 * time.Second)
		assert.EqualValues(t, 10, available(t, l))
	})
}

// A value that lost its end would be full never again.
func TestWindowWithoutAnEndGetsOne(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newOldLimiter(t, rdb, windowed, every(10, time.Minute))
		require.NoError(t, rdb.Set(t.Context(), keysOf(l).Value, 0, 0).Err())
		granted, err := l.TryAcquire(t.Context(), 1, 2*time.Minute)
		require.NoError(t, err)
		assert.True(t, granted)
	})
}

// Nothing tells whether a call without an answer has run.
func TestWindowRepeatsNothing(t *testing.T) {
	t.Parallel()
	w := newWire(t, redistest.Shared(t), hourly(10), false, rratelimiter.WithRedissonVersion(windowed))
	w.on(lua.Acquire, redistest.DropAnswer)
	_, err := w.TryAcquire(t.Context(), 3, 0)
	require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
	assert.Equal(t, 1, w.sent(lua.Acquire))
	free, _ := storedValue(t, w.rdb, w.keys.Value)
	assert.EqualValues(t, 7, free)
	mustAcquire(t, w.other, 7)
	mustRefuse(t, w.other, 1)
}

func TestWindowManyCallersTogether(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := newOldLimiter(t, rdb, windowed, every(100, time.Hour))
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
	w := newWire(t, redistest.Shared(t), hourly(10), false, rratelimiter.WithRedissonVersion(windowed))
	mustAcquire(t, w.other, 2)
	got := w.cancelledInFlight(t, []int64{1, 4, 2}, []bool{false, true, true})
	assert.EqualValues(t, 1, sum(got))
	assert.Eventually(t, func() bool {
		free, _ := storedValue(t, w.rdb, w.keys.Value)
		return free == 7
	}, 5*time.Second, time.Millisecond)
}

func TestWindowGivesNothingBackToTheNextOne(t *testing.T) {
	t.Parallel()
	w := newWire(t, redistest.Shared(t), hourly(10), false, rratelimiter.WithRedissonVersion(windowed))
	ctx, cancel := context.WithCancel(t.Context())
	gone, back := make(chan struct{}), make(chan struct{})
	w.onScript(func(s *lua.Script, _ int) redistest.Action {
		switch s {
		case lua.Acquire:
			cancel()
			<-gone
		case lua.GiveBack:
			defer close(back)
			// Another window has begun meanwhile.
			assert.NoError(t, w.rdb.Set(t.Context(), w.keys.Value, 5, 2*time.Hour).Err())
		}
		return redistest.Pass
	})
	_, err := w.TryAcquire(ctx, 4, 0)
	close(gone)
	require.ErrorIs(t, err, context.Canceled)
	<-back
	w.proxy.Settle(t)
	free, _ := storedValue(t, w.rdb, w.keys.Value)
	assert.EqualValues(t, 5, free)
}

// A keep-alive time that ends with the window makes it no other value.
func TestWindowWithAKeepAliveTime(t *testing.T) {
	t.Parallel()
	bothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := newOldLimiter(t, rdb, windowed, rratelimiter.Config{Type: kind, Rate: 1, Interval: time.Minute, KeepAlive: time.Minute})
			mustAcquire(t, l, 1)
			for range 6 {
				mustRefuse(t, l, 1)
				time.Sleep(9 * time.Second)
			}
			time.Sleep(6*time.Second + time.Millisecond)
			mustAcquire(t, l, 1)
		})
	})
}

// Until the server has removed it, the value counts, also in the last
// millisecond of its window.
func TestWindowUpToItsLastMillisecond(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const windows = 40
		l := newOldLimiter(t, rdb, windowed, every(1, 5*time.Millisecond))
		granted := 0
		began := time.Now()
		var took time.Duration
		for took < windows*5*time.Millisecond {
			if try(t, l, 1) {
				granted++
			}
			took = time.Since(began)
		}
		// Windows are counted in whole milliseconds: one may be a part shorter.
		assert.LessOrEqual(t, granted, int(took/(4*time.Millisecond))+1)
	})
}
