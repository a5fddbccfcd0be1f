package live

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// column is one of top's table.
type column struct {
	title string
	width int
	right bool
	cell  func(*look.Limiter) string
}

const (
	minName    = 12
	minCallers = 18
	barWidth   = 10
	useWidth   = 9
)

// columns returns those that there is room for, the name's first and the callers'
// last.
func columns(width int) []column {
	room := width - minName
	var shown []column
	for _, c := range []column{
		{"USE", useWidth, true, use},
		{"FREE", 7, true, free},
		{"RATE", 12, true, rate},
		{"GRANTED/S", 9, true, func(l *look.Limiter) string { return short(l.PerSecond) }},
	} {
		if c.width+2 > room {
			break
		}
		room -= c.width + 2
		shown = append(shown, c)
	}
	if room >= barWidth+2+2*(minCallers+2) {
		room -= barWidth + 2
		shown = append(shown, column{"", barWidth, false, func(l *look.Limiter) string { return bar(l.Use(), barWidth) }})
	}
	if callers := max(room*3/5, minCallers); room >= callers+2 {
		room -= callers + 2
		shown = append(shown, column{"CALLERS", callers, false, func(l *look.Limiter) string { return callersText(l, callers) }})
	}
	name := column{"NAME", max(minName+room, 1), false, func(l *look.Limiter) string { return Safe(l.Name) }}
	return append([]column{name}, shown...)
}

// use returns the state of a limiter that needs attention, otherwise how much of it is in use.
func use(l *look.Limiter) string {
	if h := l.Health(); h != "" && h != look.Fine {
		return h.Signed()
	}
	return percent(l)
}

// PaintHealth returns text in the colour of a state.
func PaintHealth(paint func(color, text string) string, h look.Health, text string) string {
	switch h {
	case look.IsBroken:
		return paint(output.Red, text)
	case look.UsedUp, look.Refusing:
		return paint(output.Yellow, text)
	}
	return text
}

func percent(l *look.Limiter) string {
	if l.Free == nil {
		return "?"
	}
	// 29 of 100 are 28.999…%, and only a limiter that is used up shows 100%.
	return strconv.Itoa(int(l.Use()*100+1e-9)) + "%"
}

func free(l *look.Limiter) string {
	if l.Free == nil {
		return "?"
	}
	return count(*l.Free)
}

func rate(l *look.Limiter) string { return count(l.Rate) + "/" + words.Millis(l.IntervalMS) }

// count writes a number in six columns at most.
func count(n int64) string {
	if n < 100_000 && n > -10_000 {
		return strconv.FormatInt(n, 10)
	}
	return short(float64(n))
}

// short writes a number with three digits that count.
func short(f float64) string {
	switch {
	case f == 0:
		return "0"
	case f < 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case f < 10_000:
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	units := []string{"k", "M", "G", "T", "P", "E"}
	f /= 1000
	for ; f >= 999.5 && len(units) > 1; units = units[1:] {
		f /= 1000
	}
	return strconv.FormatFloat(f, 'g', 3, 64) + units[0]
}

// bar draws a part of 1.
func bar(part float64, width int) string {
	full := min(max(int(part*float64(width)+0.5), 0), width)
	return strings.Repeat("#", full) + strings.Repeat(".", width-full)
}

// callersText names as many callers as there is room for.
func callersText(l *look.Limiter, room int) string {
	var text string
	for i, c := range l.Callers {
		share := fmt.Sprintf(" %.0f%%", c.Share*100)
		more := ""
		if rest := len(l.Callers) - i - 1; rest > 0 {
			more = fmt.Sprintf(", %d more", rest)
		}
		who := Safe(strings.TrimPrefix(c.Who, look.ClientWord))
		if i == 0 {
			text = Fit(who, room-len(share)-len(more)) + share
			continue
		}
		next := text + ", " + Fit(who, 24) + share
		if Width(next+more) > room {
			return text + fmt.Sprintf(", %d more", len(l.Callers)-i)
		}
		text = next
	}
	return text
}

// topText returns a screen of this many columns and rows: the summary, the table, and below it
// the keys. Rows below 1 stand for as many as it takes.
func topText(s *look.Snapshot, v look.View, columnCount, rows int, paint func(color, text string) string) []string {
	head := summary(s, v)
	lines := make([]string, 0, len(head)+1+len(s.Limiters))
	for _, line := range head {
		lines = append(lines, cut(line, columnCount))
	}
	cols := columns(columnCount)
	lines = append(lines, paint(output.Bold, row(cols, func(c column) string { return c.title })))
	limiters := s.Limiters
	if rows > 0 {
		limiters = limiters[:min(len(limiters), max(rows-len(lines), 0))]
	}
	for i := range limiters {
		l := &limiters[i]
		text := row(cols, func(c column) string { return c.cell(l) })
		health := l.Health()
		switch {
		case health == look.IsBroken:
			text = cut(left(Safe(l.Name), cols[0].width)+"  "+brokenText(l), columnCount)
		case health != look.UsedUp && l.InUse == 0:
			text = paint(output.Faint, text)
		}
		lines = append(lines, PaintHealth(paint, health, text))
	}
	return lines
}

// brokenText says that a limiter does not work, and why.
func brokenText(l *look.Limiter) string { return look.IsBroken.Signed() + ": " + Safe(l.Broken) }

// headLines is how many lines of [topText] stand above the limiters.
const headLines = 3

func row(cols []column, cell func(column) string) string {
	parts := make([]string, len(cols))
	for i, c := range cols {
		if c.right {
			parts[i] = right(cell(c), c.width)
		} else {
			parts[i] = left(cell(c), c.width)
		}
	}
	return strings.TrimRight(strings.Join(parts, "  "), " ")
}

func summary(s *look.Snapshot, v look.View) []string {
	known := words.Plural(int64(s.Known), "limiter")
	if s.Left {
		known = "more than " + known
	}
	first := s.At.Format(time.TimeOnly) + "  "
	if s.Broken > 0 {
		first += fmt.Sprintf("%d broken, ", s.Broken)
	}
	first += fmt.Sprintf("%d used up, %d in use of %s", s.Used, s.InUse, known)
	if !s.Complete {
		first += fmt.Sprintf(", %.0f%% of the keys seen", s.Walked*100)
	}
	second := costText(s.Cost) + fmt.Sprintf("; all keys seen every %s; sorted by %s", words.Duration(roundTo(s.RoundMS)), v.Sort)
	if s.RoundMS == 0 {
		second = costText(s.Cost) + "; sorted by " + v.Sort
	}
	if v.Reverse {
		second += ", reversed"
	}
	if v.Filter != "" {
		second += ", with " + Safe(v.Filter)
	}
	if s.Err != nil {
		second = oldText(s.Err)
	}
	return []string{first, second}
}

// oldText says why the display is old.
func oldText(err error) string { return "old, the server does not answer: " + oneLine(err.Error()) }

func oneLine(s string) string { return Safe(strings.Join(strings.Fields(s), " ")) }

func roundTo(ms int64) time.Duration {
	d := time.Duration(ms) * time.Millisecond
	if d > time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d
}

// costText puts a cost in words.
func costText(c look.Cost) string {
	text := fmt.Sprintf("cost: %s commands/s", short(c.Commands))
	if c.ServerMicros != nil {
		return text + fmt.Sprintf(", %.2f ms/s of the server", *c.ServerMicros/1000)
	}
	return text + fmt.Sprintf(", %.2f ms a round trip", c.RoundTripMicros/1000)
}
