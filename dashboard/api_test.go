package dashboard

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	rateOfOrders = "/change/rate?name=orders"
	thresholdOfK = "/change/threshold?hash=limits&key=k"
)

// newAPI returns an API without the page, with the thresholds in limits, that lets anyone do everything.
func newAPI(t *testing.T, with ...func(*Config)) *site {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	return apiOn(t, rdb, with...)
}

func apiOn(t *testing.T, rdb redistest.Client, with ...func(*Config)) *site {
	t.Helper()
	anyone := func(c *Config) { c.Authorize = func(*http.Request, Access) (string, error) { return "ann", nil } }
	s := siteOn(t, rdb, append([]func(*Config){withLogs("limits"), anyone}, with...)...)
	s.h = API(s.cfg)
	return s
}

// ask makes a request such as "GET /limiters", and checks the status of the answer, which must contain want.
func (s *site) ask(what, body string, status int, want string) *httptest.ResponseRecorder {
	s.t.Helper()
	w := s.do(s.plain(what, body))
	assert.Equal(s.t, status, w.Code, "%s %s: %s", what, body, w.Body)
	assert.Contains(s.t, w.Body.String(), want, "%s %s", what, body)
	if kind := w.Header().Get("Content-Type"); w.Code >= http.StatusBadRequest {
		assert.Equal(s.t, "application/problem+json", kind, what)
		has(s.t, m{"status": float64(w.Code), "title": http.StatusText(w.Code)}, object(s.t, w.Body.Bytes()), what)
	}
	assert.Equal(s.t, "no-store", w.Header().Get("Cache-Control"), what)
	assert.Equal(s.t, "nosniff", w.Header().Get("X-Content-Type-Options"), what)
	return w
}

func (s *site) plain(what, body string) *http.Request {
	method, target, _ := strings.Cut(what, " ")
	r := httptest.NewRequestWithContext(s.t.Context(), method, target, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// everyRequest is one of each kind, with what Authorize is asked for it.
var everyRequest = []struct {
	what, body string
	asked      Access
}{
	{"GET /openapi.json", "", Access{Action: Look}},
	{"GET /limiters", "", Access{Action: Look}},
	{"GET /limiter?name=orders", "", Access{Action: Look, Limiter: "orders"}},
	{"HEAD /limiter?name=other", "", Access{Action: Look, Limiter: "other"}},
	{"GET /clients?name=orders", "", Access{Action: Look, Limiter: "orders"}},
	{"GET /key?key=k", "", Access{Action: Look, Key: "k"}},
	{"GET /thresholds?hash=limits", "", Access{Action: Look, Hash: "limits"}},
	{"POST " + rateOfOrders, `{"rate":9}`, Access{Action: Change, Verb: "rate", Limiter: "orders"}},
	{"POST /preview/rate?name=orders", `{"rate":9}`, Access{Action: Change, Verb: "rate", Limiter: "orders"}},
	{"POST /change/delete?name=orders", `{}`, Access{Action: Change, Verb: "delete", Limiter: "orders"}},
	{"GET /change/delete?name=orders", "", Access{Action: Change, Verb: "delete", Limiter: "orders"}},
	{"POST /change/delete?name=a&name=b", `{}`, Access{Action: Change, Verb: "delete"}},
	{"POST /change/rates?search=orders", `{}`, Access{Action: Change, Verb: "rates"}},
	{"POST /change/undo?entry=1", `{}`, Access{Action: Change, Verb: "undo"}},
	{"POST " + thresholdOfK, `{"threshold":9}`, Access{Action: Change, Verb: "threshold", Hash: "limits", Key: "k"}},
	{"POST /change/unthreshold?hash=limits&key=k", `{}`, Access{Action: Change, Verb: "unthreshold", Hash: "limits", Key: "k"}},
	{"POST /limiter?name=orders", `{}`, Access{Action: Change, Limiter: "orders"}},
	{"GET /nowhere", "", Access{Action: Look}},
	{"POST /nowhere", "", Access{Action: Change}},
	{"GET /limiter?%zz", "", Access{Action: Look}},
}

func TestAPI_AuthorizeIsAskedFirst(t *testing.T) {
	t.Parallel()
	none := apiOn(t, limittest.Unreachable(t), func(c *Config) { c.Authorize = nil })
	none.ask("GET /limiters", "", http.StatusInternalServerError, "")
	assert.Contains(t, none.log.String(), "Authorize is nil")
	for _, refusal := range []struct {
		err       error
		status    int
		challenge string
	}{
		{errors.New("not at night"), http.StatusForbidden, ""},
		{fmt.Errorf("no token: %w", ErrUnauthenticated), http.StatusUnauthorized, `Basic realm="limits"`},
	} {
		var asked []Access
		s := apiOn(t, limittest.Unreachable(t), func(c *Config) {
			c.Challenge = `Basic realm="limits"`
			c.Authorize = func(_ *http.Request, a Access) (string, error) {
				asked = append(asked, a)
				return "bob", refusal.err
			}
		})
		for _, r := range everyRequest {
			asked = nil
			w := s.ask(r.what, r.body, refusal.status, "")
			assert.NotContains(t, w.Body.String(), refusal.err.Error())
			assert.Equal(t, refusal.challenge, w.Header().Get("WWW-Authenticate"))
			assert.Equal(t, []Access{r.asked}, asked, r.what)
		}
		assert.Equal(t, len(everyRequest), strings.Count(s.log.String(), `msg="dashboard request refused" who=bob`))
		assert.Contains(t, s.log.String(), `hash=limits key=k error="`+refusal.err.Error())
	}
}

// What one may change and another not may depend on the limiter, of an undo as well.
func TestAPI_AuthorizeByLimiterAndVerb(t *testing.T) {
	t.Parallel()
	his := "own"
	s := newAPI(t, func(c *Config) {
		c.Authorize = func(_ *http.Request, a Access) (string, error) {
			if a.Action == Look || a.Limiter == his && a.Verb != "delete" {
				return "carl", nil
			}
			return "carl", errors.New("not his")
		}
	})
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	const create = `{"rate":1,"interval_ms":1000,"create":true}`
	s.ask("POST /change/rate?name=own", create, http.StatusOK, `"who":"carl"`)
	s.ask("POST /change/rate?name=own", `{"rate":2}`, http.StatusOK, "")
	for _, what := range []string{"POST " + rateOfOrders, "POST /change/delete?name=own", "POST /change/rates?search=o", "POST " + thresholdOfK} {
		s.ask(what, create, http.StatusForbidden, "")
	}
	s.ask("GET /limiter?name=orders", "", http.StatusOK, `"rate":10`)
	s.ask("POST /change/undo?entry=2", `{}`, http.StatusOK, "")
	assert.Equal(t, rratelimiter.PerSecond(1), s.config("own"))
	his = "orders"
	s.ask("POST /change/undo?entry=3", `{}`, http.StatusForbidden, "")
}

// A text that is too long is refused before Redis is asked, as all of the story of bad requests are.
func TestAPI_LongTextsAreRefused(t *testing.T) {
	t.Parallel()
	s := apiOn(t, limittest.Unreachable(t))
	s.ask("POST /preview/rates?search="+strings.Repeat("a", maxSearch+1), `{}`, http.StatusBadRequest, "search")
	s.ask("GET /limiters?search="+strings.Repeat("x", 2000), "", http.StatusBadRequest, "search")
	s.ask("GET /limiter?name="+strings.Repeat("x", maxName+1), "", http.StatusBadRequest, "more than")
	s.ask("POST "+rateOfOrders, `{"rate":1,"expect":"`+strings.Repeat("x", maxBody)+`"}`, http.StatusRequestEntityTooLarge, "4096")
}

// The handler takes a body if the description does, except those of strict.
func TestAPI_Bodies(t *testing.T) {
	t.Parallel()
	s, untouched := newAPI(t), apiOn(t, limittest.Unreachable(t))
	s.limiter("orders", rratelimiter.PerHour(10), 5)
	for _, c := range []struct {
		what, form, says  string
		good, bad, strict []string
	}{
		{rateOfOrders, `{"rate":%s,"interval_ms":1000}`, "rate",
			[]string{`1`, `9007199254740991`},
			[]string{`0`, `-1`, `1.5`, `"1"`, `null`, `true`, `9007199254740992`, `9007199254740993`, `1e30`},
			[]string{`1e3`, `1.0`}},
		{rateOfOrders, `{"rate":1,"interval_ms":%s}`, "interval",
			[]string{`1`, `1000`, `9223372036854`}, []string{`-1`, `0`, `1.5`, `9223372036855`, `true`, `null`, `[1]`, `"1s"`}, nil},
		{rateOfOrders, `{"rate":1,"interval_ms":1000,"for_ms":%s}`, "holds",
			[]string{`1`, fmt.Sprint(engine.MaxOverride.Milliseconds())},
			[]string{`0`, `-1`, fmt.Sprint(engine.MaxOverride.Milliseconds() + 1)}, nil},
		{rateOfOrders, `{"interval_ms":60000,"keep_alive_ms":%s}`, "keep", []string{`60000`, `0`}, []string{`-1`, `"0"`, `9223372036855`}, nil},
		{rateOfOrders, `{"type":%s}`, "type", []string{`"OVERALL"`, `"PER_CLIENT"`, `"OVERALL"`}, []string{`"overall"`, `0`, `""`, `null`}, nil},
		{rateOfOrders, `{"rate":1,"keep_state":%s}`, "keep_state", []string{`true`, `false`}, []string{`1`, `"yes"`, `null`}, nil},
		{rateOfOrders, `{"rate":1%s`, "JSON", nil, nil, []string{``, `}}`, `,}`, `,"x"}`, `} {}`}},
		{rateOfOrders, `{"rate":1,%s}`, "twice", nil, nil, []string{`"rate":2`, `"r\u0061te":2`}},
		{rateOfOrders, `{%s}`, "changes nothing", nil, []string{``, `"keep_state":true`, `"create":true`, `"expect":""`}, nil},
		{rateOfOrders, `{%s,"interval_ms":1000}`, "means nothing", nil, []string{`"Rate":1`, `"rate":1,"burst":3`, `"rate":1,"":3`, `"ttl_ms":1`}, nil},
		{rateOfOrders, `%s`, "begin with {", nil, []string{`[]`, `null`, `3`, `"x"`}, nil},
		{thresholdOfK, `{"threshold":%s}`, "threshold", []string{`0`, `9007199254740991`}, []string{`-1`, `true`, `null`, `9007199254740992`}, nil},
		{thresholdOfK, `{"threshold":5,%s}`, "ttl", nil, []string{`"ttl":1`}, nil},
		{"/change/release?name=orders", `{%s}`, "permits", []string{`"permits":1`}, []string{``, `"permits":0`, `"permits":-5`}, nil},
		{"/change/expire?name=orders", `{%s}`, "time to live", []string{`"ttl_ms":1000000`}, []string{``, `"ttl_ms":0`}, nil},
		{"/change/delete?name=orders", `{%s}`, "means nothing", []string{``}, []string{`"rate":1`}, nil},
	} {
		verb, _, _ := strings.Cut(strings.TrimPrefix(c.what, "/change/"), "?")
		for _, value := range c.good {
			body := fmt.Sprintf(c.form, value)
			require.NoError(t, described().checkBody(t, verb, body), body)
			s.ask("POST "+c.what, body, http.StatusOK, "")
		}
		for i, value := range slices.Concat(c.bad, c.strict) {
			body := fmt.Sprintf(c.form, value)
			if i < len(c.bad) {
				require.Error(t, described().checkBody(t, verb, body), body)
			} else if json.Valid([]byte(body)) {
				require.NoError(t, described().checkBody(t, verb, body), body)
			}
			untouched.ask("POST "+c.what, body, http.StatusBadRequest, c.says)
		}
	}
	assert.NotContains(t, untouched.log.String(), "limiter")
}

func TestAPI_LogsChangeOfCallerThatWentAway(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	w := s.do(s.plain("POST "+rateOfOrders, `{"rate":1,"interval_ms":1000,"create":true}`).WithContext(limitertest.EndedContext(t)))
	assert.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.Contains(t, s.log.String(), `msg="limiter changed" who=ann`)
	assert.Equal(t, rratelimiter.PerSecond(1), s.config("orders"))
}

func TestAPI_ChangeOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, fault := range []redistest.Action{redistest.DropAnswer, redistest.Swallow} {
		synctest.Test(t, func(t *testing.T) {
			_, mini := redistest.Mini(t)
			p := redistest.MiniProxy(t, mini)
			s := apiOn(t, p.Client(t, &redistest.Options{MaxRetries: -1, ReadTimeout: time.Hour}))
			s.ask("POST "+rateOfOrders, `{"rate":1,"interval_ms":1000,"create":true}`, http.StatusOK, "")
			p.OnCommand(redistest.Nth(1, "EVALSHA", fault))
			start := time.Now()
			s.ask("POST "+rateOfOrders, `{"rate":2}`, http.StatusBadGateway, "whether this is changed is not known")
			assert.LessOrEqual(t, time.Since(start), timeout)
			assert.Contains(t, s.log.String(), `msg="limiter perhaps changed" who=ann`)
			s.ask("GET /audit", "", http.StatusOK, `"outcome":"unknown"`)
		})
	}
}

func FuzzAPI(f *testing.F) {
	f.Add("POST", "/change/rate", "name=orders", "application/json", `{"rate":1,"interval_ms":1000,"create":true}`)
	f.Add("POST", "/change/rate", "name=orders", "application/json", `{"keep_state":true,"keep_alive_ms":1}`)
	f.Add("POST", "/preview/delete", "name=orders", "application/json", `{"expect":"x"}`)
	f.Add("POST", "/change/threshold", "hash=limits&key=%7B%0A", "application/json", `{"threshold":5}`)
	f.Add("POST", "/change/unthreshold", "hash=limits&key=x", "application/json", "{}")
	f.Add("GET", "/thresholds", "hash=limits&cursor=7", "", "")
	f.Fuzz(func(t *testing.T, method, path, query, contentType, body string) {
		s := newAPI(t, func(c *Config) { c.Pattern = "orders" })
		if strings.HasSuffix(path, "/stream") {
			return // which has no end
		}
		r := s.plain("GET /", body)
		r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
		r.Header.Set("Content-Type", contentType)
		w := s.do(r)
		assert.Less(t, w.Code, 500, w.Body)
		changed := strings.Contains(s.log.String(), "limiter changed")
		for _, key := range limitertest.Must(s.rdb.Keys(t.Context(), "*").Result())(t) {
			assert.True(t, changed, "%q is there and nothing was logged", key)
			assert.True(t, slices.Contains([]string{"orders", "limits"}, key) || strings.HasPrefix(key, "{orders}:"), "%q", key)
		}
	})
}

func TestInVirtualTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"one poller": testOnePoller, "a Redis that goes away and comes back": testRedisThatGoesAway, "a Redis that hangs": testRedisThatHangs,
		"hostile names": testHostileNames, "turns": testTurns, "a viewer who is logged out": testStreamEndsWhenViewerIsLoggedOut, "an observer": testObserver,
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

func testHostileNames(t *testing.T) {
	s := newSite(t)
	names := []string{
		`<img src=x onerror=alert(1)>`, "\u202egnp.exe", "\u05e9\u05dc", "a\x00b\xff\xfe", strings.Repeat("\x80\x01", 2048), "line\nfeed", " ",
	}
	for _, name := range names {
		s.limiter(name, rratelimiter.PerHour(10), 1)
	}
	all := rows(t, s.get("/api/limiters?limit=100&sort=name"), "limiters")
	assert.Len(t, all, len(names))
	for shown, row := range all {
		name := string(limitertest.Must(base64.RawURLEncoding.DecodeString(row["id"].(string)))(t))
		assert.Contains(t, names, name)
		assert.LessOrEqual(t, len(shown), 10*maxShown)
		assert.NotRegexp(t, "[\x00-\x1f\x7f\u202e\ufffd]", shown)
		s.play(`change rate?name=NAME {"rate":20} => {"limiter":{"name":"~^[^\\x00]*$"}}`, "NAME", url.QueryEscape(name))
	}
	assert.NotContains(t, s.read("/api/limiters?limit=100").Body.String(), "<img", "not even in JSON")
}

func testOnePoller(t *testing.T) {
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	pollers := func() (n int) {
		synctest.Wait()
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		of := fmt.Sprintf("(*poller).loop(%p", s.h.(*handler).poller)
		return strings.Count(string(stacks), of)
	}
	assert.Zero(t, pollers())
	s.follow("/api/limiters/stream", func(kind string, list m) bool {
		assert.Equal(t, listEvent, kind)
		s.follow("/api/limiter/stream?name=orders", func(kind string, one m) bool {
			assert.Equal(t, limiterEvent, kind)
			has(t, m{"name": "orders"}, one)
			assert.Equal(t, 1, pollers())
			return true
		})
		return len(list["limiters"].([]any)) == 1
	})
	time.Sleep(time.Minute)
	assert.Zero(t, pollers())
	s.get("/api/limiters") // and again for the next viewer
}

func testRedisThatGoesAway(t *testing.T) {
	rdb, mini := redistest.Mini(t)
	s := siteOn(t, rdb)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	var seen []string
	s.follow("/api/limiters/stream", func(kind string, _ m) bool {
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

func testRedisThatHangs(t *testing.T) {
	s := newSite(t)
	p := s.h.(*handler).poller
	p.running, p.stop = true, func() {} // and under way with a question
	s.follow("/api/limiters/stream", func(kind string, data m) bool {
		assert.Equal(t, faultEvent, kind)
		assert.Contains(t, data["message"], "does not answer in time")
		return true
	})
}

func TestCodeInDocs(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		return regexp.MustCompile(`(?m)^\s+`).ReplaceAllString(string(limitertest.Must(os.ReadFile(path))(t)), "")
	}
	_, code, found := strings.Cut(read("../docs/dashboard.md"), "```go\n")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "\n```")
	assert.Contains(t, read("example_test.go"), code)
}

func TestAbout_NamesTheAddressUnlessServerIsSet(t *testing.T) {
	t.Parallel()
	has(t, m{"server": "a test"}, newSite(t).get("/api/about"))
	for want, rdb := range map[string]redis.UniversalClient{
		"cache:6379":         redis.NewClient(&redis.Options{Addr: "cache:6379", Password: "secret"}),
		"one:6379, two:6379": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"one:6379", "two:6379"}}),
		"a:1, b:2":           redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"shard2": "b:2", "shard1": "a:1"}}),
	} {
		t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
		has(t, m{"server": want}, newSite(t, func(c *Config) { c.Redis, c.Server = rdb, "" }).get("/api/about"))
	}
}

// Each address has its share of the places, whatever a proxy says of its clients. If all are taken, others have one all the same, at
// the cost of the newest page of the address with most. A place is given back once, also by who has lost it.
func TestPlaces_AreSharedByAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.h.(*handler).poller
	var viewers []*viewer
	var leave []func()
	join := func(from string, most int) (n int) {
		for ; n < most; n++ {
			v := &viewer{kind: listEvent, from: from}
			l, err := p.join(v)
			if err != nil {
				break
			}
			viewers, leave = append(viewers, v), append(leave, l)
		}
		return n
	}
	const first = "192.0.2.1"
	assert.Equal(t, maxShare, join(first, maxViewers))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/limiters/stream", http.NoBody)
	r.RemoteAddr = first + ":5"
	r.Header.Set("X-Forwarded-For", "192.0.2.9")
	refused := s.do(r)
	assert.Equal(t, http.StatusServiceUnavailable, refused.Code)
	assert.Equal(t, "10", refused.Header().Get("Retry-After"))
	assert.Equal(t, maxShare, join("second", maxShare), "all places are taken")
	assert.Equal(t, maxViewers/3, join("third", maxViewers), "each has a third")
	require.NotContains(t, p.viewers, viewers[maxShare-1])
	<-viewers[maxShare-1].ended
	for _, l := range leave {
		l()
		l()
	}
	assert.Empty(t, p.viewers)
	for remote, want := range map[string]string{
		"192.0.2.1:5": first, "[::ffff:192.0.2.1]:5": first, "[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:5": "fe80::/64", "@": "@", "": "",
	} {
		assert.Equal(t, want, addressOf(remote), remote)
	}
}

func TestRequests_RepeatedOnesAreSlowedDown(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/limiters", "/api/key?key=l:00", "/api/thresholds?hash=l:00"} {
		synctest.Test(t, func(t *testing.T) {
			rdb, mini := redistest.Mini(t)
			require.NoError(t, rdb.Ping(t.Context()).Err()) // from which on there is a server to hook
			for i := range 50 {
				mini.HSet("l:"+string(rune('a'+i)), "rate", "10", "interval", "1000", "type", "0")
			}
			s := siteOn(t, rdb, withLogs("l:00"), func(c *Config) { c.Reads = minReads })
			var sent atomic.Int64
			mini.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
				sent.Add(1)
				return false
			})
			const span = 20
			for start := time.Now(); time.Since(start) < span*time.Second; {
				s.read(path)
				time.Sleep(10 * time.Millisecond)
			}
			assert.Less(t, sent.Load(), int64(span*minReads*3/2), path)
		})
	}
}

// A stream ends soon after its viewer is logged out.
func testStreamEndsWhenViewerIsLoggedOut(t *testing.T) {
	rdb, _ := redistest.Mini(t)
	until := time.Now().Add(5 * time.Minute)
	s := siteOn(t, rdb, func(c *Config) {
		c.Authorize = func(*http.Request, Access) (string, error) {
			if time.Now().After(until) {
				return "ann", ErrUnauthenticated
			}
			return "ann", nil
		}
	})
	ctx := limitertest.Within(t, time.Hour)
	s.do(httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/limiters/stream", http.NoBody))
	assert.WithinDuration(t, until, time.Now(), 2*time.Minute)
}

// A pattern must not match what Redis' own does not: the list goes by that.
func TestPattern_MatchesAsRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t).Client(t, nil)
	text := func(letters string, most int) string {
		all := make([]byte, 1+rand.IntN(most))
		for i := range all {
			all[i] = letters[rand.IntN(len(letters))]
		}
		return string(all)
	}
	for range 200 {
		require.NoError(t, rdb.Set(t.Context(), text("abc-*]\\\x00", 5), 1, 0).Err())
	}
	names := limitertest.Must(rdb.Keys(t.Context(), "*").Result())(t)
	for range 3000 {
		pattern := text(`abc**??[[]]^-\`, 7)
		want := limitertest.Must(rdb.Keys(t.Context(), pattern).Result())(t)
		got := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !matches(pattern, name) })
		require.ElementsMatch(t, want, got, "%q", pattern)
	}
	for pattern, name := range map[string]string{"": "any", "api:*": "api:\n", "*\x00*": "a\x00\nb", `[\]]`: "]"} {
		assert.True(t, matches(pattern, name), "%q %q", pattern, name)
	}
	assert.False(t, matches("api:*", "API:a"))
}

func testTurns(t *testing.T) {
	var all turns
	for range 30 {
		go func() { _ = all.wait(t.Context(), 10, 50) }()
	}
	synctest.Wait()
	assert.Error(t, all.wait(t.Context(), 10, 50), "a long wait is an error")
}

// A writer that can't flush is an error, not a viewer that has gone.
func TestStream_WriterWithoutFlush(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/limiters/stream", http.NoBody)
	s.h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, r)
	assert.Contains(t, s.log.String(), "hides http.Flusher")
}

func testObserver(t *testing.T) {
	o := &Observer{}
	decided := func(name string, outcome limit.Outcome) {
		o.Decided(t.Context(), limit.Decided{Limiter: name, Outcome: outcome})
	}
	limitertest.Together(8, func(int) {
		for i := range 1000 {
			decided(strconv.Itoa(i%10), limit.Refused)
		}
	})
	decided("failed", limit.Failed)
	for i := range maxObserved + 1 {
		decided(strconv.Itoa(i), limit.Granted)
	}
	total, pace, _ := o.of("9")
	assert.Equal(t, int64(800), total)
	assert.InDelta(t, 80, pace, 1e-9)
	time.Sleep((refusalSpan - 1) * time.Second)
	_, pace, _ = o.of("9")
	assert.InDelta(t, 80, pace, 1e-9)
	time.Sleep(time.Second)
	decided("9", limit.Refused) // in the place of those
	_, pace, _ = o.of("9")
	assert.InDelta(t, 0.1, pace, 1e-9, "older ones no longer count")
	for name, want := range map[string]bool{strconv.Itoa(maxObserved - 1): true, strconv.Itoa(maxObserved): false, "failed": false} {
		_, _, known := o.of(name)
		assert.Equal(t, want, known, name)
	}
}
