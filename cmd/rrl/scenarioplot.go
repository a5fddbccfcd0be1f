package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// plot shows a story while it is told: a row for each stretch of time, a column
// for each lane, and in it a mark for each permit that was asked for.
type plot struct {
	app    *app
	story  *story
	widths []int // of the columns
	row    int
	next   []int // the first answer of each lane that is not shown yet
}

// newPlot returns a plot whose columns are as wide as the fullest row.
func newPlot(a *app, s *story) *plot {
	p := &plot{app: a, story: s, next: make([]int, len(s.lanes)), widths: make([]int, len(s.lanes))}
	for i, l := range s.lanes {
		asked := map[int]int64{}
		for _, step := range s.steps {
			if step.lane == l {
				row := int(step.at / s.row)
				asked[row] += step.permits
				p.widths[i] = max(p.widths[i], int(marks(asked[row], s.mark))+1)
			}
		}
	}
	return p
}

// marks returns how many marks stand for so many permits.
func marks(permits, each int64) int64 { return (permits + each - 1) / each }

// end is when the row that is being filled ends.
func (p *plot) end() time.Duration { return time.Duration(p.row+1) * p.story.row }

// countsWidth is how much room a column leaves for what its row came to.
func (p *plot) countsWidth() int {
	if p.story.left {
		return len("10 of 10, 10 left")
	}
	return len("20 of 20")
}

func (p *plot) head() {
	if p.app.json {
		return
	}
	s, out := p.story, &strings.Builder{}
	fmt.Fprintf(out, "%s\non a Redis of its own, whose clock runs %d times as fast\n\n", p.app.paint(bold, s.rule), s.speed)
	each := "each mark is a permit"
	if s.mark > 1 {
		each = fmt.Sprintf("each mark is %d permits", s.mark)
	}
	fmt.Fprintf(out, "%s granted, %s denied; %s\n\n", p.app.paint(green, "#"), p.app.paint(faint, "."), each)
	cells := make([]string, len(s.lanes))
	for i, l := range s.lanes {
		cells[i] = fmt.Sprintf("%-*s", p.widths[i]+len("|| ")+p.countsWidth(), l.name)
	}
	fmt.Fprintln(out, line("", cells))
	fmt.Fprint(p.app.stdout, out)
}

// note prints an event's line.
func (p *plot) note(s step) {
	if !p.app.json {
		fmt.Fprintf(p.app.stdout, "%5s  %s\n", clockTime(s.at), s.note)
	}
}

// turn waits until the row is over by the demo's clock, and prints it.
func (p *plot) turn(ctx context.Context) error {
	at := clockTime(time.Duration(p.row) * p.story.row)
	p.row++
	if p.app.json {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(p.story.row / time.Duration(p.story.speed)):
	}
	cells := make([]string, len(p.story.lanes))
	for i, l := range p.story.lanes {
		answers := l.answers[p.next[i]:]
		p.next[i] = len(l.answers)
		cells[i] = fmt.Sprintf("|%s| %-*s", p.marks(answers, p.widths[i]), p.countsWidth(), p.counts(answers))
	}
	_, err := fmt.Fprintln(p.app.stdout, line(at, cells))
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
	if p.story.left {
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
		b.WriteString(p.paint(green, "#", marks(granted, p.story.mark)) + p.paint(faint, ".", marks(denied, p.story.mark)))
		width -= int(marks(granted, p.story.mark) + marks(denied, p.story.mark))
		granted, denied = 0, 0
	}
	for _, a := range answers {
		if a.Granted {
			granted += a.permits
		} else {
			denied += a.permits
		}
		if p.story.mark == 1 {
			flush()
		}
	}
	flush()
	return b.String() + strings.Repeat(" ", width)
}

func (p *plot) paint(color, mark string, count int64) string {
	if count == 0 {
		return ""
	}
	return p.app.paint(color, strings.Repeat(mark, int(count)))
}

// storySummary is what a scenario prints as JSON. Kept is false where a limiter
// granted more than its rule allows.
type storySummary struct {
	Demo  string        `json:"demo"`
	Rule  string        `json:"rule"`
	Kept  bool          `json:"kept"`
	Lanes []laneSummary `json:"lanes"`
	Notes []noteSummary `json:"notes"`
}

type noteSummary struct {
	AtMS int64  `json:"at_ms"`
	Text string `json:"text"`
}

type laneSummary struct {
	Name            string          `json:"name"`
	Key             string          `json:"key"`
	Calls           int             `json:"calls"`
	Granted         int             `json:"granted"`
	Denied          int             `json:"denied"`
	WindowMS        int64           `json:"window_ms"`
	HighestInWindow int64           `json:"highest_in_window"`
	HighestFromMS   int64           `json:"highest_from_ms"`
	HighestToMS     int64           `json:"highest_to_ms"`
	Kept            bool            `json:"kept"`
	Answers         []answerSummary `json:"answers"`
}

type answerSummary struct {
	AtMS         int64 `json:"at_ms"`
	Permits      int64 `json:"permits"`
	Granted      bool  `json:"granted"`
	Limit        int64 `json:"limit"`
	Remaining    int64 `json:"remaining"`
	RetryAfterMS int64 `json:"retry_after_ms"`
	ResetAfterMS int64 `json:"reset_after_ms"`
}

func (s *story) summary(name string) storySummary {
	sum := storySummary{Demo: name, Rule: s.rule, Kept: true, Lanes: make([]laneSummary, 0, len(s.lanes)), Notes: []noteSummary{}}
	for _, step := range s.steps {
		if step.note != "" {
			sum.Notes = append(sum.Notes, noteSummary{step.at.Milliseconds(), step.note})
		}
	}
	for _, l := range s.lanes {
		one := l.summary()
		sum.Lanes = append(sum.Lanes, one)
		sum.Kept = sum.Kept && one.Kept
	}
	return sum
}

func (l *lane) summary() laneSummary {
	highest, from, to := l.peak()
	granted, denied := l.counts()
	sum := laneSummary{
		Name: l.name, Key: l.key, Calls: len(l.answers), Granted: granted, Denied: denied, WindowMS: l.window.Milliseconds(),
		HighestInWindow: highest, HighestFromMS: from.Milliseconds(), HighestToMS: to.Milliseconds(),
		Kept: l.rule(l.answers), Answers: make([]answerSummary, 0, len(l.answers)),
	}
	for _, a := range l.answers {
		sum.Answers = append(sum.Answers, answerSummary{
			a.at.Milliseconds(), a.permits, a.Granted, a.Limit, a.Remaining, a.RetryAfter.Milliseconds(), a.ResetAfter.Milliseconds(),
		})
	}
	return sum
}

// conclude prints what the story came to. It answers no where a rule was broken.
func (a *app) conclude(name string, s *story) error {
	sum := s.summary(name)
	if err := a.printConclusion(s, sum); err != nil {
		return err
	}
	if !sum.Kept {
		return errNo
	}
	return nil
}

func (a *app) printConclusion(s *story, sum storySummary) error {
	if a.json {
		return writeJSON(a.stdout, sum)
	}
	out := &strings.Builder{}
	out.WriteString("\n")
	for i, l := range sum.Lanes {
		highest, from, to := s.lanes[i].peak()
		fmt.Fprintf(out, "%s: %d calls, %d granted, %d denied; most permits within any %s: %d (%s to %s)\n", l.Name, l.Calls,
			l.Granted, l.Denied, formatDuration(s.lanes[i].window), highest, clockTime(from), clockTime(to))
	}
	if sum.Kept {
		out.WriteString(a.paint(green, s.kept) + "\n")
	} else {
		out.WriteString(a.paint(red, "OVER THE LIMIT") + "\n")
	}
	if s.advice != "" {
		out.WriteString(s.advice + "\n")
	}
	_, err := fmt.Fprint(a.stdout, out)
	return err
}
