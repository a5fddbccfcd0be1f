package admin_test

import (
	"context"
	"encoding/json"
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

		r.ask("PUT /rate?name="+name, `{"rate":2,"interval":"1m","keepAlive":3600000,"type":"OVERALL"}`, http.StatusOK,
			`{"type":"OVERALL","rate":2,"interval":"1m0s","keepAlive":"1h0m0s"}`)
		granted, err = l.TryAcquire(ctx, 2, 0)
		require.NoError(t, err)
		assert.True(t, granted)
		assert.Equal(t, rratelimiter.Config{Rate: 2, Interval: time.Minute, KeepAlive: time.Hour}, r.config(name))
	})
}

func TestWhatGetAnswersCanBePut(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	r.ask("PUT /rate?name=orders", `{"rate":7,"interval":1500,"keepAlive":"1h","type":"PER_CLIENT"}`, http.StatusOK, "")
	shown := r.ask("GET /rate?name=orders", "", http.StatusOK, `{"type":"PER_CLIENT","rate":7,"interval":"1.5s","keepAlive":"1h0m0s"}`)
	r.ask("PUT /rate?name=orders", shown.Body.String(), http.StatusOK, shown.Body.String())
}

func TestPatchRateLeavesTheRest(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	before := rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 5, Interval: time.Minute, KeepAlive: time.Hour}
	for body, change := range map[string]func(c *rratelimiter.Config){
		`{"rate":6}`:            func(c *rratelimiter.Config) { c.Rate = 6 },
		`{"interval":"2m"}`:     func(c *rratelimiter.Config) { c.Interval = 2 * time.Minute },
		`{"keepAlive":0}`:       func(c *rratelimiter.Config) { c.KeepAlive = 0 },
		`{"type":"OVERALL"}`:    func(c *rratelimiter.Config) { c.Type = rratelimiter.Overall },
		`{"interval":"1500ms"}`: func(c *rratelimiter.Config) { c.Interval = 1500 * time.Millisecond },
	} {
		r.ask("PUT /rate?name=orders", `{"type":"PER_CLIENT","rate":5,"interval":"1m","keepAlive":"1h"}`, http.StatusOK, "")
		require.Equal(t, before, r.config("orders"))
		r.ask("PATCH /rate?name=orders", body, http.StatusOK, "")
		want := before
		change(&want)
		assert.Equal(t, want, r.config("orders"), body)
	}
	r.ask("PATCH /rate?name=orders", `{"keepAlive":"1s"}`, http.StatusBadRequest, "shorter than interval")
}

func TestKeepStateKeepsPermitsInUse(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	limiter := r.client.RateLimiter("orders")
	require.NoError(t, limiter.SetRate(t.Context(), rratelimiter.PerMinute(5)))
	require.NoError(t, limiter.Acquire(t.Context(), 4))
	for _, c := range []struct {
		body string
		free int64
	}{{`{"rate":6,"keepState":true}`, 2}, {`{"rate":7}`, 7}} {
		r.ask("PATCH /rate?name=orders", c.body, http.StatusOK, "")
		free, err := limiter.AvailablePermits(t.Context())
		require.NoError(t, err)
		assert.Equal(t, c.free, free)
	}
}

func TestKeepStateWithOldRedissonsIsAConflict(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	r := newRig(t, rdb, func(cfg *admin.Config) {
		cfg.Client = rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("3.12.0"))
	})
	r.ask("PUT /rate?name=orders", `{"rate":6,"interval":"1s","keepState":true}`, http.StatusConflict, "")
	assert.Equal(t, "limit not changed", r.log.one(t)["msg"])
	assert.Empty(t, r.keys())
}

func TestRateOfALimiterThatHasNone(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	r.ask("GET /rate?name=orders", "", http.StatusNotFound, "")
	r.ask("PATCH /rate?name=orders", `{"rate":1}`, http.StatusNotFound, "")
	assert.Empty(t, r.keys())
	r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusOK, "")
	r.ask("GET /rate?name=orders", "", http.StatusOK, "")
}

func TestOnlyRegisteredLimitersAreTouched(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	for _, name := range []string{"order", "orders2", "keyed", "keyed:", "Keyed:x", "web", "{orders}:value"} {
		r.ask("GET /rate?name="+name, "", http.StatusNotFound, "")
		r.ask("PUT /rate?name="+name, rateBody(1, "1s"), http.StatusNotFound, "")
		r.ask("PATCH /rate?name="+name, `{"rate":1}`, http.StatusNotFound, "")
	}
	r.ask("GET /thresholds?limiter=orders", "", http.StatusNotFound, "")
	r.ask("GET /threshold?limiter=orders&key=k", "", http.StatusNotFound, "")
	r.ask("PUT /threshold?limiter=orders&key=k", `{"threshold":5}`, http.StatusNotFound, "")
	r.ask("DELETE /threshold?limiter=Web&key=k", "", http.StatusNotFound, "")
	assert.Empty(t, r.keys())
	r.ask("PUT /rate?name=keyed%3Aann%2Fhello", rateBody(1, "1s"), http.StatusOK, "")
	assert.EqualValues(t, 1, r.config("keyed:ann/hello").Rate)
}

// What a name mapper makes of names says which of them share Redis keys.
func TestAMappedNameOfAnothersKeyIsRefused(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := rratelimiter.New(rdb, rratelimiter.WithNameMapper(func(name string) string { return "{app}:" + name }))
	r := newRig(t, rdb, func(cfg *admin.Config) { cfg.Client = client })
	for name, status := range map[string]int{"ann:value": 400, "ann:permits:x": 400, "ann": 200, "value": 200} {
		r.ask("PUT /rate?name=keyed:"+name, rateBody(6, "1s"), status, "")
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	r := miniRig(t, func(cfg *admin.Config) { cfg.RateLimiters = []string{"orders", "broken", "none"} })
	require.NoError(t, r.client.RateLimiter("orders").SetRate(t.Context(), rratelimiter.PerSecond(10)))
	require.NoError(t, r.rdb.HSet(t.Context(), "broken", "rate", "x", "interval", "1", "type", "0").Err())
	_, err := r.client.RateLimiter("broken").Config(t.Context())
	require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
	says, err := json.Marshal(err.Error())
	require.NoError(t, err)
	r.ask("GET /limiters", "", http.StatusOK, `{"rateLimiters":[
		{"name":"broken","error":`+string(says)+`},
		{"name":"none"},
		{"name":"orders","rate":{"type":"OVERALL","rate":10,"interval":"1s","keepAlive":"0s"}}
	],"prefixes":["keyed:"],"slidingLogs":["web"]}`)

	w := serve(t, admin.New(admin.Config{Authorize: anyone}), request("GET /limiters", ""))
	assert.JSONEq(t, `{"rateLimiters":[],"prefixes":[],"slidingLogs":[]}`, w.Body.String())
}

func TestPutRateCuresCorruption(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	require.NoError(t, r.rdb.HSet(t.Context(), "orders", "rate", "x", "interval", "1", "type", "0").Err())
	r.ask("GET /rate?name=orders", "", http.StatusConflict, "orders")
	r.ask("PATCH /rate?name=orders", `{"rate":1}`, http.StatusConflict, "")
	r.log.take()
	r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusOK, "")
	assert.Contains(t, r.log.one(t)["before"], "corrupt")
	r.ask("GET /rate?name=orders", "", http.StatusOK, "")
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
	r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusOK, "")
	r.ask("PATCH /rate?name=orders", `{"rate":2,"keepState":true}`, http.StatusOK, "")
	r.ask("PUT /rate?name=orders", `{"rate":3,"interval":"1m","type":"PER_CLIENT"}`, http.StatusOK, "")
	r.ask("GET /rate?name=orders", "", http.StatusOK, "")
	assert.Equal(t, []map[string]any{
		change(map[string]any{"before": "none", "after": rate("OVERALL", 1, 1e9)}),
		change(map[string]any{"before": rate("OVERALL", 1, 1e9), "after": rate("OVERALL", 2, 1e9), "keepState": true}),
		change(map[string]any{"before": rate("OVERALL", 2, 1e9), "after": rate("PER_CLIENT", 3, 6e10)}),
	}, r.log.take())
}

func TestConcurrentChangesAreLoggedAsAChain(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusOK, "")
	r.log.take()
	var all sync.WaitGroup
	for i := range int64(20) {
		all.Go(func() { r.ask("PUT /rate?name=orders", rateBody(100+i, "1s"), http.StatusOK, "") })
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
