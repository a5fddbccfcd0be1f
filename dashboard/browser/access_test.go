package browser_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// loggedIn has a site take everybody for somebody who may change limits, as behind a
// login of one's own that browsers remember.
func loggedIn(cfg *dashboard.Config) {
	cfg.Write = true
	cfg.Authorize = func(*http.Request, dashboard.Action) (string, error) { return "alice", nil }
}

// TestOtherPagesChangeNothing: a page of somebody else, open in the same browser, can
// have it send requests.
func TestOtherPagesChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn)
	l := s.limiter("orders", rratelimiter.PerMinute(100), 40)
	p := open(t, serve(t, "", `<iframe name="into"></iframe>`), look{})
	p.provokes("request elsewhere|blocked by CORS|net::ERR_|frame-ancestors|status of 4")
	target := quote(s.url + "api/change")
	body := quote(`{"action": "delete", "id": "` + id("orders") + `"}`)
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
	// The same from the page itself is a change, so that what was sent was right.
	require.Eventually(t, func() bool { return len(p.asked("api/change")) >= 4 }, patience, 10*time.Millisecond)
	own := open(t, s.url, look{})
	assert.Equal(t, "[]", get[string](own, `fetch('api/audit').then(r => r.json()).then(r => JSON.stringify(r.entries))`))
	assert.True(t, s.exists(l))
	own.provokes("status of 4")
	assert.NotEqual(t, 403, get[int](own, fmt.Sprintf(
		`fetch(%s, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: %s}).then(r => r.status)`, target, body)))
}

func TestNoPageHasItInAFrame(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn)
	p := open(t, serve(t, "", `<iframe src="`+s.url+`"></iframe>`), look{})
	p.provokes("request elsewhere|frame-ancestors|X-Frame-Options")
	require.Eventually(t, func() bool {
		return strings.Contains(strings.Join(p.complained(), "\n"), "frame-ancestors")
	}, patience, 10*time.Millisecond)
}

// TestTimesAreTheViewers also holds who a change is said to be by.
func TestTimesAreTheViewers(t *testing.T) {
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
		assert.Regexp(t, strings.Join(minutes, "|"), p.text("#audit"))
		assert.Contains(t, p.text("#audit"), "alice")
	}
}

// TestATokenForLooking: what a browser was given for the page goes with its streams and
// single questions too, also beside the token for changes, and an old one of these.
func TestATokenForLooking(t *testing.T) {
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
	assert.EqualValues(t, 7, s.outcome(s.client.RateLimiter("shop:mail")).config.Rate)

	p.eval("sessionStorage.setItem('token', 'an old one')")
	p.visit(s.url)
	p.until(isLive)
	p.until(seen(row("shop:mail")) + " && " + seen("#unlock"))
}

func TestALimiterThatIsBroken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("healthy", rratelimiter.PerMinute(10), 9)
	s.limiter("broken", rratelimiter.PerMinute(10), 0)
	require.NoError(t, s.rdb.Set(t.Context(), "{broken}:permits", "SECRET", 0).Err())
	p := openLive(t, s.url, look{})
	p.until(seen(row("broken")))
	assert.Equal(t, "✖ broken", p.text(cell("broken", "use")))
	assert.Contains(t, p.text(cell("broken", "callers")), "not a sorted set")
	assert.Equal(t, "90%", p.text(cell("healthy", "use")))
	p.goTo("#/limiter/" + id("broken"))
	p.until(one("[data-fact=free]") + ".innerText.trim() === '✖ broken'")
	assert.Contains(t, p.text("#lead-state"), "not a sorted set")
	assert.True(t, get[bool](p, one("[data-fact=in-use]")+".parentElement.hidden"), "it is not known")
	assert.Contains(t, p.text("#anomalies"), "calls of this limiter fail")
	assert.NotContains(t, p.text("body"), "SECRET")
}

func TestOutsideOfThePattern(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(cfg *dashboard.Config) { cfg.Pattern = "api:*" })
	p := open(t, s.limiterPage("shop:orders"), look{})
	p.provokes("403")
	p.until(one("#banner") + ".innerText.includes('outside of the pattern')")
}

const (
	isLive = `document.documentElement.dataset.connection === 'live'`
	isDown = `document.documentElement.dataset.connection === 'down'`
)

// TestARedisThatGoesAway, or hangs: the page says so, keeps what it last knew, and
// goes on by itself.
func TestARedisThatGoesAway(t *testing.T) {
	t.Parallel()
	for _, view := range views[:2] {
		t.Run(view.name, func(t *testing.T) {
			t.Parallel()
			s, p := inShop(t, view.hash)
			p.provokes("status of 503")
			p.until(view.shown)
			p.fault(view.shown, s.server.Crash, func() {
				s.server.Restart(t)
				s.shop()
			})
			p.fault(view.shown, func() { s.server.Freeze(t) }, func() { s.server.Thaw(t) })
		})
	}
}

// fault checks what the page does when something begins to fail and when that ends.
func (p *tab) fault(shown string, begin, end func()) {
	p.t.Helper()
	begin()
	p.until(isDown + " && " + seen("#banner"))
	assert.NotEmpty(p.t, p.text("#banner"))
	assert.NotEmpty(p.t, p.text("#connection"))
	assert.True(p.t, get[bool](p, shown), "what was known is shown on")
	end()
	p.until(isLive + " && !" + seen("#banner") + " && " + shown)
	p.update(1)
}

// TestADashboardThatGoesAway: the page finds it when it is there again, at the same
// address.
func TestADashboardThatGoesAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("shop:orders", rratelimiter.PerMinute(100), 40)
	p := openLive(t, s.url, look{})
	p.provokes("ERR_")
	shown := seen(row("shop:orders"))
	p.until(shown)
	p.fault(shown, func() {
		s.http.CloseClientConnections()
		require.NoError(t, s.http.Listener.Close())
		s.http.CloseClientConnections()
	}, func() {
		l, err := net.Listen("tcp", s.http.Listener.Addr().String())
		require.NoError(t, err)
		again := &httptest.Server{Listener: l, Config: &http.Server{Handler: s.http.Config.Handler}} //nolint:gosec // nobody is slow
		again.Start()
		t.Cleanup(func() {
			again.CloseClientConnections()
			again.Close()
		})
	})
}

// TestBesideRedisson: the page shows what a Redisson does, and it goes by what is
// changed on the page.
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
	p.until(seen("#holders tbody tr"))
	assert.Contains(t, p.text("#holders"), "Redisson")

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
