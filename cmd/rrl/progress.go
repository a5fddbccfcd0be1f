package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

const (
	progressAfter = 500 * time.Millisecond
	progressEvery = 100 * time.Millisecond
)

// showProgress draws how far a walk is on standard error, if that is a terminal
// and the walk takes long. The caller stops it, which leaves no trace.
func (a *app) showProgress(w *walk) (stop func()) {
	width, terminal := output.Width(a.stderr)
	if !terminal {
		return func() {}
	}
	return drawProgress(a.stderr, func() string { return w.progress(width) }, progressAfter)
}

func drawProgress(to io.Writer, line func() string, after time.Duration) (stop func()) {
	done := make(chan struct{})
	var drawn sync.WaitGroup
	drawn.Go(func() {
		next := time.NewTimer(after)
		defer next.Stop()
		for shown := false; ; shown = true {
			select {
			case <-done:
				if shown {
					_, _ = io.WriteString(to, "\r\x1b[K")
				}
				return
			case <-next.C:
				_, _ = io.WriteString(to, "\r\x1b[K"+line())
				next.Reset(progressEvery)
			}
		}
	})
	return func() {
		close(done)
		drawn.Wait()
	}
}

// progress shows in one line of that width how far the walk is.
func (w *walk) progress(width int) string {
	w.mu.Lock()
	keys, seen, found := w.keys, w.seen, len(w.found)
	w.mu.Unlock()
	seen = min(seen, keys)
	percent := int64(0)
	if keys > 0 {
		percent = seen * 100 / keys
	}
	text := fmt.Sprintf(" %3d%% of %s, %s", percent, words.Plural(keys, "key"), words.Plural(int64(found), "limiter"))
	if room := min(width-1-len(text)-2, 30); room >= 5 {
		full := int(percent) * room / 100
		return "[" + strings.Repeat("#", full) + strings.Repeat(" ", room-full) + "]" + text
	}
	return text[:min(len(text), max(width-1, 0))]
}
