package admin_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func TestPutRateCountsFromTheNextRequestOn(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		ctx, name := t.Context(), redistest.Name(t)
		r := newRig(t, rdb, func(cfg *admin.Config) { cfg.RateLimiters = []string{name} })
		l := rratelimiter.New(rdb, limitertest.Patient()).RateLimiter(name) // as in another process
		t.Cleanup(func() { _, _ = l.Delete(context.Background()) })
		require.NoError(t, l.SetRate(ctx, rratelimiter.PerMinute(1)))
		granted, err := l.TryAcquire(ctx, 2, 0)
		require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
		require.False(t, granted)

		r.ask("PUT /rate?name="+name, `{"rate":2,"interval":"1m","keepAlive":3600000,"type":"OVERALL"}`, http.StatusOK,
			`{"type":"OVERALL","rate":2,"interval":"1m0s","keepAlive":"1h0m0s"}`)
		assert.True(t, limitertest.Try(t, l, 2))
		assert.Equal(t, rratelimiter.Config{Rate: 2, Interval: time.Minute, KeepAlive: time.Hour}, r.config(name))
	})
}

func TestPutRate_TakesAnswerOfGet(t *testing.T) {
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

// As Keyed sets it.
func TestPatchRate_KeepAliveThatWasTheIntervalFollowsIt(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	for body, want := range map[string]time.Duration{
		`{"interval":"1h"}`:                    time.Hour,
		`{"interval":"1s"}`:                    time.Second,
		`{"interval":"1h","keepAlive":"100h"}`: 100 * time.Hour,
		`{"interval":"1s","keepAlive":0}`:      0,
	} {
		r.ask("PUT /rate?name=orders", `{"rate":5,"interval":"1m","keepAlive":"1m"}`, http.StatusOK, "")
		r.ask("PATCH /rate?name=orders", body, http.StatusOK, "")
		assert.Equal(t, want, r.config("orders").KeepAlive, body)
	}
	r.ask("PUT /rate?name=orders", `{"rate":5,"interval":"1m"}`, http.StatusOK, "")
	assert.Zero(t, r.config("orders").KeepAlive)
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
		assert.Equal(t, c.free, limitertest.Available(t, limiter))
	}
}

func TestKeepStateWithOldRedissonsIsAConflict(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	r := newRig(t, rdb, func(cfg *admin.Config) {
		cfg.Client = rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithRedissonVersion("3.12.0"))
	})
	r.ask("PUT /rate?name=orders", `{"rate":6,"interval":"1s","keepState":true}`, http.StatusConflict, "")
	assert.Equal(t, "limit not changed", r.log.one(t)["msg"])
	assert.Empty(t, r.keys())
}

func TestGetRate_LimiterWithoutRate(t *testing.T) {
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
func TestRate_NameMappedToAnothersKeyIsRefused(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithNameMapper(func(name string) string { return "{app}:" + name }))
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
	r.log.Take()
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
	}, r.log.Take())
}

func TestConcurrentChangesAreLoggedAsAChain(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusOK, "")
	r.log.Take()
	var all sync.WaitGroup
	for i := range int64(20) {
		all.Go(func() { r.ask("PUT /rate?name=orders", rateBody(100+i, "1s"), http.StatusOK, "") })
	}
	all.Wait()
	lines := r.log.Take()
	require.Len(t, lines, 20)
	last := 1.0
	for _, line := range lines {
		assert.InDelta(t, last, line["before"].(map[string]any)["rate"], 0)
		last = line["after"].(map[string]any)["rate"].(float64)
	}
}

// threshold is the threshold of the key "k".
const threshold = "/threshold?limiter=web&key=k"

func target(key string) string {
	return "/threshold?" + url.Values{"limiter": {"web"}, "key": {key}}.Encode()
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	keys := []string{"limit:ann:/hello", "limit:bob:/a?b=c&d=e;f#g", "limit:%2F:../..//x", "limit:zoë:/é"}
	for _, key := range keys {
		r.ask("GET "+target(key), "", http.StatusOK, `{"threshold":3}`)
		r.ask("PUT "+target(key), `{"threshold":5}`, http.StatusOK, `{"threshold":5}`)
		assert.Equal(t, "5", r.rdb.HGet(t.Context(), configKey, key).Val())
		r.ask("GET "+target(key), "", http.StatusOK, `{"threshold":5}`)
	}
	r.ask("GET /thresholds?limiter=web", "", http.StatusOK, `{"thresholds":[
		{"key":"limit:%2F:../..//x","threshold":5},
		{"key":"limit:ann:/hello","threshold":5},
		{"key":"limit:bob:/a?b=c&d=e;f#g","threshold":5},
		{"key":"limit:zoë:/é","threshold":5}]}`)
	for _, key := range keys {
		r.ask("DELETE "+target(key), "", http.StatusNoContent, "")
		r.ask("GET "+target(key), "", http.StatusOK, `{"threshold":3}`)
	}
	r.ask("GET /thresholds?limiter=web", "", http.StatusOK, `{"thresholds":[]}`)
	require.NoError(t, r.rdb.HSet(t.Context(), configKey, "k", "0").Err()) // as others may
	r.ask("GET "+threshold, "", http.StatusOK, `{"threshold":0}`)
}

// Sliding logs that share a hash share what is set in it.
func TestThresholdsInOneHash(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	ofLimit := func(n int64) admin.SlidingLog {
		return slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: n, Window: time.Minute, Thresholds: configKey})
	}
	r := newRig(t, rdb, func(cfg *admin.Config) {
		cfg.SlidingLogs = map[string]admin.SlidingLog{"web": ofLimit(2), "api": ofLimit(3)}
	})
	r.ask("PUT "+threshold, `{"threshold":9}`, http.StatusOK, "")
	r.ask("GET /threshold?limiter=api&key=k", "", http.StatusOK, `{"threshold":9}`)
	r.ask("GET /threshold?limiter=api&key=other", "", http.StatusOK, `{"threshold":3}`)
}

func TestCorruptThresholdIsShownAndCured(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	for what, c := range map[string]struct {
		body   string
		status int
	}{"PUT ": {`{"threshold":5}`, http.StatusOK}, "DELETE ": {"", http.StatusNoContent}} {
		require.NoError(t, r.rdb.HSet(t.Context(), configKey, "k", "many").Err())
		r.ask("GET "+threshold, "", http.StatusConflict, configKey)
		r.log.Take()
		r.ask(what+threshold, c.body, c.status, "")
		assert.Contains(t, r.log.one(t)["before"], "corrupt")
		r.ask("GET "+threshold, "", http.StatusOK, "")
	}
}

func TestCorruptThresholdsHideNoOthers(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	require.NoError(t, r.rdb.HSet(t.Context(), configKey, "a", "-1", "b", "5").Err())
	w := r.ask("GET /thresholds?limiter=web", "", http.StatusOK, `"thresholds":[{"key":"b","threshold":5}]`)
	assert.Regexp(t, `"error":"[^}]*\\"a\\"[^}]*"`, w.Body.String())
	assert.Regexp(t, `"error":"[^}]*`+configKey+`[^}]*"`, w.Body.String())
}

func TestThresholdCountsFromTheNextRequestOn(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		prefix := redistest.Name(t)
		key, hash := prefix+":log", prefix+":config"
		t.Cleanup(func() { rdb.Unlink(context.Background(), key, hash) })
		newLog := func() *slidinglog.Limiter {
			return slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 1, Window: time.Hour, Thresholds: hash})
		}
		r := newRig(t, rdb, func(cfg *admin.Config) { cfg.SlidingLogs = map[string]admin.SlidingLog{"web": newLog()} })
		log := newLog() // as in another process
		take := func() bool {
			d, err := log.Take(t.Context(), key, 1)
			require.NoError(t, err)
			return d.Granted
		}
		require.True(t, take())
		require.False(t, take())
		r.ask("PUT "+target(key), `{"threshold":2}`, http.StatusOK, "")
		assert.True(t, take())
		assert.False(t, take())
		r.ask("DELETE "+target(key), "", http.StatusNoContent, "")
		assert.False(t, take())
	})
}

func TestThresholdChangesAreLogged(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	r.ask("PUT "+threshold, `{"threshold":5}`, http.StatusOK, "")
	r.ask("GET "+threshold, "", http.StatusOK, "")
	r.ask("DELETE "+threshold, "", http.StatusNoContent, "")
	r.ask("DELETE "+threshold, "", http.StatusNoContent, "") // it has none any more
	entry := func(before, after any) map[string]any {
		return map[string]any{
			"level": "INFO", "msg": "limit changed", "actor": actor, "action": "change",
			"kind": "sliding-log", "limiter": "web", "key": "k", "before": before, "after": after,
		}
	}
	assert.Equal(t, []map[string]any{entry(3.0, 5.0), entry(5.0, 3.0), entry(3.0, 3.0)}, r.log.Take())
}

func TestClientsAreShownByTheirShares(t *testing.T) {
	t.Parallel()
	for _, cfg := range []rratelimiter.Config{limitertest.Hourly(100), limitertest.PerClient(100, time.Hour)} {
		r := miniRig(t)
		const what = "GET /clients?name=orders"
		r.ask(what, "", http.StatusNotFound, "")
		require.NoError(t, r.client.RateLimiter("orders").SetRate(t.Context(), cfg))
		r.ask(what, "", http.StatusOK, `"inUse":0,`)
		for name, permits := range map[string]int64{"ann": 5, "bob": 8} {
			named := limitertest.NewClient(t, r.rdb, rratelimiter.WithClientName(name))
			limitertest.MustAcquire(t, named.RateLimiter("orders"), permits)
		}
		member := limitertest.NewMember(t, codec.LayoutD2, 6)
		now := float64(time.Now().UnixMilli())
		require.NoError(t, r.rdb.ZAdd(t.Context(), "{orders}:permits", redis.Z{Score: now, Member: member}).Err())

		type share struct {
			Kind, Name, Mark string
			Permits          int64
		}
		var answer struct {
			InUse    int64
			Complete bool
			Clients  []share
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) { // names are written in the background
			answer.Clients = nil
			w := r.ask(what, "", http.StatusOK, "")
			require.NoError(c, json.Unmarshal(w.Body.Bytes(), &answer))
			assert.True(c, slices.ContainsFunc(answer.Clients, func(s share) bool { return s.Name == "ann" }))
			assert.True(c, slices.ContainsFunc(answer.Clients, func(s share) bool { return s.Name == "bob" }))
		}, time.Minute, 5*time.Millisecond)
		for i, s := range answer.Clients {
			assert.Equal(t, s.Kind == "named", len(s.Mark) == 16, s)
			answer.Clients[i].Mark = ""
		}
		want := []share{{Kind: "named", Name: "bob", Permits: 8}, {Kind: "redisson", Permits: 6}, {Kind: "named", Name: "ann", Permits: 5}}
		assert.Equal(t, cfg.Type == rratelimiter.Overall, answer.Complete)
		if cfg.Type == rratelimiter.PerClient {
			want = []share{want[0], want[2]} // that member is no client's own
		}
		assert.Equal(t, want, answer.Clients)
	}
}

func TestClients_InvalidClientOption(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), func(cfg *admin.Config) {
		cfg.Client = rratelimiter.New(untouchable(t), limitertest.Patient(), rratelimiter.WithClientID(""))
	})
	r.ask("GET /clients?name=orders", "", http.StatusBadRequest, "")
}

func TestClientsOfALimiterThatIsCorrupt(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	require.NoError(t, r.client.RateLimiter("orders").SetRate(t.Context(), limitertest.Hourly(100)))
	require.NoError(t, r.rdb.Set(t.Context(), "{orders}:permits", "x", 0).Err())
	r.ask("GET /clients?name=orders", "", http.StatusConflict, "")
}

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
	return newRig(t, p.Client(t, &redistest.Options{MaxRetries: -1, ReadTimeout: time.Hour}), change), p
}

func TestChangeOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, fault := range []redistest.Action{redistest.DropAnswer, redistest.Swallow} {
		synctest.Test(t, func(t *testing.T) {
			r, p := proxied(t, func(cfg *admin.Config) { cfg.Timeout = 0 })
			r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusOK, "")
			r.log.Take()
			p.OnCommand(redistest.Nth(2, "EVALSHA", fault)) // the first one reads the old state
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

func TestLog_CallerWentAway(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := serve(t, r, request("PUT /rate?name=orders", rateBody(1, "1s")).WithContext(ctx))
	assert.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.Equal(t, "limit changed", r.log.one(t)["msg"])
	assert.Equal(t, rratelimiter.PerSecond(1), r.config("orders"))
}

func TestRequests_SlowRedisEndsAtTimeout(t *testing.T) {
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
