// Package choosing writes what docs/choosing.md shows of the limiters: one trace
// of calls answered by each of them, as a picture and a table, and what each
// costs the server. go test ./internal/docs/choosing -update writes it anew.
package choosing

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// What all are set to, each in its own terms.
const (
	perWindow = 60
	window    = time.Minute
	capacity  = 20
	borrow    = 10
)

// candidate is a limiter as the page compares it.
type candidate struct {
	name, setting string
	make          func(rdb nodes.Client, most, tokens int64) limit.Limiter
}

var candidates = []candidate{
	{"RateLimiter", "60 a minute", func(rdb nodes.Client, most, _ int64) limit.Limiter {
		return rratelimiter.New(rdb).Keyed("", rratelimiter.PerMinute(most))
	}},
	{"sliding log", "60 a minute", func(rdb nodes.Client, most, _ int64) limit.Limiter {
		return slidinglog.New(rratelimiter.New(rdb), slidinglog.Config{Limit: most, Window: window})
	}},
	{"fixed window, counter", "60 a minute", func(rdb nodes.Client, most, _ int64) limit.Limiter {
		return fixedwindow.New(rratelimiter.New(rdb), fixedwindow.Config{Limit: most, Window: window})
	}},
	{"token bucket", "20 tokens, 1 more a second", func(rdb nodes.Client, _, tokens int64) limit.Limiter {
		return tokenbucket.New(rratelimiter.New(rdb), tokenbucket.Config{Capacity: tokens, Refill: 1, Interval: time.Second})
	}},
	{"token bucket that lends", "the same, 10 tokens to borrow", func(rdb nodes.Client, _, tokens int64) limit.Limiter {
		return tokenbucket.New(rratelimiter.New(rdb), tokenbucket.Config{Capacity: tokens, Refill: 1, Interval: time.Second, Borrow: borrow})
	}},
}

const traceEnd = 4*time.Minute + 30*time.Second

// trace returns the moments of the calls, each for one permit: few calls, a burst around
// the end of the first minute, more calls than the limit for a while, nothing, and a burst.
func trace() []time.Duration {
	var all []time.Duration
	add := func(from, to, apart time.Duration) {
		for at := from; at < to; at += apart {
			all = append(all, at)
		}
	}
	add(0, 55*time.Second, 5*time.Second)
	add(55*time.Second, 65*time.Second, 50*time.Millisecond)
	add(65*time.Second, 150*time.Second, 500*time.Millisecond)
	add(240*time.Second, 245*time.Second, 50*time.Millisecond)
	return all
}

// answers is what a limiter made of the trace.
type answers struct {
	candidate
	granted []time.Duration
	longest time.Duration // the longest wait that a refusal named
}

// span is a stretch of a trace that ends with a grant.
type span struct {
	from, to time.Duration
	granted  int
}

// fullest returns the span shorter than length in which most was granted; the
// first of those.
func fullest(granted []time.Duration, length time.Duration) span {
	var best span
	for i, to := range granted {
		first, _ := slices.BinarySearch(granted, to-length+1)
		if n := i - first + 1; n > best.granted {
			best = span{granted[first], to, n}
		}
	}
	return best
}

func traceTable(all []answers) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| limiter | setting | granted of %d | most in any minute | when | most in any 10 s | longest wait named |\n"+
		"|---|---|---:|---:|---|---:|---:|\n", len(trace()))
	for _, a := range all {
		minute := fullest(a.granted, window)
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %s to %s | %d | %.0f s |\n", a.name, a.setting, len(a.granted),
			minute.granted, clock(minute.from), clock(minute.to), fullest(a.granted, 10*time.Second).granted, a.longest.Seconds())
	}
	return b.String()
}

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

type svg struct{ strings.Builder }

// add writes a line. Its numbers are to have a fixed form.
func (s *svg) add(format string, args ...any) { fmt.Fprintf(s, "  "+format+"\n", args...) }

// x is where a moment is, y how far below the top of a curve a number is.
func x(at time.Duration) float64 {
	return left + (right-left)*at.Seconds()/traceEnd.Seconds()
}

func y(permits int) float64 { return curve * (1 - float64(permits)/mostShown) }

func picture(all []answers) string {
	height := top + ticks + 40 + panel*len(all)
	var s svg
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">`+"\n", width, height)
	s.add(`<title id="title">One trace of calls, answered by each limiter</title>`)
	var description strings.Builder
	description.WriteString("Time lines of 270 seconds. For each limiter, which calls were granted, " +
		"and a curve of how many were granted in the minute before.")
	for _, a := range all {
		fmt.Fprintf(&description, " %s: at most %d.", a.name, fullest(a.granted, window).granted)
	}
	s.add(`<desc id="desc">%s</desc>`, &description)
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

func clock(at time.Duration) string {
	return fmt.Sprintf("%d:%02d", at/time.Minute, at%time.Minute/time.Second)
}
