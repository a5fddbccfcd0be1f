package concurrency_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A decision that takes several calls may take longer than one: each has the call
// timeout, since the server answers. Here a value was lost beside many members.
func TestADecisionOfManyCalls(t *testing.T) {
	t.Parallel()
	const rate = 10_000
	ask := map[string]func(t *testing.T, c *rratelimiter.Client, l, other *rratelimiter.RateLimiter) (bool, error){
		"TryAcquire": func(t *testing.T, _ *rratelimiter.Client, l, _ *rratelimiter.RateLimiter) (bool, error) {
			t.Helper()
			return l.TryAcquire(t.Context(), 1, 0)
		},
		"TryAcquire, waiting": func(t *testing.T, _ *rratelimiter.Client, l, _ *rratelimiter.RateLimiter) (bool, error) {
			t.Helper()
			return l.TryAcquire(t.Context(), 1, time.Minute)
		},
		"TryAcquireAll": func(t *testing.T, c *rratelimiter.Client, l, other *rratelimiter.RateLimiter) (bool, error) {
			t.Helper()
			return c.TryAcquireAll(t.Context(), 1, 0, l, other)
		},
		"TryAcquireAll, waiting": func(t *testing.T, c *rratelimiter.Client, l, other *rratelimiter.RateLimiter) (bool, error) {
			t.Helper()
			return c.TryAcquireAll(t.Context(), 1, time.Minute, l, other)
		},
	}
	for name, ask := range ask {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				l := limitertest.NewLimiter(t, rdb, limitertest.Every(rate, time.Hour))
				limitertest.AddGrants(t, rdb, limitertest.KeysOf(l).Permits, time.Minute, rate/2, 1)
				proxy := redistest.MiniProxy(t, m)
				c := limitertest.NewClient(t, proxy.Client(t, &redis.Options{ReadTimeout: time.Minute}))
				other := c.RateLimiter(limitertest.Besides(l.Name()), rratelimiter.WithDefault(limitertest.Every(1, time.Hour)))
				proxy.OnCommand(func(c redistest.Command) redistest.Action {
					if c.Name() != "eval" && c.Name() != "evalsha" {
						return redistest.Pass
					}
					return redistest.Pass.After(900 * time.Millisecond)
				})
				start := time.Now()
				granted, err := ask(t, c, c.RateLimiter(l.Name()), other)
				require.NoError(t, err)
				assert.True(t, granted)
				assert.Greater(t, time.Since(start), 4*time.Second)
			})
		})
	}
}
