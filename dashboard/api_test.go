package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const (
	rateOfOrders = "/change/rate?name=orders"
	thresholdOfK = "/change/threshold?hash=limits&key=k"
)

// newAPI returns an API without the page, with the thresholds in limits, that lets anyone do
// everything.
func newAPI(t *testing.T, with ...func(*Config)) *site {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	return apiOn(t, rdb, with...)
}

func apiOn(t *testing.T, rdb redistest.Client, with ...func(*Config)) *site {
	t.Helper()
	anyone := func(c *Config) {
		c.Authorize = func(*http.Request, Access) (string, error) { return "ann", nil }
	}
	s := siteOn(t, rdb, append([]func(*Config){withLogs("limits"), anyone}, with...)...)
	s.h = API(s.cfg)
	return s
}

// ask makes a request such as "GET /limiters", and checks the status of the answer, which must
// contain want.
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

// untouchable is a client that fails the test when it is used.
func untouchable(t *testing.T) redistest.Client {
	t.Helper()
	const addr = "127.0.0.1:1" // no name that go-redis would look up
	rdb := redis.NewClient(&redis.Options{Addr: addr, Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("Redis was asked")
		return nil, errors.New("not to be asked")
	}})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	return rdb
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
	none := apiOn(t, untouchable(t), func(c *Config) { c.Authorize = nil })
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
		s := apiOn(t, untouchable(t), func(c *Config) {
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
	s := apiOn(t, untouchable(t))
	s.ask("POST /preview/rates?search="+strings.Repeat("a", maxSearch+1), `{}`, http.StatusBadRequest, "search")
	s.ask("GET /limiters?search="+strings.Repeat("x", 2000), "", http.StatusBadRequest, "search")
	s.ask("GET /limiter?name="+strings.Repeat("x", maxName+1), "", http.StatusBadRequest, "more than")
	s.ask("POST "+rateOfOrders, `{"rate":1,"expect":"`+strings.Repeat("x", maxBody)+`"}`, http.StatusRequestEntityTooLarge, "4096")
}

// The handler takes a body if the description does, except those of strict.
func TestAPI_Bodies(t *testing.T) {
	t.Parallel()
	s, untouched := newAPI(t), apiOn(t, untouchable(t))
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
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := s.do(s.plain("POST "+rateOfOrders, `{"rate":1,"interval_ms":1000,"create":true}`).WithContext(ctx))
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
		keys, err := s.rdb.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			assert.True(t, changed, "%q is there and nothing was logged", key)
			assert.True(t, slices.Contains([]string{"orders", "limits"}, key) || strings.HasPrefix(key, "{orders}:"), "%q", key)
		}
	})
}
