package faults_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// What one handle lets through, another one with other options does not release: its
// callers hold permits that were charged.
func TestReleaseBesideAHandleThatLetsThrough(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailClosed(), func(t *testing.T, s *outageScene) {
		rate := rratelimiter.WithDefault(limitertest.Every(6, time.Hour))
		handle := func(opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
			return s.client.RateLimiter("orders", append(opts, rate)...)
		}
		plain := handle()
		limitertest.MustAcquire(t, plain, 3)
		limitertest.MustAcquire(t, plain, 3)
		limitertest.MustAcquire(t, handle(rratelimiter.WithShadow()), 3)
		s.fail(t, handle(rratelimiter.WithFailure(limit.FailOpen()))) // three more
		s.recover()

		require.NoError(t, plain.Release(t.Context(), 3))
		assert.Equal(t, int64(3), limitertest.Available(t, plain))
		for _, other := range []rratelimiter.SharedOption{rratelimiter.WithShadow(), rratelimiter.WithFailure(limit.FailOpen())} {
			require.NoError(t, handle(other).Release(t.Context(), 3), "by a handle made anew")
			assert.Equal(t, int64(3), limitertest.Available(t, plain), "not charged")
		}
		require.NoError(t, handle(rratelimiter.WithShadow()).Release(t.Context(), 3))
		assert.Equal(t, int64(6), limitertest.Available(t, plain))
	})
}

// So with what was let through to TryAcquireAll. What a Keyed undoes is not released again.
func TestReleaseBesideAClientInShadow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow())
		rate := rratelimiter.WithDefault(limitertest.Every(4, time.Hour))
		watched := client.RateLimiter("{s}a", rate)
		other := client.RateLimiter("{s}a", rate, rratelimiter.WithFailure(limit.FailOpen()))
		limitertest.MustAcquire(t, other, 4)
		ok, err := client.TryAcquireAll(t.Context(), 2, 0, watched)
		require.NoError(t, err)
		require.True(t, ok)
		_, back, err := client.Keyed("{s}", limitertest.Every(4, time.Hour)).TakeReturnable(t.Context(), "a", 1)
		require.NoError(t, err)
		require.NoError(t, back(t.Context()))
		require.NoError(t, watched.Release(t.Context(), 2))
		assert.Zero(t, limitertest.Available(t, other))
		require.NoError(t, other.Release(t.Context(), 4))
		assert.Equal(t, int64(4), limitertest.Available(t, other))
	})
}
