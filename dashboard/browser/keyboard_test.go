package browser_test

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
)

// focused is the element that has the focus, as a selector or by its text.
const focused = `(e => e === document.body ? '' : e.id ? '#' + e.id : e.dataset.action ? 'action ' + e.dataset.action :
  e.dataset.nav ? 'nav ' + e.dataset.nav : e.name ? e.name : e.nodeName + ' ' + e.innerText.trim())(document.activeElement)`

// outlined is that one can see where the focus is.
const outlined = `(e => {
  const s = getComputedStyle(e)
  return (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1) || s.boxShadow !== 'none'
})(document.activeElement)`

// tabTo moves the focus on until it is where the name says, and returns the way. All
// on it can be seen to have the focus, and none twice.
func (p *tab) tabTo(name string) (way []string) {
	p.t.Helper()
	for at := get[string](p, focused); at != name; way = append(way, at) {
		p.press(kb.Tab)
		at = get[string](p, focused)
		require.NotContains(p.t, way, at, "the focus goes in circles and never gets to %s", name)
		if at != "" { // the window itself comes after the last one
			require.True(p.t, get[bool](p, outlined), "the focus on %s cannot be seen", at)
		}
	}
	return way
}

// TestTheKeyboardAlone goes from the list to a limiter and through a change.
func TestTheKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	l := s.limiter("orders", rratelimiter.PerMinute(100), 40)
	s.limiter("mail", rratelimiter.PerMinute(100), 0)
	p := openLive(t, s.url, look{})
	p.until(seen(row("orders")))

	way := p.tabTo("#unlock")
	assert.Contains(t, way, "nav limiters")
	p.press(kb.Enter)
	p.until(one("#token-dialog") + ".open")
	require.Equal(t, "#token", get[string](p, focused))
	p.press(kb.Escape)
	p.until(closed)
	require.Equal(t, "#unlock", get[string](p, focused), "the focus returns")
	p.press(kb.Enter)
	p.press(token)
	p.press(kb.Enter)
	p.until(closed)

	p.eval("document.activeElement.blur()")
	p.tabTo("#search")
	p.press("orders")
	p.until("!" + one(row("mail")))
	p.tabTo("A orders")
	p.update(2)
	require.Equal(t, "A orders", get[string](p, focused), "numbers change, the focus stays")
	p.press(kb.Enter)
	p.until(seen("[data-action=rate]"))

	p.tabTo("action rate")
	p.press(kb.Enter)
	p.until(seen("#change-form"))
	require.True(t, get[bool](p, one("#change")+".contains(document.activeElement)"), "the focus is in the dialog")
	p.press(kb.Escape)
	p.until(closed)
	require.Equal(t, "action rate", get[string](p, focused), "the focus returns")

	p.press(kb.Enter)
	p.until(seen("#change-form"))
	p.tabTo("rate")
	p.press("a", chromedp.ModifierCtrl)
	p.press("80")
	p.press(kb.Enter)
	p.until(seen("#change-confirm"))
	p.tabTo("#change-confirm")
	p.press(kb.Enter)
	p.until(closed)
	assert.EqualValues(t, 80, s.outcome(l).config.Rate)
	require.Equal(t, "action rate", get[string](p, focused), "the focus returns")
}

// TestTheFocusStays where it is while what is around it changes.
func TestTheFocusStays(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable, withOthers)
	s.shop()
	s.visitors()
	sessions, _, _ := others(s.rdb)
	p := openLive(t, s.url, look{})
	p.unlock(token)
	p.changeRate("shop:mail", "7")
	other := openLive(t, s.url, look{})
	other.unlock(token)
	for _, c := range []struct {
		hash, at string
		change   func()
		seen     string
	}{
		{
			"#/thresholds/" + id("session-limits"), "[data-threshold=threshold]",
			func() { require.NoError(t, sessions.SetThreshold(t.Context(), "session:carol", 77)) },
			one("#thresholds") + ".innerText.includes('77')",
		},
		{
			"#/key/" + id("shop:orders"), "#key-goes a",
			func() { require.NoError(t, s.rdb.Expire(t.Context(), "shop:orders", time.Hour).Err()) },
			one("#key-facts") + ".innerText.includes('59')",
		},
		{
			"#/changes", "[data-undo]",
			func() { other.changeRate("shop:report", "900") },
			one("#audit") + ".innerText.includes('shop:report')",
		},
	} {
		p.goTo(c.hash)
		p.until(seen(c.at))
		p.eval("window.kept = " + one(c.at) + "; kept.focus()")
		c.change()
		p.until(c.seen)
		assert.True(t, get[bool](p, "kept.isConnected && document.activeElement === kept"), c.hash)
	}
}
