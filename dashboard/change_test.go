package dashboard

import (
	"fmt"
	"math"
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
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// entries are those of the list of changes, the newest first.
func (s *site) entries() (all []map[string]any) {
	for _, e := range s.get("/api/audit")["entries"].([]any) {
		all = append(all, e.(map[string]any))
	}
	return all
}

func entryOf(answer m) m { return answer["entry"].(m) }

func facts(list any) map[string]string {
	all := map[string]string{}
	for _, f := range list.([]any) {
		pair := f.([]any)
		all[pair[0].(string)] = pair[1].(string)
	}
	return all
}

func TestChange_RateAndUndo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := rratelimiter.Config{Rate: 10, Interval: time.Hour, KeepAlive: 2 * time.Hour}
	s.limiter("orders", first, 4)
	_, preview := s.post("/api/preview", rateBody("orders", 3, 60_000, true))
	assert.Equal(t, []any{"4 permits are in use, more than the new rate: no one gets a permit until 2 of them are back."}, preview["warnings"])
	preview, answer := s.change(rateBody("orders", 50, 60_000, true))
	before := map[string]string{factRate: "10/1h", factType: "all clients together", factAlive: "2h", factInUse: "4", factExpires: "2h", factOrigin: "override"}
	assert.Equal(t, before, facts(preview["before"]))
	assert.Equal(t, "50/1m", facts(preview["after"])[factRate])
	assert.Equal(t, "4, back after the new interval", facts(preview["after"])[factInUse])
	assert.Equal(t, rratelimiter.PerMinute(50), s.config("orders"))
	has(t, m{"free": 46.0}, s.show("orders"))

	entry := entryOf(answer)
	has(t, m{"action": "rate", "outcome": done, "undo": true}, entry)
	assert.Contains(t, entry["who"], "the token")
	_, answer = s.change(m{"action": "undo", "entry": entry["entry"]})
	assert.Equal(t, first, s.config("orders"))
	has(t, m{"free": 6.0}, s.show("orders"), "permits in use were kept both times")

	all := s.entries()
	require.Len(t, all, 2)
	has(t, m{"undone": 2.0, "undo": false}, all[1])
	s.refuses(http.StatusConflict, m{"action": "undo", "entry": entry["entry"]})
	// An undo can be undone.
	s.change(m{"action": "undo", "entry": entryOf(answer)["entry"]})
	assert.Equal(t, int64(50), s.config("orders").Rate)
	assert.Contains(t, s.log.String(), `msg="limiter changed" who="holder of the token`)
	assert.Contains(t, s.log.String(), `before.Rate=10/1h`)

	// It says what does not come back.
	s.limiter("mail", rratelimiter.PerHour(10), 0)
	s.change(m{"action": "expire", "name": "mail", "ttl_ms": 60_000})
	_, answer = s.change(rateBody("mail", 20, 1000, true))
	_, preview = s.post("/api/preview", m{"action": "undo", "entry": entryOf(answer)["entry"]})
	assert.Len(t, preview["warnings"], 1)
}

// A change makes a default an override, which its undo and "Use default" take back.
func TestChange_RateForAWhile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.Config{Rate: 10, Interval: time.Hour, KeepAlive: 2 * time.Hour}, 4)
	for _, rate := range []int64{50, 60} {
		preview, _ := s.change(m{"action": "rate", "name": "orders", "rate": rate, "interval_ms": 60_000, "for_ms": 3_600_000})
		assert.Equal(t, fmt.Sprint(rate, "/1m for 1h, then 10/1h"), facts(preview["after"])[factRate])
		found := s.show("orders")
		has(t, m{"rate": float64(rate), "free": float64(rate - 4), "keep_alive_ms": 7_200_000.0, "origin": "override"}, found)
		has(t, m{"rate": 10.0, "interval_ms": 3_600_000.0}, found["ends"].(m))
	}
	for _, body := range []m{
		{"for_ms": 0}, {"for_ms": int64(1 << 52)}, {"for_ms": 1, "keep_state": false}, {"for_ms": 1, "keep_alive_ms": 3_600_000},
		{"for_ms": 1, "type": "OVERALL"}, {"for_ms": 1, "create": true},
	} {
		body["action"], body["name"], body["rate"] = "rate", "orders", 5
		status, _ := s.post("/api/preview", body)
		assert.Equal(t, 400, status, body)
	}
	ends, answer := s.change(rateBody("orders", 7, 60_000, true))
	assert.Equal(t, []any{"The rate now has an end, after which 10/1h would come back: the new one stays."}, ends["warnings"])
	assert.NotContains(t, s.show("orders"), "ends")
	_, undo := s.post("/api/preview", m{"action": "undo", "entry": entryOf(answer)["entry"]})
	assert.Len(t, undo["warnings"], 1, "the end does not come back")

	// Taken back, it ends at once.
	s.change(m{"action": "rate", "name": "orders", "rate": 50, "interval_ms": 60_000, "for_ms": 3_600_000})
	preview, _ := s.change(m{"action": "default", "name": "orders"})
	assert.Equal(t, "7/1m, until a program has another default", facts(preview["after"])[factRate])
	has(t, m{"origin": "taken back", "rate": 7.0}, s.show("orders"))
}

func TestTheOriginOfARate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	take := func(client *rratelimiter.Client) {
		limitertest.MustAcquire(t, client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(10))), 1)
	}
	s.client(take)
	toDefault := m{"action": "default", "name": "orders"}
	s.refuses(http.StatusConflict, toDefault)
	preview, answer := s.change(rateBody("orders", 50, 3_600_000, true))
	assert.Equal(t, []string{"default", "override"}, []string{facts(preview["before"])[factOrigin], facts(preview["after"])[factOrigin]})
	has(t, m{"origin": "override"}, s.show("orders"))
	preview, answer = s.change(m{"action": "undo", "entry": entryOf(answer)["entry"]})
	assert.Equal(t, "taken back", facts(preview["after"])[factOrigin])
	has(t, m{"origin": "taken back", "rate": 10.0, "in_use": 1.0}, s.show("orders"))
	s.change(m{"action": "undo", "entry": entryOf(answer)["entry"]})
	has(t, m{"origin": "override", "rate": 50.0}, s.show("orders"))

	preview, _ = s.change(toDefault)
	assert.Equal(t, "50/1h, until a program has another default", facts(preview["after"])[factRate])
	has(t, m{"origin": "taken back", "rate": 50.0}, s.show("orders"))
	s.client(take)
	has(t, m{"origin": "default", "rate": 10.0, "in_use": 2.0}, s.show("orders"))

	require.NoError(t, s.rdb.HSet(t.Context(), "broken", "rate", "x", "interval", 1, "type", 0).Err())
	s.refuses(http.StatusConflict, m{"action": "default", "name": "broken"})
	s.refuses(http.StatusNotFound, m{"action": "default", "name": "none"})
}

func TestChange_RefusedIfChangedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	for _, body := range []m{
		rateBody("orders", 20, 1000, false), {"action": "delete", "name": "orders"},
		{"action": "expire", "name": "orders", "ttl_ms": 1000}, {"action": "release", "name": "orders", "permits": 1},
		{"action": "migrate", "name": "orders"},
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
	for _, body := range []m{rateBody("orders", 21, 1000, false), rateBody("orders", 20, 1000, true)} {
		body["expect"] = preview["expect"]
		code, _ = s.post("/api/change", body)
		assert.Equal(t, http.StatusConflict, code)
	}
	// Another user's change is not undone.
	_, answer := s.change(rateBody("orders", 20, 1000, false))
	s.limiter("orders", rratelimiter.PerHour(99), 0)
	s.refuses(http.StatusConflict, m{"action": "undo", "entry": entryOf(answer)["entry"]})
	assert.Equal(t, int64(99), s.config("orders").Rate)
}

func TestChange_ExpireKeepReleaseDelete(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 5)
	id := "orders"
	s.refuses(http.StatusConflict, m{"action": "keep", "name": id}) // it does not expire
	preview, _ := s.change(m{"action": "expire", "name": id, "ttl_ms": 3_600_000})
	assert.Equal(t, []string{never, "1h"}, []string{facts(preview["before"])[factExpires], facts(preview["after"])[factExpires]})
	assert.InDelta(t, 3_600_000, s.show("orders")["ttl_ms"], 60_000)
	s.change(m{"action": "keep", "name": id})
	has(t, m{"ttl_ms": nil}, s.show("orders"))
	kept := rratelimiter.PerHour(10)
	kept.KeepAlive = time.Hour
	s.limiter("kept", kept, 1)
	s.refuses(http.StatusConflict, m{"action": "expire", "name": "kept", "ttl_ms": 72_000_000}) // its next request would set it back
	s.refuses(http.StatusConflict, m{"action": "keep", "name": "kept"})
	preview, _ = s.change(m{"action": "release", "name": id, "permits": 2})
	assert.Equal(t, []string{"5", "about 3"}, []string{facts(preview["before"])[factInUse], facts(preview["after"])[factInUse]})
	has(t, m{"in_use": 3.0}, s.show("orders"))
	preview, _ = s.change(m{"action": "delete", "name": id})
	assert.Equal(t, "10/1h", facts(preview["before"])[factRate])
	assert.Equal(t, int64(0), s.rdb.Exists(t.Context(), "orders", "{orders}:value", "{orders}:permits").Val())
	for _, body := range []m{{"action": "delete", "name": id}, {"action": "expire", "name": id, "ttl_ms": 5}, rateBody("orders", 1, 1, false)} {
		s.refuses(http.StatusNotFound, body)
	}
}

func TestChange_MigrateAndRepair(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	old := redis.Z{Score: float64(time.Now().UnixMilli()), Member: limitertest.NewMember(t, codec.LayoutD1, 2)}
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{orders}:permits", old).Err())
	require.NoError(t, s.rdb.DecrBy(t.Context(), "{orders}:value", 2).Err())
	preview, _ := s.change(m{"action": "migrate", "name": "orders"})
	assert.Equal(t, "1 of layout D1, 1 of layout D2", facts(preview["before"])["Members"])
	preview, _ = s.change(m{"action": "migrate", "name": "orders"})
	assert.Equal(t, "2 of layout D2", facts(preview["before"])["Members"])
	has(t, m{"in_use": 3.0}, s.show("orders"))

	// One that can't be read is set anew, as a whole.
	require.NoError(t, s.rdb.HSet(t.Context(), "damaged", "rate", "many", "interval", "1", "type", "0").Err())
	s.refuses(http.StatusConflict, m{"action": "rate", "name": "damaged", "rate": 20})
	preview, answer := s.change(rateBody("damaged", 20, 1000, true))
	assert.Equal(t, "can't be read", facts(preview["before"])[factRate])
	assert.Contains(t, s.log.String(), `before.Rate="can't be read"`)
	assert.Equal(t, rratelimiter.PerSecond(20), s.config("damaged"))
	has(t, m{"undo": false}, entryOf(answer))
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	s := newSite(t, withLogs("rate:limit:config", "text", "orders"))
	hash, key := "rate:limit:config", "ann"
	preview, _ := s.change(m{"action": "threshold", "hash": hash, "key": key, "threshold": 40})
	assert.Equal(t, []string{noThreshold, "40"}, []string{facts(preview["before"])[factThreshold], facts(preview["after"])[factThreshold]})
	require.NoError(t, s.rdb.HSet(t.Context(), "rate:limit:config", "log:<b>", "x", "foreign", "x").Err())
	list := s.get("/api/thresholds?hash=" + hash)
	found := rows(t, list, "thresholds")
	has(t, m{"threshold": 40.0}, found["ann"])
	has(t, m{"threshold": nil, "text": notThreshold}, found["log:<b>"])
	assert.Len(t, found, 2, "nothing is shown of a field that is no key of such a log")
	has(t, m{"foreign": 1.0}, list)
	s.change(m{"action": "unthreshold", "hash": hash, "key": key})
	s.refuses(http.StatusConflict, m{"action": "unthreshold", "hash": hash, "key": key})
	require.NoError(t, s.rdb.Set(t.Context(), "text", "x", 0).Err())
	s.refuses(http.StatusConflict, m{"action": "threshold", "hash": "text", "key": key, "threshold": 40})
	// A limiter's hash looks like one of thresholds, by its numbers.
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	s.refuses(http.StatusConflict, m{"action": "threshold", "hash": "orders", "key": "rate", "threshold": 40})
	s.refuses(http.StatusConflict, m{"action": "unthreshold", "hash": "orders", "key": "rate"})
}

func TestChangesAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	var group sync.WaitGroup
	answers := make(chan int, 8)
	var bodies []m
	for i := range 8 {
		body := rateBody("orders", int64(20+i), 1000, false)
		_, preview := s.post("/api/preview", body)
		body["expect"] = preview["expect"]
		bodies = append(bodies, body)
	}
	for _, body := range bodies {
		group.Go(func() { answers <- s.do(s.request("/api/change", body)).Code })
	}
	group.Wait()
	codes := map[int]int{}
	for range bodies {
		codes[<-answers]++
	}
	assert.Equal(t, map[int]int{http.StatusOK: 1, http.StatusConflict: 7}, codes)
}

func TestAudit_IsBounded(t *testing.T) {
	t.Parallel()
	var a audit
	for i := range maxEntries + 50 {
		a.add(&entry{Action: fmt.Sprint(i), Outcome: done}, 0)
	}
	assert.Len(t, a.entries, maxEntries)
	assert.Equal(t, int64(maxEntries+50), a.entries[maxEntries-1].Number)
}

// A mistyped name must not cost an application its key.
func TestOtherKeysAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, s.rdb.HSet(t.Context(), "user", "name", "ann").Err())
	require.NoError(t, s.rdb.RPush(t.Context(), "list", "a").Err())
	require.NoError(t, s.rdb.Set(t.Context(), "text", "a", 0).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "car", "type", "car", "rate", 120).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "job", "type", 1, "interval", 60).Err())
	for _, name := range []string{"user", "list", "text", "car", "job"} {
		id := name
		before := s.rdb.Dump(t.Context(), name).Val()
		for _, body := range []m{
			{"action": "delete", "name": id}, {"action": "expire", "name": id, "ttl_ms": 1000}, {"action": "migrate", "name": id},
			{"action": "release", "name": id, "permits": 1}, rateBody(name, 10, 1000, false),
		} {
			s.refuses(http.StatusConflict, body)
		}
		assert.Equal(t, before, s.rdb.Dump(t.Context(), name).Val())
		// It can be looked at, and is reported as no limiter.
		assert.NotEmpty(t, s.show(name)["anomalies"], name)
		assert.Equal(t, looksOther, s.looks(name), name)
	}
}

func TestAudit_ListsFailedChanges(t *testing.T) {
	t.Parallel()
	rdb, mini := redistest.Mini(t)
	s := siteOn(t, rdb)
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	_, answer := s.change(rateBody("orders", 20, 1000, false))
	s.limiter("orders", rratelimiter.PerHour(99), 0)
	tries := func(code int, outcome string, body m) {
		t.Helper()
		got, _ := s.post("/api/change", body)
		mini.SetError("")
		assert.Equal(t, code, got)
		has(t, m{"action": body["action"], "outcome": outcome}, s.entries()[0])
	}
	tries(http.StatusConflict, refused, m{"action": "undo", "entry": entryOf(answer)["entry"]})
	has(t, m{"name": "orders"}, s.entries()[0]["limiter"].(m))
	tries(http.StatusNotFound, refused, m{"action": "delete", "name": "nothing"})
	mini.SetError("LOADING Redis is loading the dataset in memory")
	tries(http.StatusServiceUnavailable, failed, m{"action": "delete", "name": "orders"})
	assert.Contains(t, s.log.String(), "action=undo limiter=orders outcome=refused")
	assert.Contains(t, s.log.String(), "action=delete limiter=orders outcome=failed")
}

// Keys of any type in place of a limiter's are shown as such, and harm nothing else.
func TestKeysOfOtherTypes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, name := range []string{"a", "b", "healthy"} {
		s.limiter(name, rratelimiter.PerHour(10), 1)
	}
	require.NoError(t, s.rdb.Del(t.Context(), "{a}:value", "{b}:permits").Err())
	require.NoError(t, s.rdb.RPush(t.Context(), "{a}:value", "x").Err())
	require.NoError(t, s.rdb.Set(t.Context(), "{b}:permits", "x", 0).Err())
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{healthy}:permits:x", redis.Z{Score: math.Inf(1), Member: "x"}).Err())
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{healthy}:permits", redis.Z{Score: math.Inf(-1), Member: "x"}).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "zero", "rate", 0, "interval", 0, "type", 1).Err())
	assert.Len(t, s.limiters(), 4)
	for _, name := range []string{"a", "b", "healthy", "zero"} {
		has(t, m{"exists": true}, s.show(name), name)
		for _, body := range []m{
			rateBody(name, 20, 1000, true), {"action": "expire", "name": name, "ttl_ms": maxMillis}, {"action": "migrate", "name": name},
			{"action": "delete", "name": name},
		} {
			preview, answer, code := s.try(body)
			require.NotNil(t, answer, "%v", preview)
			assert.Contains(t, []int{http.StatusOK, http.StatusConflict}, code, "%s: %v", name, answer)
		}
	}
}

func manyBody(search string, rate int64) m {
	return m{"action": many, "search": search, "rate": rate, "interval_ms": 3_600_000}
}

// What a search shows is changed in steps, within the pattern only, and as it was shown.
func TestChangeMany_Rates(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		prefix := redistest.Name(t)
		s := siteOn(t, rdb, func(c *Config) { c.Pattern = prefix + ":api:*" })
		hostile := prefix + ":api:<b>\u202e\xff\n"
		pipe := rdb.Pipeline()
		for i := range 220 {
			pipe.HSet(t.Context(), fmt.Sprintf("%s:api:%03d", prefix, i), "rate", 10, "interval", 3_600_000, "type", i%2, "keepAliveTime", 7_200_000)
		}
		for _, name := range []string{prefix + ":other", hostile} {
			pipe.HSet(t.Context(), name, "rate", 10, "interval", 3_600_000, "type", 0)
		}
		pipe.HSet(t.Context(), prefix+":api:bad", "rate", "SECRET", "interval", 1000, "type", 0)
		pipe.HSet(t.Context(), prefix+":api:none", "name", "SECRET")
		require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
		s.client(func(c *rratelimiter.Client) { limitertest.MustAcquire(t, c.RateLimiter(prefix+":api:000"), 6) })

		body := manyBody(strings.ToUpper(prefix), 5)
		code, preview := s.post("/api/preview", body)
		require.Equal(t, http.StatusOK, code, "%v", preview)
		has(t, m{"todo": 222.0}, preview)
		first := preview["first"].([]any)
		assert.Len(t, first, 10)
		assert.Equal(t, []any{prefix + ":api:bad", "broken", "5/1h"}, first[0])
		assert.Len(t, preview["warnings"], 3, "kept permits, one limiter with more in use, a broken one")
		assert.NotContains(t, fmt.Sprint(preview), "SECRET")
		code, _ = s.post("/api/change", body)
		assert.Equal(t, http.StatusConflict, code, "it was not shown")
		body["expect"], body["rate"] = preview["expect"], 6
		code, _ = s.post("/api/change", body)
		assert.Equal(t, http.StatusConflict, code, "nor was this")
		assert.Empty(t, s.entries())

		// Stopped after a step, and run again.
		body["rate"] = 5
		code, step := s.post("/api/change", body)
		require.Equal(t, http.StatusOK, code)
		changed, left := step["changed"].(float64), step["left"].(float64) // a slow server gets smaller steps
		assert.LessOrEqual(t, changed, 99.0)
		has(t, m{"todo": 222.0, "left": 221 - changed, "failed": 1.0}, step)
		has(t, m{"action": many, "outcome": partly, "undo": false}, s.entries()[0])
		again := manyBody(prefix, 5)
		_, preview = s.post("/api/preview", again)
		has(t, m{"todo": left + 1}, preview)
		again["expect"] = preview["expect"]
		s.limiter(prefix+":api:218", rratelimiter.PerHour(77), 0) // by another, meanwhile
		s.change(m{"action": "delete", "name": prefix + ":api:219"})
		for step["left"] != 0.0 {
			code, step = s.post("/api/change", again)
			require.Equal(t, http.StatusOK, code, "%v", step)
		}
		has(t, m{"changed": left - 2, "failed": 1.0, "gone": 1.0, "meanwhile": 1.0}, step)
		failure := step["failures"].([]any)[0].(m)
		has(t, m{"name": prefix + ":api:bad"}, failure)
		assert.NotContains(t, fmt.Sprint(failure), "SECRET")
		require.Len(t, s.entries(), 3, "an entry each, however many steps")
		assert.Equal(t, fmt.Sprintf("%g of %g changed, 1 failed", left-2, left+1), facts(s.entries()[0]["after"])["Limiters"])
		code, _ = s.post("/api/change", again)
		assert.Equal(t, http.StatusOK, code, "an answer that was lost is asked for again")

		want := rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 5, Interval: time.Hour, KeepAlive: 2 * time.Hour}
		assert.Equal(t, want, s.config(prefix+":api:001"))
		assert.Equal(t, []int64{5, 77}, []int64{s.config(hostile).Rate, s.config(prefix + ":api:218").Rate})
		has(t, m{"free": 0.0}, s.show(prefix+":api:000"), "permits in use stay counted")
		assert.Equal(t, "10", rdb.HGet(t.Context(), prefix+":other", "rate").Val(), "outside of the pattern")
		assert.Equal(t, 99+120+1, strings.Count(s.log.String(), `msg="limiter changed"`))
		assert.NotContains(t, s.log.String(), "SECRET")
		s.refuses(http.StatusConflict, m{"action": "undo", "entry": s.entries()[0]["entry"]})
	})
}

// A review promises what its changes do.
func TestChangeMany_ReviewChecksRates(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	s := siteOn(t, rdb)
	for name, keepAlive := range map[string]time.Duration{"api:keyed": time.Minute, "api:long": 61 * time.Second} {
		s.limiter(name, rratelimiter.Config{Rate: 10, Interval: time.Minute, KeepAlive: keepAlive}, 0)
	}
	body := manyBody("api", 5)
	code, preview := s.post("/api/preview", body)
	require.Equal(t, http.StatusOK, code, "%v", preview)
	has(t, m{"todo": 1.0}, preview)
	assert.Contains(t, fmt.Sprint(preview["warnings"]), "1 limiter can't have that rate: rratelimiter: UpdateRate \"api:long\": invalid configuration: keep-alive time 1m1s is shorter than the interval 1h0m0s")
	body["expect"] = preview["expect"]
	code, step := s.post("/api/change", body)
	require.Equal(t, http.StatusOK, code)
	has(t, m{"todo": 2.0, "left": 0.0, "changed": 1.0, "failed": 1.0}, step)
	has(t, m{"outcome": partly}, s.entries()[0])
	assert.Equal(t, rratelimiter.Config{Rate: 5, Interval: time.Hour, KeepAlive: time.Hour}, s.config("api:keyed"))
	code, preview = s.post("/api/preview", manyBody("api:long", 5))
	assert.Equal(t, http.StatusConflict, code)
	assert.Contains(t, fmt.Sprint(preview), "1 limiter can't have that rate")
}

func TestChangeMany_InvalidRequests(t *testing.T) {
	t.Parallel()
	rdb, mini := redistest.Mini(t)
	s := siteOn(t, rdb)
	s.limiter("api", rratelimiter.PerHour(10), 0)
	for code, bodies := range map[int][]m{
		http.StatusBadRequest: {manyBody("", 5), manyBody(strings.Repeat("a", maxSearch+1), 5), manyBody("a", 0)},
		http.StatusNotFound:   {manyBody("none", 5)}, http.StatusConflict: {manyBody("api", 10)},
	} {
		for _, body := range bodies {
			got, answer := s.post("/api/preview", body)
			assert.Equal(t, code, got, "%v", answer)
			got, _ = s.post("/api/change", body)
			assert.Contains(t, []int{http.StatusBadRequest, http.StatusConflict}, got)
		}
	}
	// A Redis that does not answer ends a step; the next one goes on.
	body := manyBody("api", 5)
	_, preview := s.post("/api/preview", body)
	body["expect"] = preview["expect"]
	mini.SetError("LOADING Redis is loading the dataset in memory")
	code, _ := s.post("/api/change", body)
	assert.Equal(t, http.StatusServiceUnavailable, code)
	mini.SetError("")
	has(t, m{"outcome": failed}, s.entries()[0])
	code, answer := s.post("/api/change", body)
	assert.Equal(t, http.StatusOK, code)
	has(t, m{"left": 0.0, "changed": 1.0}, answer)
	has(t, m{"outcome": done}, s.entries()[0])
	// Only the newest reviews are kept.
	for range maxReviews {
		_, _ = s.post("/api/preview", manyBody("api", 7))
	}
	code, _ = s.post("/api/change", body)
	assert.Equal(t, http.StatusConflict, code)
}
