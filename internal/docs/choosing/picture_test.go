package choosing_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The picture's measures, in pixels.
const (
	width     = 760
	left      = 46  // of the time line
	right     = 740 // of it
	top       = 40  // above the first panel
	panel     = 104 // from one panel to the next
	curve     = 60  // the height of a curve
	head      = 22  // above it, for the panel's title
	ticks     = 12  // the height of the marks below it
	mostShown = 120 // permits at the curve's upper end
)

const style = `  <style>
    text { font: 13px system-ui, sans-serif; fill: #24292f; }
    .page { fill: #ffffff; }
    .small { font-size: 11px; }
    .name { font-weight: 600; }
    .grid { stroke: #8c959f; stroke-opacity: .35; stroke-dasharray: 2 4; fill: none; }
    .axis { stroke: #8c959f; fill: none; }
    .limit { stroke: #8c959f; stroke-dasharray: 6 3; fill: none; }
    .last { fill: #2f81c7; fill-opacity: .25; stroke: #2f81c7; stroke-width: 1.5; }
    .over { fill: #cf222e; fill-opacity: .55; }
    .asked { stroke: #8c959f; stroke-width: 2; }
    .granted { stroke: #1a7f37; stroke-width: 2; }
    .edge { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 2; fill: none; }
    .warn { fill: #cf222e; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117; }
      text { fill: #e6edf3; }
      .granted { stroke: #56d364; }
      .edge { stroke: #ff7b72; }
      .warn { fill: #ff7b72; }
    }
  </style>
`

// svg is a picture under construction.
type svg struct{ strings.Builder }

// add writes a line. Its numbers are to have a fixed form.
func (s *svg) add(format string, args ...any) { fmt.Fprintf(s, "  "+format+"\n", args...) }

// x is where a moment is, y how far below the top of a curve a number is.
func x(at time.Duration) float64 {
	return left + (right-left)*at.Seconds()/traceEnd.Seconds()
}

func y(permits int) float64 { return curve * (1 - float64(permits)/mostShown) }

// picture draws the trace, and below it what each limiter made of it.
func picture(all []answers) string {
	height := top + ticks + 40 + panel*len(all)
	var s svg
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">`+"\n", width, height)
	s.add(`<title id="title">One trace of calls, answered by each limiter</title>`)
	s.add(`<desc id="desc">%s</desc>`, description(all))
	s.WriteString(style)
	s.add(`<rect class="page" width="%d" height="%d" rx="8"/>`, width, height)
	for at := time.Duration(0); at <= traceEnd; at += 30 * time.Second {
		s.add(`<path class="grid" d="M%.1f %dV%d"/>`, x(at), top-6, height-24)
		s.add(`<text class="small" x="%.1f" y="%d" text-anchor="middle">%s</text>`, x(at), height-8, clock(at))
	}
	s.add(`<text x="%d" y="22"><tspan class="name">asked for</tspan>, %d calls</text>`, left, len(trace()))
	s.add(`<text class="small" x="%d" y="22" text-anchor="end">curves: granted in the minute before, red above %d; `+
		`below: granted each second</text>`, right, perWindow)
	s.marks("asked", top, trace())
	for i, a := range all {
		s.panel(a, top+ticks+18+panel*i)
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// description tells the picture to those who can't see it.
func description(all []answers) string {
	text := "Time lines of 270 seconds. For each limiter, which calls were granted, and a curve of how many were granted in the minute before."
	for _, a := range all {
		text += fmt.Sprintf(" %s: at most %d.", a.name, fullest(a.granted, window).granted)
	}
	return text
}

// panel draws one limiter: a curve of what it granted in the last minute, with
// what is above the limit marked, and below it each grant.
func (s *svg) panel(a answers, at int) {
	most := fullest(a.granted, window)
	s.add(`<text x="%d" y="%d"><tspan class="name">%s</tspan>, %s: at most %d in a minute</text>`,
		left, at+head-6, a.name, a.setting, most.granted)
	base := at + head
	s.add(`<path class="last" d="%s"/>`, lastMinute(a.granted, 0, float64(base)))
	s.add(`<path class="over" d="%s"/>`, lastMinute(a.granted, perWindow, float64(base)))
	s.add(`<path class="limit" d="M%d %.1fH%d"/>`, left, float64(base)+y(perWindow), right)
	s.add(`<path class="axis" d="M%d %dV%dH%d"/>`, left, base, base+curve, right)
	for _, permits := range []int{0, perWindow, mostShown} {
		s.add(`<text class="small" x="%d" y="%.1f" text-anchor="end">%d</text>`, left-6, float64(base)+y(permits)+4, permits)
	}
	s.marks("granted", base+curve+2, a.granted)
	if strings.HasPrefix(a.name, "fixed window") {
		burst := fullest(a.granted, 10*time.Second)
		s.add(`<path class="edge" d="M%.1f %dV%d"/>`, x(window), base-4, base+curve+2+ticks)
		s.add(`<text class="small warn" x="%.1f" y="%d">the double burst: %d within %.0f s around the window's edge</text>`,
			x(2*window), base+17, burst.granted, (burst.to - burst.from).Seconds())
	}
}

// marks draws moments as upright strokes, a column for each second whose height
// tells how many there are.
func (s *svg) marks(class string, at int, moments []time.Duration) {
	var path strings.Builder
	for second := time.Duration(0); second < traceEnd; second += time.Second {
		from, _ := slices.BinarySearch(moments, second)
		to, _ := slices.BinarySearch(moments, second+time.Second)
		if n := to - from; n > 0 {
			fmt.Fprintf(&path, "M%.1f %dv%.1f", x(second)+1, at+ticks, -max(2, float64(ticks*min(n, 20))/20))
		}
	}
	s.add(`<path class="%s" d="%s"/>`, class, path.String())
}

// lastMinute returns the outline of the curve of what was granted in the minute before
// each moment, of the part that is above a number of permits.
func lastMinute(granted []time.Duration, above int, base float64) string {
	moments := slices.Clone(granted)
	for _, at := range granted {
		if at+window < traceEnd {
			moments = append(moments, at+window)
		}
	}
	slices.Sort(moments)
	floor := fmt.Sprintf("%.1f", base+y(above))
	path, height := fmt.Sprintf("M%d %s", left, floor), floor
	for _, at := range moments {
		from, _ := slices.BinarySearch(granted, at-window+1)
		to, _ := slices.BinarySearch(granted, at+1)
		if next := fmt.Sprintf("%.1f", base+y(max(to-from, above))); next != height {
			path, height = path+fmt.Sprintf("H%.1fV%s", x(at), next), next
		}
	}
	return fmt.Sprintf("%sH%dV%sZ", path, right, floor)
}

// clock writes a moment as minutes and seconds.
func clock(at time.Duration) string {
	return fmt.Sprintf("%d:%02d", at/time.Minute, at%time.Minute/time.Second)
}
