package httplimit_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

// wellFormed is what any key looks like: parts in which nothing is left that
// could end a part, choose a slot or upset a log.
var wellFormed = regexp.MustCompile(`^http:(?:(?:[^:{}%\x00- \x7f]|%[0-9A-F]{2}|%sha256-[0-9a-f]{64})*(?::|$))+$`)

// FuzzMiddleware throws requests at the middleware that no HTTP parser would let
// through: it answers 200 or 429, and each key is one that the application would
// write.
func FuzzMiddleware(f *testing.F) {
	f.Add("GET", "/hello", "192.0.2.1:80", "10.0.0.1, 192.0.2.9", `for="[2001:db8::1]:80"`, "ann", "body")
	f.Add("HEAD", "//..%2f{x}", "[fe80::1%eth0]:80", ", ,", `for="`, "a:b", "")
	f.Add("", "", "", "", "", "", "")
	f.Add("PØST", "\x00\xff", "10.0.0.1:80", strings.Repeat("10.0.0.2,", 50), strings.Repeat(`for=10.0.0.1,"`, 50), "%sha256-{}\r\n", "x")
	trusted := httplimit.ClientIPConfig{Trusted: prefixes("10.0.0.0/8", "fe80::/10", "::1/128")}
	elements, single := trusted, trusted
	elements.Header, single.Header = "Forwarded", "X-Real-IP"
	user := func(r *http.Request) string { return r.Header.Get("X-User") }
	f.Fuzz(func(t *testing.T, method, path, peer, list, forwarded, name, body string) {
		limiter := &fake{Answer: func(_ context.Context, n int64) (limit.Decision, error) {
			return limit.Decision{Granted: n%2 == 0, Limit: n, RetryAfter: time.Duration(n)}, nil
		}}
		handler := httplimit.New(limiter,
			httplimit.WithKey(httplimit.ClientIP(trusted), httplimit.ClientIP(elements), httplimit.ClientIP(single),
				httplimit.User(user), httplimit.Path(), httplimit.Header("X-User")),
			httplimit.WithCost(func(r *http.Request) int64 { return 1 + int64(len(r.URL.Path)) }),
			httplimit.WithLegacyHeaders(),
			httplimit.WithErrorHandler(func(_ *http.Request, err error) { t.Error(err) }))(hello)
		r := &http.Request{
			Method: method, URL: &url.URL{Path: path}, RemoteAddr: peer, Body: io.NopCloser(strings.NewReader(body)),
			Header: http.Header{
				"X-Forwarded-For": strings.Split(list, "\n"), "Forwarded": strings.Split(forwarded, "\n"),
				"X-Real-Ip": {list}, "X-User": {name},
			},
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusOK && w.Code != http.StatusTooManyRequests {
			t.Errorf("answered %d", w.Code)
		}
		key := limiter.Key()
		if !wellFormed.MatchString(key) {
			t.Errorf("the key is %q", key)
		}
		if colons := strings.Count(key, ":"); colons != 6 {
			t.Errorf("the key %q has %d parts", key, colons)
		}
		members(t, w.Header(), "RateLimit")
		members(t, w.Header(), "RateLimit-Policy")
	})
}
