// Package browser_test holds the tests of the dashboard in a real browser.
package browser_test

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

var update = flag.Bool("update", false, "write the pictures and the figures of docs/dashboard.md")

// chromium is the browser that all tests share, by its context: each test has windows
// of its own, which share neither storage nor connections.
var chromium = sync.OnceValues(startChromium)

// endChromium ends it, if it was started.
var endChromium = func() {}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	endChromium()
	os.Exit(code)
}

// findChromium returns the path of a browser, or none. The names are those of
// scripts/install-chromium.sh.
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
		// What is looked at and measured must not depend on the machine.
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
