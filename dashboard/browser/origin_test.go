package browser_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/dashboard"
)

// loggedIn has a site take everybody for somebody who may change limits, as behind a
// login of one's own that browsers remember.
func loggedIn(cfg *dashboard.Config) {
	cfg.Write = true
	cfg.Authorize = func(*http.Request, dashboard.Action) (string, error) { return "alice", nil }
}

// TestOtherPagesChangeNothing: a page of somebody else, open in the same browser, can
// have it send requests.
func TestOtherPagesChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn)
	l := s.limiter("orders", rratelimiter.PerMinute(100), 40)
	p := open(t, serve(t, "", `<iframe name="into"></iframe>`), look{})
	p.provokes("request elsewhere|blocked by CORS|net::ERR_|frame-ancestors|status of 4")
	target := quote(s.url + "api/change")
	body := quote(`{"action": "delete", "id": "` + id("orders") + `"}`)
	for _, send := range []string{
		`fetch(%s, {method: 'POST', mode: 'no-cors', credentials: 'include', body: %s})`,
		`fetch(%s, {method: 'POST', credentials: 'include', headers: {'Content-Type': 'application/json'}, body: %s})`,
		`navigator.sendBeacon(%s, %s)`,
		`(() => {
			const form = document.createElement('form')
			Object.assign(form, {method: 'POST', enctype: 'text/plain', target: 'into', action: %s})
			const field = document.createElement('input')
			Object.assign(field, {name: %s, value: ''})
			form.append(field)
			document.body.append(form)
			form.submit()
		})()`,
	} {
		p.eval(fmt.Sprintf(`(async () => { try { await (`+send+`) } catch {} })()`, target, body))
	}
	// The same from the page itself is a change, so that what was sent was right.
	require.Eventually(t, func() bool { return len(p.asked("api/change")) >= 4 }, patience, 10*time.Millisecond)
	own := open(t, s.url, look{})
	assert.Equal(t, "[]", get[string](own, `fetch('api/audit').then(r => r.json()).then(r => JSON.stringify(r.entries))`))
	assert.True(t, s.exists(l))
	own.provokes("status of 4")
	assert.NotEqual(t, 403, get[int](own, fmt.Sprintf(
		`fetch(%s, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: %s}).then(r => r.status)`, target, body)))
}

// TestNoPageHasItInAFrame, where a click meant for that page would be one here.
func TestNoPageHasItInAFrame(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn)
	p := open(t, serve(t, "", `<iframe src="`+s.url+`"></iframe>`), look{})
	p.provokes("request elsewhere|frame-ancestors|X-Frame-Options")
	require.Eventually(t, func() bool {
		return strings.Contains(strings.Join(p.complained(), "\n"), "frame-ancestors")
	}, patience, 10*time.Millisecond)
}

// TestTimesAreTheViewers also holds who a change is said to be by.
func TestTimesAreTheViewers(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn)
	s.limiter("orders", rratelimiter.PerMinute(100), 40)
	before := time.Now()
	openLive(t, s.url, look{}).changeRate("orders", "80")
	for _, zone := range []string{"Asia/Tokyo", "America/St_Johns"} {
		p := openLive(t, s.url+"#/changes", look{zone: zone})
		p.until(seen("#audit tbody tr"))
		place, err := time.LoadLocation(zone)
		require.NoError(t, err)
		var minutes []string // in which the change may have been
		for at := before; at.Before(time.Now().Add(time.Minute)); at = at.Add(time.Minute) {
			minutes = append(minutes, at.In(place).Format("15:04"))
		}
		assert.Regexp(t, strings.Join(minutes, "|"), p.text("#audit"))
		assert.Contains(t, p.text("#audit"), "alice")
	}
}
