package admin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// everyRequest is one of each kind, with what Authorize is asked for it.
var everyRequest = []struct {
	what, body string
	asked      admin.Access
}{
	{"GET /openapi.json", "", admin.Access{Action: admin.Look}},
	{"GET /limiters", "", admin.Access{Action: admin.Look}},
	{"GET /rate?name=orders", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "orders"}},
	{"HEAD /rate?name=other", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "other"}},
	{"PUT /rate?name=orders", rateBody(9, "1s"), admin.Access{Action: admin.Change, Kind: admin.RateLimiters, Limiter: "orders"}},
	{"PATCH /rate?name=orders", `{"rate":9}`, admin.Access{Action: admin.Change, Kind: admin.RateLimiters, Limiter: "orders"}},
	{"PUT /rate?name=a&name=b", "{}", admin.Access{Action: admin.Change, Kind: admin.RateLimiters}},
	{"GET /clients?name=orders", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "orders"}},
	{"GET /thresholds?limiter=web", "", admin.Access{Action: admin.Look, Kind: admin.SlidingLogs, Limiter: "web"}},
	{"GET " + threshold, "", admin.Access{Action: admin.Look, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{"PUT " + threshold, `{"threshold":9}`, admin.Access{Action: admin.Change, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{"DELETE " + threshold, "", admin.Access{Action: admin.Change, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{"GET /nowhere", "", admin.Access{Action: admin.Look}},
	{"POST /nowhere", "", admin.Access{Action: admin.Change}},
	{"GET /rate?%zz", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters}},
}

func TestWithoutAuthorizeNothingIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), func(cfg *admin.Config) { cfg.Authorize = nil })
	for _, c := range everyRequest {
		r.ask(c.what, c.body, http.StatusInternalServerError, "")
		line := r.log.one(t)
		assert.Equal(t, "ERROR", line["level"])
		assert.Contains(t, line["error"], "no Authorize")
	}
}

func TestBadConfigsAreReported(t *testing.T) {
	t.Parallel()
	client := rratelimiter.New(untouchable(t), limitertest.Patient())
	var noLog *slidinglog.Limiter
	for _, c := range []struct {
		says string
		cfg  admin.Config
	}{
		{"no Client", admin.Config{RateLimiters: []string{"orders"}}},
		{"no Client", admin.Config{Prefixes: []string{"orders:"}}},
		{"is empty", admin.Config{Client: client, RateLimiters: []string{"x", ""}}},
		{"is empty", admin.Config{Client: client, Prefixes: []string{""}}},
		{"is nil", admin.Config{SlidingLogs: map[string]admin.SlidingLog{"web": nil}}},
		{"is nil", admin.Config{SlidingLogs: map[string]admin.SlidingLog{"web": noLog}}},
		{"no name", admin.Config{SlidingLogs: map[string]admin.SlidingLog{"": newWeb(untouchable(t))}}},
		{"Timeout", admin.Config{Timeout: -1}},
	} {
		var log bytes.Buffer
		c.cfg.Authorize, c.cfg.Logger = anyone, textLog(&log)
		w := serve(t, admin.New(c.cfg), request("GET /limiters", ""))
		assert.Equal(t, http.StatusInternalServerError, w.Code, c.says)
		assert.NotContains(t, w.Body.String(), "admin.Config")
		assert.Contains(t, log.String(), c.says)
	}
}

func TestAuthorizeIsAskedFirst(t *testing.T) {
	t.Parallel()
	for _, refusal := range []struct {
		err       error
		status    int
		challenge string
	}{
		{errors.New("not at night"), http.StatusForbidden, ""},
		{fmt.Errorf("no token: %w", admin.ErrUnauthenticated), http.StatusUnauthorized, "Bearer"},
	} {
		var asked []admin.Access
		r := newRig(t, untouchable(t), func(cfg *admin.Config) {
			cfg.Authorize = func(_ *http.Request, a admin.Access) (string, error) {
				asked = append(asked, a)
				return "bob", refusal.err
			}
		})
		for _, c := range everyRequest {
			asked = nil
			w := r.ask(c.what, c.body, refusal.status, "")
			assert.NotContains(t, w.Body.String(), refusal.err.Error())
			assert.Equal(t, refusal.challenge, w.Header().Get("WWW-Authenticate"))
			assert.Equal(t, []admin.Access{c.asked}, asked)
			line := r.log.one(t)
			assert.Equal(t, "admin request refused", line["msg"])
			assert.Equal(t, "bob", line["actor"])
			assert.Equal(t, refusal.err.Error(), line["error"])
		}
	}
}

func TestAuthorizeByLimiterAndAction(t *testing.T) {
	t.Parallel()
	r := miniRig(t, func(cfg *admin.Config) {
		cfg.Authorize = func(_ *http.Request, a admin.Access) (string, error) {
			if a.Action == admin.Look || a.Limiter == "keyed:own" {
				return "carl", nil
			}
			return "carl", errors.New("not his")
		}
	})
	r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusForbidden, "")
	r.ask("GET /rate?name=orders", "", http.StatusNotFound, "")
	r.log.Take()
	r.ask("PUT /rate?name=keyed:own", rateBody(1, "1s"), http.StatusOK, "")
	assert.Equal(t, "carl", r.log.one(t)["actor"])
}

func TestChallenge(t *testing.T) {
	t.Parallel()
	h := admin.New(admin.Config{
		Authorize: func(*http.Request, admin.Access) (string, error) { return "", admin.ErrUnauthenticated },
		Challenge: `Basic realm="limits"`,
		Logger:    slog.New(slog.DiscardHandler),
	})
	w := serve(t, h, request("GET /limiters", ""))
	assert.Equal(t, `Basic realm="limits"`, w.Header().Get("WWW-Authenticate"))
}

func TestRequestsWriteNoLinesIntoTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	const hostile = "x\nlevel=INFO msg=\"limit changed\" actor=root \x1b[31m\u2028"
	r := miniRig(t, func(cfg *admin.Config) {
		cfg.Logger = textLog(&log)
		cfg.Authorize = func(r *http.Request, _ admin.Access) (string, error) { return r.Header.Get("X-User"), nil }
	})
	req := request("PUT "+target(hostile), `{"threshold":5}`)
	req.Header.Set("X-User", hostile)
	assert.Equal(t, http.StatusOK, serve(t, r, req).Code)
	assert.Equal(t, 1, strings.Count(log.String(), "\n"))
	assert.NotContains(t, log.String(), "\x1b")
}

const rate = "/rate?name=orders"

func TestBadRequestsAreRefusedBeforeRedisIsAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), nil)
	for _, c := range []struct {
		status int
		says   string
		whats  []string
	}{
		{404, "openapi.json", []string{"GET /", "GET /rate/", "GET //rate?name=orders", "GET /RATE?name=orders"}},
		{405, "GET, HEAD, PATCH, PUT", []string{"POST " + rate, "DELETE " + rate, "get " + rate}},
		{405, "GET, HEAD", []string{"PUT /limiters"}},
		{405, "DELETE, GET, HEAD, PUT", []string{"OPTIONS " + threshold}},
		{400, "one name", []string{"GET /rate", "GET /rate?name=", "GET /rate?name=orders&name=orders"}},
		{400, "one limiter", []string{"GET /thresholds"}},
		{400, "one key", []string{"GET /threshold?limiter=web", "GET /threshold?limiter=web&key="}},
		{400, "means nothing", []string{"GET /rate?name=orders&x=1", "GET /limiters?limiter=web"}},
		{400, "query", []string{"GET /rate?name=orders;x=1", "GET /rate?name=%zz"}},
		{400, "UTF-8", []string{"GET /rate?name=%ff", "GET /threshold?limiter=web&key=%ff"}},
		{400, "keyed:{ann}", []string{"PUT /rate?name=keyed:%7Bann%7D:value", "GET /rate?name=keyed:%7Bann%7D:permits:x"}},
		{415, "application/json", []string{"PUT " + rate, "PUT " + threshold}},
	} {
		for _, what := range c.whats {
			body := ""
			if strings.HasPrefix(what, "PUT ") && c.status != http.StatusUnsupportedMediaType {
				body = rateBody(1, "1s")
			}
			w := r.ask(what, body, c.status, c.says)
			assert.Equal(t, c.status == http.StatusMethodNotAllowed, strings.Contains(w.Header().Get("Allow"), "GET, HEAD"))
		}
	}
	r.ask("PUT "+rate, `{"rate":1,"interval":"1m","x":"`+strings.Repeat("x", 4096)+`"}`, http.StatusRequestEntityTooLarge, "4096")
	assert.Empty(t, r.log.Take())
}

// The handler takes a body if the description does, except those of strict.
func TestBodies(t *testing.T) {
	t.Parallel()
	r, untouched := miniRig(t), newRig(t, untouchable(t), nil)
	for _, c := range []struct {
		what, form, says  string
		good, bad, strict []string
	}{
		{"PUT " + rate, `{"rate":%s,"interval":"1s"}`, "rate must be a whole number from 1 to 9007199254740991",
			[]string{`1`, `9007199254740991`},
			[]string{`0`, `-1`, `1.5`, `"1"`, `null`, `9007199254740992`, `9007199254740993`},
			[]string{`1e3`, `1.0`}},
		{"PUT " + rate, `{"rate":1,"interval":%s}`, "interval",
			[]string{`1`, `1000`, `9223372036854`, `"1s"`, `"+1h2.5m.5s250ms"`, `"2000us"`, `"1d"`, `"d"`, `"1d12h"`, `"1d0"`, `".5d"`},
			[]string{
				`-1`, `-5`, `0`, `1.5`, `9223372036855`, `true`, `null`, `[1]`, `""`, `"0s"`, `"0"`, `"1"`, `"1 s"`, `"-1s"`,
				`"0d"`, `"1dd"`, `"1h1d"`, `"+1d"`,
			},
			[]string{`"1500us"`, `"200000d"`}},
		{"PUT " + rate, `{"rate":1,"interval":"1m","keepAlive":%s}`, "keepAlive",
			[]string{`0`, `"0"`, `"0s"`, `"1h"`}, []string{`-1`}, nil},
		{"PUT " + rate, `{"rate":1,"interval":"1m","keepAlive":%s}`, "shorter", nil, nil, []string{`"30s"`}},
		{"PUT " + rate, `{"rate":1,"interval":"1s","type":%s}`, "PER_CLIENT",
			[]string{`"OVERALL"`, `"PER_CLIENT"`},
			[]string{`"overall"`, `0`}, nil},
		{"PUT " + rate, `{"rate":1,"interval":"1s","keepState":%s}`, "keepState", []string{`true`, `false`}, []string{`1`, `"yes"`}, nil},
		{"PUT " + rate, `{"rate":1,"interval":"1s"%s`, "JSON", nil, nil, []string{``, `}}`}},
		{"PUT " + rate, `{"rate":1,"interval":"1s"}%s`, "follows", nil, nil, []string{` {}`}},
		{"PUT " + rate, `{"rate":1,%s,"interval":"1s"}`, "twice", nil, nil, []string{`"rate":2`, `"r\u0061te":2`}},
		{"PUT " + rate, `{%s}`, "changes nothing", nil, []string{``, `"keepState":true`}, nil},
		{"PUT " + rate, `{%s}`, "rate and interval", nil, []string{`"rate":1`, `"interval":"1s"`}, nil},
		{"PUT " + rate, `{%s,"interval":"1s"}`, "means nothing", nil, []string{`"Rate":1`, `"rate":1,"burst":3`}, nil},
		{"PUT " + rate, `%s`, "begin with {", nil, []string{`[]`, `null`}, nil},
		{"PATCH " + rate, `{%s}`, "changes nothing", nil, []string{``, `"keepState":true`}, nil},
		{"PATCH " + rate, `{%s}`, "rate", []string{`"rate":1`, `"type":"OVERALL","keepState":true`}, []string{`"rate":0`}, nil},
		{"PATCH " + rate, `{"keepAlive":%s}`, "keepAlive", []string{`"1h"`}, []string{`-1`}, nil},
		{"PATCH " + rate, `%s`, "begin with {", nil, []string{`[]`}, nil},
		{"PUT " + threshold, `{"threshold":%s}`, "from 0 to", []string{`0`, `9007199254740991`},
			[]string{`-1`, `true`, `null`, `9007199254740992`}, nil},
		{"PUT " + threshold, `{%s}`, "no threshold", nil, []string{``}, nil},
		{"PUT " + threshold, `{"threshold":5,%s}`, "ttl", nil, []string{`"ttl":1`}, nil},
		{"PUT " + threshold, `%s`, "begin with {", nil, []string{`3`}, nil},
	} {
		for _, value := range c.good {
			body := fmt.Sprintf(c.form, value)
			require.NoError(t, described(t).checkBody(t, c.what, body), body)
			r.ask(c.what, body, http.StatusOK, "")
		}
		for _, value := range c.bad {
			body := fmt.Sprintf(c.form, value)
			require.Error(t, described(t).checkBody(t, c.what, body), body)
			untouched.ask(c.what, body, http.StatusBadRequest, c.says)
		}
		for _, value := range c.strict {
			body := fmt.Sprintf(c.form, value)
			if json.Valid([]byte(body)) {
				require.NoError(t, described(t).checkBody(t, c.what, body), body)
			}
			untouched.ask(c.what, body, http.StatusBadRequest, c.says)
		}
	}
	assert.Empty(t, untouched.log.Take())
}

func TestPutRate_IntervalUnits(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	for written, want := range map[string]string{"1d": "24h0m0s", "d": "24h0m0s", "m": "1m0s", "1d12h": "36h0m0s", "90s": "1m30s"} {
		r.ask("PUT "+rate, rateBody(10, written), http.StatusOK, `"interval":"`+want+`"`)
	}
}

func TestRequests_CrossSiteIsForbidden(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), nil)
	req := request("PUT "+rate, rateBody(1, "1s"))
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	assert.Equal(t, http.StatusForbidden, serve(t, r, req).Code)
	assert.Equal(t, "admin request refused", r.log.one(t)["msg"])
}

func TestHead(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	r.ask("HEAD "+rate, "", http.StatusNotFound, "")
	r.ask("HEAD /limiters", "", http.StatusOK, "")
}

func FuzzHandler(f *testing.F) {
	f.Add("PUT", "/rate", "name=orders", "application/json", rateBody(1, "1s"))
	f.Add("PATCH", "/rate", "name=keyed:x", "application/json", `{"keepState":true,"keepAlive":"1h"}`)
	f.Add("PUT", "/threshold", "limiter=web&key=%7B%0A", "application/json", `{"threshold":5}`)
	f.Add("DELETE", "/threshold", "limiter=web&key=x", "", "")
	f.Add("GET", "/limiters", "", "", "")
	f.Fuzz(func(t *testing.T, method, path, query, contentType, body string) {
		r := miniRig(t)
		req := request("GET /", body)
		req.Method, req.URL.Path, req.URL.RawQuery = method, path, query
		req.Header.Set("Content-Type", contentType)
		w := serve(t, r, req)
		assert.Less(t, w.Code, 500, w.Body)
		changed := false
		for _, line := range r.log.Take() {
			changed = changed || line["msg"] == "limit changed"
		}
		for _, key := range r.keys() {
			assert.True(t, changed, "%q is there and nothing was logged", key)
			ours := key == "orders" || key == configKey || strings.HasPrefix(key, "keyed:") ||
				strings.HasPrefix(key, "{orders}:") || strings.HasPrefix(key, "{keyed:")
			assert.True(t, ours, "%q", key)
		}
	})
}
