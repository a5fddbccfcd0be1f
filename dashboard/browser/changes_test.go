package browser_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/dashboard"
)

// change opens the dialog of an action on a limiter's page.
func (p *tab) change(action string) {
	p.t.Helper()
	p.dialog(fmt.Sprintf(`#actions button[data-action=%q]`, action))
}

// dialog opens the dialog of a change by its button.
func (p *tab) dialog(button string) {
	p.t.Helper()
	p.click(button)
	p.until(seen("#change-fields *") + " || " + seen("#change-confirm"))
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
	return p.text("#before"), p.text("#after")
}

func (p *tab) confirm() {
	p.t.Helper()
	p.click("#change-confirm")
	p.until(closed + " && " + one("#told") + ".innerText !== ''")
}

// changeRate gives a limiter another rate, on its page.
func (p *tab) changeRate(name, rate string) {
	p.t.Helper()
	p.goTo("#/limiter/" + id(name))
	p.change("rate")
	p.fill(field("rate"), rate)
	p.review()
	p.confirm()
}

func TestChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	p := openLive(t, s.url, look{})
	p.unlock(token)
	for _, c := range []struct {
		name, action  string
		prepare       func(ctx context.Context, l *rratelimiter.RateLimiter) error
		fill          func(p *tab)
		before, after string
		check         func(ctx context.Context, l *rratelimiter.RateLimiter) any
		want          any
	}{
		{
			name: "rate, as Redisson's setRate", action: "rate",
			fill: func(p *tab) {
				p.fill(field("rate"), "80")
				p.click(field("keep_state"))
			},
			before: "100", after: "80",
			check: available, want: int64(80),
		},
		{
			name: "rate, keeping what is in use", action: "rate",
			fill: func(p *tab) {
				p.fill(field("rate"), "2")
				p.fill(field("interval"), "1.5")
				p.choose(field("interval_unit"), "h")
				p.fill(field("keep_alive"), "2")
				p.choose(field("keep_alive_unit"), "d")
			},
			before: "100", after: "1h30m",
			check: config, want: rratelimiter.Config{Rate: 2, Interval: 90 * time.Minute, KeepAlive: 48 * time.Hour},
		},
		{
			name: "rate, with a whole one for each client", action: "rate",
			fill:  func(p *tab) { p.choose(field("type"), "PER_CLIENT") },
			after: "PER_CLIENT",
			check: config, want: rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 100, Interval: time.Minute},
		},
		{
			name: "expire", action: "expire",
			fill: func(p *tab) {
				p.fill(field("ttl"), "2")
				p.choose(field("ttl_unit"), "h")
			},
			after: "2", check: lives, want: true,
		},
		{
			name: "keep", action: "keep",
			prepare: func(ctx context.Context, l *rratelimiter.RateLimiter) error {
				_, err := l.Expire(ctx, time.Hour)
				return err
			},
			after: "never", check: expires, want: false,
		},
		{
			name: "migrate", action: "migrate",
			prepare: func(ctx context.Context, l *rratelimiter.RateLimiter) error {
				client := rratelimiter.New(s.rdb, rratelimiter.WithRedissonVersion("3.15.5"))
				_, err := client.RateLimiter(l.Name()).TryAcquire(ctx, 7, 0)
				return errors.Join(err, client.Close(ctx))
			},
			before: "1 of layout B", after: "Redisson 3.21",
			check: func(ctx context.Context, l *rratelimiter.RateLimiter) any {
				members, err := s.rdb.ZRange(ctx, "{"+l.Name()+"}:permits", 0, -1).Result()
				if err != nil || len(members) != 2 {
					return fmt.Errorf("%d members: %w", len(members), err)
				}
				first, err := codec.Parse(members[0])
				second, err2 := codec.Parse(members[1])
				return errors.Join(err, err2) == nil && first.Layout == second.Layout
			},
			want: true,
		},
		{name: "delete", action: "delete", check: there, want: false},
		{
			name: "release", action: "release",
			fill:   func(p *tab) { p.fill(field("permits"), "15") },
			before: "40", after: "25",
			check: available, want: int64(75),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			l := s.limiter(c.name, rratelimiter.PerMinute(100), 40)
			if c.prepare != nil {
				require.NoError(t, c.prepare(t.Context(), l))
			}
			p.goTo("#/limiter/" + id(c.name))
			p.until(one("#limiter-name") + ".innerText.includes(" + quote(c.name) + ")")
			p.change(c.action)
			if c.fill != nil {
				c.fill(p)
			}
			before, after := p.review()
			assert.Contains(t, before, c.before)
			assert.Contains(t, after, c.after)
			p.confirm()
			assert.Equal(t, c.want, c.check(t.Context(), l))
		})
	}
	p.goTo("#/changes")
	p.until(`document.querySelectorAll('#audit tbody tr').length === 8`)
}

func available(ctx context.Context, l *rratelimiter.RateLimiter) any {
	n, err := l.AvailablePermits(ctx)
	if err != nil {
		return err
	}
	return n
}

func config(ctx context.Context, l *rratelimiter.RateLimiter) any {
	cfg, err := l.Config(ctx)
	if err != nil {
		return err
	}
	return cfg
}

func lives(ctx context.Context, l *rratelimiter.RateLimiter) any {
	ttl, expires, err := l.TTL(ctx)
	return err == nil && expires && ttl > time.Hour && ttl <= 2*time.Hour
}

func expires(ctx context.Context, l *rratelimiter.RateLimiter) any {
	_, expires, err := l.TTL(ctx)
	if err != nil {
		return err
	}
	return expires
}

func there(ctx context.Context, l *rratelimiter.RateLimiter) any {
	ok, err := l.Exists(ctx)
	if err != nil {
		return err
	}
	return ok
}

// TestThresholds of a sliding log's keys: a new one, another, none.
func TestThresholds(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable, withOthers)
	s.visitors()
	sessions, _, _ := others(s.rdb)
	p := openLive(t, s.url+"#/others", look{})
	p.unlock(token)
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

// TestAClientsOwnPermits: where each client has a rate of its own, one's permits are
// released, and nobody else's.
func TestAClientsOwnPermits(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	cfg := rratelimiter.PerMinute(20)
	cfg.Type = rratelimiter.PerClient
	mine := s.limiter("search", cfg, 12)
	theirs := s.named("mobile app").RateLimiter("search")
	s.take(theirs, 5)
	p := openLive(t, s.limiterPage("search"), look{})
	p.unlock(token)
	p.until(`document.querySelectorAll('#states button[data-client]').length === 2`)
	p.eval(`[...document.querySelectorAll('#states tbody tr')].find(e => e.innerText.includes('checkout')).id = 'mine'`)
	p.dialog("#mine button")
	p.fill(field("permits"), "10")
	before, after := p.review()
	assert.Contains(t, before, "12")
	assert.Contains(t, after, "2")
	p.confirm()
	assert.EqualValues(t, 18, available(t.Context(), mine))
	assert.EqualValues(t, 15, available(t.Context(), theirs))
}

// TestARateIsUndone also holds what the list of changes says, and that the limiter may
// be used while somebody looks at what a change would do.
func TestARateIsUndone(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	l := s.limiter("orders", rratelimiter.PerMinute(100), 40)
	p := openLive(t, s.url, look{})
	p.unlock(token)
	p.changeRate("orders", "80")
	p.goTo("#/changes")
	p.dialog(`#audit button[data-undo]`)
	p.review()
	s.take(l, 1)
	p.confirm()
	cfg, err := l.Config(t.Context())
	require.NoError(t, err)
	assert.Equal(t, rratelimiter.PerMinute(100), cfg)
	p.until(`document.querySelectorAll('#audit tbody tr').length === 2`)
	audit := p.text("#audit")
	assert.Contains(t, audit, "orders")
	assert.Contains(t, audit, "127.0.0.1")
}

// TestAChangeOfWhatChangedMeanwhile is not made: what was confirmed would not come
// of it.
func TestAChangeOfWhatChangedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	l := s.limiter("orders", rratelimiter.PerMinute(100), 40)
	p := openLive(t, s.limiterPage("orders"), look{})
	p.unlock(token)
	p.change("rate")
	p.fill(field("rate"), "80")
	p.review()
	require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerMinute(60)))
	p.provokes("status of 409")
	p.click("#change-confirm")
	p.until(seen("#change-error"))
	cfg, err := l.Config(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 60, cfg.Rate)

	p.click("#change-cancel")
	p.until(closed)
}

func TestACancelledChangeIsNotMade(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	l := s.limiter("orders", rratelimiter.PerMinute(100), 40)
	p := openLive(t, s.limiterPage("orders"), look{})
	p.unlock(token)
	p.change("delete")
	p.review()
	p.click("#change-cancel")
	p.until(closed)
	assert.Equal(t, true, there(t.Context(), l))
	assert.Empty(t, p.asked("api/change"))
}

// TestTokens: without the token, or with a wrong one, nothing is changed.
func TestTokens(t *testing.T) {
	t.Parallel()
	s := newSite(t, writable)
	l := s.limiter("orders", rratelimiter.PerMinute(100), 40)
	p := openLive(t, s.limiterPage("orders"), look{})
	p.until(seen("#limiter-name"))
	p.provokes("status of 401")
	p.unlock("a guess")
	p.until(seen("#token-error"))
	assert.Equal(t, true, there(t.Context(), l))

	p.fill("#token", token)
	p.click("#token-submit")
	p.until(closed)
	p.change("delete")
	p.review()
	p.confirm()
	assert.Equal(t, false, there(t.Context(), l))
}

// TestReadOnly: who may not change anything is not led to try.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, loggedIn, func(cfg *dashboard.Config) { cfg.Write = false })
	s.limiter("orders", rratelimiter.PerMinute(100), 40)
	p := openLive(t, s.limiterPage("orders"), look{})
	p.until(seen("#holders tbody tr"))
	for _, selector := range []string{"#unlock", "#lock", "[data-action]", "[data-undo]"} {
		shown := fmt.Sprintf("[...document.querySelectorAll('%s')].filter(e => e.checkVisibility()).length", selector)
		assert.Zero(t, get[int](p, shown), selector)
	}
	status := get[int](p, `fetch('api/change', {
		method: 'POST', headers: {'Content-Type': 'application/json', 'Authorization': 'Bearer `+token+`'},
		body: JSON.stringify({action: 'delete', id: '`+id("orders")+`'}),
	}).then(r => r.status)`)
	assert.Equal(t, 403, status)
	p.provokes("status of 403")
}
