package dashboard

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// What a body leaves out stays as it is. A keep-alive time that was the interval, as Keyed sets it, follows the interval.
func TestAPI_RateLeavesTheRest(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	const ms, minute, hour = time.Millisecond, time.Minute, time.Hour
	config := func(of rratelimiter.RateType, rate int64, interval, keep time.Duration) rratelimiter.Config {
		return rratelimiter.Config{Type: of, Rate: rate, Interval: interval, KeepAlive: keep}
	}
	own, keyed := config(rratelimiter.PerClient, 5, minute, hour), config(rratelimiter.Overall, 5, minute, minute)
	for _, c := range []struct {
		before rratelimiter.Config
		body   string
		want   rratelimiter.Config
	}{
		{own, `{"rate":6}`, config(rratelimiter.PerClient, 6, minute, hour)},
		{own, `{"interval_ms":1500}`, config(rratelimiter.PerClient, 5, 1500*ms, hour)},
		{own, `{"keep_alive_ms":0}`, config(rratelimiter.PerClient, 5, minute, 0)},
		{own, `{"type":"OVERALL"}`, config(rratelimiter.Overall, 5, minute, hour)},
		{own, `{"type":"OVERALL","rate":5,"interval_ms":60000,"keep_alive_ms":3600000}`, config(rratelimiter.Overall, 5, minute, hour)},
		{keyed, `{"interval_ms":3600000}`, config(rratelimiter.Overall, 5, hour, hour)},
		{keyed, `{"interval_ms":1000}`, config(rratelimiter.Overall, 5, 1000*ms, 1000*ms)},
		{keyed, `{"interval_ms":3600000,"keep_alive_ms":360000000}`, config(rratelimiter.Overall, 5, hour, 100*hour)},
		{keyed, `{"interval_ms":1000,"keep_alive_ms":0,"rate":5}`, config(rratelimiter.Overall, 5, 1000*ms, 0)},
		{keyed, `{"interval_ms":60000,"keep_alive_ms":60000,"rate":5}`, keyed},
	} {
		s.limiter("orders", c.before, 0)
		s.ask("POST "+rateOfOrders, c.body, http.StatusOK, "")
		assert.Equal(t, c.want, s.config("orders"), c.body)
	}
	s.limiter("orders", own, 0)
	for _, body := range []string{`{"keep_alive_ms":1000}`, `{"interval_ms":7200000}`} {
		s.ask("POST "+rateOfOrders, body, http.StatusBadRequest, "shorter than the interval")
	}
	assert.Equal(t, own, s.config("orders"))
}

// Permits in use stay counted, as with rrl, unless the body says otherwise.
func TestAPI_PermitsInUseStayCounted(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	s.limiter("orders", rratelimiter.PerMinute(5), 4)
	s.client(func(client *rratelimiter.Client) {
		for _, c := range []struct {
			body string
			free int64
		}{{`{"rate":6}`, 2}, {`{"rate":7,"keep_state":true}`, 3}, {`{"rate":8,"keep_state":false}`, 8}} {
			s.ask("POST "+rateOfOrders, c.body, http.StatusOK, "")
			assert.Equal(t, c.free, limitertest.Available(t, client.RateLimiter("orders")), c.body)
		}
	})
}

func TestAPI_KeepingStateOfOldRedissonsIsAConflict(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(c *Config) { c.RedissonVersion = "3.12.0" })
	s.ask("POST "+rateOfOrders, `{"rate":6,"interval_ms":1000,"create":true}`, http.StatusOK, "")
	s.ask("POST "+rateOfOrders, `{"rate":7}`, http.StatusConflict, "")
	assert.Contains(t, s.log.String(), `msg="limiter not changed"`)
	s.ask("POST "+rateOfOrders, `{"rate":7,"keep_state":false}`, http.StatusOK, "")
}

// A limiter is made only if that is asked for: a mistyped name makes none.
func TestAPI_CreatesLimiter(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(c *Config) { c.Pattern = "*o*" })
	keys := func() []string { return s.rdb.Keys(t.Context(), "*").Val() }
	s.ask("GET /limiter?name=orders", "", http.StatusOK, `"exists":false`)
	s.ask("GET /clients?name=orders", "", http.StatusNotFound, "")
	s.ask("POST "+rateOfOrders, `{"rate":1,"interval_ms":1000}`, http.StatusNotFound, "no such limiter")
	s.ask("POST "+rateOfOrders, `{"rate":1,"create":true}`, http.StatusBadRequest, "interval_ms")
	s.ask("POST /change/rate?name=x", `{"rate":1,"interval_ms":1000,"create":true}`, http.StatusForbidden, "outside of the pattern")
	for _, name := range []string{"{orders}:value", "{orders}:permits:x"} {
		s.ask("POST /change/rate?name="+url.QueryEscape(name), `{"rate":1,"interval_ms":1000,"create":true}`, http.StatusBadRequest, "orders")
	}
	create := m{"action": "rate", "name": "orders", "rate": 1, "interval_ms": 1000, "create": true}
	path, body := split("/preview", create)
	text, err := json.Marshal(body)
	require.NoError(t, err)
	preview := object(t, s.ask("POST "+path, string(text), http.StatusOK, "").Body.Bytes())
	assert.Equal(t, map[string]string{"Limiter": "none"}, facts(preview["before"]))
	assert.Equal(t, "1/1s", facts(preview["after"])[factRate])
	assert.Empty(t, keys())
	path = strings.Replace(path, "/preview", "/change", 1)
	with := fmt.Sprintf(`{"rate":1,"interval_ms":1000,"create":true,"expect":%q}`, preview["expect"])
	s.ask("POST "+path, with, http.StatusOK, `"undo":false`)
	assert.Equal(t, rratelimiter.PerSecond(1), s.config("orders"))
	s.ask("GET /limiter?name=orders", "", http.StatusOK, `"origin":"override"`)
	s.ask("POST "+path, with, http.StatusConflict, "has changed since")
	s.ask("POST "+path, string(text), http.StatusOK, "") // as any change of a limiter that is there
}

func TestAPI_ConcurrentChangesAreLoggedAsAChain(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	s.limiter("orders", rratelimiter.PerHour(1), 0)
	var all sync.WaitGroup
	for i := range int64(20) {
		all.Go(func() { s.ask("POST "+rateOfOrders, fmt.Sprintf(`{"rate":%d}`, 100+i), http.StatusOK, "") })
	}
	all.Wait()
	lines := regexp.MustCompile(`limiter changed.*before.Rate=(\S+).*after.Rate=(\S+)`).FindAllStringSubmatch(s.log.String(), -1)
	require.Len(t, lines, 20)
	last := "1/1h"
	for _, line := range lines {
		assert.Equal(t, last, line[1])
		last = line[2]
	}
}

func ofKey(hash, key string) string { return url.Values{"hash": {hash}, "key": {key}}.Encode() }

func TestAPI_Thresholds(t *testing.T) {
	t.Parallel()
	s := newAPI(t, withLogs("text"))
	log := slidinglog.New(limitertest.OpenClient(s.rdb), slidinglog.Config{Limit: 20, Window: time.Hour, Thresholds: "limits"})
	keys := []string{"log:ann:/hello", "log:bob:/a?b=c&d=e;f#g", "log:%2F:../..//x", "log:zoë:/é", "log:\xff\x00"}
	limitOf := func(key string) any {
		return object(t, s.ask("GET /key?key="+url.QueryEscape(key), "", http.StatusOK, "").Body.Bytes())["limit"]
	}
	set := map[string]int64{}
	for _, key := range keys {
		assert.InDelta(t, 20, limitOf(key), 0, "its log's own")
		s.ask("POST /change/threshold?"+ofKey("limits", key), `{"threshold":5}`, http.StatusOK, `"Threshold","5"`)
		assert.InDelta(t, 5, limitOf(key), 0)
		set[key] = 5
	}
	got, err := log.Thresholds(t.Context())
	require.NoError(t, err)
	assert.Equal(t, set, got)
	list := object(t, s.ask("GET /thresholds?hash=limits", "", http.StatusOK, "").Body.Bytes())
	assert.Len(t, list["thresholds"], len(keys))
	has(t, m{"threshold": 5.0}, rows(t, list, "thresholds")["log:ann:/hello"])
	for _, key := range keys {
		s.ask("POST /change/unthreshold?"+ofKey("limits", key), `{}`, http.StatusOK, "")
		assert.InDelta(t, 20, limitOf(key), 0)
	}
	require.NoError(t, s.rdb.HSet(t.Context(), "limits", "log:k", "0").Err()) // as others may
	assert.Zero(t, limitOf("log:k"))
	// One that can't be read is cured by either.
	for verb, body := range map[string]string{"threshold": `{"threshold":5}`, "unthreshold": `{}`} {
		require.NoError(t, s.rdb.HSet(t.Context(), "limits", "log:k", "many", "log:l", 7).Err())
		s.ask("GET /thresholds?hash=limits", "", http.StatusOK, `"threshold":7`)
		s.ask("POST /change/"+verb+"?"+ofKey("limits", "log:k"), body, http.StatusOK, notThreshold)
	}
	assert.Contains(t, s.log.String(), "action=threshold limiter=log:k outcome=done before.Threshold=\"not a threshold\" before.Hash=limits after.Threshold=5")
}

// A hash of many is read in parts.
func TestAPI_ManyThresholds(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	want := map[string]bool{}
	pipe := s.rdb.Pipeline()
	for i := range 2500 {
		key := fmt.Sprintf("log:%04d", i)
		want[key] = true
		pipe.HSet(t.Context(), "limits", key, i)
	}
	require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
	got := map[string]bool{}
	for cursor, more := "0", true; more; {
		list := object(t, s.ask("GET /thresholds?hash=limits&cursor="+cursor, "", http.StatusOK, "").Body.Bytes())
		for key := range rows(t, list, "thresholds") {
			got[key] = true
		}
		cursor, more = list["cursor"].(string), list["more"].(bool)
	}
	assert.Len(t, got, len(want))
	assert.True(t, maps.Equal(want, got))
}

func TestAPI_ClientsAreShownByTheirShares(t *testing.T) {
	t.Parallel()
	for _, cfg := range []rratelimiter.Config{limitertest.Hourly(100), limitertest.PerClient(100, time.Hour)} {
		s := newAPI(t)
		const what = "GET /clients?name=orders"
		s.limiter("orders", cfg, 0)
		s.ask(what, "", http.StatusOK, `"in_use":0,`)
		for name, permits := range map[string]int64{"ann": 5, "bob": 8} {
			named := limitertest.NewClient(t, s.rdb, rratelimiter.WithClientName(name))
			limitertest.MustAcquire(t, named.RateLimiter("orders"), permits)
		}
		member := limitertest.NewMember(t, codec.LayoutD2, 6)
		now := float64(time.Now().UnixMilli())
		require.NoError(t, s.rdb.ZAdd(t.Context(), "{orders}:permits", redis.Z{Score: now, Member: member}).Err())

		type share struct {
			Kind, Name, Mark string
			Permits          int64
		}
		var answer struct {
			Complete bool
			Clients  []share
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) { // names are written in the background
			answer.Clients = nil
			w := s.ask(what, "", http.StatusOK, "")
			require.NoError(c, json.Unmarshal(w.Body.Bytes(), &answer))
			for _, name := range []string{"ann", "bob"} {
				assert.True(c, slices.ContainsFunc(answer.Clients, func(s share) bool { return s.Name == name }))
			}
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
