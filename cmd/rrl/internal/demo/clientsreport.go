package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// The timeline's rows have this many columns, and it has at most this many rows.
const (
	timelineColumns = 10
	timelineRows    = 40
)

// clientsSummary is what the demo prints as JSON. WithinLimit is false if more
// was granted than the limit allows, and nil if the record is not complete.
type clientsSummary struct {
	Name            string       `json:"name"`
	Rate            int64        `json:"rate"`
	IntervalMS      int64        `json:"interval_ms"`
	Clients         int          `json:"clients"`
	Tries           int          `json:"tries"`
	Granted         int          `json:"granted"`
	Denied          int          `json:"denied"`
	ElapsedMS       int64        `json:"elapsed_ms"`
	HighestInWindow int64        `json:"highest_in_window"`
	WithinLimit     *bool        `json:"within_limit"`
	Answers         []trySummary `json:"answers"`
}

type trySummary struct {
	Client   int   `json:"client"`
	AtMS     int64 `json:"at_ms"`
	Granted  bool  `json:"granted"`
	Left     int64 `json:"left"`
	WaitedMS int64 `json:"waited_ms"`
}

// summary counts what the tries came to.
func (r *clientsRun) summary(elapsed time.Duration) clientsSummary {
	s := clientsSummary{
		Name: r.name, Rate: r.Rate, IntervalMS: r.Interval.Milliseconds(), Clients: r.Count,
		Tries: len(r.done), ElapsedMS: elapsed.Milliseconds(), Answers: make([]trySummary, 0, len(r.done)),
	}
	for _, t := range r.done {
		if t.granted {
			s.Granted++
		}
		s.Answers = append(s.Answers, trySummary{t.client, t.at.Milliseconds(), t.granted, t.left, t.waited.Milliseconds()})
	}
	s.Denied = s.Tries - s.Granted
	total, highest := r.record.peak()
	s.HighestInWindow = highest
	if over := highest > r.Rate; over || total == int64(s.Granted) {
		within := !over
		s.WithinLimit = &within
	}
	return s
}

// report prints the timeline and the summary. It reports whether the limit was
// kept to, as far as is known.
func (r *clientsRun) report(elapsed time.Duration) (kept bool, err error) {
	s := r.summary(elapsed)
	return s.WithinLimit == nil || *s.WithinLimit, r.printReport(s, elapsed)
}

func (r *clientsRun) printReport(s clientsSummary, elapsed time.Duration) error {
	if r.out.JSON {
		return output.WriteJSON(r.out, s)
	}
	out := &strings.Builder{}
	out.WriteString("\n")
	r.writeTimeline(out, elapsed)
	fmt.Fprintf(out, "\n%s, %d granted, %d denied in %.1fs\n",
		tryCount(s.Tries), s.Granted, s.Denied, elapsed.Seconds())
	fmt.Fprintf(out, "most granted within any %s, by the server's record: %d of %d\n",
		words.Duration(r.Interval), s.HighestInWindow, s.Rate)
	switch {
	case s.WithinLimit == nil:
		out.WriteString("some grants left the record before it was read, so this is a lower bound\n")
	case *s.WithinLimit:
		out.WriteString(r.out.Paint(output.Green, "never over the limit") + "\n")
	default:
		out.WriteString(r.out.Paint(output.Red, "OVER THE LIMIT") + "\n")
	}
	_, err := fmt.Fprint(r.out, r.out.Wrap(out.String()))
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
func (r *clientsRun) writeTimeline(out *strings.Builder, elapsed time.Duration) {
	row := time.Second
	for elapsed/row >= timelineRows {
		row *= 10
	}
	cell := row / timelineColumns
	granted := make([]int, int(elapsed/cell)+timelineColumns)
	denied := make([]int, len(granted))
	for _, t := range r.done {
		if at := int(t.at / cell); t.granted {
			granted[at]++
		} else {
			denied[at]++
		}
	}
	fmt.Fprintf(out, "granted in each %v (. denied only)\n", words.Duration(cell))
	for first := 0; first <= int(elapsed/cell); first += timelineColumns {
		marks, passed, refused := "", 0, 0
		for at := first; at < first+timelineColumns; at++ {
			marks += r.mark(granted[at], denied[at])
			passed, refused = passed+granted[at], refused+denied[at]
		}
		fmt.Fprintf(out, "%6s |%s| %d granted, %d denied\n",
			words.Duration(time.Duration(first)*cell), marks, passed, refused)
	}
}

// mark is one cell of the timeline: how many were granted, + for 10 and more.
func (r *clientsRun) mark(granted, denied int) string {
	switch {
	case granted > 9:
		return r.out.Paint(output.Green, "+")
	case granted > 0:
		return r.out.Paint(output.Green, strconv.Itoa(granted))
	case denied > 0:
		return r.out.Paint(output.Faint, ".")
	}
	return " "
}
