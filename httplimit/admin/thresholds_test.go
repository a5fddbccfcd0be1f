package admin_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func target(key string) string {
	return "/threshold?" + url.Values{"limiter": {"web"}, "key": {key}}.Encode()
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	keys := []string{"limit:ann:/hello", "limit:bob:/a?b=c&d=e;f#g", "limit:%2F:../..//x", "limit:zoë:/é"}
	for _, key := range keys {
		w := r.do(http.MethodGet, target(key), "")
		assert.JSONEq(t, `{"threshold":3}`, w.Body.String(), key)
		w = r.do(http.MethodPut, target(key), `{"threshold":5}`)
		assert.Equal(t, http.StatusOK, w.Code, w.Body)
		assert.JSONEq(t, `{"threshold":5}`, w.Body.String())
		stored, err := r.rdb.HGet(t.Context(), configKey, key).Result()
		require.NoError(t, err)
		assert.Equal(t, "5", stored)
		w = r.do(http.MethodGet, target(key), "")
		assert.JSONEq(t, `{"threshold":5}`, w.Body.String())
	}
	w := r.do(http.MethodGet, "/thresholds?limiter=web", "")
	assert.JSONEq(t, `{"thresholds":[
		{"key":"limit:%2F:../..//x","threshold":5},
		{"key":"limit:ann:/hello","threshold":5},
		{"key":"limit:bob:/a?b=c&d=e;f#g","threshold":5},
		{"key":"limit:zoë:/é","threshold":5}]}`, w.Body.String())
	for _, key := range keys {
		assert.Equal(t, http.StatusNoContent, r.do(http.MethodDelete, target(key), "").Code)
		w = r.do(http.MethodGet, target(key), "")
		assert.JSONEq(t, `{"threshold":3}`, w.Body.String())
	}
	w = r.do(http.MethodGet, "/thresholds?limiter=web", "")
	assert.JSONEq(t, `{"thresholds":[]}`, w.Body.String())
}

func TestThresholdSetByOthers(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	require.NoError(t, r.rdb.HSet(t.Context(), configKey, "k", "0").Err())
	assert.JSONEq(t, `{"threshold":0}`, r.do(http.MethodGet, target("k"), "").Body.String())
}

// Sliding logs that share a hash share what is set in it.
func TestThresholdsInOneHash(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	ofLimit := func(n int64) admin.SlidingLog {
		return slidinglog.New(rdb, slidinglog.Config{Limit: n, Window: time.Minute, Thresholds: configKey})
	}
	r := newRig(t, rdb, func(cfg *admin.Config) {
		cfg.SlidingLogs = map[string]admin.SlidingLog{"web": ofLimit(2), "api": ofLimit(3)}
	})
	require.Equal(t, http.StatusOK, r.do(http.MethodPut, target("k"), `{"threshold":9}`).Code)
	assert.JSONEq(t, `{"threshold":9}`, r.do(http.MethodGet, "/threshold?limiter=api&key=k", "").Body.String())
	assert.JSONEq(t, `{"threshold":3}`, r.do(http.MethodGet, "/threshold?limiter=api&key=other", "").Body.String())
}

func TestUnknownSlidingLogs(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	for _, c := range []struct{ method, target, body string }{
		{http.MethodGet, "/thresholds?limiter=orders", ""},
		{http.MethodGet, "/threshold?limiter=orders&key=k", ""},
		{http.MethodPut, "/threshold?limiter=orders&key=k", `{"threshold":5}`},
		{http.MethodDelete, "/threshold?limiter=Web&key=k", ""},
	} {
		assert.Equal(t, http.StatusNotFound, r.do(c.method, c.target, c.body).Code, c)
	}
	keys, err := r.rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.Empty(t, keys)
}

func TestCorruptThresholdIsShownAndCured(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	for _, cure := range []struct{ method, body string }{{http.MethodPut, `{"threshold":5}`}, {http.MethodDelete, ""}} {
		require.NoError(t, r.rdb.HSet(t.Context(), configKey, "k", "many").Err())
		w := r.do(http.MethodGet, target("k"), "")
		assert.Equal(t, http.StatusConflict, w.Code)
		assert.Contains(t, w.Body.String(), configKey)
		r.log.take()
		assert.Less(t, r.do(cure.method, target("k"), cure.body).Code, 300)
		assert.Contains(t, r.log.take()[0]["before"], "corrupt")
		assert.Equal(t, http.StatusOK, r.do(http.MethodGet, target("k"), "").Code)
	}
}

func TestCorruptThresholdsHideNoOthers(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	require.NoError(t, r.rdb.HSet(t.Context(), configKey, "a", "-1", "b", "5").Err())
	w := r.do(http.MethodGet, "/thresholds?limiter=web", "")
	assert.Equal(t, http.StatusOK, w.Code)
	var got struct {
		Thresholds []map[string]any
		Error      string
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	assert.Equal(t, []map[string]any{{"key": "b", "threshold": 5.0}}, got.Thresholds)
	assert.Contains(t, got.Error, `"a"`)
	assert.Contains(t, got.Error, configKey)
}

func TestThresholdCountsFromTheNextRequestOn(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Name(t)
		key, hash := prefix+":log", prefix+":config"
		t.Cleanup(func() { rdb.Unlink(context.Background(), key, hash) })
		newLog := func() *slidinglog.Limiter {
			return slidinglog.New(rdb, slidinglog.Config{Limit: 1, Window: time.Hour, Thresholds: hash})
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
		require.Equal(t, http.StatusOK, r.do(http.MethodPut, target(key), `{"threshold":2}`).Code)
		assert.True(t, take())
		assert.False(t, take())
		require.Equal(t, http.StatusNoContent, r.do(http.MethodDelete, target(key), "").Code)
		assert.False(t, take())
	})
}

func TestThresholdChangesAreLogged(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	r.do(http.MethodPut, target("k"), `{"threshold":5}`)
	r.do(http.MethodGet, target("k"), "")
	r.do(http.MethodDelete, target("k"), "")
	r.do(http.MethodDelete, target("k"), "") // it has none any more
	entry := func(before, after any) map[string]any {
		return map[string]any{
			"level": "INFO", "msg": "limit changed", "actor": actor, "action": "change",
			"kind": "sliding-log", "limiter": "web", "key": "k", "before": before, "after": after,
		}
	}
	assert.Equal(t, []map[string]any{entry(3.0, 5.0), entry(5.0, 3.0), entry(3.0, 3.0)}, r.log.take())
}
