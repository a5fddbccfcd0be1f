package httplimit_test

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
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
			httplimit.WithCost(func(r *http.Request) (int64, error) { return 1 + int64(len(r.URL.Path)), nil }),
			httplimit.WithLegacyHeaders(),
			httplimit.WithErrorHandler(func(_ *http.Request, err error) { t.Error(err) })).Handler(hello)
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
	f.Fuzz(func(t *testing.T, peer, lines, elements, one string) {
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

		// A trusted proxy appends the address it saw, to the last line or as one of its own.
		peer = "10.0.0.1:80"
		const saw = "192.0.2.77"
		for _, c := range []struct {
			key    httplimit.KeyFunc
			header http.Header
		}{
			{list, http.Header{"X-Forwarded-For": {lines + "," + saw}}}, {list, http.Header{"X-Forwarded-For": {lines, saw}}},
			{list, http.Header{"X-Forwarded-For": {lines + "," + saw + ", 10.9.9.9"}}},
			{forwardedFor, http.Header{"Forwarded": {elements + ",for=" + saw}}},
			{forwardedFor, http.Header{"Forwarded": {elements, `for="` + saw + `:80";proto=https`}}},
			{forwardedFor, http.Header{"Forwarded": {elements + `,by=x;For="` + saw + `", for=10.9.9.9`}}},
		} {
			if got := text(c.key, c.header); got != saw {
				t.Errorf("%q: counted by %q", c.header, got)
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

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestClientIP(t *testing.T) {
	t.Parallel()
	const (
		xff       = "X-Forwarded-For"
		forwarded = "Forwarded"
		realIP    = "X-Real-Ip"
	)
	behind := httplimit.ClientIPConfig{Trusted: prefixes("10.0.0.0/8", "fd00::/8")}
	behindMapped := httplimit.ClientIPConfig{Trusted: prefixes("::ffff:10.0.0.0/104")}
	behindReal, behind7239, behindSocket := behind, behind, behind
	behindSocket.TrustUnix = true
	behindReal.Header, behind7239.Header = "x-real-ip", "forwarded"
	const proxy = "10.0.0.1:80"
	sent := func(name string, lines ...string) http.Header { return http.Header{name: lines} }
	for name, test := range map[string]struct {
		cfg    httplimit.ClientIPConfig
		peer   string
		socket bool // the request came through a Unix socket
		header http.Header
		want   string
	}{
		"IPv4":             {peer: "192.0.2.1:80", want: "192.0.2.1"},
		"IPv6":             {peer: "[2001:db8:1:2:3:4:5:6]:80", want: "2001:db8:1:2::/64"},
		"IPv6, other bits": {cfg: httplimit.ClientIPConfig{IPv6Bits: 48}, peer: "[2001:db8:1:2:3:4:5:6]:80", want: "2001:db8:1::/48"},
		"IPv6, all bits":   {cfg: httplimit.ClientIPConfig{IPv6Bits: 128}, peer: "[fe80::6%eth0]:80", want: "fe80::6"},
		"mapped":           {peer: "[::ffff:192.0.2.1]:80", want: "192.0.2.1"},
		"NAT64":            {peer: "[64:ff9b::192.0.2.1]:80", want: "192.0.2.1"},
		"NAT64, its own":   {peer: "[64:ff9b:1::192.0.2.1]:80", want: "64:ff9b:1::/64"}, // where the address is depends on the network
		"6to4":             {peer: "[2002:c000:201:2:3:4:5:6]:80", want: "192.0.2.1"},
		"6to4 of a proxy":  {cfg: behind, peer: "[2002:a00:1::1]:80", header: sent(xff, "192.0.2.9"), want: "10.0.0.1"}, // not trusted
		"forged":           {cfg: behind, peer: "192.0.2.1:80", header: sent(xff, "192.0.2.9"), want: "192.0.2.1"},
		"socket, forged":   {cfg: behind, peer: "@", header: sent(xff, "192.0.2.9"), want: ""},
		"socket, trusted":  {cfg: behindSocket, peer: "@", socket: true, header: sent(xff, "192.0.2.9"), want: "192.0.2.9"},
		"socket, chain":    {cfg: behindSocket, peer: "", socket: true, header: sent(xff, "1.1.1.1, 192.0.2.9, 10.0.0.2"), want: "192.0.2.9"},
		"socket, no trust": {cfg: behind, peer: "@", socket: true, header: sent(xff, "192.0.2.9"), want: ""},
		"no socket":        {cfg: behindSocket, peer: "junk of a client", header: sent(xff, "192.0.2.9"), want: ""},
		"proxy":            {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9"), want: "192.0.2.9"},
		"mapped prefix":    {cfg: behindMapped, peer: proxy, header: sent(xff, "192.0.2.9"), want: "192.0.2.9"},
		"no header":        {cfg: behind, peer: proxy, want: "10.0.0.1"},
		"client's own":     {cfg: behind, peer: proxy, header: sent(xff, "1.1.1.1, 192.0.2.9"), want: "192.0.2.9"},
		"two proxies":      {cfg: behind, peer: proxy, header: sent(xff, "1.1.1.1,192.0.2.9 ,10.0.0.2,\t10.0.0.3 "), want: "192.0.2.9"},
		"all trusted":      {cfg: behind, peer: proxy, header: sent(xff, "10.0.0.4, 10.0.0.3"), want: "10.0.0.4"},
		"junk of client":   {cfg: behind, peer: proxy, header: sent(xff, "'; DROP, 192.0.2.9"), want: "192.0.2.9"},
		"junk of proxy":    {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9, unknown"), want: "10.0.0.1"},
		"empty entry":      {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9, "), want: "10.0.0.1"},
		"with port":        {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9:4711"), want: "192.0.2.9"},
		"IPv6 with port":   {cfg: behind, peer: proxy, header: sent(xff, "[2001:db8::1]:4711"), want: "2001:db8::/64"},
		"IPv4 in brackets": {cfg: behind, peer: proxy, header: sent(xff, "[192.0.2.9]"), want: "10.0.0.1"},
		"huge":             {cfg: behind, peer: proxy, header: sent(xff, strings.Repeat("10.0.0.9, ", 100_000)+"10.0.0.2"), want: "10.0.0.9"},
		"real":             {cfg: behindReal, peer: proxy, header: http.Header{realIP: {" 192.0.2.9 "}, xff: {"1.1.1.1"}}, want: "192.0.2.9"},
		"real, twice":      {cfg: behindReal, peer: proxy, header: sent(realIP, "1.1.1.1", "192.0.2.9"), want: "10.0.0.1"},
		"real, a list":     {cfg: behindReal, peer: proxy, header: sent(realIP, "1.1.1.1, 192.0.2.9"), want: "10.0.0.1"},
		"forwarded":        {cfg: behind7239, peer: proxy, header: sent(forwarded, "for=192.0.2.9;proto=http;by=10.0.0.1"), want: "192.0.2.9"},
		"forwarded, case":  {cfg: behind7239, peer: proxy, header: sent(forwarded, `proto=http; FOR="192.0.2.9:4711"`), want: "192.0.2.9"},
		"forwarded, two": {
			cfg: behind7239, peer: proxy, header: sent(forwarded, `for=1.1.1.1, for=192.0.2.9;host="a,b", for=10.0.0.2`), want: "192.0.2.9",
		},
		"forwarded, quote":  {cfg: behind7239, peer: proxy, header: sent(forwarded, `for="1.1.1.1, for=192.0.2.9`), want: "192.0.2.9"},
		"forwarded, open":   {cfg: behind7239, peer: proxy, header: sent(forwarded, `for="192.0.2.9`), want: "10.0.0.1"},
		"forwarded, hidden": {cfg: behind7239, peer: proxy, header: sent(forwarded, "for=1.1.1.1, for=_hidden"), want: "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRequest(t)
			r.RemoteAddr = test.peer
			if test.socket {
				r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix", Name: "/run/shop.sock"}))
			}
			maps.Copy(r.Header, test.header)
			got, err := httplimit.ClientIP(test.cfg)(r)
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}
