package demo

import (
	"fmt"
	"strings"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// scenarioSummary is what a scenario prints as JSON. Kept is false if a limiter
// granted more than its rule allows.
type scenarioSummary struct {
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
	AtMS    int64 `json:"at_ms"`
	Permits int64 `json:"permits"`
	output.Decision
}

func (p *plan) summary(name string) scenarioSummary {
	sum := scenarioSummary{Demo: name, Rule: p.rule, Kept: true, Lanes: make([]laneSummary, 0, len(p.lanes)), Notes: []noteSummary{}}
	for _, step := range p.steps {
		if step.note != "" {
			sum.Notes = append(sum.Notes, noteSummary{step.at.Milliseconds(), step.note})
		}
	}
	for _, l := range p.lanes {
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
		sum.Answers = append(sum.Answers, answerSummary{a.at.Milliseconds(), a.permits, output.DecisionOf(a.Decision)})
	}
	return sum
}

// report prints what the scenario came to, and reports whether each limiter kept to
// its rule.
func (p *plan) report(out *output.Printer, name string) (kept bool, err error) {
	sum := p.summary(name)
	return sum.Kept, p.printReport(out, sum)
}

func (p *plan) printReport(out *output.Printer, sum scenarioSummary) error {
	if out.JSON {
		return output.WriteJSON(out, sum)
	}
	text := &strings.Builder{}
	text.WriteString("\n")
	for i, l := range sum.Lanes {
		highest, from, to := p.lanes[i].peak()
		fmt.Fprintf(text, "%s: %d calls, %d granted, %d denied; most permits within any %s: %d (%s to %s)\n", l.Name, l.Calls,
			l.Granted, l.Denied, words.Duration(p.lanes[i].window), highest, clockTime(from), clockTime(to))
	}
	if sum.Kept {
		text.WriteString(out.Paint(output.Green, p.kept) + "\n")
	} else {
		text.WriteString(out.Paint(output.Red, "OVER THE LIMIT") + "\n")
	}
	if p.advice != "" {
		text.WriteString(p.advice + "\n")
	}
	_, err := fmt.Fprint(out, out.Wrap(text.String()))
	return err
}
