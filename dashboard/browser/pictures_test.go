package browser_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// TestPictures holds that docs/dashboard.md shows each view. With -update it makes the
// pictures.
func TestPictures(t *testing.T) {
	t.Parallel()
	if *update {
		takePictures(t)
	}
	text, err := os.ReadFile(filepath.Join(docs, "dashboard.md"))
	require.NoError(t, err)
	total := 0
	for _, view := range slices.Concat(views, dialogs) {
		for _, l := range looks {
			name := "dashboard/" + view.name + "-" + l.name + ".png"
			assert.Contains(t, string(text), "("+name+")")
			picture, err := os.ReadFile(filepath.Join(docs, name))
			require.NoError(t, err)
			total += len(picture)
		}
	}
	assert.Less(t, total, mostOfAll, "bytes of the pictures")
	assert.Equal(t, len(looks)*(len(views)+len(dialogs)), strings.Count(string(text), "(dashboard/"))
}

func takePictures(t *testing.T) {
	s := newSite(t, writable, withOthers)
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
	p := openLive(t, s.url, look{})
	p.unlock(token)
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

// load has limiters of the shop be used, more and less in turn, until ctx ends.
func (s *site) load(ctx context.Context, wg *sync.WaitGroup) {
	for i, program := range []string{"checkout-1", "checkout-2", "mobile app"} {
		client := s.named(program)
		for limiter, pause := range pauses {
			wg.Go(func() {
				l := client.RateLimiter(limiter)
				for n := 0; ctx.Err() == nil; n++ {
					_, _ = l.TryAcquire(ctx, 1, 0)
					wave := 1 + 0.8*math.Sin(float64(n)/4+float64(i))
					select {
					case <-ctx.Done():
					case <-time.After(time.Duration(pause * wave * float64(time.Second))):
					}
				}
			})
		}
	}
}
