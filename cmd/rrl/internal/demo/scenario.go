package demo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Scenario is a demo of one of the other limiters: calls at moments that are
// laid down, on a server whose clock the demo moves.
type Scenario struct {
	Name, Short, Long string

	newPlan func(*redis.Client) *plan
}

// plan is what happens in a scenario.
type plan struct {
	rule  string        // what limits
	row   time.Duration // what a row of the plot stands for
	mark  int64         // how many permits a mark of the plot stands for
	speed int           // how many times as fast as the real clock
	left  bool          // the plot shows the permits left
	lanes []*lane
	steps []step

	// What to say at the end if each lane has kept to its rule, and further
	// on.
	kept, advice string
}

// lane is one key of a scenario, and a column of its plot.
type lane struct {
	name, key string
	limiter   limit.Limiter
	window    time.Duration
	rule      rule
	answers   []answer
}

// answer is the answer to a call. Times count from the scenario's start.
type answer struct {
	at      time.Duration
	permits int64
	limit.Decision
}

// step is a call of a lane, or an event: a note, with an action if there is one.
type step struct {
	at      time.Duration
	lane    *lane
	permits int64

	note string
	do   func(context.Context) error
}

// calls adds count calls, for one permit of each lane, at this distance.
func (p *plan) calls(from, apart time.Duration, count int, lanes ...*lane) {
	for i := range count {
		for _, l := range lanes {
			p.steps = append(p.steps, step{at: from + time.Duration(i)*apart, lane: l, permits: 1})
		}
	}
}

// note adds an event, which comes before the calls of that moment.
func (p *plan) note(at time.Duration, text string, do func(context.Context) error) {
	p.steps = append(p.steps, step{at: at, note: text, do: do})
}

// scenarioStart is when every scenario begins, by its server's clock: a whole
// second, as buckets count them.
var scenarioStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Run plays the scenario, prints it row by row and then the result, and reports whether each
// limiter kept to its rule.
func (s *Scenario) Run(ctx context.Context, out *output.Printer) (kept bool, err error) {
	rdb, m := embedded(1)
	defer m.Close()
	defer func() { _ = rdb.Close() }()
	p := s.newPlan(rdb)
	slices.SortStableFunc(p.steps, func(x, y step) int {
		return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(len(y.note), len(x.note)))
	})
	plot := newPlot(out, p)
	plot.head()
	for _, step := range p.steps {
		for step.at >= plot.rowEnd() {
			if err := plot.endRow(ctx); err != nil {
				return false, err
			}
		}
		m.SetTime(scenarioStart.Add(step.at))
		if step.note != "" {
			plot.note(step)
		}
		if err := step.run(ctx); err != nil {
			return false, err
		}
	}
	if err := plot.endRow(ctx); err != nil {
		return false, err
	}
	return p.report(out, s.Name)
}

// run does what the step says.
func (s *step) run(ctx context.Context) error {
	switch {
	case s.lane != nil:
		return s.lane.take(ctx, s.at, s.permits)
	case s.do != nil:
		return s.do(ctx)
	}
	return nil
}

// take makes a call, at that moment of the scenario.
func (l *lane) take(ctx context.Context, at time.Duration, permits int64) error {
	d, err := l.limiter.Take(ctx, l.key, permits)
	l.answers = append(l.answers, answer{at, permits, d})
	return err
}

// peak returns how many permits the fullest span of the lane's window was
// granted, and the first and last moment of these.
func (l *lane) peak() (highest int64, from, to time.Duration) {
	var grants []grant
	for _, a := range l.answers {
		if a.Granted {
			grants = append(grants, grant{a.at, a.permits})
		}
	}
	return fullest(grants, l.window)
}

// counts returns how many calls were granted, and how many not.
func (l *lane) counts() (granted, denied int) {
	for _, a := range l.answers {
		if a.Granted {
			granted++
		}
	}
	return granted, len(l.answers) - granted
}

// clockTime writes a moment of a scenario as minutes and seconds.
func clockTime(at time.Duration) string {
	return fmt.Sprintf("%d:%02d", at/time.Minute, at%time.Minute/time.Second)
}
