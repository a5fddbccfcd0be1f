package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// In virtual time, as what is granted in a second counts.
func TestTheList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTheList)
}

func testTheList(t *testing.T) {
	s := newSite(t)
	for i := range 30 {
		s.limiter(fmt.Sprintf("api:%02d", i), rratelimiter.PerHour(100), int64(i))
	}
	s.limiter("mail", rratelimiter.PerMinute(10), 10)
	require.NoError(t, s.rdb.HSet(t.Context(), "user", "name", "ann").Err())

	list := s.get("/api/limiters?limit=3")
	assert.InDelta(t, 31, list["known"], 0)
	assert.InDelta(t, 30, list["in_use"], 0)
	assert.InDelta(t, 1, list["exhausted"], 0)
	names := func(list map[string]any) (all []string) {
		for _, item := range list["limiters"].([]any) {
			all = append(all, item.(map[string]any)["name"].(string))
		}
		return all
	}
	assert.Equal(t, []string{"mail", "api:29", "api:28"}, names(list))
	mail := rows(t, list, "limiters")["mail"]
	assert.InDelta(t, 1, mail["use"], 0)
	assert.InDelta(t, 0, mail["free"], 0)
	assert.Nil(t, mail["refused"], "nobody tells of refusals here")
	callers := mail["callers"].([]any)
	require.Len(t, callers, 1)

	for query, want := range map[string][]string{
		"sort=name&limit=2":                 {"api:00", "api:01"},
		"sort=name&reverse=true&limit=2":    {"mail", "api:29"},
		"sort=name&offset=29&limit=50":      {"api:29", "mail"},
		"sort=free&limit=1":                 {"mail"},
		"search=API%3A1&sort=name&limit=2":  {"api:10", "api:11"},
		"search=nothing":                    nil,
		"sort=in-use&offset=100&limit=50":   nil,
		"sort=rate&limit=1":                 {"mail"},
		"sort=granted&limit=1&search=api:2": {"api:29"},
	} {
		assert.Equal(t, want, names(s.get("/api/limiters?"+query)), query)
	}
	for _, query := range []string{"sort=x", "offset=-1", "limit=0", "limit=10000", "offset=x", "search=" + strings.Repeat("x", 2000)} {
		w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/limiters?"+query, http.NoBody))
		assert.Equal(t, http.StatusBadRequest, w.Code, query)
	}
}

func TestALimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testALimiter)
}

func testALimiter(t *testing.T) {
	s := newSite(t)
	client := rratelimiter.New(s.rdb, rratelimiter.WithClientName("orders-1"))
	defer func() { require.NoError(t, client.Close(context.WithoutCancel(t.Context()))) }()
	l := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.Config{Rate: 10, Interval: time.Minute, KeepAlive: time.Hour}))
	_, err := l.Take(t.Context(), 3)
	require.NoError(t, err)
	synctest.Wait() // for the client's name, which goes after

	found := s.get("/api/limiter?id=" + idOf("orders"))
	assert.Equal(t, true, found["exists"])
	assert.InDelta(t, 7, found["free"], 0)
	assert.InDelta(t, 3, found["in_use"], 0)
	assert.InDelta(t, 3, found["granted_per_second"], 0)
	assert.InDelta(t, 3_600_000, found["keep_alive_ms"], 0)
	assert.Empty(t, found["anomalies"])
	state := found["states"].([]any)[0].(map[string]any)
	back := state["returns"].([]any)
	require.Len(t, back, returns)
	assert.InDelta(t, 3, back[returns-1], 0, "all come back at the end of the interval")
	holder := state["holders"].([]any)[0].(map[string]any)
	assert.Equal(t, []any{"named", "orders-1", 3.0}, []any{holder["kind"], holder["who"], holder["permits"]})

	// What is wrong is told with its cure.
	require.NoError(t, s.rdb.Set(t.Context(), "{orders}:value", 9, 0).Err())
	found = s.get("/api/limiter?id=" + idOf("orders"))
	kinds := map[string]string{}
	for _, a := range found["anomalies"].([]any) {
		one := a.(map[string]any)
		kinds[one["kind"].(string)] = one["advice"].(string)
	}
	assert.Contains(t, kinds["sum_not_rate"], "rrl set-rate")
	assert.Contains(t, kinds, "no_ttl")

	gone := s.get("/api/limiter?id=" + idOf("none"))
	assert.Equal(t, false, gone["exists"])
	for _, id := range []string{"", "*", "a", idOf(strings.Repeat("x", maxName+1))} {
		w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/limiter?id="+id, http.NoBody))
		assert.Equal(t, http.StatusBadRequest, w.Code, "%.20s", id)
	}
}

func TestClientsWithPermitsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for id, permits := range map[string]int64{"ann": 6, "bob": 2} {
		client := rratelimiter.New(s.rdb, rratelimiter.WithClientID(id))
		l := client.RateLimiter("own", rratelimiter.WithDefault(rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 10, Interval: time.Hour}))
		_, err := l.Take(t.Context(), permits)
		require.NoError(t, err)
		require.NoError(t, client.Close(context.WithoutCancel(t.Context())))
	}
	found := s.get("/api/limiter?id=" + idOf("own"))
	assert.Equal(t, "PER_CLIENT", found["type"])
	assert.InDelta(t, 4, found["free"], 0)
	assert.InDelta(t, 8, found["in_use"], 0)
	require.Len(t, found["states"], 2)
	s.change(m{"action": "release", "id": idOf("own"), "client": idOf("ann"), "permits": 5})
	assert.InDelta(t, 3, s.get("/api/limiter?id=" + idOf("own"))["in_use"], 0)
	code, _ := s.post("/api/preview", m{"action": "release", "id": idOf("own"), "permits": 5})
	assert.Equal(t, http.StatusBadRequest, code, "it must be said whose")
}

func TestHostileNames(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	names := []string{
		`<img src=x onerror=alert(1)>`, "\u202egnp.exe", "\u05e9\u05dc\u05d5\u05dd", "a\x00b\xff\xfe", strings.Repeat("\x80\x01", 2048), "line\nfeed", `"quoted"`, " ", "</script>",
	}
	for _, name := range names {
		s.limiter(name, rratelimiter.PerHour(10), 1)
	}
	list := s.get("/api/limiters?limit=100&sort=name")
	found := 0
	for _, row := range rows(t, list, "limiters") {
		name, err := nameFrom(row["id"].(string))
		require.NoError(t, err)
		assert.Contains(t, names, name)
		shown := row["name"].(string)
		assert.LessOrEqual(t, len(shown), 10*maxShown)
		for _, r := range shown {
			assert.False(t, r < ' ' || r == 0x7f || r == '\u202e' || r == '\ufffd', "%q is shown as %q", name, shown)
		}
		one := s.get("/api/limiter?id=" + row["id"].(string))
		assert.Equal(t, true, one["exists"], "%q", name)
		preview, _ := s.change(rateBody(name, 20, 1000, true))
		assert.NotContains(t, preview["limiter"].(map[string]any)["name"], "\x00")
		found++
	}
	assert.Equal(t, len(names), found)
	w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/limiters?limit=100", http.NoBody))
	assert.NotContains(t, w.Body.String(), "<img", "not even in JSON")
}

func TestRefusalsAreToldByAnObserver(t *testing.T) {
	t.Parallel()
	observer := &Observer{}
	s := newSite(t, func(c *Config) { c.Observer = observer })
	s.limiter("quiet", rratelimiter.PerHour(10), 9)
	client := rratelimiter.New(s.rdb, rratelimiter.WithObserver(observer))
	defer func() { require.NoError(t, client.Close(context.WithoutCancel(t.Context()))) }()
	busy := client.RateLimiter("busy", rratelimiter.WithDefault(rratelimiter.PerHour(10)))
	for range 3 {
		_, err := busy.Take(t.Context(), 6)
		require.NoError(t, err)
	}
	list := s.get("/api/limiters?sort=refusals&limit=1")
	row := rows(t, list, "limiters")["busy"]
	require.NotNil(t, row, "%v", list)
	assert.InDelta(t, 2, row["refused"], 0)
	assert.InDelta(t, 0.2, row["refused_per_second"], 0)
	assert.Nil(t, rows(t, s.get("/api/limiters"), "limiters")["quiet"]["refused"])
}

func TestOldRefusalsNoLongerCount(t *testing.T) {
	t.Parallel()
	r := &refusals{}
	r.move(1000)
	r.last[1000%refusalSpan] = 5
	r.move(1000 + refusalSpan - 1)
	assert.Equal(t, int64(5), r.last[1000%refusalSpan])
	r.move(1000 + refusalSpan)
	assert.Equal(t, [refusalSpan]int64{}, r.last)
}

func TestOtherKeys(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	windows := fixedwindow.New(rdb, fixedwindow.Config{Limit: 10, Window: time.Hour})
	logs := slidinglog.New(rdb, slidinglog.Config{Limit: 20, Window: time.Hour, Thresholds: "log:thresholds"})
	buckets := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 40, Refill: 1, Interval: time.Hour})
	for key, l := range map[string]limit.Limiter{"window:ann": windows, "log:ann": logs, "bucket:ann": buckets} {
		_, err := l.Take(t.Context(), key, 5)
		require.NoError(t, err)
	}
	require.NoError(t, logs.SetThreshold(t.Context(), "log:ann", 25))
	require.NoError(t, rdb.Set(t.Context(), "window:bad", "x", time.Hour).Err())
	s := siteOn(t, rdb, func(c *Config) {
		c.Others = []Other{
			{Name: "windows", Prefix: "window:", Limiter: windows},
			{Name: "logs", Prefix: "log:", Limiter: logs, Thresholds: "log:thresholds"},
			{Name: "buckets", Prefix: "bucket:", Limiter: buckets},
		}
	})
	found := rows(t, s.get("/api/others"), "keys")
	require.Len(t, found, 4)
	assert.Equal(t, []any{"windows", 10.0, 5.0}, []any{found["window:ann"]["of"], found["window:ann"]["limit"], found["window:ann"]["free"]})
	assert.Equal(t, []any{"logs", 25.0, 20.0}, []any{found["log:ann"]["of"], found["log:ann"]["limit"], found["log:ann"]["free"]})
	assert.Equal(t, []any{"buckets", 40.0, 35.0}, []any{found["bucket:ann"]["of"], found["bucket:ann"]["limit"], found["bucket:ann"]["free"]})
	assert.NotEmpty(t, found["window:bad"]["error"])
	assert.Len(t, rows(t, s.get("/api/others?search=ANN&offset=1&limit=1"), "keys"), 1)

	for key, want := range map[string]string{
		"window:ann": looksOwn, "log:ann": looksOwn, "bucket:ann": looksOwn, "log:thresholds": looksThresholds, "window:bad": looksOwn, "none": looksGone,
	} {
		assert.Equal(t, want, s.get("/api/key?key=" + idOf(key))["looks"], key)
	}
	assert.Contains(t, s.get("/api/key?key=" + idOf("log:ann"))["facts"], []any{"Free", "20 of 25"})
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	assert.Equal(t, looksLimiter, s.get("/api/key?key=" + idOf("orders"))["looks"])
	assert.Equal(t, looksState, s.get("/api/key?key=" + idOf("{orders}:value"))["looks"])
	assert.Equal(t, looksState, s.get("/api/key?key=" + idOf("{orders}:permits"))["looks"])
}

// One goroutine reads for all viewers, and none when they have gone.
func TestOnePollerWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	server := httptest.NewServer(s.h)
	defer server.Close()
	pollers := func() (n int) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		of := fmt.Sprintf("(*poller).loop(%p", s.h.(*handler).poller)
		return strings.Count(string(stacks), of)
	}
	assert.Zero(t, pollers())
	follow(t, server.URL+"/api/limiters/stream", func(kind string, data map[string]any) bool {
		assert.Equal(t, listEvent, kind)
		follow(t, server.URL+"/api/limiter/stream?id="+idOf("orders"), func(kind string, data map[string]any) bool {
			assert.Equal(t, limiterEvent, kind)
			assert.Equal(t, "orders", data["name"])
			assert.Equal(t, 1, pollers())
			return true
		})
		return len(data["limiters"].([]any)) == 1
	})
	require.Eventually(t, func() bool { return pollers() == 0 }, 5*time.Second, 10*time.Millisecond)
	s.get("/api/limiters") // and again for whoever comes next
}

func TestTooManyViewers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.h.(*handler).poller
	for i := range maxViewers {
		leave, err := p.join(&viewer{kind: listEvent, from: fmt.Sprint(i)})
		require.NoError(t, err)
		t.Cleanup(leave)
	}
	w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/limiters", http.NoBody))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
}

func TestRedisThatGoesAwayAndComesBack(t *testing.T) {
	t.Parallel()
	rdb, mini := redistest.Mini(t)
	s := siteOn(t, rdb)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	server := httptest.NewServer(s.h)
	defer server.Close()
	var seen []string
	follow(t, server.URL+"/api/limiters/stream", func(kind string, _ map[string]any) bool {
		if len(seen) == 0 || seen[len(seen)-1] != kind {
			seen = append(seen, kind)
		}
		mini.SetError("")
		if kind == listEvent && len(seen) == 1 {
			mini.SetError("LOADING Redis is loading the dataset in memory")
		}
		return len(seen) == 3
	})
	assert.Equal(t, []string{listEvent, faultEvent, listEvent}, seen)
}

func TestRedisThatHangs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.h.(*handler).poller
	p.running, p.stop = true, func() {} // and under way with a question
	server := httptest.NewServer(s.h)
	defer server.Close()
	follow(t, server.URL+"/api/limiters/stream", func(kind string, data map[string]any) bool {
		assert.Equal(t, faultEvent, kind)
		assert.Contains(t, data["message"], "does not answer in time")
		return true
	})
}

// What is sent in a second is bounded, however many limiters there are.
func TestManyLimitersAreReadInSmallSteps(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	prefix := redistest.Name(t)
	pipe := rdb.Pipeline()
	for i := range 3000 {
		pipe.HSet(t.Context(), fmt.Sprint(prefix, ":", i), "rate", 100, "interval", 60_000, "type", 0)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	s := siteOn(t, rdb, func(c *Config) { c.Reads, c.Pattern = 1000, prefix+"*" })
	list := s.get("/api/limiters?limit=10")
	assert.Equal(t, false, list["complete"], "the first answer does not wait for all keys")
	cost := list["cost"].(map[string]any)
	assert.LessOrEqual(t, cost["commands_per_second"], 2500.0)
	assert.Len(t, list["limiters"], 10)
}

func TestOnAllServers(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		name := redistest.Name(t)
		s := siteOn(t, rdb, func(c *Config) { c.Pattern = name + "*" })
		s.limiter(name, rratelimiter.PerHour(10), 4)
		list := s.limiters()
		require.Contains(t, list, name)
		assert.InDelta(t, 6, list[name]["free"], 0)
		s.change(rateBody(name, 20, 3_600_000, true))
		assert.InDelta(t, 16, s.get("/api/limiter?id=" + idOf(name))["free"], 0)
		s.change(m{"action": "delete", "id": idOf(name)})
		assert.Equal(t, false, s.get("/api/limiter?id=" + idOf(name))["exists"])
	})
}

// Who may not read one limiter in full still sees the list, and others do.
func TestAUserWithoutTheRightToInspect(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	name := redistest.Name(t)
	siteOn(t, server.Client(t, nil)).limiter(name, rratelimiter.PerHour(10), 4)
	s := siteOn(t, redistest.AddUser(t, server, nil, "~*", "+@read", "+scan", "+time", "-multi"), func(c *Config) { c.Pattern = name + "*" })
	assert.Contains(t, s.limiters(), name)
	w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/limiter?id="+idOf(name), http.NoBody))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, s.limiters(), name)
}

// What docs/dashboard.md shows is what the example compiles.
func TestCodeInDocs(t *testing.T) {
	t.Parallel()
	lines := func(path string) (all []string) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			all = append(all, strings.TrimSpace(line))
		}
		return all
	}
	example := strings.Join(lines("example_test.go"), "\n")
	_, code, found := strings.Cut(strings.Join(lines("../docs/dashboard.md"), "\n"), "```go\n")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "\n```")
	assert.Contains(t, example, code)
}
