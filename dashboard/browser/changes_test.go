package browser_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

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

// outcome is how a change leaves a limiter.
type outcome struct {
	config rratelimiter.Config
	free   int64
	ttl    time.Duration // to the hour; 0 for none
}

func (s *site) outcome(l *rratelimiter.RateLimiter) (o outcome) {
	s.t.Helper()
	var err error
	o.config, err = l.Config(s.t.Context())
	require.NoError(s.t, err)
	o.free, err = l.AvailablePermits(s.t.Context())
	require.NoError(s.t, err)
	ttl, _, err := l.TTL(s.t.Context())
	require.NoError(s.t, err)
	o.ttl = ttl.Round(time.Hour)
	return o
}

func (s *site) exists(l *rratelimiter.RateLimiter) bool {
	s.t.Helper()
	ok, err := l.Exists(s.t.Context())
	require.NoError(s.t, err)
	return ok
}

var (
	hundred = rratelimiter.PerMinute(100)
	eighty  = rratelimiter.PerMinute(80)
	two     = rratelimiter.Config{Rate: 2, Interval: 90 * time.Minute, KeepAlive: 48 * time.Hour}
	ownOnes = rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 100, Interval: time.Minute}
)

// forms are the changes of a limiter of which 40 permits of 100 are in use.
var forms = []struct {
	name, action  string
	fill          [][2]string // fields and their values
	before, after string
	want          outcome
}{
	{"as Redisson's setRate", "rate", [][2]string{{"rate", "80"}, {"keep_state", ""}}, "100", "80", outcome{eighty, 80, 0}},
	{"keeping what is in use", "rate", [][2]string{
		{"rate", "2"}, {"interval", "1.5"}, {"interval_unit", "h"}, {"keep_alive", "2"}, {"keep_alive_unit", "d"},
	}, "100", "1h30m", outcome{two, 0, 48 * time.Hour}},
	{"a rate for a while", "rate", [][2]string{{"rate", "80"}, {"span", "20"}, {"span_unit", "h"}}, "100", "80", outcome{eighty, 40, 0}},
	{"a whole rate for each client", "rate", [][2]string{{"type", "PER_CLIENT"}}, "", "each client for itself", outcome{ownOnes, 100, 0}},
	{"use the default", "default", nil, "override", "default", outcome{hundred, 60, 0}},
	{"expire", "expire", [][2]string{{"ttl", "2"}, {"ttl_unit", "h"}}, "", "2", outcome{hundred, 60, 2 * time.Hour}},
	{"keep", "keep", nil, "", "never", outcome{hundred, 60, 0}},
	{"migrate", "migrate", nil, "1 of layout B", "Redisson 3.21", outcome{hundred, 53, 0}},
	{"release", "release", [][2]string{{"permits", "15"}}, "40", "25", outcome{hundred, 75, 0}},
	{name: "delete", action: "delete"},
}

func TestChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	p := s.unlocked("")
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			p := p.in(t)
			l := s.limiter(form.name, hundred, 40)
			switch form.action {
			case "keep":
				require.NoError(t, s.rdb.Expire(t.Context(), form.name, time.Hour).Err())
			case "migrate":
				s.take(s.named("older", rratelimiter.WithRedissonVersion("3.15.5")).RateLimiter(form.name), 7)
			}
			p.goTo("#/limiter/" + id(form.name))
			p.until(one("#limiter-name") + ".innerText.includes(" + quote(form.name) + ")")
			p.change(form.action)
			for _, f := range form.fill {
				p.set(field(f[0]), f[1])
			}
			before, after := p.review()
			assert.Contains(t, before, form.before)
			assert.Contains(t, after, form.after)
			assert.Equal(t, "at "+s.server.Addr(), get[string](p, one("#change-server")+".innerText"))
			p.confirm()
			if form.action == "delete" {
				assert.False(t, s.exists(l))
				return
			}
			assert.Equal(t, form.want, s.outcome(l))
		})
	}
	members, err := s.rdb.ZRange(t.Context(), "{migrate}:permits", 0, -1).Result()
	require.NoError(t, err)
	require.Len(t, members, 2)
	assert.Len(t, members[1], len(members[0]), "of one layout")
	p.goTo("#/changes")
	p.until(fmt.Sprintf(`document.querySelectorAll('#audit tbody tr').length === %d`, len(forms)))
}

// TestChangeMany_Rates that a search shows, by the keyboard, with what can't be changed, and stopped.
func TestChangeMany_Rates(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	s.shop()
	s.crowd(1000)
	require.NoError(t, s.rdb.HSet(t.Context(), "shop:<img src=x>", "rate", "ten", "interval", "1000", "type", "0").Err())
	p := openLive(t, s.url, look{})
	p.until(seen(row("shop:orders"))) // before the pointer can hold rows
	p.unlock(token)
	p.until(closed)
	assert.False(t, get[bool](p, seen("#change-all")), "of a search only")
	p.fill("#search", "SHOP:")
	p.until(one("#change-all") + ".innerText === 'Change the rate of all 17…' && " + seen("#change-all"))
	assert.Equal(t, "–", p.text(cell("shop:<img src=x>", "rate")))
	p.fits()
	p.tabTo("#change-all")
	p.press(kb.Enter)
	p.until(seen("#change-form"))
	p.accessible()
	p.fill(field("rate"), "30")
	p.fill(field("interval"), "2")
	p.press(kb.Enter)
	p.until(seen("#change-confirm"))
	assert.Equal(t, "Change the rate of 17", p.text("#change-confirm"))
	assert.Contains(t, p.text("#compare"), "shop:<img src=x>\tbroken")
	assert.Equal(t, "and 7 more", p.text("#compare-more"))
	assert.Contains(t, p.text("#change-warnings"), "2 limiters with more permits in use than the new rate")
	p.accessible()
	p.fits()
	p.press(kb.Enter)
	p.until(one("#change-result") + ".innerText.startsWith('Done: 16 of 17 changed, 1 failed')")
	assert.Contains(t, p.text("#change-failures"), "shop:<img src=x>: ")
	p.accessible()
	p.fits()
	p.press(kb.Enter) // Close has the focus
	p.until(closed)
	assert.EqualValues(t, 30, s.outcome(s.client.RateLimiter("shop:orders")).config.Rate)

	p.fill("#search", "crowd:")
	p.until(one("#change-all") + ".innerText === 'Change the rate of all 1,000…'")
	p.click("#change-all")
	p.fill(field("rate"), "7")
	p.review()
	before := len(p.asked("api/change"))
	p.eval(`new MutationObserver(() => document.querySelector('#change-cancel').click()).observe(document.querySelector('#change-count'), {childList: true})`)
	p.click("#change-confirm")
	p.until(closed + " && " + one("#told") + ".innerText.startsWith('Stopped: ')")
	assert.Less(t, len(p.asked("api/change"))-before, 10)
	p.goTo("#/changes")
	p.until(`document.querySelectorAll('#audit tbody tr').length === 2 && ` + one("#audit") + `.innerText.includes('in part')`)
	assert.Contains(t, p.text("#audit"), "names with SHOP:")
}

// TestThresholds of a sliding log's keys: a new one, another, none.
func TestThresholds(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable, withOthers)
	s.visitors()
	sessions, _, _ := others(limitertest.OpenClient(s.rdb))
	p := s.unlocked("#/others")
	p.click("#hashes a")
	p.until(seen("#thresholds tbody tr"))
	threshold := func() int64 {
		t.Helper()
		n, err := sessions.Threshold(t.Context(), "session:dave")
		require.NoError(t, err)
		return n
	}
	p.dialog("#threshold-new")
	p.fill(field("key"), "session:dave")
	p.fill(field("threshold"), "3")
	p.review()
	p.confirm()
	assert.EqualValues(t, 3, threshold())

	row := fmt.Sprintf("#thresholds tr[data-id=%q] ", id("session:dave"))
	p.dialog(row + "[data-threshold=threshold]")
	p.fill(field("threshold"), "0")
	before, after := p.review()
	assert.Contains(t, before, "3")
	assert.Contains(t, after, "0")
	p.confirm()
	assert.Zero(t, threshold())

	p.dialog(row + "[data-threshold=unthreshold]")
	p.review()
	p.confirm()
	assert.EqualValues(t, 10, threshold(), "the log's own limit")
	p.until("!" + one(row))
}

// TestRelease_OfOneClient: if each client has a rate of its own, one's permits are
// released, and no one else's.
func TestRelease_OfOneClient(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	cfg := rratelimiter.PerMinute(20)
	cfg.Type = rratelimiter.PerClient
	mine := s.limiter("search", cfg, 12)
	theirs := s.named("mobile app").RateLimiter("search")
	s.take(theirs, 5)
	p := s.unlocked("#/limiter/" + id("search"))
	p.until(`document.querySelectorAll('#states button[data-client]').length === 2`)
	p.eval(`[...document.querySelectorAll('#states tbody tr')].find(e => e.innerText.includes('checkout')).id = 'mine'`)
	p.dialog("#mine button")
	p.fill(field("permits"), "10")
	before, after := p.review()
	assert.Contains(t, before, "12")
	assert.Contains(t, after, "2")
	p.confirm()
	assert.Equal(t, outcome{cfg, 18, 0}, s.outcome(mine))
	assert.Equal(t, outcome{cfg, 15, 0}, s.outcome(theirs))
}

// TestDialogs checks the questions before a change: a token, and that the change made is the
// one shown; and how a change is undone.
func TestDialogs(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	l := s.limiter("orders", hundred, 40)
	p := openLive(t, s.limiterPage("orders"), look{})
	p.until(seen("#limiter-name"))
	p.provokes("status of 401|status of 409")
	p.unlock("a guess")
	p.until(seen("#token-error"))
	p.fill("#token", token)
	p.click("#token-submit")
	p.until(closed)

	p.change("delete")
	p.review()
	require.Equal(t, "#change-cancel", get[string](p, focused), "Enter deletes nothing")
	p.press(kb.Enter)
	p.until(closed)
	assert.Empty(t, p.asked("api/change"))

	p.change("rate")
	p.fill(field("rate"), "80")
	p.review()
	assert.Equal(t, "Rate", get[string](p, "[...document.querySelectorAll('#compare .differs th')].map(e => e.innerText).join()"), "only that")
	require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerMinute(60)))
	p.click("#change-confirm")
	p.until(seen("#change-error"))
	assert.EqualValues(t, 60, s.outcome(l).config.Rate, "what was confirmed would not come of it")
	p.click("#change-cancel")
	p.until(closed)

	// A request would set a limiter's time to live back to its keep-alive time.
	kept := rratelimiter.PerDay(1000)
	kept.KeepAlive = 48 * time.Hour
	s.limiter("kept", kept, 1)
	p.goTo("#/limiter/" + id("kept"))
	p.until(one("#limiter-name") + ".innerText.includes('kept')")
	p.change("expire")
	p.click("#change-review")
	p.until(seen("#change-error"))
	assert.Contains(t, p.text("#change-error"), "first set its rate without that time")
	p.click("#change-cancel")
	p.until(closed)

	// The page says what a rate was before a change. The limiter may be used while a user looks at what a change would do.
	p.changeRate("orders", "80")
	assert.Equal(t, "Rate of orders: 60/1m → 80/1m. Undo", strings.Join(strings.Fields(p.text("#told")), " "))
	p.goTo("#/changes")
	p.dialog(`#audit button[data-undo]`)
	p.review()
	s.take(l, 1)
	p.confirm()
	assert.Equal(t, outcome{rratelimiter.PerMinute(60), 59, 0}, s.outcome(l))
	p.until(`document.querySelectorAll('#audit tbody tr').length === 3`)
	assert.Regexp(t, `127\.0\.0\.1\s+orders`, p.text("#audit"))

	// Beside it is a button that undoes the change, too.
	p.changeRate("orders", "70")
	p.click("#told-undo")
	p.review()
	p.confirm()
	assert.Equal(t, outcome{rratelimiter.PerMinute(60), 59, 0}, s.outcome(l))
	p.until(one("#told") + ".innerText.includes('70/1m → 60/1m')")
	p.make("expire", "ttl", "2")
	assert.Regexp(t, "^Done: let a limiter expire, entry 6 of the changes.$", p.text("#told"))
}

// TestAccess_Limited to looking, within a pattern.
func TestAccess_Limited(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn, func(cfg *dashboard.Config) { cfg.Write, cfg.Pattern = false, "api:*" })
	s.limiter("api:orders", rratelimiter.PerMinute(100), 40)
	p := openLive(t, s.limiterPage("api:orders"), look{})
	p.until(seen("#holders tbody tr"))
	for _, selector := range []string{"#unlock", "#lock", "[data-action]", "[data-undo]"} {
		shown := fmt.Sprintf("[...document.querySelectorAll('%s')].filter(e => e.checkVisibility()).length", selector)
		assert.Zero(t, get[int](p, shown), selector)
	}
	p = open(t, s.limiterPage("shop:orders"), look{})
	p.provokes("403")
	p.until(one("#banner") + ".innerText.includes('outside of the pattern')")
	assert.Contains(t, p.text("#banner"), "No data came yet, reconnecting.")
}
