package rratelimiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Observers tell limiters of keys with the same prefix, or with none, apart by their names.
func TestWithName_IsWhatObserversReceive(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		seen := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(seen))
		requests := client.Keyed("", rratelimiter.PerMinute(10), rratelimiter.WithName("requests"))
		tokens := client.Keyed("", rratelimiter.PerMinute(1000), rratelimiter.WithName("tokens"))
		take(t, requests, "requests:{ann}", 1)
		_, err := client.TakeAll(t.Context(), requests.Claim("requests:{ann}", 1), tokens.Claim("tokens:{ann}", 50))
		require.NoError(t, err)
		r, err := tokens.Reserve(t.Context(), "tokens:{ann}", 10, 0)
		require.NoError(t, err)
		require.NoError(t, r.Settle(t.Context(), 5))
		handle := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(1)), rratelimiter.WithName("shop"))
		assert.Equal(t, "orders", handle.Name())
		limitertest.MustAcquire(t, handle, 1)
		ok, err := handle.TryAcquire(t.Context(), 1, time.Second)
		require.NoError(t, err)
		assert.False(t, ok)
		synctest.Wait()
		var names []string
		for _, d := range seen.Decisions() {
			names = append(names, d.Limiter)
		}
		assert.Equal(t, []string{"requests", "requests", "tokens", "tokens", "shop", "shop"}, names)
		assert.Equal(t, "tokens", seen.Settlements()[0].Limiter)
		assert.NotEmpty(t, seen.Callers("shop"))
	})
}
