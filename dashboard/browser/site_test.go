package browser_test

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
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

// unlock gives the page the token.
func (p *tab) unlock(token string) {
	p.t.Helper()
	p.click("#unlock")
	p.fill("#token", token)
	p.click("#token-submit")
}

const (
	isLive = `document.documentElement.dataset.connection === 'live'`
	isDown = `document.documentElement.dataset.connection === 'down'`
)

// TestServers_GoAway, or hang: the page says so, keeps what it last knew, and goes on by itself, also if
// the dashboard is there again at the same address.
func TestServers_GoAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.shop()
	p := openLive(t, s.url, look{})
	p.provokes("status of 503|ERR_")
	p.until(views[0].shown)
	p.fault(s.server.Crash, func() {
		s.server.Restart(t)
		s.shop()
	})
	p.fault(func() { s.server.Freeze(t) }, func() { s.server.Thaw(t) })
	p.fault(func() {
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
}

// fault checks what the page does when something begins to fail and when that ends.
func (p *tab) fault(begin, end func()) {
	p.t.Helper()
	shown := views[0].shown
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
