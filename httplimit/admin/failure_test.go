package admin_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

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
		if c.asked.Kind == "" && c.what != "GET /limiters" || c.asked.Limiter == "other" || c.asked.Limiter == "" && c.asked.Kind != "" {
			continue // asks no Redis
		}
		w := r.ask(c.what, c.body, http.StatusServiceUnavailable, "")
		assert.NotContains(t, w.Body.String(), "MISCONF")
		line := r.log.one(t)
		assert.Equal(t, "ERROR", line["level"])
		assert.Contains(t, line["error"], "MISCONF")
	}
	m.SetError("")
	assert.Empty(t, r.keys())
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
			r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusOK, "")
			r.log.take()
			p.OnCommand(redistest.Nth(2, "EVALSHA", fault)) // the first one reads what was before
			start := time.Now()
			r.ask("PUT /rate?name=orders", rateBody(2, "1s"), http.StatusBadGateway, "")
			assert.LessOrEqual(t, time.Since(start), 5*time.Second)
			line := r.log.one(t)
			assert.Equal(t, "limit perhaps changed", line["msg"])
			assert.Equal(t, actor, line["actor"])
			assert.Contains(t, line, "before")
			assert.Contains(t, line, "after")
		})
	}
}

func TestCallerWhoGoesAwayLeavesALog(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := serve(t, r, request("PUT /rate?name=orders", rateBody(1, "1s")).WithContext(ctx))
	assert.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.Equal(t, "limit changed", r.log.one(t)["msg"])
	assert.Equal(t, rratelimiter.PerSecond(1), r.config("orders"))
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
		r.ask("GET /rate?name=orders", "", http.StatusServiceUnavailable, "")
		assert.Equal(t, 2*time.Second, time.Since(start))
	})
}
