package compat_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/holders"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestGoAndJavaShareALimiter is what the module is for: whatever one service
// does, the others see at once.
func TestGoAndJavaShareALimiter(t *testing.T) {
	t.Parallel()
	java, goes, rdb := newBoth(t)
	shareALimiter(t, rdb, java, newJava(t, redistest.Shared(t).URL()), goes, newGo(t, rdb))
}

func shareALimiter(t *testing.T, rdb *redis.Client, java, otherJava, goes, otherGo service) {
	t.Helper()
	s := sharers{t, redistest.Name(t), java, goes, []service{java, otherJava, goes, otherGo}}
	require.True(t, java.TrySetRate(s.name, perDay(10)))
	for _, each := range s.all {
		require.False(t, each.TrySetRate(s.name, perDay(99)))
	}
	s.config(perDay(10))
	s.free(10)
	for left := int64(10); left > 0; {
		for _, each := range s.all {
			if left > 0 {
				require.True(t, each.Try(s.name, 1))
				left--
				s.free(left)
			}
		}
	}
	for _, each := range s.all {
		require.False(t, each.Try(s.name, 1))
	}
	passTime(t, rdb, s.name, 24*time.Hour)
	s.free(10)
	s.takeInTurn()
	s.changeInTurn()
	s.endInTurn()
}

// sharers are programs with one limiter.
type sharers struct {
	t          *testing.T
	name       string
	java, goes service
	all        []service // those two, and one more of each language
}

func perDay(rate int64) rratelimiter.Config {
	return rratelimiter.Config{Rate: rate, Interval: 24 * time.Hour}
}

func (s sharers) free(want int64) {
	s.t.Helper()
	for i, each := range s.all {
		require.Equal(s.t, want, each.Available(s.name), "service %d", i)
	}
}

func (s sharers) config(want rratelimiter.Config) {
	s.t.Helper()
	for i, each := range s.all {
		require.Equal(s.t, want, each.Config(s.name), "service %d", i)
	}
}

// takeInTurn: what was not taken by the one can be taken by the other, no more.
func (s sharers) takeInTurn() {
	require.True(s.t, s.goes.Try(s.name, 6))
	require.False(s.t, s.java.Try(s.name, 5))
	require.True(s.t, s.java.Try(s.name, 4))
	require.False(s.t, s.goes.Try(s.name, 1))

	s.goes.Release(s.name, 3)
	s.free(3)
	require.True(s.t, s.java.Try(s.name, 3))
	s.java.Release(s.name, 2)
	s.free(2)
	require.True(s.t, s.goes.Try(s.name, 2))
	require.False(s.t, s.java.Try(s.name, 1))
}

func (s sharers) changeInTurn() {
	s.java.SetRate(s.name, rratelimiter.PerHour(20))
	s.config(rratelimiter.PerHour(20))
	s.free(20)
	require.True(s.t, s.goes.Try(s.name, 12))
	s.free(8)
	s.goes.SetRate(s.name, perDay(8))
	s.config(perDay(8))
	s.free(8)
	require.True(s.t, s.java.Try(s.name, 5))
	s.free(3)

	// The permits in use stay counted.
	s.goes.KeepState(s.name, perDay(10))
	s.free(5)
	require.True(s.t, s.goes.Try(s.name, 1))
	s.java.KeepState(s.name, perDay(12))
	s.free(6)
	require.True(s.t, s.goes.UpdateRate(s.name, perDay(9), true))
	s.free(3)
	require.True(s.t, s.java.UpdateRate(s.name, perDay(7), true))
	s.config(perDay(7))
	s.free(1)
	require.True(s.t, s.java.UpdateRate(s.name, perDay(6), false))
	s.free(6)
}

func (s sharers) endInTurn() {
	for i, each := range s.all {
		end := time.Duration(i+1) * time.Hour
		require.True(s.t, each.Expire(s.name, end))
		for _, other := range s.all {
			require.InDelta(s.t, end, other.TTL(s.name), float64(20*time.Minute))
		}
	}
	require.True(s.t, s.goes.Delete(s.name))
	for _, each := range s.all {
		require.False(s.t, each.Exists(s.name))
	}
	require.True(s.t, s.goes.TrySetRate(s.name, perDay(2)))
	s.free(2)
	require.True(s.t, s.java.Delete(s.name))
	for _, each := range s.all {
		require.False(s.t, each.UpdateRate(s.name, perDay(10), true))
	}
}

// TestServicesOfOneClientID: Go services that are given one id have their
// permits of PER_CLIENT limiters together, Java beside them.
func TestServicesOfOneClientID(t *testing.T) {
	t.Parallel()
	id := rratelimiter.WithClientID(goID)
	java, first, rdb := newBoth(t, id)
	second, other := newGo(t, rdb, id), newGo(t, rdb)
	name := redistest.Name(t)
	require.True(t, java.TrySetRate(name, perClient(rratelimiter.PerHour(5))))
	free := func(want int64) {
		t.Helper()
		require.Equal(t, want, first.Available(name), "the first")
		require.Equal(t, want, second.Available(name), "the second")
		require.EqualValues(t, 5, other.Available(name), "of another id")
		require.EqualValues(t, 3, java.Available(name), "Java")
	}
	require.True(t, java.Try(name, 2))

	require.True(t, first.Try(name, 1))
	free(4)
	require.True(t, second.Try(name, 3))
	free(1)
	require.False(t, first.Try(name, 2))
	require.False(t, second.Try(name, 2))
	first.Release(name, 2)
	free(3)
	passTime(t, rdb, name, 50*time.Minute, goID)
	require.True(t, second.Try(name, 3))
	passTime(t, rdb, name, 10*time.Minute, goID)
	free(2)
	passTime(t, rdb, name, 50*time.Minute, goID)
	free(5)
}

// TestCodecsDoNotMatter: a Redisson's codec is for the values of applications, and
// useScriptCache decides how its scripts are sent. A limiter is the same with each.
func TestCodecsDoNotMatter(t *testing.T) {
	t.Parallel()
	driver, rdb := sharedDriver(t), redistest.Redis(t)
	requireRelease(t, "3.35.0")
	for _, codec := range []string{
		"org.redisson.codec.Kryo5Codec",
		"org.redisson.codec.JsonJacksonCodec",
		"org.redisson.codec.SerializationCodec",
		"org.redisson.client.codec.StringCodec",
	} {
		for _, cached := range []bool{false, true} {
			t.Run(codec+"/useScriptCache="+fmt.Sprint(cached), func(t *testing.T) {
				t.Parallel()
				open := func() service {
					return service{nil, driver.openBy(t, "openCodec", redistest.Shared(t).URL(), codec, cached), t}
				}
				shareALimiter(t, rdb, open(), open(), newGo(t, rdb), newGo(t, rdb))
			})
		}
	}
}

// TestDatabasesMatter: a limiter is in one database, and of another one a Redisson
// knows nothing.
func TestDatabasesMatter(t *testing.T) {
	t.Parallel()
	url := redistest.Shared(t).URL()
	java := newJava(t, url+"/1")
	goes := newGo(t, redistest.Redis(t))
	name := redistest.Name(t)
	require.True(t, goes.TrySetRate(name, rratelimiter.PerHour(1)))
	require.False(t, java.Exists(name))
	require.True(t, java.TrySetRate(name, rratelimiter.PerHour(1)))
	require.True(t, goes.Try(name, 1))
	require.True(t, java.Try(name, 1))
	require.True(t, java.Delete(name))
	require.True(t, goes.Exists(name))
}

// TestDefaultBesideRedisson: Redisson reads a limiter that remembers its default, and
// whose default was changed, as any other; what it sets then stays.
func TestDefaultBesideRedisson(t *testing.T) { //nolint:paralleltest // one JVM at a time
	eachRelease(t, func(t *testing.T, peer javaPeer) {
		java := peer.service(t, redistest.Shared(t).URL())
		rdb, name := redistest.Redis(t), redistest.Name(t)
		program := func(rate int64) *rratelimiter.RateLimiter {
			return newGo(t, rdb, sharing(peer.release.Version)...).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerHour(rate)))
		}
		take := func(l *rratelimiter.RateLimiter, permits int64) bool {
			return java.ok(l.TryAcquire(t.Context(), permits, 0))
		}
		require.True(t, take(program(1000), 2))
		require.True(t, java.Try(name, 2))
		require.EqualValues(t, 996, java.Available(name))

		require.True(t, take(program(10), 1))
		assert.EqualValues(t, 10, java.Config(name).Rate)
		assert.EqualValues(t, 5, java.Available(name), "permits in use stay so")
		assert.True(t, java.Try(name, 3))
		assert.False(t, java.Try(name, 3))
		require.False(t, take(program(7), 1))
		assert.False(t, java.Try(name, 1), "8 of 7 are in use")

		if !peer.release.Lacks("setRate") {
			java.SetRate(name, rratelimiter.PerHour(20))
		} else {
			require.True(t, java.Delete(name))
			require.NoError(t, rdb.Del(t.Context(), layout.KeysOf(name, "").Value).Err())
			require.True(t, java.TrySetRate(name, rratelimiter.PerHour(20)))
		}
		for _, other := range []int64{3, 1000} {
			assert.True(t, take(program(other), 2))
			assert.EqualValues(t, 20, java.Config(name).Rate, "it was set on purpose")
		}
		assert.True(t, java.Try(name, 16))
		assert.False(t, java.Try(name, 1))
	})
}

// Redisson works as ever beside a Client that has a name. The names add one key to Redis,
// and Users lists what Redisson has taken apart from what the Client has.
func TestRedissonDoesNotMindNames(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	java, goes := newJava(t, server.URL()), newGo(t, rdb, rratelimiter.WithClientName("orders-7f9c"))
	set := layout.KeysOf("orders", "")
	require.True(t, java.TrySetRate("orders", rratelimiter.PerHour(100)))
	goes.TrySetRate("orders", rratelimiter.PerHour(1))
	require.True(t, goes.Try("orders", 10))
	require.True(t, java.Try("orders", 4))
	require.True(t, java.Try("orders", 3))
	require.Eventually(t, func() bool { return rdb.Exists(t.Context(), clients.Key).Val() == 1 }, time.Minute, time.Millisecond)
	assert.ElementsMatch(t, []string{set.Config, set.Value, set.Permits, clients.Key}, rdb.Keys(t.Context(), "*").Val())

	users, err := holders.Of(t.Context(), goes.RateLimiter("orders"))
	require.NoError(t, err)
	require.Len(t, users.Shares, 2)
	assert.Equal(t, "orders-7f9c", users.Shares[0].Name)
	assert.EqualValues(t, 10, users.Shares[0].Permits)
	assert.Equal(t, holders.Share{Kind: holders.Redisson, Permits: 7}, users.Shares[1])

	require.True(t, goes.Delete("orders"))
	named := newGo(t, rdb, rratelimiter.WithClientName("orders-7f9c"))
	shareALimiter(t, rdb, java, newJava(t, server.URL()), goes, named)
	assert.Equal(t, []string{clients.Key}, rdb.Keys(t.Context(), "*").Val())
}
