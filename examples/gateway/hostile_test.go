package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
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

// sendBytes writes bytes to the gateway as they are and returns the status of the
// first answer, 0 if there is none.
func (s *site) sendBytes(text string) int {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	require.NoError(s.t, err)
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, text) // the gateway may close before it has all
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	defer func() { _ = got.Body.Close() }()
	return got.StatusCode
}

func TestHostileBytes(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	require.NoError(t, m.Start())
	s := serve(t, plenty, "--redis", redisURL(m.Addr()))
	const host = " HTTP/1.1\r\nHost: x\r\n"
	for _, text := range []string{
		"",
		"\x00\xff\xfe\r\n\r\n",
		"GET /hello\r\n\r\n",
		"GET /hello HTTP/9.9\r\n\r\n",
		"GET /hello HTTP/1.1\r\n\r\n",
		"GET /hello" + host + "X User: ann\r\n\r\n",
		"GET /hello" + host + "X-User: a\x00b\r\n\r\n",
		"GET /hello" + host + "X-User: \x80\xff{rate:limit:config}\r\n\r\n",
		"GET /hello" + host + "X-User: ann\r\nX-User: bob\r\n\r\n",
		"GET /hello" + host + "X-User: " + strings.Repeat("a", 1<<16) + "\r\n\r\n",
		"GET /hello" + host + "X-User: " + strings.Repeat("a", 1<<21) + "\r\n\r\n",
		"GET /hello" + host + strings.Repeat("X-Forwarded-For: 1.2.3.4, \r\n", 1000) + "\r\n",
		"GET /hello" + host + "Connection: X-User, X-Forwarded-For, close\r\nX-User: ann\r\n\r\n",
		"GET /hello" + host + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"GET /hello%00%0d%0aX:%20y" + host + "\r\n",
		"GET /%2e%2e/hello" + host + "\r\n",
		"GET //hello" + host + "\r\n",
		"GET http://elsewhere/hello" + host + "\r\n",
		"POST /orders" + host + "Content-Length: -1\r\n\r\n",
		"POST /orders" + host + "Content-Length: 10\r\n\r\nshort",
		"POST /orders" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin/limiters HTTP/1.1\r\n\r\n",
		"POST /orders" + host + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		"POST /orders" + host + "Transfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("x", 1<<13) + "\r\n",
		"POST /orders" + host + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\ntea",
		"PUT /admin/threshold?limiter=hello&key=k" + host +
			"Authorization: Bearer \r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"threshold\":5}",
		"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS *" + host + "\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		assert.NotEqual(t, http.StatusInternalServerError, s.sendBytes(text), "%.80q", text)
	}
	s.as("ann", "GET /hello", http.StatusOK)
	assert.NotContains(t, s.logged.String(), "panic")
	checkKeys(t, rdb)
	assert.Zero(t, rdb.Exists(t.Context(), thresholds).Val())
}

// FuzzGateway is an outsider who does not know the token and may send anything else.
func FuzzGateway(f *testing.F) {
	f.Add("GET", "/hello", "ann", "", "", "", "", "")
	f.Add("POST", "/orders?x=%00", "{a}:b", "198.51.100.7", "Bearer x", "Connection", "X-User, Upgrade", strings.Repeat("x", 100))
	f.Add("PUT", "/admin/threshold?limiter=hello&key=limit:ann:/hello", "rate:limit:config", "::1",
		"Bearer secret", "Content-Type", "application/json", `{"threshold":5}`)
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
		r.Header = http.Header{
			"X-User": {user}, "X-Forwarded-For": {forwarded}, "Forwarded": {"for=" + forwarded}, "Authorization": {authorization},
		}
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
