package live

import (
	"fmt"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// pointText puts a sample in a line.
func pointText(p *look.Point) string {
	at := p.At.Format("15:04:05.0")
	if p.Gone {
		return at + "  no such limiter"
	}
	if p.Broken != "" {
		return at + "  " + brokenText(&p.Limiter)
	}
	left := "unknown"
	if p.Free != nil {
		left = fmt.Sprintf("%d of %d", *p.Free, p.Rate)
	}
	if p.Health() == look.UsedUp {
		at += "  " + look.UsedUp.Signed()
	}
	text := fmt.Sprintf("%s  free %s  in use %d  granted %s", at, left, p.InUse, granted(p))
	if callers := callersText(&p.Limiter, 80); callers != "" {
		text += "  by " + callers
	}
	return text
}

func granted(p *look.Point) string {
	text := fmt.Sprint(p.Granted)
	if p.More {
		text += " or more"
	}
	return text
}

// Graph returns a screen of this many columns and rows: free permits above, and below them what
// was granted, the newest at the right.
func Graph(points []look.Point, interval time.Duration, columnCount, rows int, ascii bool, paint func(color, text string) string) []string {
	last := &points[len(points)-1]
	lines := []string{
		paint(output.Bold, Fit(Safe(last.Name), columnCount)),
		PaintHealth(paint, last.Health(), cut(headline(last), columnCount)),
		cut(callersLine(last, columnCount), columnCount),
	}
	foot := costText(last.Cost) + "; a sample every " + words.Duration(interval) + "; q leaves"
	if last.Err != nil {
		foot = oldText(last.Err)
	}
	// Each panel has a line of its own above it.
	panels := rows - len(lines) - 1 - 2
	if panels >= 4 && columnCount >= 20 {
		above := (panels*2 + 2) / 3
		lines = append(lines, panel("free", points, columnCount, above, ascii, func(p *look.Point) (int64, bool) {
			if p.Free == nil {
				return 0, false
			}
			return *p.Free, true
		}, last.Rate, func(s string) string { return paint(output.Green, s) })...)
		lines = append(lines, panel("granted", points, columnCount, panels-above, ascii, func(p *look.Point) (int64, bool) {
			return p.Granted, !p.Gone
		}, 0, func(s string) string { return s })...)
	}
	lines = lines[:min(len(lines), max(rows-1, 0))]
	return append(lines, paint(output.Faint, cut(foot, columnCount)))
}

func headline(p *look.Point) string {
	if p.Gone {
		return "no such limiter now"
	}
	if p.Broken != "" {
		return brokenText(&p.Limiter)
	}
	left := "unknown"
	if p.Free != nil {
		left = fmt.Sprint(*p.Free)
	}
	state := ""
	if p.Health() == look.UsedUp {
		state = look.UsedUp.Signed() + ": "
	}
	text := state + fmt.Sprintf("%s every %s, free %s, in use %d, granted %s, %s/s", words.Plural(p.Rate, "permit"), words.Millis(p.IntervalMS),
		left, p.InUse, granted(p), short(p.PerSecond))
	if p.Clients > 0 {
		text += fmt.Sprintf("; the least free of %s", words.Plural(int64(p.Clients), "client"))
	}
	return text
}

func callersLine(p *look.Point, room int) string {
	if p.Broken != "" {
		return "rrl show says more, and what to do"
	}
	if callers := callersText(&p.Limiter, room-len("in use by ")); callers != "" {
		return "in use by " + callers
	}
	return "no permits are in use"
}

const (
	blocks      = " ▁▂▃▄▅▆▇█"
	asciiBlocks = " .-=#"
)

// panel draws one value of the points, the newest at the right. A top of 0
// stands for the highest value that is shown.
func panel(title string, points []look.Point, columnCount, height int, ascii bool,
	value func(*look.Point) (int64, bool), top int64, paint func(string) string,
) []string {
	marks := []rune(blocks)
	if ascii {
		marks = []rune(asciiBlocks)
	}
	const scale = 8 // columns beside the graph
	room := max(columnCount-scale, 1)
	points = points[max(len(points)-room, 0):]
	highest := top
	if top == 0 {
		for i := range points {
			v, _ := value(&points[i])
			highest = max(highest, v)
		}
		highest = max(highest, 1)
	}
	lines := []string{cut(title, columnCount)}
	steps := float64(len(marks) - 1)
	for y := height - 1; y >= 0; y-- {
		var b strings.Builder
		for i := range points {
			v, known := value(&points[i])
			if !known {
				b.WriteRune(' ')
				continue
			}
			// The part of this row's cell that is filled.
			part := float64(v)/float64(highest)*float64(height) - float64(y)
			step := int(part*steps + 0.5)
			if v > 0 && y == 0 {
				step = max(step, 1) // little is not nothing
			}
			b.WriteRune(marks[min(max(step, 0), len(marks)-1)])
		}
		label := ""
		switch y {
		case height - 1:
			label = count(highest)
		case 0:
			label = "0"
		}
		axis := "│"
		if ascii {
			axis = "|"
		}
		cells := b.String()
		pad := strings.Repeat(" ", max(room-len(points), 0))
		lines = append(lines, right(label, scale-2)+" "+axis+pad+paint(cells))
	}
	return lines
}
