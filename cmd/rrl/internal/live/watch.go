package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

// ErrGone ends the watching of a limiter that does not exist.
var ErrGone = errors.New("no such limiter")

const keptPoints = 1000

// Watch shows one limiter again and again.
type Watch struct {
	look.Watcher

	Interval time.Duration
	Count    int // samples that Print prints, 0 for no end
	ASCII    bool

	Explain func(error) error // as Top's

	opened bool // from the list of all, to which the user goes back
}

// run samples until ctx is over, as often as wanted, and calls emit, which says
// whether it is enough.
func (w *Watch) run(ctx context.Context, emit func(look.Point, error) bool) {
	tick := time.NewTicker(w.Interval)
	defer tick.Stop()
	for {
		p, err := w.Sample(ctx)
		if err != nil && w.Explain != nil {
			err = w.Explain(err)
		}
		if ctx.Err() != nil || !emit(p, err) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Print writes a line a sample.
func (w *Watch) Print(ctx context.Context, out *output.Printer) error {
	var failed error
	n := 0
	w.run(ctx, func(p look.Point, err error) bool {
		switch {
		case err != nil:
			failed = err
		case p.Gone && n == 0:
			failed = ErrGone
		case out.JSON:
			failed = output.WriteJSON(out, p)
		default:
			_, failed = fmt.Fprintln(out, pointText(&p))
		}
		n++
		return failed == nil && n != w.Count
	})
	return failed
}

// Show draws a graph on a terminal, until the user has seen enough.
func (w *Watch) Show(ctx context.Context, screen *Screen, paint func(color, text string) string) error {
	_, err := w.show(ctx, screen, paint)
	return err
}

// show reports whether all is to end, not only this.
func (w *Watch) show(ctx context.Context, screen *Screen, paint func(color, text string) string) (end bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := w.results(ctx)
	var points []look.Point
	var silence silence
	late := time.NewTicker(lateEvery)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case r := <-results:
			switch {
			case r.err != nil && len(points) == 0:
				return false, r.err
			case r.err != nil:
				points[len(points)-1].Err = r.err
			case r.point.Gone && len(points) == 0:
				return false, ErrGone
			default:
				silence.broken()
				points = append(points, r.point)
				points = points[max(len(points)-keptPoints, 0):]
			}
		case event := <-screen.events:
			if key := keyOf(event); key == "q" || key == "Ctrl-C" || w.opened && key == "Esc" {
				return key == "Ctrl-C", nil
			}
		case <-late.C:
			if !w.markSilence(&silence, points) {
				continue
			}
		}
		if len(points) > 0 {
			columns, rows := screen.Size()
			screen.draw(Graph(points, w.Interval, columns, rows, w.ASCII, paint))
		}
	}
}

type watched struct {
	point look.Point
	err   error
}

// results sends each point until ctx ends. No one waits for the goroutine: a server
// that hangs would keep the user.
func (w *Watch) results(ctx context.Context) <-chan watched {
	results := make(chan watched)
	go w.run(ctx, func(p look.Point, err error) bool {
		select {
		case results <- watched{p, err}:
			return true
		case <-ctx.Done():
			return false
		}
	})
	return results
}

// markSilence notes with the last point that the server has been silent for too long,
// and says whether that is new.
func (w *Watch) markSilence(silence *silence, points []look.Point) bool {
	if len(points) == 0 {
		return false
	}
	last := &points[len(points)-1]
	late := silence.over(w.Interval, last.Err)
	if late != nil {
		last.Err = late
	}
	return late != nil
}
