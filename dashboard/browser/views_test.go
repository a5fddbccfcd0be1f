package browser_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/dashboard"
	pages "github.com/rratelimiter/rratelimiter/internal/docs/page"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
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

// wide names the elements that reach beyond the window, unless they are inside of one that scrolls by itself.
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

// focused is the element that has the focus, as a selector or by its text.
const focused = `(e => e === document.body ? '' : e.id ? '#' + e.id : e.dataset.action ? 'action ' + e.dataset.action :
  e.dataset.nav ? 'nav ' + e.dataset.nav : e.name ? e.name : e.nodeName + ' ' + e.innerText.trim())(document.activeElement)`

// outlined checks that the focus is visible.
const outlined = `(e => {
  const s = getComputedStyle(e)
  return (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1) || s.boxShadow !== 'none'
})(document.activeElement)`

// tabTo moves the focus on until it is where the name says. All on the way can be seen to have the focus, and none twice.
func (p *tab) tabTo(name string) {
	p.t.Helper()
	var way []string
	for at := get[string](p, focused); at != name; way = append(way, at) {
		p.press(kb.Tab)
		at = get[string](p, focused)
		require.NotContains(p.t, way, at, "the focus goes in circles and never gets to %s", name)
		if at != "" { // the window itself comes after the last one
			require.True(p.t, get[bool](p, outlined), "the focus on %s cannot be seen", at)
		}
	}
}

// crowd makes n limiters, crowd:000000 and so on, of each of which as many permits are in use as its number has tens.
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

// TestHiddenPage_AsksForNothing, until it is seen again.
func TestHiddenPage_AsksForNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.shop()
	p := openLive(t, s.url, look{})
	p.until(views[0].shown)
	hide := func(hidden string) {
		p.eval(`Object.defineProperty(document, 'hidden', {value: ` + hidden + `, configurable: true})
			document.dispatchEvent(new Event('visibilitychange'))`)
	}
	hide("true")
	const own = 2 // commands by which that is asked
	last := 0.0
	require.Eventually(t, func() bool {
		_, now := s.used()
		defer func() { last = now }()
		return now == last+own
	}, patience, 2500*time.Millisecond, "no one looks, and the server is still asked")
	hide("false")
	p.until(isLive)
	p.update(2)
}

const (
	docs        = "../../docs"
	mostOfAll   = 600_000          // bytes of all pictures together
	forPictures = 75 * time.Second // of load: some history, and nothing left of the permits that were in use before
)

// looks are how each view is shown in docs/dashboard.md.
var looks = []struct {
	name string
	look look
}{
	{"light", look{width: 1280, height: 720}},
	{"dark", look{width: 1280, height: 720, dark: true}},
	{"narrow", look{width: 390, height: 844}},
}

// TestPictures holds that docs/dashboard.md shows each view. With -update it makes the pictures.
func TestPictures(t *testing.T) {
	t.Parallel()
	if story.Updates() {
		takePictures(t)
	}
	text := limitertest.Must(os.ReadFile(filepath.Join(docs, "dashboard.md")))(t)
	total := 0
	for _, view := range slices.Concat(views, dialogs) {
		for _, l := range looks {
			name := "dashboard/" + view.name + "-" + l.name + ".png"
			assert.Contains(t, string(text), "("+name+")")
			total += len(limitertest.Must(os.ReadFile(filepath.Join(docs, name)))(t))
		}
	}
	assert.Less(t, total, mostOfAll, "bytes of the pictures")
	assert.Equal(t, len(looks)*(len(views)+len(dialogs)), strings.Count(string(text), "(dashboard/"))
}

func takePictures(t *testing.T) {
	s := newSite(t, writable, withOthers, func(cfg *dashboard.Config) { cfg.Server = "redis.shop.example:6379" })
	s.shop()
	s.visitors()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	s.load(ctx, &wg)

	type shot struct {
		view view
		look string
		tab  *tab
	}
	var shots []shot
	for _, l := range looks {
		for _, view := range slices.Concat(views, dialogs) {
			p := openLive(t, s.url, l.look)
			p.unlock(token)
			p.until(closed)
			p.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, 1, 1)) // over nothing
			call(p, emulation.SetScrollbarsHidden, emulation.SetScrollbarsHiddenParams{Hidden: true})
			p.goTo(view.hash)
			shots = append(shots, shot{view, l.name, p})
		}
	}
	p := s.unlocked("")
	for _, change := range [][2]string{{"shop:mail", "8"}, {"shop:search", "25"}, {"shop:report", "1200"}} {
		p.changeRate(change[0], change[1])
	}
	<-time.After(forPictures)
	require.NoError(t, os.MkdirAll(filepath.Join(docs, "dashboard"), 0o750))
	for _, shot := range shots {
		shot.tab.until(shot.view.shown)
		if shot.view.act != nil {
			shot.view.act(shot.tab)
		}
		path := filepath.Join(docs, "dashboard", shot.view.name+"-"+shot.look+".png")
		require.NoError(t, os.WriteFile(path, shot.tab.small(shot.tab.png()), 0o600))
	}
	stop()
	wg.Wait()
}

// pauses are the seconds between two calls of a program, on average.
var pauses = map[string]float64{
	"shop:orders": 2.2, "shop:search": 3.4, "shop:api:03": 6, "shop:api:07": 3, "shop:api:01": 9, "shop:api:05": 7, "shop:api:10": 4.5,
}

// load uses limiters of the shop, more and less in turn, until ctx ends.
func (s *site) load(ctx context.Context, wg *sync.WaitGroup) {
	for i, program := range []string{"checkout-1", "checkout-2", "mobile app"} {
		client := s.named(program)
		for limiter, pause := range pauses {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					_, _ = client.RateLimiter(limiter).TryAcquire(ctx, 1, 0)
					wave := 1 + 0.8*math.Sin(float64(n)/4+float64(i))
					_ = chromedp.Do(ctx, chromedp.Sleep(time.Duration(pause*wave*float64(time.Second))))
				}
			})
		}
	}
}

func (p *tab) png() []byte {
	p.t.Helper()
	return call(p, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng}).Data
}

// picture keeps one among the test's artifacts (go test -artifacts), to look at after a failure.
func (p *tab) picture(name string) {
	p.t.Helper()
	path := filepath.Join(p.t.ArtifactDir(), name+".png")
	if err := os.WriteFile(path, p.png(), 0o600); err == nil {
		p.t.Log("a picture:", path)
	}
}

// small returns the picture with few colours, in a quarter of the bytes: a page has few, and the rest is the edges of letters.
func (p *tab) small(picture []byte) []byte {
	p.t.Helper()
	full := limitertest.Must(png.Decode(bytes.NewReader(picture)))(p.t)
	counts := map[color.RGBA]int{}
	bounds := full.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)]++
		}
	}
	paletted := image.NewPaletted(bounds, paletteOf(counts))
	draw.Draw(paletted, bounds, full, bounds.Min, draw.Src)
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	require.NoError(p.t, encoder.Encode(&out, paletted))
	return out.Bytes()
}

// paletteOf returns the most frequent colours, each unlike those before: so one that is rare, as of a dot, has its place too.
func paletteOf(counts map[color.RGBA]int) color.Palette {
	const unlike = 24 // as the sum of differences
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	apart := func(a, b uint8) int { return max(int(a)-int(b), int(b)-int(a)) }
	var palette color.Palette
	for i, c := range colours {
		known := slices.ContainsFunc(palette, func(p color.Color) bool {
			o := p.(color.RGBA)
			return apart(c.R, o.R)+apart(c.G, o.G)+apart(c.B, o.B) < unlike
		})
		if i < 16 || !known && len(palette) < 256 { // what the page is drawn with stays as it is
			palette = append(palette, c)
		}
	}
	return palette
}

// info returns the sum of these figures of the Redis.
func (s *site) info(section string, names ...string) (sum float64) {
	s.t.Helper()
	info := limitertest.Must(s.rdb.InfoMap(s.t.Context(), section).Result())(s.t)
	for _, name := range names {
		n, err := strconv.ParseFloat(info[strings.ToUpper(section[:1])+section[1:]][name], 64)
		require.NoError(s.t, err, name)
		sum += n
	}
	return sum
}

// used returns how much processor time the Redis has used so far, and how many commands it has run.
func (s *site) used() (seconds, commands float64) {
	s.t.Helper()
	return s.info("CPU", "used_cpu_sys", "used_cpu_user"), s.info("stats", "total_commands_processed")
}

// measure takes what the page, left open, costs the server with that many limiters.
func measure(t *testing.T, limiters int) (row []string) {
	t.Helper()
	s := newSite(t)
	s.crowd(limiters)
	p := openLive(t, s.url, look{})
	// Once all were seen, it is the same second after second.
	p.within(10*time.Minute, one("#summary")+`.innerText.replace(/\D/g, '').endsWith(`+quote(strconv.Itoa(limiters))+
		`) && `+one("#cost")+`.innerText.includes('every')`)
	p.update(3)
	from := time.Now()
	busy, commands := s.used()
	p.update(20)
	took := time.Since(from).Seconds()
	busyThen, commandsThen := s.used()
	round := get[float64](p, `fetch('api/limiters?limit=1').then(r => r.json()).then(r => r.round_ms)`) / 1000
	return []string{
		strconv.Itoa(limiters), fmt.Sprintf("%.1f ms", 1000*(busyThen-busy)/took), fmt.Sprintf("%.0f", (commandsThen-commands)/took),
		fmt.Sprintf("%.0f s", round),
	}
}

// TestFigures writes its measurements to docs/dashboard.md, with -update.
//
//nolint:paralleltest // what is measured should have the machine for itself
func TestFigures(t *testing.T) {
	path := filepath.Join(docs, "dashboard.md")
	text := limitertest.Must(os.ReadFile(path))(t)
	filled, err := pages.Fill(string(text), func(name, old string) (string, error) {
		if name != "figures" || !story.Updates() {
			return old, nil
		}
		var rows [][]string
		for _, limiters := range []int{10, 1000, 50_000} {
			rows = append(rows, measure(t, limiters))
		}
		return pages.Table([]string{"limiters", "the server's time, a second", "commands a second", "all are seen in"}, rows, true), nil
	})
	require.NoError(t, err)
	assert.Contains(t, filled, "<!-- begin figures -->")
	if story.Updates() {
		require.NoError(t, os.WriteFile(path, []byte(filled), 0o600))
	}
}
