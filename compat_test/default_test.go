package compat_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestDefaultBesideRedisson: Redisson reads a limiter that remembers its default, and
// whose default was changed, as any other; what it sets then stays.
func TestDefaultBesideRedisson(t *testing.T) { //nolint:paralleltest // one JVM at a time
	eachRelease(t, func(t *testing.T, peer javaPeer) {
		java := javaService{t, peer.driver.open(t, redistest.Shared(t).URL())}
		rdb, name := redistest.Redis(t), redistest.Name(t)
		program := func(rate int64) *rratelimiter.RateLimiter {
			return newGo(t, rdb, sharing(peer.release.Version)...).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerHour(rate)))
		}
		take := func(l *rratelimiter.RateLimiter, permits int64) bool {
			ok, err := l.TryAcquire(t.Context(), permits, 0)
			require.NoError(t, err)
			return ok
		}
		rate := func() int64 {
			permits, _ := java.Rate(name)
			return permits
		}
		require.True(t, take(program(1000), 2))
		require.True(t, java.Try(name, 2))
		require.EqualValues(t, 996, java.Available(name))

		require.True(t, take(program(10), 1))
		assert.EqualValues(t, 10, rate())
		assert.EqualValues(t, 5, java.Available(name), "permits in use stay so")
		assert.True(t, java.Try(name, 3))
		assert.False(t, java.Try(name, 3))
		require.False(t, take(program(7), 1))
		assert.False(t, java.Try(name, 1), "8 of 7 are in use")

		if !peer.release.Lacks("setRate") {
			java.SetRate(name, rratelimiter.PerHour(20))
		} else {
			require.True(t, java.Delete(name))
			require.NoError(t, rdb.Del(t.Context(), "{"+name+"}:value").Err())
			require.True(t, java.TrySetRate(name, rratelimiter.PerHour(20)))
		}
		for _, other := range []int64{3, 1000} {
			assert.True(t, take(program(other), 2))
			assert.EqualValues(t, 20, rate(), "it was set on purpose")
		}
		assert.True(t, java.Try(name, 16))
		assert.False(t, java.Try(name, 1))
	})
}
