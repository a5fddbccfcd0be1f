package browser_test

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
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
		require.NoError(s.t, limitertest.Second(sessions.Take(ctx, "session:"+who, int64(i+2))))
		require.NoError(s.t, limitertest.Second(visits.Take(ctx, "visit:"+who, int64(5*i+5))))
		require.NoError(s.t, limitertest.Second(uploads.Take(ctx, "upload:"+who, int64(9*i+1))))
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
	require.True(s.t, limitertest.Must(l.TryAcquire(s.t.Context(), permits, 0))(s.t), "%d permits of %q", permits, l.Name())
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
func id(name string) string  { return base64.RawURLEncoding.EncodeToString([]byte(name)) }
func row(name string) string { return fmt.Sprintf(`#limiters tr[data-id=%q]`, id(name)) }

// openLive returns a tab that shows the address, once what it shows is live.
func openLive(t testing.TB, address string, l look) *tab {
	t.Helper()
	p := open(t, address, l)
	p.until(isLive)
	return p
}

// unlocked returns a tab that shows a view of a site that allows changes, and may make them.
func (s *site) unlocked(hash string) *tab {
	s.t.Helper()
	p := openLive(s.t, s.url+hash, look{})
	p.unlock(token)
	return p
}

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

// TestServers_GoAway, or hang: the page says so, keeps what it last knew, and goes on by itself, also once the dashboard is back.
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
		l := limitertest.Must(net.Listen("tcp", s.http.Listener.Addr().String()))(t)
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

// TestScripts plays those of testdata/script, each on a site of its own. What follows a title says what the site has and allows.
func TestScripts(t *testing.T) {
	t.Parallel()
	story.Run(t, func(t *testing.T, title string, steps []story.Step) {
		t.Helper()
		var options []string
		if _, list, found := strings.Cut(title, " | "); found {
			options = strings.Fields(list)
		}
		s := &scene{}
		var fills []func(*site)
		var configure []func(*dashboard.Config)
		for _, option := range options {
			switch option {
			case "locked", "writable":
				configure, s.unlocks = append(configure, writable), option == "writable"
			case "others":
				configure, fills = append(configure, withOthers), append(fills, (*site).visitors)
			case "shop":
				fills = append(fills, (*site).shop)
			default: // a pattern
				configure = append(configure, func(cfg *dashboard.Config) { cfg.Pattern = option })
			}
		}
		s.site = newSite(t, configure...)
		for _, fill := range fills {
			fill(s.site)
		}
		for _, step := range steps {
			if !s.beside(step) {
				s.page(step)
			}
		}
	})
}

// A scene is what a script is played on.
type scene struct {
	*site

	tab     *tab // from the first step on that needs one
	unlocks bool
}

// shorthands are what a script writes for an id in the page's addresses, and for the selectors of a limiter's row and of a cell.
var shorthands = regexp.MustCompile(`(ID|ROW|CELL)\(([^)]*?)(?:, (\w+))?\)`)

func expand(text string) string {
	return shorthands.ReplaceAllStringFunc(text, func(short string) string {
		parts := shorthands.FindStringSubmatch(short)
		switch of := id(parts[2]); parts[1] {
		case "ROW":
			return fmt.Sprintf("#limiters tr[data-id='%s']", of)
		case "CELL":
			return fmt.Sprintf("#limiters tr[data-id='%s'] [data-col='%s']", of, parts[3])
		default:
			return of
		}
	})
}

// beside does what a line says of something else than the page, and reports whether it is such a line:
//
//	redis HSET bad rate x             runs a command of the server, which may be compared with what it answers
//	limiter orders 100 1m 40 48h      sets a rate, of which so many permits are in use, with that keep-alive time, or for each client
//	take orders 5 "mobile app"        takes permits, by a client of another name
//	settle orders 30 42               settles a reservation
//	crowd 1000                        makes so many limiters
//	outcome orders => {OVERALL 60 1m0s 0s} 59 0s      is its rate, and what is free, and when it expires
func (s *scene) beside(step story.Step) bool {
	t, words := s.t, step.Words
	t.Helper()
	of := func(i int) *rratelimiter.RateLimiter {
		if len(words) > i {
			return s.named(words[i], rratelimiter.WithClientID(words[i])).RateLimiter(words[1])
		}
		return s.client.RateLimiter(words[1])
	}
	switch words[0] {
	case "redis":
		step.Redis(t, s.rdb)
	case "limiter":
		cfg := limitertest.Every(step.Int(t, 2), step.Span(t, 3))
		if len(words) > 5 && words[5] == "each" {
			cfg.Type = rratelimiter.PerClient
		} else {
			cfg.KeepAlive = step.Span(t, 5)
		}
		s.limiter(words[1], cfg, step.Int(t, 4))
	case "take":
		s.take(of(3), step.Int(t, 2))
	case "settle":
		require.NoError(t, limitertest.Reserve(t, of(4), step.Int(t, 2)).Settle(t.Context(), step.Int(t, 3)))
	case "crowd":
		s.crowd(int(step.Int(t, 1)))
	case "outcome":
		require.Equal(t, step.Want, s.outcome(of(2)), step.Line)
	default:
		return false
	}
	return true
}

// page does what a line says of the page. Selectors are as in CSS, and may be shorthands:
//
//	go #/changes                      goes to a view; load does so in a new tab
//	unlock a guess                    gives the page this token, or the right one
//	see #told =~ ^Done                waits until an element is seen, and has this text (=>) or matches (=~)
//	hide #told                        waits until it is not seen
//	until document.hidden             waits until this is true
//	run window.x = 1                  runs it
//	click #x, fill #x => text, choose #x => value, press Enter, press some text
//	tab #x                            moves the focus on until it is there; focus #x only waits for that
//	change rate, dialog #x            opens the dialog of a change
//	field rate => 80                  fills its form
//	review 3 0                        goes on to what the change would do, with that before and after
//	confirm                           makes it; make expire ttl 2 does all that
//	closed                            waits until no dialog is open
//	asked api/change => 0             is how many requests the page has made
//	fits, accessible, resize 360 640, update 2, provokes status of 4      are what tab's methods are
func (s *scene) page(step story.Step) {
	s.t.Helper()
	if s.tab == nil {
		s.tab = openLive(s.t, s.url, look{})
		if s.unlocks {
			s.tab.unlock(token)
			s.tab.until(closed)
		}
	}
	p, verb, words := s.tab, step.Words[0], step.Words[1:]
	rest := expand(strings.Join(words, " "))
	code := expand(strings.TrimSpace(strings.TrimPrefix(step.Line, verb)))
	want := expand(step.Want)
	switch verb {
	case "go":
		p.goTo(rest)
	case "load":
		s.tab = open(s.t, s.url+rest, look{})
		s.tab.expected = p.expected
	case "unlock":
		p.unlock(cmp.Or(rest, token))
	case "see":
		p.until(seen(rest))
		if step.Mark != "" {
			p.says(rest, pattern(step.Mark, want))
		}
	case "hide":
		p.until("!" + seen(rest))
	case "until":
		p.until(code)
	case "run":
		p.eval(code)
	case "focus":
		p.until(focused + " === " + quote(rest))
	case "closed":
		p.until(closed)
	case "asked":
		require.Regexp(s.t, pattern(step.Mark, want), strconv.Itoa(len(p.asked(rest))), step.Line)
	case "fits":
		p.fits()
	case "accessible":
		p.accessible()
	case "provokes":
		p.provokes(rest)
	default:
		p.act(step, rest, want)
	}
}

// act does what a line says that a user does.
func (p *tab) act(step story.Step, rest, want string) {
	p.t.Helper()
	words := step.Words[1:]
	switch step.Words[0] {
	case "click":
		p.click(rest)
	case "fill":
		p.fill(rest, want)
	case "choose":
		p.choose(rest, want)
	case "tab":
		p.tabTo(rest)
	case "press":
		if rest == "Ctrl+a" {
			p.press("a", chromedp.ModifierCtrl)
			return
		}
		if key, named := map[string]string{"Enter": kb.Enter, "Escape": kb.Escape}[rest]; named {
			rest = key
		}
		p.press(rest)
	case "change":
		p.change(rest)
	case "dialog":
		p.dialog(rest)
	case "field":
		p.set(field(rest), want)
	case "review":
		before, after := p.review()
		if len(words) > 0 {
			require.Contains(p.t, before, words[0], step.Line)
			require.Contains(p.t, after, words[1], step.Line)
		}
	case "confirm":
		p.confirm()
	case "make":
		p.make(words[0], words[1], words[2])
	case "resize":
		p.resize(step.Int(p.t, 1), step.Int(p.t, 2))
	case "update":
		p.update(int(step.Int(p.t, 1)))
	default:
		p.t.Fatal(step.Line)
	}
}

// pattern is what a text must match.
func pattern(mark, want string) *regexp.Regexp {
	if mark == "=>" {
		want = "^" + regexp.QuoteMeta(want) + "$"
	}
	return regexp.MustCompile(want)
}

// says waits until an element has a text that matches.
func (p *tab) says(selector string, like *regexp.Regexp) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		text := strings.TrimSpace(get[string](p, one(selector)+"?.innerText ?? ''"))
		if like.MatchString(text) {
			return
		}
		if time.Now().After(end) {
			p.picture("failed")
			require.Regexp(p.t, like, text, selector)
		}
	}
}

func (p *tab) change(action string) {
	p.t.Helper()
	p.dialog(fmt.Sprintf(`#actions button[data-action=%q]`, action))
}

func (p *tab) dialog(button string) {
	p.t.Helper()
	p.click(button)
	p.until(seen("#change-fields *") + " || " + seen("#change-confirm"))
}

// set gives a field of a form a value, "" turns it over.
func (p *tab) set(field, value string) {
	p.t.Helper()
	switch {
	case value == "":
		p.click(field)
	case get[bool](p, one(field)+".matches('select')"):
		p.choose(field, value)
	default:
		p.fill(field, value)
	}
}

// closed is that no dialog is open.
const closed = `!document.querySelector('dialog[open]')`

func field(name string) string { return fmt.Sprintf(`#change-form [name=%q]`, name) }

// review goes from the form to what the change would do, and returns that.
func (p *tab) review() (before, after string) {
	p.t.Helper()
	if get[bool](p, seen("#change-fields *")) {
		p.click("#change-review")
	}
	p.until(seen("#change-confirm"))
	sides := get[[2]string](p, `[2, 3].map(n => [...document.querySelectorAll('#compare td:nth-child(' + n + ')')].map(e => e.innerText).join('\n'))`)
	return sides[0], sides[1]
}

func (p *tab) confirm() {
	p.t.Helper()
	p.click("#change-confirm")
	p.until(closed + " && " + one("#told") + ".innerText !== ''")
}

func (p *tab) make(action, name, value string) {
	p.t.Helper()
	p.change(action)
	if name != "" {
		p.fill(field(name), value)
	}
	p.review()
	p.confirm()
}

func (p *tab) changeRate(name, rate string) {
	p.t.Helper()
	p.goTo("#/limiter/" + id(name))
	p.make("rate", "rate", rate)
}

// outcome is how a change leaves a limiter: its rate, what is free, and when it expires, to the hour.
func (s *site) outcome(l *rratelimiter.RateLimiter) string {
	s.t.Helper()
	ttl, _, err := l.TTL(s.t.Context())
	require.NoError(s.t, err)
	return fmt.Sprintf("%v %d %v", limitertest.ConfigOf(s.t, l), limitertest.Available(s.t, l), ttl.Round(time.Hour))
}
