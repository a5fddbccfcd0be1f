package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The timeline's rows have this many columns, and it has at most this many rows.
const (
	timelineColumns = 10
	timelineRows    = 40
)

// demoSummary is what the demo prints as JSON. InLimit is false where more was
// granted than the limit allows, and nil where the record is not complete.
type demoSummary struct {
	Name            string    `json:"name"`
	Rate            int64     `json:"rate"`
	IntervalMS      int64     `json:"interval_ms"`
	Clients         int       `json:"clients"`
	Tries           int       `json:"tries"`
	Granted         int       `json:"granted"`
	Denied          int       `json:"denied"`
	ElapsedMS       int64     `json:"elapsed_ms"`
	HighestInWindow int64     `json:"highest_in_window"`
	WithinLimit     *bool     `json:"within_limit"`
	Answers         []demoTry `json:"answers"`
}

type demoTry struct {
	Client   int   `json:"client"`
	AtMS     int64 `json:"at_ms"`
	Granted  bool  `json:"granted"`
	Left     int64 `json:"left"`
	WaitedMS int64 `json:"waited_ms"`
}

// summary counts what the tries came to.
func (d *demo) summary(elapsed time.Duration) demoSummary {
	s := demoSummary{
		Name: d.name, Rate: d.cfg.Rate, IntervalMS: d.cfg.Interval.Milliseconds(), Clients: d.clients,
		Tries: len(d.done), ElapsedMS: elapsed.Milliseconds(), Answers: make([]demoTry, 0, len(d.done)),
	}
	for _, t := range d.done {
		if t.granted {
			s.Granted++
		}
		s.Answers = append(s.Answers, demoTry{t.client, t.at.Milliseconds(), t.granted, t.left, t.waited.Milliseconds()})
	}
	s.Denied = s.Tries - s.Granted
	total, highest := d.grant.peak()
	s.HighestInWindow = highest
	if over := highest > d.cfg.Rate; over || total == int64(s.Granted) {
		within := !over
		s.WithinLimit = &within
	}
	return s
}

// report prints the timeline and the summary. It answers no where the limit
// was exceeded.
func (d *demo) report(elapsed time.Duration) error {
	s := d.summary(elapsed)
	if err := d.printReport(s, elapsed); err != nil {
		return err
	}
	if s.WithinLimit != nil && !*s.WithinLimit {
		return errNo
	}
	return nil
}

func (d *demo) printReport(s demoSummary, elapsed time.Duration) error {
	if d.app.json {
		return writeJSON(d.app.stdout, s)
	}
	out := &strings.Builder{}
	out.WriteString("\n")
	d.writeTimeline(out, elapsed)
	fmt.Fprintf(out, "\n%s, %d granted, %d denied in %.1fs\n",
		tryCount(s.Tries), s.Granted, s.Denied, elapsed.Seconds())
	fmt.Fprintf(out, "most granted within any %s, by the server's record: %d of %d\n",
		formatDuration(d.cfg.Interval), s.HighestInWindow, s.Rate)
	switch {
	case s.WithinLimit == nil:
		out.WriteString("some grants left the record before it was read, so this is a lower bound\n")
	case *s.WithinLimit:
		out.WriteString(d.app.paint(green, "never over the limit") + "\n")
	default:
		out.WriteString(d.app.paint(red, "OVER THE LIMIT") + "\n")
	}
	_, err := fmt.Fprint(d.app.stdout, out)
	return err
}

func tryCount(n int) string {
	if n == 1 {
		return "1 try"
	}
	return strconv.Itoa(n) + " tries"
}

// writeTimeline writes a row for each second, or ten, or hundred, with a mark
// for what passed in each tenth of it.
func (d *demo) writeTimeline(out *strings.Builder, elapsed time.Duration) {
	row := time.Second
	for elapsed/row >= timelineRows {
		row *= 10
	}
	cell := row / timelineColumns
	granted := make([]int, int(elapsed/cell)+timelineColumns)
	denied := make([]int, len(granted))
	for _, t := range d.done {
		if at := int(t.at / cell); t.granted {
			granted[at]++
		} else {
			denied[at]++
		}
	}
	fmt.Fprintf(out, "granted in each %v (. denied only)\n", formatDuration(cell))
	for first := 0; first <= int(elapsed/cell); first += timelineColumns {
		marks, passed, refused := "", 0, 0
		for at := first; at < first+timelineColumns; at++ {
			marks += d.mark(granted[at], denied[at])
			passed, refused = passed+granted[at], refused+denied[at]
		}
		fmt.Fprintf(out, "%6s |%s| %d granted, %d denied\n",
			formatDuration(time.Duration(first)*cell), marks, passed, refused)
	}
}

// mark is one cell of the timeline: how many were granted, + for 10 and more.
func (d *demo) mark(granted, denied int) string {
	switch {
	case granted > 9:
		return d.app.paint(green, "+")
	case granted > 0:
		return d.app.paint(green, strconv.Itoa(granted))
	case denied > 0:
		return d.app.paint(faint, ".")
	}
	return " "
}
