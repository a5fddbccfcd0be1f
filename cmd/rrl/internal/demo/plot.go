package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

// plot shows a scenario while it is played: a row for each stretch of time, a
// column for each lane, and in it a mark for each permit that was asked for.
type plot struct {
	out     *output.Printer
	plan    *plan
	widths  []int // of the columns
	mark    int64 // how many permits a mark stands for
	counted counted
	most    int // calls in a row
	row     int
	next    []int // the first answer of each lane that is not shown yet
}

// counted is how much a row tells of what it came to.
type counted int

const (
	countsAndLeft counted = iota
	counts
	noCounts
)

// newPlot returns a plot whose columns are as wide as the fullest row, as far as
// the terminal has room. If it has no room, a mark stands for more permits, and
// then rows tell less.
func newPlot(out *output.Printer, of *plan) *plot {
	p := &plot{out: out, plan: of, next: make([]int, len(of.lanes)), mark: of.mark, counted: counts}
	if of.left {
		p.counted = countsAndLeft
	}
	for {
		for _, more := range []int64{1, 2, 5, 10} {
			p.mark = of.mark * more
			p.measure()
			if out.Width <= 0 || p.columns() <= out.Width {
				return p
			}
		}
		if p.counted == noCounts {
			return p
		}
		p.counted++
	}
}

// measure sets how wide the columns are.
func (p *plot) measure() {
	p.widths, p.most = make([]int, len(p.plan.lanes)), 10
	for i, l := range p.plan.lanes {
		asked, calls := map[int]int64{}, map[int]int{}
		for _, step := range p.plan.steps {
			if step.lane != l {
				continue
			}
			row := int(step.at / p.plan.row)
			asked[row] += step.permits
			calls[row]++
			p.most = max(p.most, calls[row])
			p.widths[i] = max(p.widths[i], p.marksFor(asked[row])+1)
		}
	}
}

// columns returns how wide a row is.
func (p *plot) columns() int {
	n := len("00:00")
	for _, width := range p.widths {
		n += len("  || ") + width + p.countsWidth()
	}
	return n
}

// marksFor returns how many marks stand for a number of permits.
func (p *plot) marksFor(permits int64) int { return int((permits + p.mark - 1) / p.mark) }

// rowEnd is when the row that is being filled ends.
func (p *plot) rowEnd() time.Duration { return time.Duration(p.row+1) * p.plan.row }

// countsWidth is how much room a column leaves for what its row came to.
func (p *plot) countsWidth() int {
	switch p.counted {
	case countsAndLeft:
		return len(countText(p.most, p.most)) + len(", 10 left")
	case counts:
		return len(countText(p.most, p.most))
	case noCounts:
	}
	return 0
}

func (p *plot) head() {
	if p.out.JSON {
		return
	}
	text := &strings.Builder{}
	fmt.Fprintf(text, "%s\non its own Redis, with a clock that runs %d times as fast\n\n", p.out.Paint(output.Bold, p.plan.rule), p.plan.speed)
	each := "each mark is a permit"
	if p.mark > 1 {
		each = fmt.Sprintf("each mark is %d permits", p.mark)
	}
	fmt.Fprintf(text, "%s granted, %s denied; %s\n\n", p.out.Paint(output.Green, "#"), p.out.Paint(output.Faint, "."), each)
	cells := make([]string, len(p.plan.lanes))
	for i, l := range p.plan.lanes {
		width := p.widths[i] + len("|| ") + p.countsWidth()
		cells[i] = fmt.Sprintf("%-*s", width, output.Clip(l.name, width))
	}
	fmt.Fprint(p.out, p.out.Wrap(text.String())+line("", cells)+"\n")
}

// note prints an event's line.
func (p *plot) note(s step) {
	if !p.out.JSON {
		fmt.Fprint(p.out, p.out.Wrap(fmt.Sprintf("%5s  %s\n", clockTime(s.at), s.note)))
	}
}

// endRow waits until the row is over by the demo's clock, and prints it.
func (p *plot) endRow(ctx context.Context) error {
	at := clockTime(time.Duration(p.row) * p.plan.row)
	p.row++
	if p.out.JSON {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(p.plan.row / time.Duration(p.plan.speed)):
	}
	cells := make([]string, len(p.plan.lanes))
	for i, l := range p.plan.lanes {
		answers := l.answers[p.next[i]:]
		p.next[i] = len(l.answers)
		cells[i] = fmt.Sprintf("|%s| %-*s", p.marks(answers, p.widths[i]), p.countsWidth(), p.counts(answers))
	}
	_, err := fmt.Fprintln(p.out, line(at, cells))
	return err
}

// line puts a row together.
func line(at string, cells []string) string {
	return strings.TrimRight(fmt.Sprintf("%5s  %s", at, strings.Join(cells, "  ")), " ")
}

func countText(granted, calls int) string { return fmt.Sprintf("%d of %d", granted, calls) }

// counts is what the answers of a row came to.
func (p *plot) counts(answers []answer) string {
	if len(answers) == 0 || p.counted == noCounts {
		return ""
	}
	granted, denied := (&lane{answers: answers}).counts()
	s := countText(granted, granted+denied)
	if p.counted == countsAndLeft {
		s += fmt.Sprintf(", %d left", answers[len(answers)-1].Remaining)
	}
	return s
}

// marks draws the answers of a row: in their order, if each permit has its
// mark, else those granted first.
func (p *plot) marks(answers []answer, width int) string {
	var granted, denied int64
	var b strings.Builder
	flush := func() {
		passed, refused := p.marksFor(granted), p.marksFor(denied)
		b.WriteString(p.paint(output.Green, "#", passed) + p.paint(output.Faint, ".", refused))
		width -= passed + refused
		granted, denied = 0, 0
	}
	for _, a := range answers {
		if a.Granted {
			granted += a.permits
		} else {
			denied += a.permits
		}
		if p.mark == 1 {
			flush()
		}
	}
	flush()
	return b.String() + strings.Repeat(" ", width)
}

func (p *plot) paint(color, mark string, count int) string {
	if count == 0 {
		return ""
	}
	return p.out.Paint(color, strings.Repeat(mark, count))
}
