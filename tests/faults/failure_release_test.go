package faults_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
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

// Close fails those who wait for a local limiter, and returns when they are done. What a
// policy granted is not released after it.
func TestCloseDuringAnOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailLocal(0.5), func(t *testing.T, s *outageScene) {
		rate := rratelimiter.WithDefault(limitertest.Every(6, time.Hour))
		l, other := s.client.RateLimiter("{s}a", rate), s.client.RateLimiter("{s}b", rate)
		s.fail(t, l)
		var mu sync.Mutex
		var ended []error
		calls := []func() error{
			func() error { return l.Acquire(t.Context(), 1) },
			func() error { return limitertest.Second(l.TryAcquire(t.Context(), 1, time.Minute)) },
			func() error { return limitertest.Second(s.client.TryAcquireAll(t.Context(), 1, time.Minute, l, other)) },
		}
		for _, call := range calls {
			go func() {
				err := call()
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, err)
			}()
		}
		time.Sleep(10 * time.Millisecond)
		closed := time.Now()
		require.NoError(t, s.client.Close(t.Context()))
		assert.Less(t, time.Since(closed), 5*time.Second, "a probe may be under way")
		synctest.Wait()
		mu.Lock()
		errs := slices.Clone(ended)
		mu.Unlock()
		assert.Len(t, errs, len(calls))
		for _, err := range errs {
			require.ErrorIs(t, err, rratelimiter.ErrClosed)
		}
		require.ErrorIs(t, l.Release(t.Context(), 1), rratelimiter.ErrClosed)
	})
}
