package admin_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestRedisThatFails(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	r := newRig(t, rdb, nil)
	m.SetError("MISCONF no disk")
	for _, c := range everyRequest {
		if c.asked.Kind == "" && c.target != "/limiters" || c.target == "/rate?name=other" || c.asked.Limiter == "" && c.asked.Kind != "" {
			continue // asks no Redis
		}
		w := r.do(c.method, c.target, c.body)
		assert.Equal(t, http.StatusServiceUnavailable, w.Code, c.target)
		assert.NotContains(t, w.Body.String(), "MISCONF")
		lines := r.log.take()
		require.Len(t, lines, 1, c.target)
		assert.Equal(t, "ERROR", lines[0]["level"])
		assert.Contains(t, lines[0]["error"], "MISCONF")
	}
	m.SetError("")
	keys, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.Empty(t, keys)
}

// proxied returns a rig whose Redis answers through a proxy, in a bubble.
func proxied(t *testing.T, change func(*admin.Config)) (*rig, *redistest.Proxy) {
	t.Helper()
	_, m := redistest.Mini(t)
	p := redistest.MiniProxy(t, m)
	return newRig(t, p.Client(t, &redis.Options{MaxRetries: -1, ReadTimeout: time.Hour}), change), p
}

func TestChangeOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, fault := range []redistest.Action{redistest.DropAnswer, redistest.Swallow} {
		synctest.Test(t, func(t *testing.T) {
			r, p := proxied(t, func(cfg *admin.Config) { cfg.Timeout = 0 })
			require.Equal(t, http.StatusOK, r.do(http.MethodPut, "/rate?name=orders", rateBody(1, "1s")).Code)
			r.log.take()
			p.OnCommand(redistest.Nth(2, "EVALSHA", fault)) // the first one reads what was before
			start := time.Now()
			w := r.do(http.MethodPut, "/rate?name=orders", rateBody(2, "1s"))
			assert.LessOrEqual(t, time.Since(start), 5*time.Second)
			assert.Equal(t, http.StatusBadGateway, w.Code, w.Body)
			lines := r.log.take()
			require.Len(t, lines, 1)
			assert.Equal(t, "limit perhaps changed", lines[0]["msg"])
			assert.Equal(t, actor, lines[0]["actor"])
			assert.Contains(t, lines[0], "before")
			assert.Contains(t, lines[0], "after")
		})
	}
}

func TestCallerWhoGoesAwayLeavesALog(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := serve(t, r, request(http.MethodPut, "/rate?name=orders", rateBody(1, "1s")).WithContext(ctx))
	assert.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.Equal(t, "limit changed", r.log.take()[0]["msg"])
	cfg, err := r.client.RateLimiter("orders").Config(t.Context())
	require.NoError(t, err)
	assert.Equal(t, rratelimiter.PerSecond(1), cfg)
}

func TestSlowRedisIsNotWaitedForLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, p := proxied(t, func(cfg *admin.Config) { cfg.Timeout = 2 * time.Second })
		p.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Name() == "evalsha" {
				return redistest.Swallow
			}
			return redistest.Pass
		})
		start := time.Now()
		w := r.do(http.MethodGet, "/rate?name=orders", "")
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Equal(t, 2*time.Second, time.Since(start))
	})
}
