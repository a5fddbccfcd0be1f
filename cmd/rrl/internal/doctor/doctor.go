// Package doctor looks for what is wrong with the servers that keep limiters:
// [Run] asks each of them, looks at a sample of the limiters, and returns a
// [Report] of findings, each with its reason and what to do about it.
package doctor

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
)

// Level says how bad a finding is.
type Level string

// The levels, the worst last.
const (
	Fine    Level = "ok"
	Note    Level = "note" // good to know, or could not be looked at
	Warning Level = "warning"
	Error   Level = "error"
)

var levels = []Level{Fine, Note, Warning, Error}

func (l Level) rank() int { return slices.Index(levels, l) }

// Finding is what one check came to.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Server string `json:"server,omitempty"` // "" if it concerns all
	Text   string `json:"text"`
	Reason string `json:"reason,omitempty"` // why it matters
	Advice string `json:"advice,omitempty"`
}

// Report is all findings.
type Report struct {
	Worst    Level     `json:"worst"`
	Name     string    `json:"name"` // of the servers
	Servers  []string  `json:"servers"`
	Limiters Sampled   `json:"limiters"`
	Findings []Finding `json:"findings"`
	TookMS   int64     `json:"took_ms"`
}

// Sampled is how many limiters were looked at.
type Sampled struct {
	Keys    int64 `json:"keys"`    // there are, on all servers
	Walked  int64 `json:"walked"`  // of these, about
	Found   int   `json:"found"`   // limiters, among those walked
	Checked int   `json:"checked"` // of these
	Partly  int   `json:"partly"`  // of these, whose clients' keys were not looked for
	Broken  int   `json:"broken"`  // of those checked
	UsedUp  int   `json:"used_up"` // of those checked, with no permit free
	All     bool  `json:"all"`     // all limiters were found and checked, none partly
}

// total returns how many limiters there are, about if not all keys were walked.
func (s *Sampled) total(walked bool) string {
	switch {
	case walked:
		return strconv.Itoa(s.Found)
	case s.Walked == 0: // of how many is not known
		return "more than " + strconv.Itoa(s.Found)
	}
	return "about " + strconv.FormatInt(int64(s.Found)*s.Keys/s.Walked, 10)
}

// Problem is something in a limiter's keys that a healthy one has not.
type Problem struct {
	Kind string
	Text string
}

// Checked is the result of checking a limiter's keys.
type Checked struct {
	State    look.Health
	Problems []Problem
	Layouts  []string // in which its members are written
	Partly   bool     // the keys of its clients were not looked for
}

// Options say what to look at, and how long.
type Options struct {
	Name    string        // of the servers, in words
	Pattern string        // of the limiters' names, "" for all
	Sample  int           // limiters checked at most; 0 for all
	Time    time.Duration // for the limiters; 0 for no end
	// Check looks at a limiter.
	Check func(ctx context.Context, name string) (Checked, error)
}

type doctor struct {
	rdb    nodes.Client
	opts   Options
	report Report
}

// Run asks all servers behind rdb. An error says that none could be asked.
func Run(ctx context.Context, rdb nodes.Client, opts Options) (*Report, error) {
	start := time.Now()
	masters, err := nodes.Masters(ctx, rdb)
	if err != nil {
		return nil, err
	}
	d := &doctor{rdb: rdb, opts: opts, report: Report{Name: opts.Name}}
	many := len(masters) > 1
	for _, n := range masters {
		s := &server{Client: n, name: nodes.Addr(n)}
		d.report.Servers = append(d.report.Servers, s.name)
		if !many {
			s.name = ""
		}
		if err := d.server(ctx, s); err != nil {
			if !many || ctx.Err() != nil {
				return nil, err
			}
			d.add(s, "reach", Error, "does not answer: "+err.Error(), "limiters with keys on it fail", "make sure that it runs and can be reached from here")
		}
	}
	d.rights(ctx)
	d.cluster(ctx)
	if err := d.limiters(ctx, masters); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		d.refused(nil, "limiters", err)
	}
	d.finish(start)
	return &d.report, nil
}

// finish returns the worst of the findings and puts it first.
func (d *doctor) finish(start time.Time) {
	d.report.TookMS = time.Since(start).Milliseconds()
	d.report.worst()
	slices.SortStableFunc(d.report.Findings, func(a, b Finding) int { return cmp.Compare(b.Level.rank(), a.Level.rank()) })
}

// worst sets the worst of the findings.
func (r *Report) worst() {
	r.Worst = Fine
	for _, f := range r.Findings {
		if f.Level.rank() > r.Worst.rank() {
			r.Worst = f.Level
		}
	}
}

// server is one of the servers that doctor asks.
type server struct {
	nodes.Client

	name string
	info info
}

// add notes a finding; s is nil if it concerns all servers.
func (d *doctor) add(s *server, check string, level Level, text, reason, advice string) {
	f := Finding{Check: check, Level: level, Text: text, Reason: reason, Advice: advice}
	if s != nil {
		f.Server = s.name
	}
	d.report.Findings = append(d.report.Findings, f)
}

// fine notes that a check found nothing wrong.
func (d *doctor) fine(s *server, check, text string) { d.add(s, check, Fine, text, "", "") }

// refused notes that a check could not be made.
func (d *doctor) refused(s *server, check string, err error) {
	d.add(s, check, Note, "could not be checked: "+err.Error(), "",
		"run it as a user who may do that")
}
