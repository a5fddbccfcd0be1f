package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestRefusalHandler(t *testing.T) {
	t.Parallel()
	refused := limit.Decision{Limit: 10, Remaining: 2, RetryAfter: 1500 * time.Millisecond, ResetAfter: time.Minute}
	var got httplimit.Refusal
	handler := httplimit.New(httplimit.Policy{Name: "burst", Limiter: says(refused, nil)}, httplimit.WithRefusal(
		func(w http.ResponseWriter, _ *http.Request, refusal httplimit.Refusal) {
			got = refusal
			w.WriteHeader(http.StatusTeapot)
		}), quiet, policy("down", says(limit.Decision{}, errDown))).Handler(refuseAll(t)) // that has no part in it
	w := serve(handler, newRequest(t))
	assert.Equal(t, http.StatusTeapot, w.Code)
	assert.Equal(t, "2", w.Header().Get("Retry-After"))
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	assert.Equal(t, `"burst";r=2;t=2`, w.Header().Get("RateLimit"))
	assert.Empty(t, w.Body.Bytes())
	assert.Equal(t, httplimit.Refusal{
		Policies:   []httplimit.Decided{{Name: "burst", Decision: refused}},
		Violated:   []string{"burst"},
		RetryAfter: 1500 * time.Millisecond,
	}, got)
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

func TestRouteIsThePattern(t *testing.T) {
	t.Parallel()
	limiter := grants()
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", httplimit.New(limiter, httplimit.WithKey(httplimit.Route())).Handler(hello))
	assert.Equal(t, http.StatusOK, serve(mux, newRequest(t)).Code)
	assert.Equal(t, "http:GET%20/items/%7Bid%7D", limiter.Key())
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
		"broken":    {io.MultiReader(strings.NewReader("123"), broken{}), http.StatusBadRequest},
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

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the client went away") }

func TestLocalErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ctx     context.Context
		limiter limit.Limiter
		n       int64
		want    error
	}{
		{t.Context(), httplimit.Local(0, time.Minute), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, 0), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, -1), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, time.Minute), 0, limit.ErrInvalidPermits},
		{t.Context(), httplimit.Local(1, time.Minute), -1, limit.ErrInvalidPermits},
		{t.Context(), httplimit.Local(1, time.Minute), 2, limit.ErrPermitsExceedRate},
		{t.Context(), httplimit.Local(1, time.Minute), math.MaxInt64, limit.ErrPermitsExceedRate},
		{limitertest.EndedContext(t), httplimit.Local(1, time.Minute), 1, context.Canceled},
	} {
		d, err := test.limiter.Take(test.ctx, "a", test.n)
		assert.ErrorIs(t, err, test.want)
		assert.Equal(t, errors.Is(test.want, limit.ErrPermitsExceedRate), d.Limit == 1, "so that an estimate can be lowered")
	}
}

// localStep is one request of a history, so long after the one before.
type localStep struct {
	pause time.Duration
	n     int64
	back  bool // gives back what it was granted
}

// Random requests against the plainest of models: all grants of the last window. Never more
// than the limit; nothing is held back for longer than a 32nd of a window, if there are so many
// that some are kept as one; and a caller that comes back at RetryAfter gets through.
func TestLocalModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.Int64Range(1, 200).Draw(rt, "limit")
		length := rapid.SampledFrom([]int{1, 10, 100, 300}).Draw(rt, "length")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) localStep {
			return localStep{
				pause: time.Duration(rapid.IntRange(0, 60).Draw(rt, "ms")) * time.Millisecond,
				n:     rapid.Int64Range(1, min(most, 4)).Draw(rt, "n"),
				back:  rapid.IntRange(0, 9).Draw(rt, "back") == 0,
			}
		}), length, length).Draw(rt, "steps")
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = runLocal(t.Context(), most, steps) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// runLocal returns the error of the first wrong answer.
func runLocal(ctx context.Context, most int64, steps []localStep) string {
	const window = 3200 * time.Millisecond
	type grant struct {
		at time.Time
		n  int64
	}
	var log []grant
	used := func(span time.Duration) (sum int64) {
		for _, g := range log {
			if time.Since(g.at) < span {
				sum += g.n
			}
		}
		return sum
	}
	l := httplimit.Local(most, window).(limit.Returner)
	for i, step := range steps {
		time.Sleep(step.pause)
		log = slices.DeleteFunc(log, func(g grant) bool { return time.Since(g.at) > 2*window })
		for again := false; ; again = true {
			before, late := used(window), used(window+window/32)
			d, giveBack, err := l.TakeReturnable(ctx, "a", step.n)
			if err != nil {
				return err.Error()
			}
			switch {
			case d.Granted && before+step.n > most:
				return fmt.Sprintf("step %d: granted %d with %d of %d used", i, step.n, before, most)
			case !d.Granted && late+step.n <= most:
				return fmt.Sprintf("step %d: refused %d with %d of %d used", i, step.n, late, most)
			case !d.Granted && again:
				return fmt.Sprintf("step %d: refused again after RetryAfter", i)
			}
			if d.Granted {
				log = append(log, grant{time.Now(), step.n})
			}
			least, greatest := most-used(window+window/32), most-used(window)
			if d.Remaining < least || d.Remaining > greatest || d.ResetAfter <= 0 || d.ResetAfter > window {
				return fmt.Sprintf("step %d: %+v, but %d to %d remain", i, d, least, greatest)
			}
			if !d.Granted {
				time.Sleep(d.RetryAfter)
				continue
			}
			if step.back {
				if err := giveBack(ctx); err != nil {
					return err.Error()
				}
				log = log[:len(log)-1]
			}
			break
		}
	}
	return ""
}
