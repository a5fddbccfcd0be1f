// Package browser_test holds the tests of the dashboard in a real browser.
package browser_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/css"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// chromium is the browser that all tests share, by its context: each test's windows share neither storage nor connections.
var chromium = sync.OnceValues(startChromium)

var endChromium = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	endChromium()
	os.Exit(code)
}

// findChromium returns the path of a browser, or none. The names are those of scripts/install-chromium.sh.
func findChromium() string {
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func startChromium() (context.Context, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(findChromium()),
		chromedp.DisableGPU,
		// Sizes and pictures must not depend on the machine.
		chromedp.Flag("force-device-scale-factor", "1"),
		chromedp.Flag("hide-scrollbars", false),
		chromedp.Flag("font-render-hinting", "none"),
	)
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to have one as root
	}
	process, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, closeAll := chromedp.NewContext(process)
	endChromium = func() {
		closeAll()
		end()
	}
	return ctx, chromedp.Do(ctx)
}

// browser returns the context of the browser, which the first call starts.
func browser(t testing.TB) context.Context {
	t.Helper()
	redistest.SkipShort(t, "a browser")
	if findChromium() == "" {
		redistest.SkipOrFail(t, "no chromium in PATH: scripts/install-chromium.sh")
	}
	ctx, err := chromium()
	require.NoError(t, err)
	return ctx
}

// patience is how long anything may take that a test waits for.
const patience = 30 * time.Second

// tab is a page in a window of its own. A test that has one fails, beside what it checks itself, if the page logs errors, opens
// dialogs, asks other servers for anything, or breaks its own Content-Security-Policy.
type tab struct {
	t    testing.TB
	ctx  context.Context
	base string // address of the page

	expected *regexp.Regexp // complaints that the test provokes

	mu         sync.Mutex
	complaints []string
	requests   []string // as "METHOD URL"
	updates    int      // events that the page was sent
}

// look says how a page is looked at. The zero value is a desktop, in light.
type look struct {
	width, height int64
	dark          bool
}

// prologue runs before the page's own script: it notes what moves by itself and what the page's policy kept from happening.
const prologue = `
window.shifts = []
new PerformanceObserver(list => {
  for (const e of list.getEntries()) if (!e.hadRecentInput) window.shifts.push(
    e.value.toFixed(5) + ' ' + e.sources.map(s => s.node ? (s.node.id || s.node.className || s.node.nodeName) : '?').join(', '))
}).observe({type: 'layout-shift', buffered: true})
window.broken = []
document.addEventListener('securitypolicyviolation', e => window.broken.push(e.violatedDirective + ' ' + e.blockedURI))
`

// open returns a tab that shows the address.
func open(t testing.TB, address string, l look) *tab {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(browser(t), chromedp.WithNewBrowserContext())
	t.Cleanup(closeTab)
	base, _, _ := strings.Cut(address, "#")
	p := &tab{t: t, ctx: ctx, base: base}
	require.NoError(t, chromedp.Listen(ctx, p.note))
	t.Cleanup(func() { assert.Empty(t, p.faults(), "the page must not do that") })

	// The mirror that chromedp keeps of each document is for queries that no test makes, and costs at each update.
	call(p, css.Disable, cdp.Empty{})
	call(p, dom.Disable, cdp.Empty{})
	call(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: prologue})
	call(p, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	call(p, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "UTC"})
	call(p, emulation.SetLocaleOverride, emulation.SetLocaleOverrideParams{Locale: "en-GB"})
	p.resize(l.width, l.height)
	p.dark(l.dark)
	p.visit(address)
	return p
}

func call[P, R any](p *tab, command cdp.Command[P, R], params P) R {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	r, err := chromedp.Call(ctx, command, params)
	require.NoError(p.t, err, command.Method)
	return r
}

func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	require.NoError(p.t, chromedp.Do(ctx, actions...))
}

func (p *tab) visit(address string) {
	p.t.Helper()
	p.do(chromedp.Navigate(address))
}

func (p *tab) goTo(hash string) {
	p.t.Helper()
	p.eval(`location.hash = ` + quote(hash))
}

func (p *tab) resize(width, height int64) {
	p.t.Helper()
	if width == 0 {
		width, height = 1280, 800
	}
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
}

func (p *tab) dark(dark bool) {
	p.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme},
		{Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// note keeps what the browser tells of the page. It must not wait.
func (p *tab) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	complain := func(format string, args ...any) { p.complaints = append(p.complaints, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			for _, arg := range e.Args {
				complain("console: %s%s", arg.Value, arg.Description)
			}
		}
	case *runtime.EventExceptionThrown:
		complain("exception: %v", chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails})
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			complain("log: %s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *page.EventJavascriptDialogOpening:
		complain("dialog: %s", e.Message)
		go func() { // else nothing goes on in the page
			_, _ = chromedp.Call(p.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}()
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.Method+" "+e.Request.URL)
		if !strings.HasPrefix(e.Request.URL, p.base) && !strings.HasPrefix(e.Request.URL, "data:") {
			complain("request elsewhere: %s", e.Request.URL)
		}
	case *network.EventEventSourceMessageReceived:
		p.updates++
	}
}

// provokes makes complaints that the pattern matches no failures.
func (p *tab) provokes(pattern string) { p.expected = regexp.MustCompile(pattern) }

// asked returns the requests so far that contain the text.
func (p *tab) asked(text string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.requests), func(line string) bool { return !strings.Contains(line, text) })
}

// update waits until the page has been sent n more events, and has shown them.
func (p *tab) update(n int) {
	p.t.Helper()
	count := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.updates
	}
	want := count() + n
	require.Eventually(p.t, func() bool { return count() >= want }, patience, 20*time.Millisecond, "%d updates", n)
	p.eval("new Promise(shown => requestAnimationFrame(() => setTimeout(shown)))")
}

// faults returns what happened that must not on any page.
func (p *tab) faults() []string {
	// Ask the page first: what it said before is then noted.
	broken, _ := evaluate[[]string](p, "window.broken")
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(p.complaints), func(complaint string) bool { return p.expected != nil && p.expected.MatchString(complaint) })
	for _, violation := range broken {
		all = append(all, "policy: "+violation)
	}
	return all
}

func evaluate[T any](p *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience+5*time.Second)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

func (p *tab) eval(expression string) {
	p.t.Helper()
	_, err := evaluate[chromedp.Void](p, expression)
	require.NoError(p.t, err, expression)
}

// get returns what the expression is in the page.
func get[T any](p *tab, expression string) T {
	p.t.Helper()
	v, err := evaluate[T](p, expression)
	require.NoError(p.t, err, expression)
	return v
}

// await is a script that looks often whether a condition holds: it must not depend on frames, which a busy machine draws rarely.
const await = `new Promise((resolve, reject) => {
  const end = performance.now() + %d
  const look = () => {
    try {
      if (%s) return resolve(true)
    } catch (e) {
      if (performance.now() > end) return reject(e)
    }
    performance.now() > end ? resolve(false) : setTimeout(look, 20)
  }
  look()
})`

// until waits for the condition, an expression of the page.
func (p *tab) until(condition string) {
	p.t.Helper()
	p.within(patience, condition)
}

func (p *tab) within(d time.Duration, condition string) {
	p.t.Helper()
	var holds bool
	var err error
	for deadline := time.Now().Add(d); !holds && time.Now().Before(deadline); {
		left := min(time.Until(deadline), patience).Milliseconds()
		holds, err = evaluate[bool](p, fmt.Sprintf(await, left, condition)) // fails too if the document is replaced meanwhile
	}
	if !holds {
		p.picture("failed")
		require.Fail(p.t, "never: "+condition, "%v, the page says:\n%s", err, get[string](p, "document.body.innerText"))
	}
}

func (p *tab) text(selector string) string {
	p.t.Helper()
	return get[string](p, one(selector)+".innerText")
}

func one(selector string) string { return "document.querySelector(" + quote(selector) + ")" }

func quote(text string) string {
	literal, _ := json.Marshal(text)
	return string(literal)
}

// seen is the condition that the element is there and can be seen.
func seen(selector string) string {
	return fmt.Sprintf("(%s?.checkVisibility({visibilityProperty: true, opacityProperty: true}) ?? false)", one(selector))
}

// place is a condition under which a pointer reaches the element; its value is the point, else false.
// The page's missed says whether the next click is one on another, as when the element moves away beneath the pointer.
const place = `(e => {
  if (!e || e.disabled || !e.checkVisibility({visibilityProperty: true})) return false
  e.scrollIntoView({block: 'nearest', behavior: 'instant'})
  const box = e.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2
  const reached = top => top && (e.contains(top) || top.closest('label')?.control === e)
  if (!reached(document.elementFromPoint(x, y))) return false
  window.missed = false
  window.look = c => { window.missed = !reached(c.target) }
  addEventListener('click', c => window.look(c), {capture: true, once: true})
  return [x, y]
})(%s)`

// click presses the mouse where the element is, once it can be reached.
func (p *tab) click(selector string) {
	p.t.Helper()
	where := fmt.Sprintf(place, one(selector))
	for again := true; again; again = get[bool](p, "!!window.missed") {
		var at []float64
		for at == nil {
			p.until(where)
			at = get[[]float64](p, where+" || null")
		}
		p.do(chromedp.MouseClickXY(at[0], at[1]))
	}
}

func (p *tab) fill(selector, text string) {
	p.t.Helper()
	p.click(selector)
	p.eval(one(selector) + ".select()")
	call(p, input.InsertText, input.InsertTextParams{Text: text})
}

func (p *tab) choose(selector, value string) {
	p.t.Helper()
	p.until(seen(selector))
	p.eval(fmt.Sprintf(`(e => {
		e.value = %s
		e.dispatchEvent(new Event('input', {bubbles: true}))
		e.dispatchEvent(new Event('change', {bubbles: true}))
	})(%s)`, quote(value), one(selector)))
	require.Equal(p.t, value, get[string](p, one(selector)+".value"))
}

// press types a key, such as kb.Tab, at the focus.
func (p *tab) press(key string, modifiers ...chromedp.Modifier) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(key, chromedp.KeyModifiers(modifiers...)))
}

// axe is version 4.14.1 of the npm package axe-core, whose licence is beside it.
//
//go:embed testdata/axe-core/axe.min.js
var axe string

// allRules are those that axe-core does not call experimental; colours alone differ between light and dark.
const (
	allRules = `['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']`
	colours  = `['color-contrast', 'link-in-text-block']`
)

const runAxe = `axe.run(document, {runOnly: %s, resultTypes: ['violations']}).then(r => r.violations.map(v =>
  v.id + ' (' + v.impact + '): ' + v.help +
  v.nodes.slice(0, 5).map(n => '\n\t' + n.target.join(' ') + '\n\t\t' + n.html.slice(0, 300) + '\n\t\t' + n.failureSummary).join('')))`

// violations returns those that axe-core finds on what the tab shows, by its rules.
func (p *tab) violations(rules string) []string {
	p.t.Helper()
	if !get[bool](p, "'axe' in window") {
		p.eval(axe)
	}
	return get[[]string](p, fmt.Sprintf(runAxe, rules))
}

// accessible fails the test if axe-core finds anything, in light or in dark.
func (p *tab) accessible() {
	p.t.Helper()
	found := p.violations(allRules)
	p.dark(true)
	found = append(found, p.violations(colours)...)
	p.dark(false)
	assert.Empty(p.t, found, "axe-core")
}

// TestTab_ReportsFaults of a page, to the test and to axe-core.
func TestTab_ReportsFaults(t *testing.T) {
	t.Parallel()
	serve := func(policy, body string) (address string) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", policy)
			fmt.Fprintf(w, "<!doctype html><html lang=en><title>a page</title>%s</html>", body)
		}))
		t.Cleanup(s.Close)
		return s.URL + "/"
	}
	elsewhere := serve("", "")
	p := open(t, serve("img-src 'none'; script-src-attr 'none'", `<main><button></button></main>
		<script>
			fetch('`+elsewhere+`there', {mode: 'no-cors'})
			console.error('oh')
			alert('hello')
			undefined.x
		</script>
		<img alt="" src="x"><p onclick="x()">`), look{})
	p.until("broken.length === 2")
	faults := strings.Join(append(p.faults(), p.violations(allRules)...), "\n")
	for _, fault := range []string{
		"request elsewhere: " + elsewhere + "there", `console: "oh"`, "dialog: hello", "exception: ", "policy: img-src", "policy: script-src-attr",
		"button-name (",
	} {
		assert.Contains(t, faults, fault)
	}
	p.provokes("")
	p.eval("broken.length = 0")
}
