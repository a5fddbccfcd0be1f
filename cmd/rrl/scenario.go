package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/limit"
)

// scenario is a demo of one of the other limiters: calls at moments that are
// laid down, on a server whose clock the demo moves.
type scenario struct {
	name, short, long string
	build             func(*redis.Client) *story
}

// story is what happens in a scenario.
type story struct {
	rule  string        // what limits
	row   time.Duration // what a row of the plot stands for
	mark  int64         // how many permits a mark of the plot stands for
	speed int           // how many times as fast as the real clock
	left  bool          // the plot shows what is left
	lanes []*lane
	steps []step

	// What to say at the end where each lane has kept to its rule, and further
	// on.
	kept, advice string
}

// lane is one key of a story, and a column of its plot.
type lane struct {
	name, key string
	limiter   limit.Limiter
	window    time.Duration
	rule      rule
	answers   []answer
}

// answer is what a call was told. Times count from the story's start.
type answer struct {
	at      time.Duration
	permits int64
	limit.Decision
}

// step is a call of a lane, or an event: a note, with what is done if anything.
type step struct {
	at      time.Duration
	lane    *lane
	permits int64

	note string
	do   func(context.Context) error
}

// calls adds count calls for one permit each of each lane, so far apart.
func (s *story) calls(from, apart time.Duration, count int, lanes ...*lane) {
	for i := range count {
		for _, l := range lanes {
			s.steps = append(s.steps, step{at: from + time.Duration(i)*apart, lane: l, permits: 1})
		}
	}
}

// note adds an event, which comes before what else is at that moment.
func (s *story) note(at time.Duration, text string, do func(context.Context) error) {
	s.steps = append(s.steps, step{at: at, note: text, do: do})
}

func newScenario(a *app, sc scenario) *cobra.Command {
	return &cobra.Command{
		Use:     sc.name,
		Short:   sc.short,
		Long:    sc.long + "\n\nIt brings its own small server, whose clock it moves, and so makes short work of\nminutes.",
		Example: "  rrl demo " + sc.name + "\n  rrl demo " + sc.name + " --json",
		Args:    named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("redis") {
				return errors.New("--redis: this demo moves its server's clock, so it brings its own; " +
					"on yours try rrl take " + sc.name)
			}
			rdb, m := embedded(1)
			defer m.Close()
			defer func() { _ = rdb.Close() }()
			return a.tell(cmd.Context(), sc.name, sc.build(rdb), m)
		},
	}
}

// scenarioStart is when every story begins, by its server's clock: a whole
// second, as buckets count them.
var scenarioStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// tell plays a story, prints it row by row and then what came of it. It answers
// no where a limiter has broken its rule.
func (a *app) tell(ctx context.Context, name string, s *story, m *miniredis.Miniredis) error {
	slices.SortStableFunc(s.steps, func(x, y step) int {
		return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(len(y.note), len(x.note)))
	})
	p := newPlot(a, s)
	p.head()
	for _, step := range s.steps {
		for step.at >= p.end() {
			if err := p.turn(ctx); err != nil {
				return err
			}
		}
		m.SetTime(scenarioStart.Add(step.at))
		if err := p.play(ctx, step); err != nil {
			return err
		}
	}
	if err := p.turn(ctx); err != nil {
		return err
	}
	return a.conclude(name, s)
}

// play makes a step.
func (p *plot) play(ctx context.Context, step step) error {
	if l := step.lane; l != nil {
		d, err := l.limiter.Take(ctx, l.key, step.permits)
		l.answers = append(l.answers, answer{step.at, step.permits, d})
		return err
	}
	p.note(step)
	if step.do == nil {
		return nil
	}
	return step.do(ctx)
}

// rule tells whether a limiter has kept to what it promises.
type rule func([]answer) bool

// keptByWindow: each window, told by its end, has granted no more than the limit.
func keptByWindow(answers []answer) bool {
	granted := map[time.Duration]int64{}
	for _, a := range answers {
		if !a.Granted {
			continue
		}
		end := a.at + a.ResetAfter
		if granted[end] += a.permits; granted[end] > a.Limit {
			return false
		}
	}
	return true
}

// keptByLog: no span of the window's length that ends at a grant has more than
// the limit of that moment.
func keptByLog(window time.Duration) rule {
	return func(answers []answer) bool {
		for i, a := range answers {
			if a.Granted && grantedWithin(answers[:i+1], a.at-window+1) > a.Limit {
				return false
			}
		}
		return true
	}
}

// keptByBucket: no span has more than a full bucket and what was refilled.
func keptByBucket(refill int64, interval time.Duration) rule {
	return func(answers []answer) bool {
		for i, first := range answers {
			for j, last := range answers[i:] {
				refills := int64((last.at-first.at)/interval) + 1
				if grantedWithin(answers[i:i+j+1], 0) > first.Limit+refills*refill {
					return false
				}
			}
		}
		return true
	}
}

// grantedWithin returns how many permits were granted from a moment on.
func grantedWithin(answers []answer, from time.Duration) (sum int64) {
	for _, a := range answers {
		if a.Granted && a.at >= from {
			sum += a.permits
		}
	}
	return sum
}

// peak returns how many permits the fullest span of the lane's window was
// granted, and the first and last moment of these.
func (l *lane) peak() (highest int64, from, to time.Duration) {
	var sum int64
	first := 0
	for _, last := range l.answers {
		if last.Granted {
			sum += last.permits
		}
		for ; !l.answers[first].Granted && l.answers[first].at < last.at || last.at-l.answers[first].at >= l.window; first++ {
			if l.answers[first].Granted {
				sum -= l.answers[first].permits
			}
		}
		if sum > highest {
			highest, from, to = sum, l.answers[first].at, last.at
		}
	}
	return highest, from, to
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

// clockTime writes a moment of a story as minutes and seconds.
func clockTime(at time.Duration) string {
	return fmt.Sprintf("%d:%02d", at/time.Minute, at%time.Minute/time.Second)
}
