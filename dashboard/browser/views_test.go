package browser_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
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

// show has the tab show the view.
func (p *tab) show(v view) {
	p.t.Helper()
	p.goTo(v.hash)
	p.until(v.shown)
	if v.act != nil {
		v.act(p)
	}
}

// TestViews looks at each view by itself.
func TestViews(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable, withOthers)
	s.shop()
	s.visitors()
	p := openLive(t, s.url, look{})
	p.unlock(token)
	p.changeRate("shop:mail", "7") // so that there is one to list
	for _, view := range slices.Concat(views, dialogs) {
		t.Run(view.name, func(t *testing.T) {
			p := p.in(t)
			p.show(view)
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

// cut are the figures, and heads of figures, of which a part is not to be seen.
const cut = `[...document.querySelectorAll('.n, .n *')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 &&
  getComputedStyle(e).display !== 'inline').map(e => e.innerText)`

// fits fails the test where the page has to be scrolled sideways, or shows figures in
// part.
func (p *tab) fits() {
	p.t.Helper()
	for _, size := range sizes {
		p.resize(size.width, size.height)
		what := fmt.Sprintf("%d pixels wide", size.width)
		assert.Empty(p.t, get[[]string](p, wide), what)
		assert.Empty(p.t, get[[]string](p, cut), what)
		root := "document.documentElement"
		assert.LessOrEqual(p.t, get[int](p, root+".scrollWidth"), get[int](p, root+".clientWidth"), what)
	}
	p.resize(0, 0)
}

// TestNothingMovesWhileNumbersChange, as long as the order of the list stays.
func TestNothingMovesWhileNumbersChange(t *testing.T) {
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

// boxes tells where everything is that has an id.
const boxes = `[...document.querySelectorAll('main [id], main th')].filter(e => e.checkVisibility()).map(e => {
  const box = e.getBoundingClientRect()
  return e.nodeName + '#' + e.id + ' ' + [box.x, box.y, box.width].map(Math.round).join(' ')
})`

// TestTheListFindsAndSorts also holds what the list says of a limiter.
func TestTheListFindsAndSorts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.shop()
	p := openLive(t, s.url, look{})
	p.until(seen(row("shop:orders")))
	assert.Equal(t, "35", p.text(cell("shop:orders", "free")))
	assert.Contains(t, p.text(cell("shop:orders", "rate")), "100")
	assert.Contains(t, p.text(cell("shop:orders", "use")), "65")
	callers := p.text(cell("shop:orders", "callers"))
	assert.Contains(t, callers, "checkout")
	assert.Contains(t, callers, "mobile app")

	names := `[...document.querySelectorAll('#limiters tbody tr [data-col="name"]')].map(e => e.innerText.trim())`
	p.choose("#sort", "name")
	p.until(`(n => n.length === 16 && n[0] === 'shop:api:00' && n[15] === 'shop:search')(` + names + `)`)
	p.click("#reverse")
	p.until(`(n => n.length === 16 && n[15] === 'shop:api:00' && n[0] === 'shop:search')(` + names + `)`)
	p.click("#reverse")
	p.choose("#sort", "use")
	p.until(`(n => n[0] === 'shop:mail' && n[1] === 'shop:orders' && n[2] === 'shop:api:11')(` + names + `)`)

	p.fill("#search", "api:1")
	p.until(`(n => n.length === 2 && n.every(x => x.includes('api:1')))(` + names + `)`)
	p.fill("#search", "there is none")
	p.until(seen("#empty"))
	p.fill("#search", "")
	p.until(`(n => n.length === 16)(` + names + `)`)

	// What happens elsewhere shows without a touch.
	s.limiter("shop:new", rratelimiter.PerMinute(10), 10)
	p.until(seen(row("shop:new")))
	ok, err := s.client.RateLimiter("shop:new").Delete(t.Context())
	require.True(t, ok)
	require.NoError(t, err)
	p.until("!" + one(row("shop:new")))
}

func TestALimitersOwnPage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.shop()
	p := openLive(t, s.url, look{})
	p.click(cell("shop:orders", "name") + " a")
	p.until(seen("#holders tbody tr"))
	assert.Equal(t, "#/limiter/"+id("shop:orders"), get[string](p, "location.hash"))
	assert.Contains(t, p.text("#limiter-name"), "shop:orders")
	fact := func(name string) string { return p.text(fmt.Sprintf(`[data-fact=%q]`, name)) }
	assert.Contains(t, fact("free"), "35")
	assert.Contains(t, fact("in-use"), "65")
	assert.Contains(t, fact("rate"), "100")
	holders := p.text("#holders")
	assert.Contains(t, holders, "checkout")
	assert.Contains(t, holders, "mobile app")
	assert.Contains(t, holders, "40")
	assert.True(t, get[bool](p, seen("#returns")))
	assert.True(t, get[bool](p, seen("#history")))

	s.take(s.client.RateLimiter("shop:orders"), 5)
	p.until(one(`[data-fact="free"]`) + `.innerText.includes('30')`)
	_, err := s.client.RateLimiter("shop:orders").Delete(t.Context())
	require.NoError(t, err)
	p.until(seen("#limiter-gone"))
}

// TestWhatAddressesAnswers: no one is led astray by an address that is old, or made up.
func TestAddressesThatThereAreNot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := openLive(t, s.url+"#/nowhere", look{})
	p.until(seen("#view-limiters"))
	p.goTo("#/limiter/" + id("never was"))
	p.until(seen("#limiter-gone"))
	p.provokes("status of 4")
	p.goTo("#/limiter/%%%")
	p.update(0)
	p.goTo("#/")
	p.until(seen("#view-limiters"))
}
