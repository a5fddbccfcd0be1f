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
	out    *output.Printer
	plan   *plan
	widths []int // of the columns
	row    int
	next   []int // the first answer of each lane that is not shown yet
}

// newPlot returns a plot whose columns are as wide as the fullest row.
func newPlot(out *output.Printer, of *plan) *plot {
	p := &plot{out: out, plan: of, next: make([]int, len(of.lanes)), widths: make([]int, len(of.lanes))}
	for i, l := range of.lanes {
		asked := map[int]int64{}
		for _, step := range of.steps {
			if step.lane == l {
				row := int(step.at / of.row)
				asked[row] += step.permits
				p.widths[i] = max(p.widths[i], p.marksFor(asked[row])+1)
			}
		}
	}
	return p
}

// marksFor returns how many marks stand for so many permits.
func (p *plot) marksFor(permits int64) int { return int((permits + p.plan.mark - 1) / p.plan.mark) }

// rowEnd is when the row that is being filled ends.
func (p *plot) rowEnd() time.Duration { return time.Duration(p.row+1) * p.plan.row }

// countsWidth is how much room a column leaves for what its row came to.
func (p *plot) countsWidth() int {
	if p.plan.left {
		return len("10 of 10, 10 left")
	}
	return len("20 of 20")
}

func (p *plot) head() {
	if p.out.JSON {
		return
	}
	text := &strings.Builder{}
	fmt.Fprintf(text, "%s\non a Redis of its own, whose clock runs %d times as fast\n\n", p.out.Paint(output.Bold, p.plan.rule), p.plan.speed)
	each := "each mark is a permit"
	if p.plan.mark > 1 {
		each = fmt.Sprintf("each mark is %d permits", p.plan.mark)
	}
	fmt.Fprintf(text, "%s granted, %s denied; %s\n\n", p.out.Paint(output.Green, "#"), p.out.Paint(output.Faint, "."), each)
	cells := make([]string, len(p.plan.lanes))
	for i, l := range p.plan.lanes {
		cells[i] = fmt.Sprintf("%-*s", p.widths[i]+len("|| ")+p.countsWidth(), l.name)
	}
	fmt.Fprintln(text, line("", cells))
	fmt.Fprint(p.out, text)
}

// note prints an event's line.
func (p *plot) note(s step) {
	if !p.out.JSON {
		fmt.Fprintf(p.out, "%5s  %s\n", clockTime(s.at), s.note)
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

// counts is what the answers of a row came to.
func (p *plot) counts(answers []answer) string {
	if len(answers) == 0 {
		return ""
	}
	granted, denied := (&lane{answers: answers}).counts()
	s := fmt.Sprintf("%d of %d", granted, granted+denied)
	if p.plan.left {
		s += fmt.Sprintf(", %d left", answers[len(answers)-1].Remaining)
	}
	return s
}

// marks draws the answers of a row: in their order, where each permit has its
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
		if p.plan.mark == 1 {
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
