package browser_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

// firstPaint is when the page first drew text, in milliseconds after it was asked
// for.
const firstPaint = `(performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0)`

// TestThePageIsLight holds what the page weighs, and how soon there is something to
// see. What is measured of the time goes to docs/dashboard.md with -update, on a
// machine that does nothing else.
func TestThePageIsLight(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.shop()
	p := openLive(t, s.url, look{})
	p.until(seen(row("shop:orders")))
	p.until(firstPaint + " > 0")
	load := func() (bytes float64, requests int) {
		for _, r := range p.loaded() {
			t.Logf("%7.0f bytes %s", r.bytes, strings.TrimPrefix(r.url, s.url))
			bytes += r.bytes
		}
		return bytes, len(p.loaded())
	}
	first, requests := load()
	assert.Less(t, first, 60_000.0, "bytes of the page")
	assert.Less(t, requests, 15, "requests before there is something to see")
	p.visit("about:blank")
	p.visit(s.url)
	p.until(seen(row("shop:orders")))
	again, _ := load()
	assert.Less(t, again-first, 10_000.0, "bytes of the page for who was there before")
	t.Logf("%.0f bytes, then %.0f", first, again-first)
}

// loaded returns the requests that have ended.
func (p *tab) loaded() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []request
	for _, r := range p.requests {
		if r.bytes > 0 {
			all = append(all, r)
		}
	}
	return all
}

// info returns the sum of these figures of the Redis.
func (s *site) info(section string, names ...string) (sum float64) {
	s.t.Helper()
	info, err := s.rdb.InfoMap(s.t.Context(), section).Result()
	require.NoError(s.t, err)
	for _, name := range names {
		n, err := strconv.ParseFloat(info[strings.ToUpper(section[:1])+section[1:]][name], 64)
		require.NoError(s.t, err, name)
		sum += n
	}
	return sum
}

// used returns how much processor time the Redis has used so far, and how many commands
// it has run.
func (s *site) used() (seconds, commands float64) {
	s.t.Helper()
	return s.info("CPU", "used_cpu_sys", "used_cpu_user"), s.info("stats", "total_commands_processed")
}

// measured is what the page costs with so many limiters.
type measured struct {
	paint, shown float64 // milliseconds until there was something to see, and until there were limiters
	cost         float64 // milliseconds of the server's processor, a second
	commands     float64 // a second
	round        float64 // seconds in which all keys are seen
}

// measure takes the medians of some loads that nothing was kept for, and then what
// the page, left open, costs the server.
func measure(t *testing.T, limiters int) measured {
	t.Helper()
	s := newSite(t)
	s.crowd(limiters)
	p := openLive(t, s.url, look{})
	// Once all were seen, it is the same second after second.
	p.within(10*time.Minute, one("#summary")+`.innerText.replace(/\D/g, '').startsWith(`+quote(strconv.Itoa(limiters))+
		`) && `+one("#cost")+`.innerText.includes('every')`)
	p.update(3)
	from := time.Now()
	busy, commands := s.used()
	p.update(20)
	took := time.Since(from).Seconds()
	busyThen, commandsThen := s.used()
	m := measured{
		cost: 1000 * (busyThen - busy) / took, commands: (commandsThen - commands) / took,
		round: get[float64](p, `fetch('api/limiters?limit=1').then(r => r.json()).then(r => r.round_ms)`) / 1000,
	}
	call(p, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true})
	var paints, shown []float64
	for range 9 {
		p.visit("about:blank")
		p.visit(s.url)
		p.until(`document.querySelector('#limiters tbody tr[data-id]') && ` + firstPaint + ` > 0`)
		shown = append(shown, get[float64](p, "performance.now()"))
		paints = append(paints, get[float64](p, firstPaint))
	}
	m.paint, m.shown = median(paints), median(shown)
	return m
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// TestFigures writes what was measured to docs/dashboard.md, with -update.
//
//nolint:paralleltest // what is measured should have the machine for itself
func TestFigures(t *testing.T) {
	path := filepath.Join(docs, "dashboard.md")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	filled, err := page.Fill(string(text), func(name, old string) (string, error) {
		if name != "figures" || !*update {
			return old, nil
		}
		var rows [][]string
		for _, limiters := range []int{10, 1000, 50_000} {
			m := measure(t, limiters)
			rows = append(rows, []string{
				strconv.Itoa(limiters), fmt.Sprintf("%.1f ms", m.cost), fmt.Sprintf("%.0f", m.commands),
				fmt.Sprintf("%.0f s", m.round), fmt.Sprintf("%.0f ms", m.paint), fmt.Sprintf("%.0f ms", m.shown),
			})
		}
		return page.Table([]string{
			"limiters", "the server's time, a second", "commands a second", "all are seen in", "first picture after", "first limiters after",
		}, rows, true), nil
	})
	require.NoError(t, err)
	assert.Contains(t, filled, "<!-- begin figures -->")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(filled), 0o600))
	}
}
