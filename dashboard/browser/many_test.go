package browser_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

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
	p.until(`document.querySelector('#summary').innerText.replace(/\D/g, '').includes('50000')`)
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

// TestTwoViewersShareOnePoller, which ends when nobody looks any more.
func TestTwoViewersShareOnePoller(t *testing.T) {
	t.Parallel()
	var proxy *redistest.Proxy
	s := newSite(t, func(cfg *dashboard.Config) {
		proxy = redistest.StartProxy(t, cfg.Redis.(*redis.Client).Options().Addr)
		cfg.Redis = proxy.Client(t, nil)
	})
	s.shop()
	p := openLive(t, s.url, look{})
	p.until(seen(row("shop:orders")))
	p.update(2)
	during := func() int {
		before := proxy.Requests()
		p.update(3)
		return proxy.Requests() - before
	}
	alone := during()
	second, third := openLive(t, s.url, look{}), openLive(t, s.url, look{})
	for _, other := range []*tab{second, third} {
		other.until(seen(row("shop:orders")))
		other.update(1)
	}
	together := during()
	t.Log("requests in three seconds with one viewer and with three:", alone, together)
	assert.Positive(t, alone)
	assert.LessOrEqual(t, float64(together), 1.5*float64(alone))

	second.visit("about:blank")
	third.visit("about:blank")
	p.visible("hidden")
	last := -1
	require.Eventually(t, func() bool {
		now := proxy.Requests()
		defer func() { last = now }()
		return now == last
	}, patience, 2500*time.Millisecond, "nobody looks, and the server is asked on")
	p.visible("visible")
	p.until(isLive)
	p.update(2)
}

// visible has the page find its window hidden, or visible again.
func (p *tab) visible(state string) {
	p.t.Helper()
	p.eval(`Object.defineProperty(document, 'visibilityState', {value: ` + quote(state) + `, configurable: true})
		Object.defineProperty(document, 'hidden', {value: document.visibilityState === 'hidden', configurable: true})
		document.dispatchEvent(new Event('visibilitychange'))`)
}
