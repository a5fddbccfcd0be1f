// Package live shows limiters while they are used: [Top] all of them, by use,
// and [Watch] one, as a graph.
package live

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

const (
	// The walk's commands of an interval are sent in this many parts, so that none holds up the
	// server.
	stepsASecond = 10
	// lateEvery is how often it is looked whether a sample is late.
	lateEvery = 200 * time.Millisecond
)

// Top shows all limiters again and again.
type Top struct {
	Reader   *look.Reader
	View     look.View
	Interval time.Duration
	Count    int // samples that Print prints, 0 for no end
	Reads    int // commands a second, at most, about

	// Open returns what watches a limiter that the user opens; nil: none can be opened.
	Open func(name string) *Watch

	Explain func(error) error // puts what a server's silence comes from in words; nil: as it comes
}

// sample is the result of one reading.
type sample struct {
	snapshot look.Snapshot
	err      error
}

// read walks and samples until ctx is over or emit says that it is enough. Poke
// makes the next sample come at once.
func (t *Top) read(ctx context.Context, view func() look.View, poke <-chan struct{}, emit func(sample) bool) {
	step := max(t.Interval/time.Duration(max(1, int(t.Interval.Seconds()*stepsASecond))), 10*time.Millisecond)
	units := max(int(float64(t.Reads)*step.Seconds()), 1)
	tick := time.NewTicker(step)
	defer tick.Stop()
	walked := time.Now()
	due := walked.Add(t.Interval)
	for first := true; ; {
		var err error
		if t.Reader.Underway() || first || time.Since(walked) >= t.Interval {
			err = t.Reader.Walk(ctx, units)
			if !t.Reader.Underway() {
				walked = time.Now()
			}
		}
		poked := false
		if err == nil && (time.Now().Before(due) && (!first || t.Reader.Underway())) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				continue
			case <-poke:
				poked = true
			}
		}
		s := sample{err: err}
		if err == nil {
			s.snapshot, s.err = t.Reader.Sample(ctx, view())
		}
		if s.err != nil && t.Explain != nil {
			s.err = t.Explain(s.err)
		}
		if ctx.Err() != nil || !emit(s) {
			return
		}
		pause := step
		if s.err != nil {
			pause = t.Interval
		}
		first = first && s.err != nil
		if !poked {
			due = time.Now().Add(t.Interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Print writes samples one below the other, as JSON or as tables of this many columns.
func (t *Top) Print(ctx context.Context, out *output.Printer, columns int) error {
	var failed error
	n := 0
	t.read(ctx, func() look.View { return t.View }, nil, func(s sample) bool {
		if failed = s.err; failed != nil {
			return false
		}
		if out.JSON {
			failed = output.WriteJSON(out, s.snapshot)
		} else {
			if n > 0 {
				fmt.Fprintln(out)
			}
			for _, line := range topText(&s.snapshot, t.View, columns, 0, out.Paint) {
				if _, failed = fmt.Fprintln(out, line); failed != nil {
					break
				}
			}
		}
		n++
		return failed == nil && n != t.Count
	})
	return failed
}

// Show draws samples on a terminal, until the user has seen enough. A server that
// no longer answers is asked again.
func (t *Top) Show(ctx context.Context, screen *Screen, paint func(color, text string) string) error {
	ctx, cancel := context.WithCancel(ctx)
	samples := make(chan sample)
	poke := make(chan struct{}, 1)
	ui := &topUI{view: t.View, screen: screen, paint: paint, poke: poke}
	ui.share()
	defer cancel()
	// No one waits for it at the end: a server that hangs would keep the user.
	go func() {
		t.read(ctx, func() look.View { return *ui.shared.Load() }, poke, func(s sample) bool {
			select {
			case samples <- s:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()

	late := time.NewTicker(lateEvery)
	defer late.Stop()
	for first := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case s := <-samples:
			if s.err != nil && first {
				return s.err
			}
			first = false
			ui.take(s)
		case event := <-screen.events:
			key := keyOf(event)
			if ui.press(key) || key == "Enter" && !ui.typing && !ui.typed && t.open(ctx, ui) {
				return nil
			}
		case <-late.C:
			err := ui.silence.over(t.Interval, ui.last.Err)
			if err == nil {
				continue
			}
			ui.last.Err = err
		}
		ui.draw()
	}
}

// topUI is what the terminal shows, and what its keys change.
type topUI struct {
	screen        *Screen
	paint         func(color, text string) string
	poke          chan<- struct{}
	view          look.View
	shared        atomic.Pointer[look.View]
	last          look.Snapshot
	silence       silence
	chosen        selection
	paused        bool
	typing        bool
	typed         bool // the last key was for the filter
	columns, rows int
}

// share passes to the reader what the screen shows.
func (ui *topUI) share() {
	ui.columns, ui.rows = ui.screen.Size()
	v := ui.view
	if v.Rows == 0 {
		v.Rows = ui.fits()
	}
	ui.shared.Store(&v)
	select {
	case ui.poke <- struct{}{}:
	default:
	}
}

func (ui *topUI) take(s sample) {
	switch {
	case s.err != nil:
		ui.last.Err = s.err
		return
	case ui.paused && !ui.chosen.new:
		ui.last.Err = nil
	default:
		ui.last = s.snapshot
		ui.follow()
	}
	ui.silence.broken()
}

// press says whether a key ends the show. The key "" is a new size.
func (ui *topUI) press(key string) bool {
	if key == "Ctrl-C" {
		return true
	}
	if ui.typed = ui.typing; ui.typed {
		ui.typeKey(key)
		return false
	}
	switch key {
	case "q":
		return true
	case "Up", "k":
		ui.move(-1)
	case "Down", "j":
		ui.move(1)
	case "PgUp":
		ui.move(-ui.fits())
	case "PgDn":
		ui.move(ui.fits())
	case "Home", "g":
		ui.fromTop()
	case "End", "G":
		ui.move(ui.last.Matching)
	case "s":
		ui.view = ui.view.Next()
		ui.fromTop()
	case "r":
		ui.view.Reverse = !ui.view.Reverse
		ui.fromTop()
	case "p", " ":
		ui.paused = !ui.paused
	case "/":
		ui.typing = true
	case "Esc":
		ui.view.Filter = ""
		ui.fromTop()
	}
	ui.share()
	return false
}

// typeKey changes the filter by a key.
func (ui *topUI) typeKey(key string) {
	switch key {
	case "Enter":
		ui.typing = false
	case "Esc":
		ui.typing, ui.view.Filter = false, ""
	case "Backspace":
		if letters := []rune(ui.view.Filter); len(letters) > 0 {
			ui.view.Filter = string(letters[:len(letters)-1])
		}
	default:
		if utf8.RuneCountInString(key) == 1 {
			ui.view.Filter += key
		}
	}
	ui.fromTop()
	ui.share()
}

func (ui *topUI) draw() {
	foot := "q quit  s sort  r reverse  / filter  p pause  j k up down scroll  enter opens"
	switch {
	case ui.typing:
		foot = "filter: " + Safe(ui.view.Filter) + "_"
	case ui.paused:
		foot = "paused; p goes on"
	}
	foot = cut(foot, ui.columns)
	lines := topText(&ui.last, ui.view, max(ui.columns-2, 0), ui.rows-1, ui.paint)
	lines = ui.marked(lines[:min(len(lines), max(ui.rows-1, 0))])
	ui.screen.draw(append(lines, ui.paint(output.Faint, foot)))
}
