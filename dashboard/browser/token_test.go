package browser_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/dashboard"
)

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

// TestALimiterThatIsBroken: it is not shown like one that is unused.
func TestALimiterThatIsBroken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("healthy", rratelimiter.PerMinute(10), 9)
	s.limiter("broken", rratelimiter.PerMinute(10), 0)
	require.NoError(t, s.rdb.Set(t.Context(), "{broken}:permits", "SECRET", 0).Err())
	p := openLive(t, s.url, look{})
	p.until(seen(row("broken")))
	assert.Equal(t, "broken", p.text(cell("broken", "use")))
	assert.Contains(t, p.text(cell("broken", "callers")), "not a sorted set")
	assert.Equal(t, "90%", p.text(cell("healthy", "use")))
	p.goTo("#/limiter/" + id("broken"))
	p.until(one("[data-fact=free]") + ".innerText === 'broken'")
	assert.Equal(t, "–", p.text("[data-fact=in-use]"))
	assert.Contains(t, p.text("#anomalies"), "calls of this limiter fail")
	assert.NotContains(t, p.text("body"), "SECRET")
}

// TestOutsideOfThePattern: the page says why it shows nothing.
func TestOutsideOfThePattern(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(cfg *dashboard.Config) { cfg.Pattern = "api:*" })
	p := open(t, s.limiterPage("shop:orders"), look{})
	p.provokes("403")
	p.until(one("#banner") + ".innerText.includes('outside of the pattern')")
}
