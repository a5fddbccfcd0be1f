package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// entries are those of the list of changes, the newest first.
func (s *site) entries() (all []map[string]any) {
	for _, e := range s.get("/api/audit")["entries"].([]any) {
		all = append(all, e.(map[string]any))
	}
	return all
}

func facts(list any) map[string]string {
	all := map[string]string{}
	for _, f := range list.([]any) {
		pair := f.([]any)
		all[pair[0].(string)] = pair[1].(string)
	}
	return all
}

func TestARateIsChangedAndUndone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.Config{Rate: 10, Interval: time.Hour, KeepAlive: 2 * time.Hour}, 4)
	preview, answer := s.change(rateBody("orders", 50, 60_000, true))
	assert.Equal(t, map[string]string{factRate: "10/1h", factType: "OVERALL", factAlive: "2h", factInUse: "4", factExpires: "2h"}, facts(preview["before"]))
	assert.Equal(t, "50/1m", facts(preview["after"])[factRate])
	assert.Contains(t, facts(preview["after"])[factInUse], "kept")
	assert.Equal(t, rratelimiter.PerMinute(50), s.config("orders"))
	assert.InDelta(t, 46, s.get("/api/limiter?id=" + idOf("orders"))["free"], 0)

	entry := answer["entry"].(map[string]any)
	assert.Equal(t, []any{"rate", done, true}, []any{entry["action"], entry["outcome"], entry["undo"]})
	assert.Contains(t, entry["who"], "the token")
	_, answer = s.change(m{"action": "undo", "entry": entry["entry"]})
	assert.Equal(t, rratelimiter.Config{Rate: 10, Interval: time.Hour, KeepAlive: 2 * time.Hour}, s.config("orders"))
	assert.InDelta(t, 6, s.get("/api/limiter?id=" + idOf("orders"))["free"], 0, "permits in use were kept both times")

	all := s.entries()
	require.Len(t, all, 2)
	assert.InDelta(t, 2, all[1]["undone"], 0)
	assert.Equal(t, false, all[1]["undo"])
	code, _ := s.post("/api/preview", m{"action": "undo", "entry": entry["entry"]})
	assert.Equal(t, http.StatusConflict, code, "once")
	// An undo can be undone.
	s.change(m{"action": "undo", "entry": answer["entry"].(map[string]any)["entry"]})
	assert.Equal(t, int64(50), s.config("orders").Rate)
	assert.Contains(t, s.log.String(), `msg="limiter changed" who="who has the token`)
	assert.Contains(t, s.log.String(), `before.Rate=10/1h`)
}

func TestWhatChangedMeanwhileIsNotOverwritten(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	for _, body := range []m{
		rateBody("orders", 20, 1000, false), {"action": "delete", "id": idOf("orders")},
		{"action": "expire", "id": idOf("orders"), "ttl_ms": 1000}, {"action": "release", "id": idOf("orders"), "permits": 1},
		{"action": "migrate", "id": idOf("orders")},
	} {
		code, preview := s.post("/api/preview", body)
		require.Equal(t, http.StatusOK, code, "%v", preview)
		rate := s.config("orders").Rate + 1
		s.limiter("orders", rratelimiter.PerHour(rate), 1)
		body["expect"] = preview["expect"]
		code, _ = s.post("/api/change", body)
		assert.Equal(t, http.StatusConflict, code, "%v", body["action"])
		assert.Equal(t, rate, s.config("orders").Rate)
		assert.Equal(t, refused, s.entries()[0]["outcome"])
	}
	// Nor is anything done that was not shown.
	code, preview := s.post("/api/preview", rateBody("orders", 20, 1000, false))
	require.Equal(t, http.StatusOK, code)
	for _, body := range []m{rateBody("orders", 21, 1000, false), rateBody("orders", 20, 1000, true), rateBody("orders", 20, 1000, false)} {
		if body["rate"] != int64(20) || body["keep_state"] == true {
			body["expect"] = preview["expect"]
		}
		code, _ = s.post("/api/change", body)
		assert.Equal(t, http.StatusConflict, code)
	}
	// What somebody else changed is not undone.
	_, answer := s.change(rateBody("orders", 20, 1000, false))
	s.limiter("orders", rratelimiter.PerHour(99), 0)
	code, _ = s.post("/api/preview", m{"action": "undo", "entry": answer["entry"].(map[string]any)["entry"]})
	assert.Equal(t, http.StatusConflict, code)
	assert.Equal(t, int64(99), s.config("orders").Rate)
}

func TestLifeAndDeath(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 5)
	id := idOf("orders")
	code, _ := s.post("/api/preview", m{"action": "keep", "id": id})
	assert.Equal(t, http.StatusConflict, code, "it does not expire")
	preview, _ := s.change(m{"action": "expire", "id": id, "ttl_ms": 60_000})
	assert.Equal(t, []string{never, "1m"}, []string{facts(preview["before"])[factExpires], facts(preview["after"])[factExpires]})
	assert.InDelta(t, 60_000, s.get("/api/limiter?id=" + id)["ttl_ms"], 5000)
	s.change(m{"action": "keep", "id": id})
	assert.Nil(t, s.get("/api/limiter?id=" + id)["ttl_ms"])
	preview, _ = s.change(m{"action": "release", "id": id, "permits": 2})
	assert.Equal(t, []string{"5", "about 3"}, []string{facts(preview["before"])[factInUse], facts(preview["after"])[factInUse]})
	assert.InDelta(t, 3, s.get("/api/limiter?id=" + id)["in_use"], 0)
	preview, _ = s.change(m{"action": "delete", "id": id})
	assert.Equal(t, "10/1h", facts(preview["before"])[factRate])
	assert.Equal(t, int64(0), s.rdb.Exists(t.Context(), "orders", "{orders}:value", "{orders}:permits").Val())
	for _, body := range []m{{"action": "delete", "id": id}, {"action": "expire", "id": id, "ttl_ms": 5}, rateBody("orders", 1, 1, false)} {
		code, _ := s.post("/api/preview", body)
		assert.Equal(t, http.StatusNotFound, code, "%v", body)
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	old, err := codec.Append(nil, codec.LayoutD1, []byte("12345678"), 2)
	require.NoError(t, err)
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{orders}:permits", redis.Z{Score: float64(time.Now().UnixMilli()), Member: old}).Err())
	require.NoError(t, s.rdb.DecrBy(t.Context(), "{orders}:value", 2).Err())
	preview, _ := s.change(m{"action": "migrate", "id": idOf("orders")})
	assert.Equal(t, "1 of layout D1, 1 of layout D2", facts(preview["before"])["Members"])
	preview, _ = s.change(m{"action": "migrate", "id": idOf("orders")})
	assert.Equal(t, "2 of layout D2", facts(preview["before"])["Members"])
	assert.InDelta(t, 3, s.get("/api/limiter?id=" + idOf("orders"))["in_use"], 0)
}

func TestALimiterThatCantBeReadIsSetAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, s.rdb.HSet(t.Context(), "orders", "rate", "many", "interval", "1", "type", "0").Err())
	preview, answer := s.change(rateBody("orders", 20, 1000, true))
	assert.Equal(t, "can't be read", facts(preview["before"])[factRate])
	assert.Equal(t, rratelimiter.PerSecond(20), s.config("orders"))
	assert.Equal(t, false, answer["entry"].(map[string]any)["undo"])
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	s := newSite(t, withLogs("rate:limit:config", "text"))
	hash, key := idOf("rate:limit:config"), idOf("ann")
	log := slidinglog.New(s.rdb, slidinglog.Config{Limit: 5, Window: time.Minute, Thresholds: "rate:limit:config"})
	set := func() int64 {
		n, err := log.Threshold(t.Context(), "ann")
		require.NoError(t, err)
		return n
	}
	preview, _ := s.change(m{"action": "threshold", "hash": hash, "id": key, "threshold": 40})
	assert.Equal(t, []string{noThreshold, "40"}, []string{facts(preview["before"])[factThreshold], facts(preview["after"])[factThreshold]})
	assert.Equal(t, int64(40), set())
	require.NoError(t, s.rdb.HSet(t.Context(), "rate:limit:config", "log:<b>", "x", "foreign", "x").Err())
	list := s.get("/api/thresholds?hash=" + hash)
	found := rows(t, list, "thresholds")
	assert.InDelta(t, 40, found["ann"]["threshold"], 0)
	assert.Nil(t, found["log:<b>"]["threshold"])
	assert.Equal(t, notThreshold, found["log:<b>"]["text"])
	assert.Len(t, found, 2, "of a field that is no key of such a log nothing is told")
	assert.InDelta(t, 1, list["foreign"], 0)
	s.change(m{"action": "unthreshold", "hash": hash, "id": key})
	assert.Equal(t, int64(5), set())
	code, _ := s.post("/api/preview", m{"action": "unthreshold", "hash": hash, "id": key})
	assert.Equal(t, http.StatusConflict, code)
	require.NoError(t, s.rdb.Set(t.Context(), "text", "x", 0).Err())
	code, _ = s.post("/api/preview", m{"action": "threshold", "hash": idOf("text"), "id": key, "threshold": 40})
	assert.Equal(t, http.StatusConflict, code)
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	s := newSite(t, withLogs("limits"))
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	id := idOf("orders")
	for _, body := range []any{
		m{}, m{"action": "rate"}, m{"action": "other", "id": id}, m{"action": "rate", "id": "*"}, rateBody("orders", 0, 1000, false),
		rateBody("orders", 1<<60, 1000, false), rateBody("orders", 1, 0, false), rateBody("orders", 1, 1<<62, false),
		m{"action": "rate", "id": id, "rate": 1, "interval_ms": 5, "type": "NEITHER"},
		m{"action": "rate", "id": id, "rate": 1, "interval_ms": 5, "type": "OVERALL", "keep_alive_ms": 4},
		m{"action": "rate", "id": id, "rate": 1.5, "interval_ms": 5, "type": "OVERALL"},
		m{"action": "expire", "id": id}, m{"action": "expire", "id": id, "ttl_ms": -1}, m{"action": "release", "id": id},
		m{"action": "release", "id": id, "permits": -5}, m{"action": "threshold", "id": id}, m{"action": "threshold", "id": id, "hash": idOf("limits"), "threshold": -1},
		m{"action": "delete", "id": id, "more": 1}, []string{"x"}, "x",
	} {
		code, answer := s.post("/api/preview", body)
		assert.Equal(t, http.StatusBadRequest, code, "%v: %v", body, answer)
		code, _ = s.post("/api/change", body)
		assert.NotEqual(t, http.StatusOK, code, "%v", body)
	}
	code, _ := s.post("/api/preview", m{"action": "delete", "id": strings.Repeat("x", maxBody)})
	assert.Equal(t, http.StatusRequestEntityTooLarge, code)
	code, _ = s.post("/api/preview", m{"action": "undo", "entry": 7})
	assert.Equal(t, http.StatusConflict, code)
	assert.Equal(t, rratelimiter.PerHour(10), s.config("orders"))
}

// Of changes at once, all from the same preview, one is made.
func TestChangesAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	var group sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	var bodies []m
	for i := range 8 {
		body := rateBody("orders", int64(20+i), 1000, false)
		code, preview := s.post("/api/preview", body)
		require.Equal(t, http.StatusOK, code)
		body["expect"] = preview["expect"]
		bodies = append(bodies, body)
	}
	for _, body := range bodies {
		group.Go(func() {
			w := s.do(s.request("/api/change", body))
			mu.Lock()
			defer mu.Unlock()
			codes[w.Code]++
		})
	}
	group.Wait()
	assert.Equal(t, map[int]int{http.StatusOK: 1, http.StatusConflict: 7}, codes)
}

func TestTheListOfChangesIsBounded(t *testing.T) {
	t.Parallel()
	var a audit
	for i := range maxEntries + 50 {
		a.add(&entry{Action: fmt.Sprint(i), Outcome: done}, 0)
	}
	assert.Len(t, a.entries, maxEntries)
	assert.Equal(t, int64(maxEntries+50), a.entries[maxEntries-1].Number)
}
