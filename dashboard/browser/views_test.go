package browser_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// view is something that the page can show: where, and by what one sees that it does.
type view struct {
	name, hash, shown string
	act               func(p *tab) // what it takes beyond going there
}

// views are those that have addresses.
var views = []view{
	{name: "limiters", hash: "#/", shown: seen(row("shop:orders"))},
	{name: "limiter", hash: "#/limiter/" + id("shop:orders"), shown: seen("#holders tbody tr")},
	{name: "others", hash: "#/others", shown: seen("#view-others tbody tr")},
	{name: "key", hash: "#/key/" + id("session:bob"), shown: seen("#view-key")},
	{name: "thresholds", hash: "#/thresholds/" + id("session-limits"), shown: seen("#thresholds tbody tr")},
	{name: "changes", hash: "#/changes", shown: seen("#audit tbody tr")},
}

// dialogs are shown over a limiter's page.
var dialogs = []view{
	{name: "change", hash: views[1].hash, shown: views[1].shown, act: func(p *tab) {
		p.change("rate")
		p.fill(field("rate"), "80")
	}},
	{name: "review", hash: views[1].hash, shown: views[1].shown, act: func(p *tab) {
		p.change("rate")
		p.fill(field("rate"), "80")
		p.review()
	}},
}

// TestViews looks at each view by itself.
func TestViews(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable, withOthers)
	s.shop()
	s.visitors()
	p := s.unlocked("")
	p.changeRate("shop:mail", "7") // so that there is one to list
	for _, view := range slices.Concat(views, dialogs) {
		t.Run(view.name, func(t *testing.T) {
			p := p.in(t)
			if view.hash == views[1].hash { // what was taken first comes back after a minute
				s.take(s.client.RateLimiter("shop:orders"), 1)
			}
			p.goTo(view.hash)
			p.until(view.shown)
			if view.act != nil {
				view.act(p)
			}
			p.accessible()
			p.fits()
			if view.act != nil {
				p.click("#change-cancel")
				p.until(closed)
			}
		})
	}
}

// in returns the same tab for a subtest.
func (p *tab) in(t testing.TB) *tab {
	outer := p.t
	p.t = t
	t.Cleanup(func() { p.t = outer })
	return p
}

// sizes of windows, from a small telephone to 4K.
var sizes = []look{{width: 360, height: 640}, {width: 768, height: 1024}, {width: 1280, height: 800}, {width: 3840, height: 2160}}

// wide names the elements that reach beyond the window, unless they are inside of
// one that scrolls by itself.
const wide = `[...document.querySelectorAll('body *')].filter(e => {
  if (!e.checkVisibility({visibilityProperty: true})) return false
  const box = e.getBoundingClientRect()
  if (box.width < 2 || box.height < 2 || box.right <= 0 || (box.right <= innerWidth + 1 && box.left >= -1)) return false
  for (let a = e.parentElement; a && a !== document.body; a = a.parentElement)
    if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(a).overflowX)) return false
  return true
}).map(e => e.nodeName + '#' + e.id + '.' + e.className)`

// cut are the figures, and heads of figures, that are partly hidden.
const cut = `[...document.querySelectorAll('.n, .n *, td:has(.bar-cell)')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 &&
  getComputedStyle(e).display !== 'inline').map(e => e.innerText)`

// named is what says whose limiters one looks at, or is about to change.
const named = `(document.querySelector('dialog[open] #change-server') ?? document.querySelector('#server'))`

// fits fails the test if the page has to be scrolled sideways, shows figures in part or does not name the server.
func (p *tab) fits() {
	p.t.Helper()
	for _, size := range sizes {
		p.resize(size.width, size.height)
		what := fmt.Sprintf("%d pixels wide", size.width)
		assert.Empty(p.t, get[[]string](p, wide), what)
		assert.Empty(p.t, get[[]string](p, cut), what)
		assert.True(p.t, get[bool](p, named+".checkVisibility() && "+named+".innerText !== ''"), what)
		root := "document.documentElement"
		assert.LessOrEqual(p.t, get[int](p, root+".scrollWidth"), get[int](p, root+".clientWidth"), what)
	}
	p.resize(0, 0)
}

// TestLayout_StaysWhileNumbersChange, as long as the order of the list stays.
func TestLayout_StaysWhileNumbersChange(t *testing.T) {
	t.Parallel()
	for _, view := range views[:2] {
		t.Run(view.name, func(t *testing.T) {
			t.Parallel()
			// Of this test alone: permits come back, and the order changes, in a minute.
			s := newSite(t)
			s.shop()
			orders := s.client.RateLimiter("shop:orders") // far from those before and behind it
			p := openLive(t, s.url+view.hash, look{})
			p.until(view.shown)
			p.update(1)
			before := get[[]string](p, boxes)
			p.eval("shifts.length = 0")
			p.eval(listen)
			for range 3 {
				s.take(orders, 1)
				p.update(1)
			}
			assert.Empty(t, get[[]string](p, "shifts"), "these moved")
			assert.Equal(t, before, get[[]string](p, boxes))
			assert.Empty(t, get[[]string](p, "announced"), "screen readers say this each second")
		})
	}
}

// listen notes what a screen reader would say by itself.
const listen = `
window.announced = []
for (const e of document.querySelectorAll('[role=status], [role=alert], [role=log], [aria-live]'))
  new MutationObserver(() => announced.push(e.id + ': ' + e.innerText)).observe(e, {subtree: true, childList: true, characterData: true})
`

// boxes returns the place of every element with an id.
const boxes = `[...document.querySelectorAll('main [id], main th')].filter(e => e.checkVisibility()).map(e => {
  const box = e.getBoundingClientRect()
  return e.nodeName + '#' + e.id + ' ' + [box.x, box.y, box.width].map(Math.round).join(' ')
})`

// focused is the element that has the focus, as a selector or by its text.
const focused = `(e => e === document.body ? '' : e.id ? '#' + e.id : e.dataset.action ? 'action ' + e.dataset.action :
  e.dataset.nav ? 'nav ' + e.dataset.nav : e.name ? e.name : e.nodeName + ' ' + e.innerText.trim())(document.activeElement)`

// outlined checks that the focus is visible.
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

// crowd makes n limiters, crowd:000000 and so on, of each of which as many permits
// are in use as its number has tens.
func (s *site) crowd(n int) {
	s.t.Helper()
	ctx := s.t.Context()
	for i := 0; i < n; i += 5000 {
		_, err := s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for j := i; j < min(i+5000, n); j++ {
				name := fmt.Sprintf("crowd:%06d", j)
				pipe.HSet(ctx, name, "rate", 100, "interval", 60000, "type", 0)
				pipe.Set(ctx, "{"+name+"}:value", 100, 0)
			}
			return nil
		})
		require.NoError(s.t, err)
	}
}

// TestFiftyThousandLimiters: search, sort and pages go on, what the page holds stays
// small, and it says what it costs the server.
func TestFiftyThousandLimiters(t *testing.T) {
	t.Parallel()
	// As many reads as usual would take a minute to see all of them for the first time.
	s := newSite(t, func(cfg *dashboard.Config) { cfg.Reads = 20_000 })
	s.crowd(50_000)
	p := openLive(t, s.url, look{})
	p.until(`document.querySelectorAll('#limiters tbody tr[data-id]').length === 50`)
	first := func(name string) {
		t.Helper()
		p.until(`document.querySelector('#limiters tbody tr [data-col="name"]').innerText.trim() === ` + quote(name))
	}
	p.within(2*time.Minute, `document.querySelector('#summary').innerText.replace(/\D/g, '').includes('50000')`)
	p.choose("#sort", "name")
	first("crowd:000000")
	p.click("#reverse")
	first("crowd:049999")
	p.click("#next")
	first("crowd:049949")
	p.fill("#search", "43210")
	first("crowd:043210")
	assert.Less(t, get[int](p, `document.querySelectorAll('*').length`), 3000, "elements of the page")
	assert.Regexp(t, `\d`, p.text("#cost"))
}

// TestHiddenPage_AsksForNothing, until it is seen again.
func TestHiddenPage_AsksForNothing(t *testing.T) {
	t.Parallel()
	var proxy *redistest.Proxy
	s := newSite(t, func(cfg *dashboard.Config) {
		proxy = redistest.StartProxy(t, cfg.Redis.(*redis.Client).Options().Addr)
		cfg.Redis = proxy.Client(t, nil).(redis.UniversalClient)
	})
	s.shop()
	p := openLive(t, s.url, look{})
	p.until(seen(row("shop:orders")))
	p.visible("hidden")
	last := -1
	require.Eventually(t, func() bool {
		now := proxy.Requests()
		defer func() { last = now }()
		return now == last
	}, patience, 2500*time.Millisecond, "no one looks, and the server is still asked")
	p.visible("visible")
	p.until(isLive)
	p.update(2)
}

// visible hides the window from the page, or shows it again.
func (p *tab) visible(state string) {
	p.t.Helper()
	p.eval(`Object.defineProperty(document, 'visibilityState', {value: ` + quote(state) + `, configurable: true})
		Object.defineProperty(document, 'hidden', {value: document.visibilityState === 'hidden', configurable: true})
		document.dispatchEvent(new Event('visibilitychange'))`)
}
