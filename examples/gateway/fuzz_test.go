package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

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
	g, transport := inMemory(rdb, &log, 40, limit.FailClosed())
	g.token = "known to nobody"
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
		quotas(t, w.Header())
		if w.Code == http.StatusTooManyRequests && method != http.MethodHead {
			assert.True(t, json.Valid(w.Body.Bytes()), w.Body)
		}
		checkKeys(t, rdb)
		assert.Zero(t, rdb.Exists(t.Context(), thresholds).Val())
		if asked++; asked%50 == 0 {
			require.NoError(t, rdb.FlushDB(t.Context()).Err())
		}
	})
}
