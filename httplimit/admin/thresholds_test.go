package admin_test

import (
	"context"
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

// threshold is that of the key "k".
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
		return slidinglog.New(rdb, slidinglog.Config{Limit: n, Window: time.Minute, Thresholds: configKey})
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
		r.log.take()
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
	assert.Equal(t, []map[string]any{entry(3.0, 5.0), entry(5.0, 3.0), entry(3.0, 3.0)}, r.log.take())
}
