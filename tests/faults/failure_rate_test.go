package faults_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A local limiter follows what others have set, the interval too.
func TestFailLocalFollowsTheRate(t *testing.T) {
	t.Parallel()
	take := func(t *testing.T, l *rratelimiter.RateLimiter) {
		_, err := l.Take(t.Context(), 1)
		require.NoError(t, err)
	}
	try := func(t *testing.T, l *rratelimiter.RateLimiter) { limitertest.MustAcquire(t, l, 1) }
	for name, test := range map[string]struct {
		before, after time.Duration
		call          func(*testing.T, *rratelimiter.RateLimiter)
		pause         time.Duration // until the call that tells of the change
	}{
		"a longer interval":                       {time.Minute, time.Hour, take, 0},
		"a shorter interval, by and by":           {time.Hour, time.Minute, take, time.Minute},
		"a longer interval, by calls of no words": {time.Minute, time.Hour, try, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			duringOutages(t, limit.FailLocal(1), func(t *testing.T, s *outageScene) {
				admin := s.other.RateLimiter("orders")
				limitertest.MustTrySetRate(t, admin, limitertest.Every(20, test.before))
				l := s.client.RateLimiter("orders")
				test.call(t, l)
				synctest.Wait()
				require.NoError(t, admin.SetRate(t.Context(), limitertest.Every(20, test.after)))
				time.Sleep(test.pause)
				test.call(t, l)
				synctest.Wait()
				s.fail(t, l)
				limitertest.MustAcquire(t, l, 17)
				limitertest.MustRefuse(t, l, 1)
				time.Sleep(test.after - 5*time.Second) // the first three took some
				limitertest.MustRefuse(t, l, 18)
				time.Sleep(10 * time.Second)
				limitertest.MustAcquire(t, l, 20)
			})
		})
	}
}

// The rate is asked for once, and now and then, not with each call.
func TestFailLocalAsksForTheRateNowAndThen(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]rratelimiter.LimiterOption{
		"known": {rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))}, "unknown": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			duringOutages(t, limit.FailLocal(1), func(t *testing.T, s *outageScene) {
				limitertest.MustTrySetRate(t, s.other.RateLimiter("orders"), limitertest.Every(1000, time.Hour))
				l := s.client.RateLimiter("orders", opts...)
				counted := limitertest.CountCommands(s.rdb)
				for range 100 {
					limitertest.MustAcquire(t, l, 1)
					synctest.Wait()
				}
				assert.LessOrEqual(t, counted.Scripts(), 104, "with NOSCRIPT")
			})
		})
	}
}
