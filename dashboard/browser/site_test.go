package browser_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// token is what changes take on all sites that allow them.
const token = "open sesame"

// site is a dashboard of the test's own, and the real Redis that it shows.
type site struct {
	t      testing.TB
	server *redistest.Server
	rdb    redistest.Client
	client *rratelimiter.Client // called checkout
	http   *httptest.Server
	url    string
}

// newSite starts a dashboard that shows an empty server.
func newSite(t testing.TB, configure ...func(*dashboard.Config)) *site {
	t.Helper()
	browser(t) // skips before there is a server
	s := &site{t: t, server: redistest.StartRedis(t)}
	s.rdb = s.server.Client(t, nil)
	s.client = s.named("checkout")
	rdb := s.server.Client(t, &redistest.Options{ReadTimeout: 5 * time.Second})
	cfg := dashboard.Config{Redis: rdb.(redis.UniversalClient), Logger: slog.New(slog.DiscardHandler), Authorize: dashboard.WithToken("")}
	for _, set := range configure {
		set(&cfg)
	}
	s.http = httptest.NewServer(http.StripPrefix("/limits", dashboard.Handler(cfg)))
	t.Cleanup(func() {
		s.http.CloseClientConnections() // streams have no end of their own
		s.http.Close()
	})
	s.url = s.http.URL + "/limits/"
	return s
}

// writable allows changes with the token.
func writable(cfg *dashboard.Config) {
	cfg.Write = true
	cfg.Authorize = dashboard.WithToken(token)
}

// withOthers configures a site with limiters of keys: sessions, a sliding log whose keys may
// have thresholds of their own; visits, a fixed window; and uploads, token buckets.
func withOthers(cfg *dashboard.Config) {
	sessions, visits, uploads := others(limitertest.OpenClient(cfg.Redis))
	cfg.Others = []dashboard.Other{
		{Name: "Sessions", Prefix: "session:", Limiter: sessions, Thresholds: "session-limits"},
		{Name: "Visits", Prefix: "visit:", Limiter: visits},
		{Name: "Uploads", Prefix: "upload:", Limiter: uploads},
	}
}

func others(client *rratelimiter.Client) (*slidinglog.Limiter, *fixedwindow.Limiter, *tokenbucket.Limiter) {
	return slidinglog.New(client, slidinglog.Config{Limit: 10, Window: time.Hour, Thresholds: "session-limits"}),
		fixedwindow.New(client, fixedwindow.Config{Limit: 20, Window: time.Hour}),
		tokenbucket.New(client, tokenbucket.Config{Capacity: 30, Refill: 1, Interval: time.Hour})
}

// visitors uses the limiters of withOthers.
func (s *site) visitors() {
	s.t.Helper()
	ctx := s.t.Context()
	sessions, visits, uploads := others(limitertest.OpenClient(s.rdb))
	require.NoError(s.t, sessions.SetThreshold(ctx, "session:carol", 4))
	for i, who := range []string{"alice", "bob", "carol"} {
		_, err := sessions.Take(ctx, "session:"+who, int64(i+2))
		require.NoError(s.t, err)
		_, err = visits.Take(ctx, "visit:"+who, int64(5*i+5))
		require.NoError(s.t, err)
		_, err = uploads.Take(ctx, "upload:"+who, int64(9*i+1))
		require.NoError(s.t, err)
	}
}

// named returns a client of limiters that is called this.
func (s *site) named(name string, opts ...rratelimiter.Option) *rratelimiter.Client {
	s.t.Helper()
	return limitertest.NewClient(s.t, s.rdb, append(opts, rratelimiter.WithClientName(name))...)
}

// limiter makes one with this rate, of which these permits are in use.
func (s *site) limiter(name string, cfg rratelimiter.Config, used int64) *rratelimiter.RateLimiter {
	s.t.Helper()
	l := s.client.RateLimiter(name)
	require.NoError(s.t, l.SetRate(s.t.Context(), cfg))
	s.take(l, used)
	return l
}

func (s *site) take(l *rratelimiter.RateLimiter, permits int64) {
	s.t.Helper()
	if permits == 0 {
		return
	}
	ok, err := l.TryAcquire(s.t.Context(), permits, 0)
	require.NoError(s.t, err)
	require.True(s.t, ok, "%d permits of %q", permits, l.Name())
}

// shop fills the site with limiters of every kind.
func (s *site) shop() {
	s.t.Helper()
	orders := s.limiter("shop:orders", rratelimiter.PerMinute(100), 40)
	s.take(s.named("mobile app").RateLimiter(orders.Name()), 25)
	s.limiter("shop:mail", rratelimiter.PerHour(5), 5)
	search := rratelimiter.PerMinute(20)
	search.Type = rratelimiter.PerClient
	s.limiter("shop:search", search, 7)
	kept := rratelimiter.PerDay(1000)
	kept.KeepAlive = 48 * time.Hour
	s.limiter("shop:report", kept, 120)
	for i := range 12 {
		s.limiter(fmt.Sprintf("shop:api:%02d", i), rratelimiter.PerMinute(50), int64(2*i))
	}
}

// id is how the page's addresses name a limiter.
func id(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

func row(name string) string { return fmt.Sprintf(`#limiters tr[data-id=%q]`, id(name)) }

func cell(name, column string) string { return fmt.Sprintf(`%s [data-col=%q]`, row(name), column) }

// openLive returns a tab that shows the address, once what it shows is live.
func openLive(t testing.TB, address string, l look) *tab {
	t.Helper()
	p := open(t, address, l)
	p.until(isLive)
	return p
}

// unlocked returns a tab that shows a view of a site that allows changes, and may make
// them.
func (s *site) unlocked(hash string) *tab {
	s.t.Helper()
	p := openLive(s.t, s.url+hash, look{})
	p.unlock(token)
	return p
}

// inShop returns a shop and a tab that shows a view of it.
func inShop(t testing.TB, hash string, configure ...func(*dashboard.Config)) (*site, *tab) {
	t.Helper()
	s := newSite(t, configure...)
	s.shop()
	return s, openLive(t, s.url+hash, look{})
}

// unlock gives the page the token.
func (p *tab) unlock(token string) {
	p.t.Helper()
	p.click("#unlock")
	p.fill("#token", token)
	p.click("#token-submit")
}

// serve returns the address of a page with this body.
func serve(t testing.TB, policy, body string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/favicon.ico", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		fmt.Fprintf(w, "<!doctype html><html lang=en><title>a page</title>%s</html>", body)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL + "/"
}

// loggedIn makes a site treat every user as one who may change limits, as behind a
// login of one's own that browsers remember.
func loggedIn(cfg *dashboard.Config) {
	cfg.Write = true
	cfg.Authorize = func(*http.Request, dashboard.Access) (string, error) { return "alice", nil }
}

// TestOtherSites_NeitherFrameNorChange: a page of another site, open in the same browser, can make it
// send requests.
func TestOtherSites_NeitherFrameNorChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn)
	l := s.limiter("orders", rratelimiter.PerMinute(100), 40)
	p := open(t, serve(t, "", `<iframe name="into"></iframe><iframe src="`+s.url+`"></iframe>`), look{})
	p.provokes("request elsewhere|blocked by CORS|net::ERR_|frame-ancestors|X-Frame-Options|status of 4")
	require.Eventually(t, func() bool {
		return strings.Contains(strings.Join(p.complained(), "\n"), "frame-ancestors")
	}, patience, 10*time.Millisecond)
	target := quote(s.url + "api/change/delete?name=orders")
	body := quote("{}")
	for _, send := range []string{
		`fetch(%s, {method: 'POST', mode: 'no-cors', credentials: 'include', body: %s})`,
		`fetch(%s, {method: 'POST', credentials: 'include', headers: {'Content-Type': 'application/json'}, body: %s})`,
		`navigator.sendBeacon(%s, %s)`,
		`(() => {
			const form = document.createElement('form')
			Object.assign(form, {method: 'POST', enctype: 'text/plain', target: 'into', action: %s})
			const field = document.createElement('input')
			Object.assign(field, {name: %s, value: ''})
			form.append(field)
			document.body.append(form)
			form.submit()
		})()`,
	} {
		p.eval(fmt.Sprintf(`(async () => { try { await (`+send+`) } catch {} })()`, target, body))
	}
	// The same request from the page itself makes the change, so it was well formed.
	require.Eventually(t, func() bool { return len(p.asked("api/change")) >= 4 }, patience, 10*time.Millisecond)
	own := open(t, s.url, look{})
	assert.Equal(t, "[]", get[string](own, `fetch('api/audit').then(r => r.json()).then(r => JSON.stringify(r.entries))`))
	assert.EqualValues(t, 100, limitertest.ConfigOf(t, l).Rate)
	own.provokes("status of 4")
	assert.NotEqual(t, 403, get[int](own, fmt.Sprintf(
		`fetch(%s, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: %s}).then(r => r.status)`, target, body)))
}

// TestTimes_AreInViewersZone also holds who a change is said to be by.
func TestTimes_AreInViewersZone(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn)
	s.limiter("orders", rratelimiter.PerMinute(100), 40)
	before := time.Now()
	openLive(t, s.url, look{}).changeRate("orders", "80")
	for _, zone := range []string{"Asia/Tokyo", "America/St_Johns"} {
		p := openLive(t, s.url+"#/changes", look{zone: zone})
		p.until(seen("#audit tbody tr"))
		place, err := time.LoadLocation(zone)
		require.NoError(t, err)
		var minutes []string // in which the change may have been
		for at := before; at.Before(time.Now().Add(time.Minute)); at = at.Add(time.Minute) {
			minutes = append(minutes, at.In(place).Format("15:04"))
		}
		assert.Regexp(t, "("+strings.Join(minutes, "|")+`).*\s+alice`, p.text("#audit"))
	}
}

// TestTokens_ForLooking: what a browser was given for the page goes with its streams and
// single questions too, also beside the token for changes, and an old one of these.
func TestTokens_ForLooking(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(cfg *dashboard.Config) {
		cfg.Write, cfg.Authorize = true, dashboard.WithTokens("a-token-for-looking", token)
	})
	s.shop()
	p := open(t, s.url+"assets/icon.svg", look{})
	p.provokes("401|me:a-token") // what gives the browser the token
	p.visit(strings.Replace(s.url, "http://", "http://me:a-token-for-looking@", 1) + "assets/icon.svg")
	p.base = s.url
	p.visit(s.url)
	p.until(isLive)
	p.until(seen(row("shop:mail")))
	p.unlock(token)
	p.until(seen("#lock"))
	p.goTo("#/limiter/" + id("shop:mail"))
	p.until(isLive)
	p.changeRate("shop:mail", "7")
	assert.EqualValues(t, 7, limitertest.ConfigOf(t, s.client.RateLimiter("shop:mail")).Rate)

	p.eval("sessionStorage.setItem('token', 'an old one')")
	p.visit(s.url)
	p.until(isLive)
	p.until(seen(row("shop:mail")) + " && " + seen("#unlock"))
}

const (
	isLive = `document.documentElement.dataset.connection === 'live'`
	isDown = `document.documentElement.dataset.connection === 'down'`
)

// TestServers_GoAway, or hang: the page says so, keeps what it last knew, and goes on by itself, also if
// the dashboard is there again at the same address.
func TestServers_GoAway(t *testing.T) {
	t.Parallel()
	for _, view := range views[:2] {
		t.Run(view.name, func(t *testing.T) {
			t.Parallel()
			s, p := inShop(t, view.hash)
			p.provokes("status of 503|ERR_")
			p.until(view.shown)
			p.fault(view.shown, s.server.Crash, func() {
				s.server.Restart(t)
				s.shop()
			})
			p.fault(view.shown, func() { s.server.Freeze(t) }, func() { s.server.Thaw(t) })
			p.fault(view.shown, func() {
				s.http.CloseClientConnections()
				require.NoError(t, s.http.Listener.Close())
				s.http.CloseClientConnections()
			}, func() {
				l, err := net.Listen("tcp", s.http.Listener.Addr().String())
				require.NoError(t, err)
				again := &httptest.Server{Listener: l, Config: &http.Server{Handler: s.http.Config.Handler}} //nolint:gosec // no client is slow
				again.Start()
				t.Cleanup(func() {
					again.CloseClientConnections()
					again.Close()
				})
			})
		})
	}
}

// fault checks what the page does when something begins to fail and when that ends.
func (p *tab) fault(shown string, begin, end func()) {
	p.t.Helper()
	begin()
	p.until(isDown + " && " + seen("#banner"))
	assert.Contains(p.t, p.text("#banner"), "Stale data since ")
	assert.Empty(p.t, get[string](p, one("#cost")+".innerText"), "nothing of it is live")
	assert.NotEmpty(p.t, p.text("#connection"))
	assert.True(p.t, get[bool](p, shown), "what was known is shown on")
	end()
	p.until(isLive + " && !" + seen("#banner") + " && " + shown)
	p.update(1)
}

// TestBesideRedisson: the page shows what a Redisson does, and it follows changes on the page.
func TestBesideRedisson(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	jvm, err := javadriver.StartRedisson("../../compat_test/java", "4.7.0") // the newest release that compat_test has
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Why)
	}
	require.NoError(t, err)
	t.Cleanup(jvm.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, err = javadriver.Call[string](ctx, jvm, "open", "shop", s.server.URL())
	require.NoError(t, err)
	call := func(method string, args ...any) string { // of the limiter
		t.Helper()
		answer, err := javadriver.Call[any](ctx, jvm, method, append([]any{"shop", "orders"}, args...)...)
		require.NoError(t, err, method)
		return fmt.Sprint(answer)
	}
	require.Equal(t, "true", call("trySetRate", "OVERALL", 100, 60_000, 0))
	require.Equal(t, "true", call("tryAcquire", 30))

	p := s.unlocked("")
	p.until(one(cell("orders", "free")) + `?.innerText === '70'`)
	p.goTo("#/limiter/" + id("orders"))
	p.until(one("#holders") + ".innerText.includes('Redisson')")

	p.make("rate", "rate", "40")
	assert.Equal(t, "10", call("availablePermits"))
	assert.Equal(t, "false", call("tryAcquire", 11))
	assert.Equal(t, "true", call("tryAcquire", 10))
	p.until(one(`[data-fact="free"]`) + `.innerText === '0 of 40 free'`)

	p.make("release", "permits", "25")
	assert.Equal(t, "25", call("availablePermits"))

	p.changeRate("orders", "55")
	assert.Equal(t, "40", call("availablePermits"))
	call("setRate", "OVERALL", 12, 60_000, 0)
	p.until(one(`[data-fact="rate"]`) + `.innerText.includes('12')`)

	p.make("delete", "", "")
	assert.Equal(t, "false", call("isExists"))
}

// hostile returns names that would do or show something else than they are, if the
// page took them for anything but text.
func hostile() []string {
	binary := make([]byte, 4096)
	_, _ = rand.NewChaCha8([32]byte{}).Read(binary) // the same bytes each time
	return []string{
		`<img src=x onerror=alert(1)>`, `<img src=http://192.0.2.1/pic onerror=alert(1)>`, `<script>alert(1)</script>`,
		`<script src=//192.0.2.1/x.js></script>`, `"><svg onload=alert(1)>`, `' onmouseover='alert(1)`,
		`" style="position:fixed;inset:0" onclick="alert(1)`, `</title><script>alert(1)</script>`,
		`</textarea><iframe src=javascript:alert(1)>`, `<style>*{display:none}</style>`, `<base href=http://192.0.2.1/>`,
		`<meta http-equiv=refresh content=0;url=http://192.0.2.1/>`, `<form action=http://192.0.2.1/><button>`, `<template><dialog open>`,
		`javascript:alert(1)`, `data:text/html,<script>alert(1)</script>`, `//192.0.2.1/`, `../../api/change/delete`, `%2e%2e%2f%00`,
		`#/changes`, `?search=<b>`, `a&lt;b&amp;c`, `{{constructor.constructor('alert(1)')()}}`, "${alert(1)}`", `__proto__`,
		`constructor`, `hasOwnProperty`, `null`, `0`, ` spaces  before and after `,
		"a line\nand another\r\nid: 1\nevent: fault\ndata: {}\n\n", "a tab\t\v\f\b\x1b[31m", "nul\x00 in it",
		"not UTF-8: \xff\xfe\xc3\x28", "a surrogate: \xed\xa0\x80", "exe.\u202egnp.rekcah", "\u2066isolated\u2067 and never closed",
		"\u05e9\u05dc\u05d5\u05dd 123 abc", "\u0645\u0631\u062d\u0628\u0627", "zero\u200bwidth\u200d\ufeff\u00ad",
		"line separators \u2028 and \u2029", "o" + strings.Repeat("\u0301\u0316", 200),
		"\U0001F3F4\U000E0067\U000E0062\U000E007F \U0001F9D1\u200d\U0001F680", "\ufffd\uffff",
		strings.Repeat("W", 4096), strings.Repeat("a ", 2048), strings.Repeat("<b>", 1365), string(binary),
	}
}

// harmless checks that names have become no markup: the page has none of these.
const harmless = `document.querySelectorAll('img, iframe, base, style, meta[http-equiv], form[action], [onerror], [onload], [onclick], ' +
  '[onmouseover], [style*="fixed"], script:not([src])').length`

// TestHostileNames of limiters, of who holds their permits, and of other keys.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	before := get[int](openLive(t, newSite(t).url, look{}), harmless)
	s := newSite(t, writable)
	names := hostile()
	s.plant(names)
	p := openLive(t, s.url, look{width: 360, height: 640})
	p.unlock(token)
	p.until(fmt.Sprintf("document.querySelectorAll('#limiters tbody tr[data-id]').length >= %d", min(len(names), 50)))
	assert.Empty(t, get[[]string](p, wide), "with hostile names")
	for _, name := range names {
		p.goTo("#/limiter/" + id(name))
		p.until(seen("#holders tbody tr") + " && " + one("#limiter-whole p") + ".textContent === " + quote(words.Printable(name)))
		assert.Equal(t, before, get[int](p, harmless), "%q became markup", name)
		assert.Empty(t, get[[]string](p, wide), "%q", name)
	}
	// A name goes to the server and back through a change, too.
	for _, name := range []string{names[0], "a line\nand another\r\nid: 1\nevent: fault\ndata: {}\n\n", names[len(names)-1]} {
		p.changeRate(name, "7")
		rate, err := s.rdb.HGet(t.Context(), name, "rate").Int()
		require.NoError(t, err)
		assert.Equal(t, 7, rate, "%q", name)
	}
	p.goTo("#/changes")
	p.until(`document.querySelectorAll('#audit tbody tr').length === 3`)
	assert.Equal(t, before, get[int](p, harmless))
	assert.Empty(t, get[[]string](p, wide))
	assert.Empty(t, p.asked("://192.0.2.1"))
}

// plant makes limiters with these names, in each of which a client of the same name
// holds a permit. This module would refuse some: others may write what they like.
func (s *site) plant(names []string) {
	s.t.Helper()
	ctx, now := s.t.Context(), float64(time.Now().UnixMilli())
	_, err := s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, name := range names {
			id := make([]byte, 16) // of a client, and the count of its attempts
			id[0] = byte(i + 1)
			member, err := codec.Append(nil, codec.LayoutD2, id, 1)
			require.NoError(s.t, err)
			holder, err := json.Marshal(clients.Client{Name: name, Mark: hex.EncodeToString(id[:8])})
			require.NoError(s.t, err)
			keys := redisson.KeysOf(name, "")
			pipe.HSet(ctx, name, "rate", 10, "interval", 3_600_000, "type", 0)
			pipe.Set(ctx, keys.Value, 9, 0)
			pipe.ZAdd(ctx, keys.Permits, redis.Z{Score: now, Member: member})
			pipe.ZAdd(ctx, clients.Key, redis.Z{Score: now + 3_600_000, Member: holder})
		}
		return nil
	})
	require.NoError(s.t, err)
}
