package compat_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// The tests of this file show what Redisson gets wrong on a limiter of its own,
// and that the module gets it right when the same is done to one of Go's.

// sides holds one service of each language and a limiter for each alone.
type sides struct {
	rdb              *redis.Client
	java             javaService
	goes             goService
	javaName, goName string
	javaKeys, goKeys layout.Keys
}

func newSides(t *testing.T) *sides {
	t.Helper()
	driver := sharedDriver(t)
	if *redissonVersion != newestRedisson {
		t.Skip("the defects are those of Redisson " + newestRedisson)
	}
	s := &sides{rdb: redistest.Redis(t), javaName: redistest.Name(t), goName: redistest.Name(t)}
	s.java = javaService{t, driver.open(t, redistest.Shared(t).URL())}
	s.goes = newGo(t, s.rdb, rratelimiter.WithClientID(goID))
	s.javaKeys, s.goKeys = layout.KeysOf(s.javaName, s.java.ID), layout.KeysOf(s.goName, goID)
	return s
}

// each does the same on both sides.
func (s *sides) each(f func(service, string)) {
	f(s.java, s.javaName)
	f(s.goes, s.goName)
}

// pass lets time pass on both sides.
func (s *sides) pass(t *testing.T, d time.Duration) {
	t.Helper()
	passTime(t, s.rdb, s.javaName, d, s.java.ID)
	passTime(t, s.rdb, s.goName, d, goID)
}

// free checks what either side says is free.
func (s *sides) free(t *testing.T, java, goes int64) {
	t.Helper()
	assert.Equal(t, java, s.java.Available(s.javaName), "Java's")
	assert.Equal(t, goes, s.goes.Available(s.goName), "Go's")
}

func perClient(cfg rratelimiter.Config) rratelimiter.Config {
	cfg.Type = rratelimiter.PerClient
	return cfg
}

func TestDefectResentAcquire(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	proxy := redistest.StartProxy(t, redistest.Shared(t).Addr())
	java := javaService{t, sharedDriver(t).open(t, "redis://"+proxy.Addr())}
	goes := newGo(t, proxy.Client(t, nil))
	cfg := rratelimiter.PerHour(20)
	require.True(t, java.TrySetRate(s.javaName, cfg))
	require.True(t, goes.TrySetRate(s.goName, cfg))
	require.True(t, java.Try(s.javaName, 1))
	require.True(t, goes.Try(s.goName, 1))
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Contains(s.javaKeys.Permits) || c.Contains(s.goKeys.Permits) {
			return redistest.Duplicate
		}
		return redistest.Pass
	})
	for range 9 {
		require.True(t, java.Try(s.javaName, 1))
		require.True(t, goes.Try(s.goName, 1))
	}
	proxy.Settle(t)
	proxy.OnCommand(nil)
	s.free(t, 1, 10)
	s.pass(t, time.Hour)
	s.free(t, 11, 20)
}

func TestDefectReleaseReturnsPermitsTwice(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.True(t, service.Try(name, 3))
		service.Release(name, 2)
	})
	s.pass(t, 30*time.Second)
	s.each(func(service service, name string) { require.True(t, service.Try(name, 5)) })
	s.pass(t, 31*time.Second)
	s.free(t, 7, 5)
}

func TestDefectValueAboveRate(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.True(t, service.Try(name, 3))
		service.Release(name, 3)
	})
	s.pass(t, time.Minute)
	s.free(t, 13, 10)
	assert.EqualValues(t, 10, s.goes.Available(s.javaName), "Go, of Java's limiter")
	assert.EqualValues(t, 10, s.java.Available(s.javaName), "afterwards")
}

func TestDefectKeepStateForgetsDebt(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.True(t, service.Try(name, 4))
	})
	s.pass(t, 30*time.Second)
	s.each(func(service service, name string) {
		require.True(t, service.Try(name, 4))
		service.KeepState(name, rratelimiter.PerMinute(5))
		assert.Zero(t, service.Available(name))
	})
	s.pass(t, 31*time.Second)
	s.free(t, 4, 1)
}

func TestDefectCancelledAcquireKeepsItsPermits(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	proxy := redistest.StartProxy(t, redistest.Shared(t).Addr())
	java := javaService{t, sharedDriver(t).open(t, "redis://"+proxy.Addr())}
	goes := newGo(t, proxy.Client(t, nil))
	for service, name := range map[service]string{java: s.javaName, goes: s.goName} {
		require.True(t, service.TrySetRate(name, rratelimiter.PerHour(10)))
		require.True(t, service.Try(name, 1))
	}
	// The answers come after the callers have gone.
	gone, under := make(chan struct{}), make(chan struct{}, 2)
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if strings.HasPrefix(c.Name(), "eval") && (c.Contains(s.javaKeys.Permits) || c.Contains(s.goKeys.Permits)) {
			select {
			case under <- struct{}{}:
			default:
			}
			return redistest.Pass.When(gone)
		}
		return redistest.Pass
	})
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	go func() {
		_, err := java.TryAcquireNow(ctx, s.javaName, 2)
		errs <- err
	}()
	go func() {
		_, err := goes.RateLimiter(s.goName).TryAcquire(ctx, 2, 0)
		errs <- err
	}()
	<-under
	<-under
	cancel()
	require.ErrorIs(t, <-errs, context.Canceled)
	require.ErrorIs(t, <-errs, context.Canceled)
	close(gone)
	require.NoError(t, goes.Close(t.Context()))
	proxy.Settle(t)
	s.free(t, 7, 9)
}

func TestDefectValueWithoutSet(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.True(t, service.Try(name, 6))
	})
	require.NoError(t, s.rdb.Del(t.Context(), s.javaKeys.Permits, s.goKeys.Permits).Err())
	for range 3 {
		_, err := s.java.TryAcquireNow(t.Context(), s.javaName, 5)
		require.ErrorContains(t, err, "arithmetic on a nil value")
	}
	assert.True(t, s.goes.Try(s.goName, 5))
	assert.True(t, s.goes.Try(s.javaName, 5), "Go, on Java's limiter")
	assert.True(t, s.java.Try(s.javaName, 5), "which is well again")
}

func TestDefectPermitsOfALostSet(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.True(t, service.Try(name, 6))
	})
	require.NoError(t, s.rdb.Del(t.Context(), s.javaKeys.Permits, s.goKeys.Permits).Err())
	s.each(func(service service, name string) { require.True(t, service.Try(name, 3)) })
	for key, want := range map[string]int64{s.javaKeys.Value: 1, s.goKeys.Value: 7} {
		value, err := s.rdb.Get(t.Context(), key).Int64()
		require.NoError(t, err)
		assert.Equal(t, want, value, key)
	}
	s.pass(t, time.Minute)
	s.free(t, 4, 10)
}

func TestDefectSetWithoutValue(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.True(t, service.Try(name, 10))
	})
	require.NoError(t, s.rdb.Del(t.Context(), s.javaKeys.Value, s.goKeys.Value).Err())
	assert.True(t, s.java.Try(s.javaName, 10), "20 in one interval")
	assert.False(t, s.goes.Try(s.goName, 1))
}

func TestDefectFastClockOfAPeer(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	cfg := rratelimiter.Config{Rate: 1, Interval: 300 * time.Millisecond}
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, cfg))
		require.True(t, service.Try(name, 1))
		passTime(t, s.rdb, name, -time.Minute)
	})
	waited := make(chan bool, 1)
	go func() {
		ok, err := s.java.TryAcquire(t.Context(), s.javaName, 1, time.Second)
		waited <- assert.NoError(t, err) && ok
	}()
	assert.True(t, s.goes.Wait(s.goName, 1, 20*time.Second))
	assert.False(t, <-waited, "Java waits for 60 s")
}

func TestDefectPermitsOutOfRange(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	ctx := t.Context()
	const rate = 1 << 33
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(rate)))
		require.True(t, service.Try(name, 10))
	})
	for _, permits := range []int64{0, -5, 1<<32 + 7} {
		require.True(t, s.java.Try(s.javaName, permits))
		_, err := s.goes.RateLimiter(s.goName).TryAcquire(ctx, permits, 0)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidPermits)
	}
	value, permits := stored(t, s.rdb, s.javaKeys.Value, s.javaKeys.Permits)
	assert.Equal(t, int64(rate-10+5-(1<<32+7)), *value)
	assert.ElementsMatch(t, []int64{10, 0, 1<<32 - 5, 7}, permits)
	value, permits = stored(t, s.rdb, s.goKeys.Value, s.goKeys.Permits)
	assert.Equal(t, int64(rate-10), *value)
	assert.Equal(t, []int64{10}, permits)

	require.True(t, s.java.Delete(s.javaName))
	huge := rratelimiter.PerMinute(1<<63 - 1)
	require.True(t, s.java.TrySetRate(s.javaName, huge))
	require.True(t, s.java.Try(s.javaName, 1))
	passTime(t, s.rdb, s.javaName, time.Minute)
	_, err := s.java.TryAcquireNow(ctx, s.javaName, 1)
	require.ErrorContains(t, err, "not an integer")
	require.ErrorIs(t, s.goes.RateLimiter(s.goName).SetRate(ctx, huge), rratelimiter.ErrInvalidConfig)
}

func TestDefectOldTimeToLiveStays(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		cfg := rratelimiter.PerMinute(10)
		cfg.KeepAlive = time.Hour
		require.True(t, service.TrySetRate(name, cfg))
		service.SetRate(name, rratelimiter.PerMinute(10))
		require.True(t, service.Try(name, 1))
	})
	assert.InDelta(t, time.Hour, s.java.TTL(s.javaName), float64(time.Minute))
	assert.EqualValues(t, -1, s.goes.TTL(s.goName))
	s.pass(t, time.Hour)
	assert.False(t, s.java.Exists(s.javaName))
	assert.True(t, s.goes.Exists(s.goName))
}

func TestDefectTrySetRateChangesAnOlderLimiter(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	keepAlive := rratelimiter.PerMinute(10)
	keepAlive.KeepAlive = time.Hour
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.NoError(t, s.rdb.HDel(t.Context(), name, "keepAliveTime").Err())
		require.False(t, service.TrySetRate(name, keepAlive))
		require.True(t, service.Try(name, 1))
	})
	assert.InDelta(t, time.Hour, s.java.TTL(s.javaName), float64(time.Minute))
	assert.EqualValues(t, -1, s.goes.TTL(s.goName))
}

func TestDefectAvailablePermitsLeavesAValueForEver(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.True(t, service.Expire(name, time.Hour))
		assert.EqualValues(t, 10, service.Available(name))
	})
	s.pass(t, time.Hour)
	for key, want := range map[string]int64{s.javaKeys.Value: 1, s.goKeys.Value: 0} {
		held, err := s.rdb.Exists(t.Context(), key).Result()
		require.NoError(t, err)
		assert.Equal(t, want, held, key)
	}
}

func TestDefectClientKeysStayForEver(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	goes := newGo(t, s.rdb)
	cfg := perClient(rratelimiter.PerMinute(10))
	require.True(t, s.java.TrySetRate(s.javaName, cfg))
	require.True(t, s.java.Try(s.javaName, 1))
	require.True(t, goes.TrySetRate(s.goName, cfg))
	require.True(t, goes.Try(s.goName, 1))
	found, err := s.rdb.Keys(t.Context(), "{"+s.goName+"}:*").Result()
	require.NoError(t, err)
	require.Len(t, found, 2)
	for _, key := range found {
		ttl, err := s.rdb.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		assert.InDelta(t, time.Minute, ttl, float64(20*time.Second), key)
	}
	ttl, err := s.rdb.PTTL(t.Context(), s.javaKeys.ClientValue).Result()
	require.NoError(t, err)
	assert.EqualValues(t, -1, ttl)
}

func TestDefectOtherModesKeysStay(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
		require.True(t, service.Try(name, 7))
		service.SetRate(name, perClient(rratelimiter.PerMinute(10)))
		require.True(t, service.Try(name, 2))
		// Back to the first type, by a way that leaves the state alone.
		require.NoError(t, s.rdb.HSet(t.Context(), name, "type", strconv.Itoa(int(rratelimiter.Overall))).Err())
	})
	s.free(t, 3, 10)
}

func TestDefectUnlinkAndRename(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	ctx := t.Context()
	begin := func() {
		s.each(func(service service, name string) {
			require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
			require.True(t, service.Try(name, 10))
		})
	}
	begin()
	require.NoError(t, s.java.Rename(ctx, s.javaName, s.javaName+":new"))
	require.NoError(t, s.goes.RateLimiter(s.goName).Rename(ctx, s.goName+":new"))
	assert.True(t, s.java.Try(s.javaName+":new", 10), "20 in one interval")
	assert.False(t, s.goes.Try(s.goName+":new", 1))

	require.NoError(t, s.rdb.Del(ctx, s.javaKeys.Value, s.javaKeys.Permits).Err())
	begin()
	unlinked, err := s.java.Unlink(ctx, s.javaName)
	require.NoError(t, err)
	require.True(t, unlinked)
	require.True(t, s.goes.Delete(s.goName))
	s.each(func(service service, name string) {
		require.True(t, service.TrySetRate(name, rratelimiter.PerMinute(10)))
	})
	s.free(t, 0, 10)
}
