package browser_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
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
