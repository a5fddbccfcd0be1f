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

// TestDefects shows what Redisson gets wrong on its own limiter, and that the module gets the
// same right on one of Go's.
func TestDefects(t *testing.T) {
	t.Parallel()
	driver := sharedDriver(t)
	if *redissonVersion != newestRedisson {
		t.Skip("the defects are those of Redisson " + newestRedisson)
	}
	for name, show := range defects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &sides{t: t, rdb: redistest.Redis(t), javaName: redistest.Name(t), goName: redistest.Name(t)}
			s.java = service{nil, driver.open(t, redistest.Shared(t).URL()), t}
			s.goes = newGo(t, s.rdb, rratelimiter.WithClientID(goID))
			s.javaKeys, s.goKeys = layout.KeysOf(s.javaName, s.java.java.ID), layout.KeysOf(s.goName, goID)
			show(s)
		})
	}
}

// sides holds one service of each language and a limiter for each alone.
type sides struct {
	t                *testing.T
	rdb              *redis.Client
	java, goes       service
	javaName, goName string
	javaKeys, goKeys layout.Keys
}

// each does the same on both sides.
func (s *sides) each(f func(s service, name string)) {
	f(s.java, s.javaName)
	f(s.goes, s.goName)
}

// begin sets rates, and takes permits.
func (s *sides) begin(cfg rratelimiter.Config, permits int64) {
	s.t.Helper()
	s.each(func(service service, name string) { require.True(s.t, service.TrySetRate(name, cfg)) })
	s.take(permits)
}

func (s *sides) take(permits int64) {
	s.t.Helper()
	s.each(func(service service, name string) { require.True(s.t, service.Try(name, permits)) })
}

// pass lets time pass on both sides.
func (s *sides) pass(d time.Duration) {
	s.t.Helper()
	passTime(s.t, s.rdb, s.javaName, d, s.java.java.ID)
	passTime(s.t, s.rdb, s.goName, d, goID)
}

// free checks what either side says is free.
func (s *sides) free(java, goes int64) {
	s.t.Helper()
	assert.Equal(s.t, java, s.java.Available(s.javaName), "Java's")
	assert.Equal(s.t, goes, s.goes.Available(s.goName), "Go's")
}

// lose removes a key of each side.
func (s *sides) lose(keys ...string) {
	s.t.Helper()
	require.NoError(s.t, s.rdb.Del(s.t.Context(), keys...).Err())
}

// through makes both sides use a proxy, on whose acquires act then acts.
func (s *sides) through(act func(redistest.Command) redistest.Action) *redistest.Proxy {
	s.t.Helper()
	proxy := redistest.StartProxy(s.t, redistest.Shared(s.t).Addr())
	s.java.java = s.java.java.driver.open(s.t, "redis://"+proxy.Addr())
	s.goes = newGo(s.t, proxy.Client(s.t, nil))
	s.begin(rratelimiter.PerHour(20), 1)
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if strings.HasPrefix(c.Name(), "eval") && (c.Contains(s.javaKeys.Permits) || c.Contains(s.goKeys.Permits)) {
			return act(c)
		}
		return redistest.Pass
	})
	return proxy
}

func perClient(cfg rratelimiter.Config) rratelimiter.Config {
	cfg.Type = rratelimiter.PerClient
	return cfg
}

func keepingAlive(cfg rratelimiter.Config, ttl time.Duration) rratelimiter.Config {
	cfg.KeepAlive = ttl
	return cfg
}

var tenAnHour = rratelimiter.PerHour(10)

var defects = map[string]func(s *sides){
	"an acquire that is sent twice": func(s *sides) {
		proxy := s.through(func(redistest.Command) redistest.Action { return redistest.Duplicate })
		for range 9 {
			s.take(1)
		}
		proxy.Settle(s.t)
		proxy.OnCommand(nil)
		value, _ := stored(s.t, s.rdb, s.goKeys.Value, s.goKeys.Permits)
		assert.EqualValues(s.t, 10, value, "before a look would repair it")
		s.free(1, 10)
		s.pass(time.Hour)
		s.free(11, 20)
	},
	"release gives back twice": func(s *sides) {
		s.begin(tenAnHour, 3)
		s.each(func(service service, name string) { service.Release(name, 2) })
		s.pass(30 * time.Minute)
		s.take(5)
		s.pass(31 * time.Minute)
		s.free(7, 5)
	},
	"a value above the rate": func(s *sides) {
		s.begin(tenAnHour, 3)
		s.each(func(service service, name string) { service.Release(name, 3) })
		s.pass(time.Hour)
		s.free(13, 10)
		assert.EqualValues(s.t, 10, s.goes.Available(s.javaName), "Go, of Java's limiter")
		assert.EqualValues(s.t, 10, s.java.Available(s.javaName), "afterwards")
	},
	"KeepState forgets a debt": func(s *sides) {
		s.begin(tenAnHour, 4)
		s.pass(30 * time.Minute)
		s.take(4)
		s.each(func(service service, name string) { service.KeepState(name, rratelimiter.PerHour(5)) })
		s.free(0, 0)
		s.pass(31 * time.Minute)
		s.free(4, 1)
	},
	"a cancelled acquire keeps its permits": cancelledAcquire,
	"a value without a set": func(s *sides) {
		s.begin(tenAnHour, 6)
		s.lose(s.javaKeys.Permits, s.goKeys.Permits)
		for range 3 {
			_, err := s.java.take(s.t.Context(), s.javaName, 5)
			require.ErrorContains(s.t, err, "arithmetic on a nil value")
		}
		assert.True(s.t, s.goes.Try(s.goName, 5))
		assert.True(s.t, s.goes.Try(s.javaName, 5), "Go, on Java's limiter")
		assert.True(s.t, s.java.Try(s.javaName, 5), "which is well again")
	},
	"permits of a lost set": func(s *sides) {
		s.begin(tenAnHour, 6)
		s.lose(s.javaKeys.Permits, s.goKeys.Permits)
		s.take(3)
		assert.Equal(s.t, "1", s.rdb.Get(s.t.Context(), s.javaKeys.Value).Val())
		assert.Equal(s.t, "7", s.rdb.Get(s.t.Context(), s.goKeys.Value).Val())
		s.pass(time.Hour)
		s.free(4, 10)
	},
	"a set without a value": func(s *sides) {
		s.begin(tenAnHour, 10)
		s.lose(s.javaKeys.Value, s.goKeys.Value)
		assert.True(s.t, s.java.Try(s.javaName, 10), "20 in one interval")
		assert.False(s.t, s.goes.Try(s.goName, 1))
	},
	"the fast clock of a peer": func(s *sides) {
		s.begin(rratelimiter.Config{Rate: 1, Interval: 300 * time.Millisecond}, 1)
		s.pass(-time.Minute)
		assert.True(s.t, s.goes.Wait(s.goName, 1, time.Minute))
		assert.False(s.t, s.java.Wait(s.javaName, 1, time.Second), "Java waits for 60 s")
	},
	"permits out of range": permitsOutOfRange,
	"an old time to live stays": func(s *sides) {
		s.each(func(service service, name string) {
			require.True(s.t, service.TrySetRate(name, keepingAlive(tenAnHour, time.Hour)))
			service.SetRate(name, tenAnHour)
		})
		s.take(1)
		assert.InDelta(s.t, time.Hour, s.java.TTL(s.javaName), float64(20*time.Minute))
		assert.EqualValues(s.t, -1, s.goes.TTL(s.goName))
		s.pass(time.Hour)
		assert.False(s.t, s.java.Exists(s.javaName))
		assert.True(s.t, s.goes.Exists(s.goName))
	},
	"TrySetRate changes an older limiter": func(s *sides) {
		s.each(func(service service, name string) {
			require.True(s.t, service.TrySetRate(name, tenAnHour))
			require.NoError(s.t, s.rdb.HDel(s.t.Context(), name, "keepAliveTime").Err())
			require.False(s.t, service.TrySetRate(name, keepingAlive(tenAnHour, time.Hour)))
		})
		s.take(1)
		assert.InDelta(s.t, time.Hour, s.java.TTL(s.javaName), float64(20*time.Minute))
		assert.EqualValues(s.t, -1, s.goes.TTL(s.goName))
	},
	"AvailablePermits leaves a value for ever": func(s *sides) {
		s.each(func(service service, name string) {
			require.True(s.t, service.TrySetRate(name, tenAnHour))
			require.True(s.t, service.Expire(name, time.Hour))
		})
		s.free(10, 10)
		s.pass(time.Hour)
		assert.EqualValues(s.t, 1, s.rdb.Exists(s.t.Context(), s.javaKeys.Value).Val())
		assert.EqualValues(s.t, 0, s.rdb.Exists(s.t.Context(), s.goKeys.Value).Val())
	},
	"keys of a client stay for ever": func(s *sides) {
		s.goes = newGo(s.t, s.rdb)
		s.begin(perClient(tenAnHour), 1)
		found, err := s.rdb.Keys(s.t.Context(), "{"+s.goName+"}:*").Result()
		require.NoError(s.t, err)
		require.Len(s.t, found, 2)
		for _, key := range found {
			assert.InDelta(s.t, time.Hour, s.rdb.PTTL(s.t.Context(), key).Val(), float64(20*time.Minute), key)
		}
		assert.EqualValues(s.t, -1, s.rdb.PTTL(s.t.Context(), s.javaKeys.ClientValue).Val())
	},
	"keys of the other mode stay": func(s *sides) {
		s.begin(tenAnHour, 7)
		s.each(func(service service, name string) {
			service.SetRate(name, perClient(tenAnHour))
			require.True(s.t, service.Try(name, 2))
			// Back to the first type, by a way that leaves the state alone.
			require.NoError(s.t, s.rdb.HSet(s.t.Context(), name, "type", strconv.Itoa(int(rratelimiter.Overall))).Err())
		})
		s.free(3, 10)
	},
	"rename moves the configuration alone": func(s *sides) {
		s.begin(tenAnHour, 10)
		_, err := ask[string](s.t.Context(), s.java.java, "rename", s.javaName, s.javaName+":new")
		require.NoError(s.t, err)
		require.NoError(s.t, s.goes.RateLimiter(s.goName).Rename(s.t.Context(), s.goName+":new"))
		assert.True(s.t, s.java.Try(s.javaName+":new", 10), "20 in one interval")
		assert.False(s.t, s.goes.Try(s.goName+":new", 1))
	},
	"unlink removes the configuration alone": func(s *sides) {
		s.begin(tenAnHour, 10)
		require.True(s.t, s.java.unlink(s.javaName))
		require.True(s.t, s.goes.Delete(s.goName))
		s.each(func(service service, name string) { require.True(s.t, service.TrySetRate(name, tenAnHour)) })
		s.free(0, 10)
	},
}

func cancelledAcquire(s *sides) {
	// The answers come after the callers have gone.
	gone, under := make(chan struct{}), make(chan struct{}, 100)
	proxy := s.through(func(redistest.Command) redistest.Action {
		under <- struct{}{}
		return redistest.Pass.When(gone)
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	errs := make(chan error, 2)
	s.each(func(service service, name string) {
		go func() {
			_, err := service.take(ctx, name, 2)
			errs <- err
		}()
	})
	<-under
	<-under
	cancel()
	require.ErrorIs(s.t, <-errs, context.Canceled)
	require.ErrorIs(s.t, <-errs, context.Canceled)
	close(gone)
	require.NoError(s.t, s.goes.Close(s.t.Context()))
	proxy.Settle(s.t)
	value, permits := stored(s.t, s.rdb, s.goKeys.Value, s.goKeys.Permits)
	assert.EqualValues(s.t, 19, value)
	assert.Equal(s.t, []int64{1}, permits)
	s.goes = newGo(s.t, s.rdb)
	s.free(17, 19)
}

func permitsOutOfRange(s *sides) {
	ctx := s.t.Context()
	const rate = 1 << 33
	s.begin(rratelimiter.PerHour(rate), 10)
	for _, permits := range []int64{0, -5, 1<<32 + 7} {
		require.True(s.t, s.java.Try(s.javaName, permits))
		_, err := s.goes.take(ctx, s.goName, permits)
		require.ErrorIs(s.t, err, rratelimiter.ErrInvalidPermits)
	}
	value, permits := stored(s.t, s.rdb, s.javaKeys.Value, s.javaKeys.Permits)
	assert.Equal(s.t, int64(rate-10+5-(1<<32+7)), value)
	assert.ElementsMatch(s.t, []int64{10, 0, 1<<32 - 5, 7}, permits)
	value, permits = stored(s.t, s.rdb, s.goKeys.Value, s.goKeys.Permits)
	assert.Equal(s.t, int64(rate-10), value)
	assert.Equal(s.t, []int64{10}, permits)

	require.True(s.t, s.java.Delete(s.javaName))
	huge := rratelimiter.PerHour(1<<63 - 1)
	require.True(s.t, s.java.TrySetRate(s.javaName, huge))
	require.True(s.t, s.java.Try(s.javaName, 1))
	passTime(s.t, s.rdb, s.javaName, time.Hour)
	_, err := s.java.take(ctx, s.javaName, 1)
	require.ErrorContains(s.t, err, "not an integer")
	require.ErrorIs(s.t, s.goes.RateLimiter(s.goName).SetRate(ctx, huge), rratelimiter.ErrInvalidConfig)
}
