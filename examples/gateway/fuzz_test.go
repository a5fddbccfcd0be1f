package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// services answers in place of the network, and sees what would go out.
type services struct {
	t    testing.TB
	host map[string]http.Handler
}

func (s *services) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
	} else {
		r.Body = http.NoBody
	}
	assert.Equal(s.t, []string{"192.0.2.1"}, r.Header["X-Forwarded-For"], "the service hears the peer's address and no other")
	w := httptest.NewRecorder()
	s.host[r.URL.Host].ServeHTTP(w, r)
	return w.Result(), nil
}

// FuzzGateway is an outsider who does not know the token and may send anything
// else.
func FuzzGateway(f *testing.F) {
	f.Add("GET", "/hello", "ann", "", "", "", "", "")
	f.Add("POST", "/orders?x=%00", "{a}:b", "198.51.100.7", "Bearer x", "Connection", "X-User, Upgrade", strings.Repeat("x", 100))
	f.Add("PUT", "/admin/threshold?limiter=hello&key=limit:ann:/hello", "rate:limit:config", "::1", "Bearer secret", "Content-Type", "application/json", `{"threshold":5}`)
	f.Add("PUT", "//admin/../admin/rate?name=gateway:", "\xff\r\n", "unknown", "Basic eDp5", "Upgrade", "h2c", "")
	f.Add("HEAD", "/hello", strings.Repeat("é", 200), "1.2.3.4, ::ffff:1.2.3.4%eth0", "", "X-Real-Ip", "}{", "")
	f.Add("CONNECT", "*", "", "", "", "Content-Length", "-1", "")

	rdb, _ := redistest.Mini(f)
	var log bytes.Buffer
	transport := &services{host: map[string]http.Handler{"greeter": greeter(), "shop": shop()}}
	g := newGateway(config{
		rdb: rdb, greeter: &url.URL{Scheme: "http", Host: "greeter"}, shop: &url.URL{Scheme: "http", Host: "shop"},
		transport: transport, token: "known to nobody", perClient: 40, shopRate: plenty, timeout: time.Minute, log: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	f.Cleanup(g.close)
	asked := 0
	f.Fuzz(func(t *testing.T, method, target, user, forwarded, authorization, name, value, body string) {
		at, err := url.ParseRequestURI(target)
		if err != nil {
			return // the server does not take it
		}
		transport.t = t
		log.Reset()
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL, r.RequestURI = method, at, target
		r.Header = http.Header{"X-User": {user}, "X-Forwarded-For": {forwarded}, "Forwarded": {"for=" + forwarded}, "Authorization": {authorization}}
		r.Header[http.CanonicalHeaderKey(name)] = []string{value}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)

		// 502 is the answer to an Upgrade that the service does not know.
		if w.Code >= http.StatusInternalServerError && (w.Code != http.StatusBadGateway || !strings.EqualFold(name, "Upgrade")) {
			t.Errorf("answer %d: %s", w.Code, log.String())
		}
		if strings.HasPrefix(at.Path, "/admin/") && w.Code/100 != 3 {
			assert.Contains(t, []int{http.StatusUnauthorized, http.StatusTooManyRequests}, w.Code)
		}
		if _, err := policies(w.Header()); err != nil {
			t.Errorf("headers %v: %v", w.Header(), err)
		}
		if w.Code == http.StatusTooManyRequests && method != http.MethodHead {
			assert.True(t, json.Valid(w.Body.Bytes()), w.Body)
		}
		keys, err := rdb.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			assert.True(t, ours(key) && key != thresholds, "key %q", key)
			assert.NotContains(t, strings.TrimPrefix(key, "{"), "{", "key %q", key)
		}
		if asked++; asked%50 == 0 {
			require.NoError(t, rdb.FlushDB(t.Context()).Err())
		}
	})
}
