package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

type (
	call     = middlewaretest.Call
	fake     = middlewaretest.Fake
	returner = middlewaretest.Returner
	windowed = middlewaretest.Windowed
)

var (
	says    = middlewaretest.Says
	grants  = middlewaretest.Grants
	errDown = errors.New("connection refused")
)

func newRequest(t testing.TB) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/items/1?q=2", http.NoBody)
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })

func serve(handler http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func refuseAll(t testing.TB) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request got through") })
}

func hearing(errs *middlewaretest.Errors) httplimit.Option {
	return httplimit.WithErrorHandler(func(_ *http.Request, err error) { errs.Add(err) })
}

// quiet keeps failures that a test expects out of its output.
var quiet = hearing(new(middlewaretest.Errors))

func patient() httplimit.Option {
	return httplimit.WithTimeout(redistest.Patience(httplimit.DefaultTimeout))
}

// problem is the body of a refusal, read without this package's types.
func problem(t testing.TB, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	var body map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	assert.InDelta(t, w.Code, body["status"], 0)
	assert.NotEmpty(t, body["title"])
	assert.NotEmpty(t, body["detail"])
	return body
}

func members(t testing.TB, h http.Header, name string) []middlewaretest.Member {
	t.Helper()
	list, err := middlewaretest.Members(h, name)
	require.NoError(t, err)
	return list
}

func integer(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

//nolint:paralleltest // Run replaces slog's default logger
func TestMiddleware(t *testing.T) {
	kind := middlewaretest.Kind[httplimit.Option, httplimit.KeyFunc]{
		Name:    "httplimit",
		Prefix:  "http:",
		Parts:   "192.0.2.1",
		Exact:   time.Second,
		Figures: true,
		Late:    middlewaretest.Unavailable,

		Wrap:   wrap,
		Check:  func(l limit.Limiter, opts ...httplimit.Option) error { return httplimit.New(l, opts...).Err() },
		Policy: policyOf,
		Text:   text,
		User:   httplimit.Header("X-User"),

		WithCost: func(n int64, err error) httplimit.Option {
			return httplimit.WithCost(func(*http.Request) (int64, error) { return n, err })
		},
		WithErrorHandler: func(hook func(error)) httplimit.Option {
			return httplimit.WithErrorHandler(func(_ *http.Request, err error) { hook(err) })
		},
		WithSkip: func(skip bool) httplimit.Option {
			return httplimit.WithSkip(func(r *http.Request) bool { return skip && r.URL.Path == "/items/1" })
		},
		WithFailure:  httplimit.WithFailure,
		WithFallback: httplimit.WithFallback,
		WithHashTag:  httplimit.WithHashTag,
		WithKey:      httplimit.WithKey,
		WithObserver: httplimit.WithObserver,
		WithPrefix:   httplimit.WithPrefix,
		WithShadow:   httplimit.WithShadow,
		WithTimeout:  httplimit.WithTimeout,
		Settle:       httplimit.Settle,
		Bad:          badOptions("http:"),
	}
	maps.Copy(kind.Bad, map[string][]httplimit.Option{"pause": {httplimit.WithPause(0)}, "wait": {httplimit.WithWait(0)}})
	t.Run("handler", kind.Run)
	kind.Prefix, kind.Parts, kind.Exact, kind.Figures, kind.Late = "upstream:", "api.example.org", 1, false, middlewaretest.Overdue
	kind.Settle = nil
	kind.WithWait = func() httplimit.Option { return httplimit.WithWait(time.Hour) }
	kind.Wrap, kind.Bad = wrapTransport, badOptions("upstream:")
	kind.Check = func(l limit.Limiter, opts ...httplimit.Option) error {
		return httplimit.NewTransport(nil, l, opts...).Err()
	}
	kind.Bad["legacy"] = []httplimit.Option{httplimit.WithLegacyHeaders()}
	kind.Bad["settling"] = []httplimit.Option{httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: grants(), Settle: true})}
	kind.Bad["no headers"] = []httplimit.Option{httplimit.WithHeaders(httplimit.NoHeaders)}
	kind.Bad["refusals"] = []httplimit.Option{httplimit.WithRefusal(func(http.ResponseWriter, *http.Request, httplimit.Refusal) {})}
	kind.Bad["negative pause"] = []httplimit.Option{httplimit.WithPause(-1)}
	kind.Bad["negative wait"] = []httplimit.Option{httplimit.WithWait(-1)}
	t.Run("transport", kind.Run)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return f(r)
}

func answers(status int, header ...string) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}
		for i := 0; i+1 < len(header); i += 2 {
			resp.Header.Set(header[i], header[i+1])
		}
		return resp, nil
	}
}

func answersBody(status int) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		resp, err := answers(status)(r)
		resp.Body = io.NopCloser(strings.NewReader("hello"))
		return resp, err
	}
}

// body is one that must not be read, and must be closed.
type body struct{ closed atomic.Int32 }

func (*body) Read([]byte) (int, error) { return 0, errors.New("the body was read") }

func (b *body) Close() error {
	b.closed.Add(1)
	return nil
}

// wrapTransport is wrap for a transport that does not wait.
func wrapTransport(t testing.TB, l limit.Limiter, opts ...httplimit.Option) middlewaretest.Handler {
	t.Helper()
	transport := httplimit.NewTransport(answers(http.StatusNoContent), l, append([]httplimit.Option{httplimit.WithWait(0)}, opts...)...)
	return func(ctx context.Context, user string) middlewaretest.Answer {
		content := &body{}
		defer func() { assert.EqualValues(t, 1, content.closed.Load(), "by the last holder of the request") }()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://api.example.org/items/1", content)
		require.NoError(t, err)
		r.Header.Set("X-User", user)
		before := r.Clone(ctx)
		resp, err := transport.RoundTrip(r) //nolint:bodyclose // it has none
		assert.Equal(t, before.Header, r.Header)
		assert.Equal(t, err == nil, resp != nil)
		if err == nil {
			return middlewaretest.Answer{Verdict: middlewaretest.Passed}
		}
		var no *httplimit.NotSentError
		require.ErrorAs(t, err, &no)
		got := middlewaretest.Answer{Verdict: middlewaretest.Unavailable, RetryAfter: no.RetryAfter}
		switch {
		case ctx.Err() != nil:
			require.ErrorIs(t, err, ctx.Err())
			got.Verdict = map[bool]middlewaretest.Verdict{true: middlewaretest.Overdue, false: middlewaretest.Gone}[no.Timeout()]
		case errors.Is(err, limit.ErrInvalidConfig):
			got.Verdict = middlewaretest.Misconfigured
		case strings.HasPrefix(no.Err.Error(), "httplimit: cost: "):
			got.Verdict = middlewaretest.Rejected
		case no.RetryAfter > 0 || errors.Is(err, limit.ErrPermitsExceedRate):
			got.Verdict = middlewaretest.Refused
		}
		return got
	}
}

// badKeys are key functions that were not made properly.
func badKeys() map[string]httplimit.KeyFunc {
	bits := func(n int) httplimit.KeyFunc { return httplimit.ClientIP(httplimit.ClientIPConfig{IPv6Bits: n}) }
	return map[string]httplimit.KeyFunc{
		"nil user": httplimit.User(nil), "no header": httplimit.Header(""), "bits": bits(129), "negative bits": bits(-1),
		"trusted": httplimit.ClientIP(httplimit.ClientIPConfig{Trusted: []netip.Prefix{{}}}),
	}
}

func badOptions(prefix string) map[string][]httplimit.Option {
	sound := middlewaretest.Grants()
	of := func(name, prefix string) httplimit.Option {
		return httplimit.WithPolicy(httplimit.Policy{Name: name, Limiter: sound, Prefix: prefix})
	}
	all := map[string][]httplimit.Option{
		"cost":              {httplimit.WithCost(nil)},
		"skip":              {httplimit.WithSkip(nil)},
		"hook":              {httplimit.WithErrorHandler(nil)},
		"refusal":           {httplimit.WithRefusal(nil)},
		"headers":           {httplimit.WithHeaders(7)},
		"name":              {policy("é", sound)},
		"control in name":   {policy("a\nb", sound)},
		"twice":             {policy("default", sound)},
		"policy limiter":    {httplimit.WithPolicy(httplimit.Policy{Name: "hour"})},
		"policy name":       {httplimit.WithPolicy(httplimit.Policy{Limiter: sound})},
		"unit":              {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Unit: "é"})},
		"window":            {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Window: -1})},
		"policy key":        {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Key: []httplimit.KeyFunc{nil}})},
		"policy tag":        {httplimit.WithHashTag(), of("hour", "{a}:")},
		"one prefix":        {of("hour", prefix)},
		"prefix twice":      {of("hour", "a:"), of("day", "a:")},
		"prefix continued":  {httplimit.WithPrefix("a:"), of("hour", "a:b:")},
		"prefix continues":  {httplimit.WithPrefix("a:b:"), of("hour", "a")},
		"prefix of names":   {policy("hour", sound), of("day", prefix)},
		"prefix twice, tag": {httplimit.WithHashTag(), of("hour", prefix)},
	}
	for name, key := range badKeys() {
		all[name] = []httplimit.Option{httplimit.WithKey(httplimit.Path(), key)}
		all[name+" of a policy"] = []httplimit.Option{httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Key: []httplimit.KeyFunc{key}})}
	}
	return all
}

var verdicts = map[int]middlewaretest.Verdict{
	http.StatusOK:                  middlewaretest.Passed,
	http.StatusBadRequest:          middlewaretest.Rejected,
	http.StatusTooManyRequests:     middlewaretest.Refused,
	http.StatusServiceUnavailable:  middlewaretest.Unavailable,
	http.StatusInternalServerError: middlewaretest.Misconfigured,
}

// wrap returns middleware, and reads what a client sees.
func wrap(t testing.TB, l limit.Limiter, opts ...httplimit.Option) middlewaretest.Handler {
	t.Helper()
	limits := httplimit.New(l, append(opts, httplimit.WithLegacyHeaders())...)
	return func(ctx context.Context, user string) middlewaretest.Answer {
		handled := false
		r := newRequest(t).WithContext(ctx)
		r.Header.Set("X-User", user)
		w := serve(limits.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			handled = true
			middlewaretest.Handle(r.Context())
		})), r)
		if errors.Is(ctx.Err(), context.Canceled) {
			assert.False(t, handled)
			assert.Equal(t, http.StatusServiceUnavailable, w.Code)
			assert.Empty(t, w.Body.Bytes())
			return middlewaretest.Answer{Verdict: middlewaretest.Gone}
		}
		got := answer(t, w)
		assert.Equal(t, got.Verdict == middlewaretest.Passed, handled)
		return got
	}
}

func answer(t testing.TB, w *httptest.ResponseRecorder) middlewaretest.Answer {
	t.Helper()
	h := w.Header()
	got := middlewaretest.Answer{Verdict: verdicts[w.Code], Text: fmt.Sprint(h, w.Body)}
	for _, m := range members(t, h, "RateLimit") {
		got.Figures = []int64{members(t, h, "RateLimit-Policy")[0].Params["q"], m.Params["r"]}
		assert.Equal(t, fmt.Sprint(got.Figures), fmt.Sprintf("[%s %s]", h.Get("X-RateLimit-Limit"), h.Get("X-RateLimit-Remaining")))
	}
	retry := h.Get("Retry-After")
	if got.Verdict == middlewaretest.Passed {
		assert.Empty(t, retry)
		if got.Figures == nil {
			assert.NotContains(t, strings.ToLower(got.Text), "ratelimit")
		}
		return got
	}
	body := problem(t, w)
	if got.Verdict != middlewaretest.Refused {
		assert.Equal(t, "about:blank", body["type"])
		assert.Equal(t, map[middlewaretest.Verdict]string{middlewaretest.Unavailable: "5"}[got.Verdict], retry)
		return got
	}
	assert.Equal(t, "https://iana.org/assignments/http-problem-types#quota-exceeded", body["type"])
	assert.Len(t, body["violated-policies"], 1)
	if retry == "" {
		assert.Contains(t, body["detail"], "costs more than")
		return got
	}
	assert.Contains(t, body["detail"], "can pass in "+retry+" s")
	got.RetryAfter = time.Duration(integer(t, retry)) * time.Second
	assert.Positive(t, got.RetryAfter)
	return got
}

func policyOf(p middlewaretest.Policy) limit.Limiter {
	policy := httplimit.Policy{Limiter: p.Limiter, Settle: p.Settle, Shadow: p.Shadow, InFlight: p.InFlight, Hold: p.Hold}
	if p.Plan != nil {
		policy.Plan = func(r *http.Request) limit.Limiter { return p.Plan(r.Header.Get("X-User")) }
	}
	return policy
}

func text(part string, err error) httplimit.KeyFunc {
	return func(*http.Request) (string, error) { return part, err }
}

func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	type user struct{}
	userOf := func(r *http.Request) string { name, _ := r.Context().Value(user{}).(string); return name }
	const items = "/items/1"
	for _, test := range []struct {
		part httplimit.KeyFunc
		url  string
		want string
	}{
		{httplimit.Header("X-Api-Key"), items, ""},
		{httplimit.Header("accept"), items, "text/html"},
		{httplimit.Header("host"), items, "Front.Example"},
		{httplimit.User(userOf), items, ""},
		{httplimit.Path(), "/items/1?q=2", items},
		{httplimit.Route(), items, ""},
		{httplimit.ClientIP(httplimit.ClientIPConfig{}), items, "192.0.2.1"},

		{httplimit.Host(), "http://example.org/a", "example.org"},
		{httplimit.Host(), "http://example.org./", "example.org"},
		{httplimit.Host(), "http://example.org.:", "example.org"},
		{httplimit.Host(), "https://Example.ORG.:443", "example.org"},
		{httplimit.Host(), "http://example.org:443", "example.org:443"},
		{httplimit.Host(), "https://[2001:DB8::1]:443/", "[2001:db8::1]"},
		{httplimit.Host(), "unix://socket:80", "socket:80"},
		{httplimit.Host(), items, "front.example"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, test.url, http.NoBody)
		r.Host = "Front.Example"
		r.Header.Set("Accept", "text/html")
		got, err := test.part(r)
		require.NoError(t, err)
		assert.Equal(t, test.want, got, test.url)
	}
	limiter, mux := grants(), http.NewServeMux()
	mux.Handle("GET /items/{id}", httplimit.New(limiter, httplimit.WithKey(httplimit.Route())).Handler(hello))
	assert.Equal(t, http.StatusOK, serve(mux, newRequest(t)).Code)
	assert.Equal(t, "http:GET%20/items/%7Bid%7D", limiter.Key(), "the route is the pattern")
}

// FuzzClientIP is a client that writes whatever it likes into the headers which proxies go on writing: it is counted by the address that
// the first trusted proxy saw, and without a trusted proxy by its own.
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

func TestIsPreflight(t *testing.T) {
	t.Parallel()
	const origin, method = "Origin", "Access-Control-Request-Method"
	for name, c := range map[string]struct {
		method string
		header []string
		want   bool
	}{
		"preflight":          {http.MethodOptions, []string{origin, "https://shop.example", method, "PUT"}, true},
		"OPTIONS":            {http.MethodOptions, nil, false},
		"OPTIONS of a page":  {http.MethodOptions, []string{origin, "https://shop.example"}, false},
		"of no origin":       {http.MethodOptions, []string{method, "PUT"}, false},
		"the request itself": {http.MethodPut, []string{origin, "https://shop.example", method, "PUT"}, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, "/", http.NoBody)
		for i := 0; i < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		limiter := grants()
		w := serve(httplimit.New(limiter, httplimit.WithSkip(httplimit.IsPreflight)).Handler(hello), r)
		assert.Equal(t, "hello", w.Body.String(), name)
		assert.Equal(t, c.want, len(limiter.Asked()) == 0, name)
	}
}

// A cost that is read from the body fails as the body does, which is the client's fault and no error of the server's.
func TestWithCost_BodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body io.Reader
		want int
	}{
		"whole":     {strings.NewReader("1234567"), http.StatusOK},
		"too large": {strings.NewReader("123456789"), http.StatusRequestEntityTooLarge},
		"broken":    {io.MultiReader(strings.NewReader("123"), iotest.ErrReader(errDown)), http.StatusBadRequest},
	} {
		var errs middlewaretest.Errors
		limiter := middlewaretest.Grants()
		handler := httplimit.New(limiter, hearing(&errs), httplimit.WithCost(func(r *http.Request) (int64, error) {
			body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 8))
			return int64(len(body)), err
		})).Handler(hello)
		r := newRequest(t)
		r.Body = io.NopCloser(c.body)
		w := serve(handler, r)
		assert.Equal(t, c.want, w.Code, name)
		errs.Check(t)
		if c.want == http.StatusOK {
			assert.EqualValues(t, 7, limiter.Asked()[0].N)
			continue
		}
		assert.Empty(t, w.Header().Get("Retry-After"), name)
		assert.Empty(t, limiter.Asked(), name)
	}
}
