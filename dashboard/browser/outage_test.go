package browser_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
)

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
			s := newSite(t)
			s.shop()
			p := openLive(t, s.url+view.hash, look{})
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
