package admin_test

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestPutRateCountsFromTheNextRequestOn(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := t.Context(), redistest.Name(t)
		r := newRig(t, rdb, func(cfg *admin.Config) { cfg.RateLimiters = []string{name} })
		l := rratelimiter.New(rdb).RateLimiter(name) // as in another process
		t.Cleanup(func() { _, _ = l.Delete(context.Background()) })
		require.NoError(t, l.SetRate(ctx, rratelimiter.PerMinute(1)))
		granted, err := l.TryAcquire(ctx, 2, 0)
		require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
		require.False(t, granted)

		w := r.do(http.MethodPut, "/rate?name="+name, `{"rate":2,"interval":"1m","keepAlive":3600000,"type":"OVERALL"}`)
		assert.Equal(t, http.StatusOK, w.Code, w.Body)
		assert.JSONEq(t, `{"type":"OVERALL","rate":2,"interval":"1m0s","keepAlive":"1h0m0s"}`, w.Body.String())

		granted, err = l.TryAcquire(ctx, 2, 0)
		require.NoError(t, err)
		assert.True(t, granted)
		cfg, err := l.Config(ctx)
		require.NoError(t, err)
		assert.Equal(t, rratelimiter.Config{Rate: 2, Interval: time.Minute, KeepAlive: time.Hour}, cfg)
	})
}

func TestWhatGetAnswersCanBePut(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	w := r.do(http.MethodPut, "/rate?name=orders", `{"rate":7,"interval":1500,"keepAlive":"1h","type":"PER_CLIENT"}`)
	require.Equal(t, http.StatusOK, w.Code)
	shown := r.do(http.MethodGet, "/rate?name=orders", "")
	assert.Equal(t, http.StatusOK, shown.Code)
	assert.JSONEq(t, `{"type":"PER_CLIENT","rate":7,"interval":"1.5s","keepAlive":"1h0m0s"}`, shown.Body.String())
	again := r.do(http.MethodPut, "/rate?name=orders", shown.Body.String())
	assert.Equal(t, http.StatusOK, again.Code)
	assert.Equal(t, shown.Body.String(), again.Body.String())
}

func TestPatchRateLeavesTheRest(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	limiter := r.client.RateLimiter("orders")
	require.NoError(t, limiter.SetRate(t.Context(), rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 5, Interval: time.Minute, KeepAlive: time.Hour}))
	for body, want := range map[string]rratelimiter.Config{
		`{"rate":6}`:            {Type: rratelimiter.PerClient, Rate: 6, Interval: time.Minute, KeepAlive: time.Hour},
		`{"interval":"2m"}`:     {Type: rratelimiter.PerClient, Rate: 5, Interval: 2 * time.Minute, KeepAlive: time.Hour},
		`{"keepAlive":0}`:       {Type: rratelimiter.PerClient, Rate: 5, Interval: time.Minute},
		`{"type":"OVERALL"}`:    {Rate: 5, Interval: time.Minute, KeepAlive: time.Hour},
		`{"interval":"1500ms"}`: {Type: rratelimiter.PerClient, Rate: 5, Interval: 1500 * time.Millisecond, KeepAlive: time.Hour},
	} {
		w := r.do(http.MethodPatch, "/rate?name=orders", body)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		got, err := limiter.Config(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, got, body)
		w = r.do(http.MethodPut, "/rate?name=orders", `{"type":"PER_CLIENT","rate":5,"interval":"1m","keepAlive":"1h"}`)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
	}
	w := r.do(http.MethodPatch, "/rate?name=orders", `{"keepAlive":"30s"}`)
	assert.Equal(t, http.StatusBadRequest, w.Code)
	assert.Contains(t, w.Body.String(), "shorter than interval")
}

func TestKeepStateKeepsPermitsInUse(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	limiter := r.client.RateLimiter("orders")
	require.NoError(t, limiter.SetRate(t.Context(), rratelimiter.PerMinute(5)))
	require.NoError(t, limiter.Acquire(t.Context(), 4))
	require.Equal(t, http.StatusOK, r.do(http.MethodPatch, "/rate?name=orders", `{"rate":6,"keepState":true}`).Code)
	free, err := limiter.AvailablePermits(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 2, free)
	require.Equal(t, http.StatusOK, r.do(http.MethodPatch, "/rate?name=orders", `{"rate":7}`).Code)
	free, err = limiter.AvailablePermits(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 7, free)
}

func TestKeepStateWithOldRedissonsIsAConflict(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	r := newRig(t, rdb, func(cfg *admin.Config) {
		cfg.Client = rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("3.12.0"))
	})
	w := r.do(http.MethodPut, "/rate?name=orders", `{"rate":6,"interval":"1s","keepState":true}`)
	assert.Equal(t, http.StatusConflict, w.Code, w.Body)
	assert.Equal(t, "limit not changed", r.log.take()[0]["msg"])
	exists, err := r.client.RateLimiter("orders").Exists(t.Context())
	require.NoError(t, err)
	assert.False(t, exists)
}

func TestRateOfALimiterThatHasNone(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	assert.Equal(t, http.StatusNotFound, r.do(http.MethodGet, "/rate?name=orders", "").Code)
	assert.Equal(t, http.StatusNotFound, r.do(http.MethodPatch, "/rate?name=orders", `{"rate":1}`).Code)
	exists, err := r.client.RateLimiter("orders").Exists(t.Context())
	require.NoError(t, err)
	assert.False(t, exists)
	assert.Equal(t, http.StatusOK, r.do(http.MethodPut, "/rate?name=orders", rateBody(1, "1s")).Code)
	assert.Equal(t, http.StatusOK, r.do(http.MethodGet, "/rate?name=orders", "").Code)
}

func TestOnlyRegisteredLimitersAreTouched(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	for _, name := range []string{"order", "orders2", "keyed", "keyed:", "Keyed:x", "web", "{orders}:value"} {
		for method, body := range map[string]string{http.MethodGet: "", http.MethodPut: rateBody(1, "1s"), http.MethodPatch: `{"rate":1}`} {
			w := r.do(method, "/rate?name="+name, body)
			assert.Equal(t, http.StatusNotFound, w.Code, "%s %s", method, name)
		}
	}
	keys, err := r.rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.Empty(t, keys)
	assert.Equal(t, http.StatusOK, r.do(http.MethodPut, "/rate?name=keyed%3Aann%2Fhello", rateBody(1, "1s")).Code)
	cfg, err := r.client.RateLimiter("keyed:ann/hello").Config(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, cfg.Rate)
}

// What a name mapper makes of names says which of them share Redis keys.
func TestAMappedNameOfAnothersKeyIsRefused(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := rratelimiter.New(rdb, rratelimiter.WithNameMapper(func(name string) string { return "{app}:" + name }))
	r := newRig(t, rdb, func(cfg *admin.Config) { cfg.Client = client })
	put := func(name string) int {
		return r.do(http.MethodPut, "/rate?name="+name, `{"rate":6,"interval":"1s"}`).Code
	}
	assert.Equal(t, http.StatusBadRequest, put("keyed:ann:value"))
	assert.Equal(t, http.StatusBadRequest, put("keyed:ann:permits:x"))
	assert.Equal(t, http.StatusOK, put("keyed:ann"))
	assert.Equal(t, http.StatusOK, put("keyed:value"))
}

func TestList(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	r := newRig(t, rdb, func(cfg *admin.Config) { cfg.RateLimiters = []string{"orders", "broken", "none"} })
	require.NoError(t, r.client.RateLimiter("orders").SetRate(t.Context(), rratelimiter.PerSecond(10)))
	require.NoError(t, rdb.HSet(t.Context(), "broken", "rate", "x", "interval", "1", "type", "0").Err())
	w := r.do(http.MethodGet, "/limiters", "")
	assert.Equal(t, http.StatusOK, w.Code, w.Body)
	_, err := r.client.RateLimiter("broken").Config(t.Context())
	require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
	assert.JSONEq(t, `{"rateLimiters":[
		{"name":"broken","error":`+quote(err.Error())+`},
		{"name":"none"},
		{"name":"orders","rate":{"type":"OVERALL","rate":10,"interval":"1s","keepAlive":"0s"}}
	],"prefixes":["keyed:"],"slidingLogs":["web"]}`, w.Body.String())
}

func TestEmptyList(t *testing.T) {
	t.Parallel()
	h := admin.New(admin.Config{Authorize: anyone})
	w := serve(t, h, request(http.MethodGet, "/limiters", ""))
	assert.JSONEq(t, `{"rateLimiters":[],"prefixes":[],"slidingLogs":[]}`, w.Body.String())
}

func TestPutRateCuresCorruption(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	require.NoError(t, r.rdb.HSet(t.Context(), "orders", "rate", "x", "interval", "1", "type", "0").Err())
	w := r.do(http.MethodGet, "/rate?name=orders", "")
	assert.Equal(t, http.StatusConflict, w.Code)
	assert.Contains(t, w.Body.String(), "orders")
	assert.Equal(t, http.StatusConflict, r.do(http.MethodPatch, "/rate?name=orders", `{"rate":1}`).Code)
	r.log.take()
	assert.Equal(t, http.StatusOK, r.do(http.MethodPut, "/rate?name=orders", rateBody(1, "1s")).Code)
	assert.Contains(t, r.log.take()[0]["before"], "corrupt")
	assert.Equal(t, http.StatusOK, r.do(http.MethodGet, "/rate?name=orders", "").Code)
}

func TestRateChangesAreLogged(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	change := func(more map[string]any) map[string]any {
		entry := map[string]any{
			"level": "INFO", "msg": "limit changed", "actor": actor, "action": "change",
			"kind": "rate-limiter", "limiter": "orders", "keepState": false,
		}
		maps.Copy(entry, more)
		return entry
	}
	rate := func(kind string, rate, interval float64) map[string]any {
		return map[string]any{"type": kind, "rate": rate, "interval": interval, "keepAlive": 0.0}
	}
	r.do(http.MethodPut, "/rate?name=orders", rateBody(1, "1s"))
	r.do(http.MethodPatch, "/rate?name=orders", `{"rate":2,"keepState":true}`)
	r.do(http.MethodPut, "/rate?name=orders", `{"rate":3,"interval":"1m","type":"PER_CLIENT"}`)
	r.do(http.MethodGet, "/rate?name=orders", "")
	assert.Equal(t, []map[string]any{
		change(map[string]any{"before": "none", "after": rate("OVERALL", 1, 1e9)}),
		change(map[string]any{"before": rate("OVERALL", 1, 1e9), "after": rate("OVERALL", 2, 1e9), "keepState": true}),
		change(map[string]any{"before": rate("OVERALL", 2, 1e9), "after": rate("PER_CLIENT", 3, 6e10)}),
	}, r.log.take())
}

func TestConcurrentChangesAreLoggedAsAChain(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	require.Equal(t, http.StatusOK, r.do(http.MethodPut, "/rate?name=orders", rateBody(1, "1s")).Code)
	r.log.take()
	var all sync.WaitGroup
	for i := range int64(20) {
		all.Go(func() { r.do(http.MethodPut, "/rate?name=orders", rateBody(100+i, "1s")) })
	}
	all.Wait()
	lines := r.log.take()
	require.Len(t, lines, 20)
	last := 1.0
	for _, line := range lines {
		assert.InDelta(t, last, line["before"].(map[string]any)["rate"], 0)
		last = line["after"].(map[string]any)["rate"].(float64)
	}
}
