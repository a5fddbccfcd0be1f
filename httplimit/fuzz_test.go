package httplimit_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// wellFormed is what any key looks like: parts in which nothing is left that
// could end a part, choose a slot or upset a log.
var wellFormed = regexp.MustCompile(`^http:(?:(?:[^:{}%\x00- \x7f]|%[0-9A-F]{2}|%sha256-[0-9a-f]{64})*(?::|$))+$`)

// FuzzMiddleware throws requests at the middleware that no HTTP parser would let through:
// it answers 200 or 429, and each key is one that the application would write.
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

// FuzzClientIP is a client that writes whatever it likes into the headers which
// proxies go on writing: it is counted by the address that the first trusted proxy saw,
// and without a trusted proxy by its own.
func FuzzClientIP(f *testing.F) {
	f.Add("10.0.0.1:80", "203.0.113.9", `for=203.0.113.9`, "192.0.2.7")
	f.Add("[fe80::1%eth0]:80", "10.0.0.2, ,", `for="[2001:db8::1]:80";proto=http, for="`, "::1")
	f.Add("10.0.0.1:80", strings.Repeat("10.0.0.2,", 20), `for="\",for=10.0.0.9`, "x")
	f.Add("192.0.2.1:80", "unknown\n::ffff:10.0.0.1", "FOR=_hidden\nfor=unknown;by=x", "[::1]")
	f.Add("@", "", "", "")
	f.Add("10.0.0.1", "%", "for=\"[10.0.0.1]\"", "192.0.2.7:99999")

	trusted := httplimit.ClientIPConfig{Trusted: prefixes("10.0.0.0/8", "fe80::/10", "::1/128"), IPv6Bits: 128}
	elements, single, none := trusted, trusted, httplimit.ClientIPConfig{}
	elements.Header, single.Header = "Forwarded", "X-Real-IP"
	list := httplimit.ClientIP(trusted)
	forwardedFor := httplimit.ClientIP(elements)
	realIP, peerOnly := httplimit.ClientIP(single), httplimit.ClientIP(none)
	fuzztest.Run(f, func(t testing.TB, peer, lines, elements, one string) {
		text := func(key httplimit.KeyFunc, header http.Header) string {
			part, err := key(&http.Request{RemoteAddr: peer, Header: header})
			if err != nil {
				t.Error(err)
			}
			if part == "" {
				return ""
			}
			whole, _, _ := strings.Cut(part, "/")
			if addr, err := netip.ParseAddr(whole); err != nil || addr.Zone() != "" || addr.Is4In6() || addr.String() != whole {
				t.Errorf("%q, peer %q: the part is %q", header, peer, part)
			}
			return part
		}
		all := http.Header{"X-Forwarded-For": strings.Split(lines, "\n"), "Forwarded": strings.Split(elements, "\n"), "X-Real-Ip": {one}}
		before := text(peerOnly, all)
		for _, key := range []httplimit.KeyFunc{list, forwardedFor, realIP} {
			got := text(key, all)
			if before == "" && got != "" {
				t.Errorf("the peer %q has no address, and the client's is %q", peer, got)
			}
		}

		// A trusted proxy appends whom it saw, to the last line or as one of its own.
		peer = "10.0.0.1:80"
		const saw = "192.0.2.77"
		for _, header := range []http.Header{
			{"X-Forwarded-For": []string{lines + "," + saw}}, {"X-Forwarded-For": []string{lines, saw}},
			{"X-Forwarded-For": []string{lines + "," + saw + ", 10.9.9.9"}},
		} {
			if got := text(list, header); got != saw {
				t.Errorf("%q: counted by %q", header, got)
			}
		}
		for _, header := range []http.Header{
			{"Forwarded": []string{elements + ",for=" + saw}}, {"Forwarded": []string{elements, `for="` + saw + `:80";proto=https`}},
			{"Forwarded": []string{elements + `,by=x;For="` + saw + `", for=10.9.9.9`}},
		} {
			if got := text(forwardedFor, header); got != saw {
				t.Errorf("%q: counted by %q", header, got)
			}
		}
		peer = "192.0.2.99:80"
		for _, key := range []httplimit.KeyFunc{list, forwardedFor, realIP} {
			if got := text(key, all); got != "192.0.2.99" {
				t.Errorf("an untrusted peer is counted by %q", got)
			}
		}
	})
}
