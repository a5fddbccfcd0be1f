// Package rates changes the rates of many limiters, in small steps: for rrl update-rate
// and for the dashboard.
package rates

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	// stepSize is how many limiters a step changes.
	stepSize = 100
	// atOnce is how many of these are under way together: few enough for a slow server to answer each in time.
	atOnce = 16
	// FirstNames is how many limiters a plan or a report names.
	FirstNames = 10
	// maxUnavailable is after how many undecided calls the rest is skipped.
	maxUnavailable = 20
)

// Change is one limiter that gets another rate.
type Change struct {
	Name string `json:"name"`
	From string `json:"from"`
	To   string `json:"to"`

	Config rratelimiter.Config `json:"-"` // what it gets
	before look.Fields
}

// Failure is a limiter that did not.
type Failure struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// Plan is what will be changed, and then what was.
type Plan struct {
	Found     int       `json:"found"`
	Already   int       `json:"already"` // of these, with that rate
	Over      int       `json:"over"`    // of those that change, with more permits in use than the new rate
	Broken    int       `json:"broken"`  // of those that change, which fails
	Changed   int       `json:"changed"`
	Gone      int       `json:"gone"`      // were deleted meanwhile
	Meanwhile int       `json:"meanwhile"` // got another rate meanwhile, and keep it
	Failed    int       `json:"failed"`
	First     []Change  `json:"first"` // of those that change
	Failures  []Failure `json:"failures"`

	todo        []Change
	next        int
	refused     int // of Failed, before any was tried
	explain     func(name string, err error) string
	mu          sync.Mutex // of the counts, while a step is made
	unavailable int
	last        error // of those that Redis did not decide
}

// Keep returns the rate to with the keep-alive time of now. One that was the interval, as those of
// a KeyedLimiter's keys, follows it.
func Keep(now, to rratelimiter.Config) rratelimiter.Config {
	to.KeepAlive = now.KeepAlive
	if now.KeepAlive > 0 && now.KeepAlive == now.Interval {
		to.KeepAlive = to.Interval
	}
	return to
}

// Setter sets the rate of a limiter that has one, as Client.RateLimiter(name).UpdateRate does.
type Setter func(context.Context, Change) (set bool, err error)

// NewPlan returns the plan that gives each limiter the rate that to returns. Limiters that have it already, and without an
// end, are changed only if always. Those whose rate set would refuse without asking
// Redis have failed from the start. explain puts into words why one could not be changed.
func NewPlan(found []*look.Short, to func(now rratelimiter.Config) rratelimiter.Config, always bool, set Setter,
	explain func(name string, err error) string,
) *Plan {
	p := &Plan{Found: len(found), First: []Change{}, Failures: []Failure{}, explain: explain}
	// A call whose context has ended only checks its arguments.
	ended, end := context.WithCancel(context.Background())
	end()
	for _, l := range found {
		now := configOf(l.Fields)
		c := Change{Name: l.Name, From: words.ShortRate(l.Rate, l.IntervalMS), Config: to(now), before: l.Fields}
		if !l.NoRate && c.Config == now && l.End() == nil && !always {
			p.Already++
			continue
		}
		if _, err := set(ended, c); err != nil && !errors.Is(err, context.Canceled) {
			p.done(c.Name, false, err)
			p.refused++
			continue
		}
		switch {
		case l.NoRate:
			c.From = string(look.IsBroken)
			p.Broken++
		case l.InUse > c.Config.Rate:
			p.Over++
		}
		c.To = words.ShortRate(c.Config.Rate, c.Config.Interval.Milliseconds())
		p.todo = append(p.todo, c)
	}
	p.First = append(p.First, p.todo[:min(len(p.todo), FirstNames)]...)
	return p
}

func configOf(f look.Fields) rratelimiter.Config {
	const longest = int64(math.MaxInt64 / time.Millisecond)
	span := func(ms int64) time.Duration { return time.Duration(min(ms, longest)) * time.Millisecond }
	return rratelimiter.Config{Type: rratelimiter.RateType(f.Type), Rate: f.Rate, Interval: span(f.IntervalMS), KeepAlive: span(f.KeepAliveMS)}
}

// Planned returns how many limiters change in all.
func (p *Plan) Planned() int { return len(p.todo) }

// Meant returns how many were to change: Planned, and those that can't get their rate.
func (p *Plan) Meant() int { return len(p.todo) + p.refused }

// Left returns how many of them were not tried yet.
func (p *Plan) Left() int { return len(p.todo) - p.next }

// Counts returns how many were changed and how many failed, also while a step is made.
func (p *Plan) Counts() (changed, failed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Changed, p.Failed
}

// Step makes the next changes, some at once, each by a call of set. It skips a limiter if
// its rate has changed since the plan. After an error the next step goes on. Once half of ctx's
// time has passed Step begins no more of them, so that a slow server gets smaller steps.
func (p *Plan) Step(ctx context.Context, rdb nodes.Client, set Setter) error {
	begun := time.Now()
	deadline, timed := ctx.Deadline()
	step := p.todo[p.next:min(p.next+stepSize, len(p.todo))]
	names := make([]string, len(step))
	for i, c := range step {
		names[i] = c.Name
	}
	now, err := look.ReadHashes(ctx, rdb, names)
	if err != nil {
		return err
	}
	var (
		group sync.WaitGroup
		slots = make(chan struct{}, atOnce)
	)
	for i, c := range step {
		slots <- struct{}{}
		if i > 0 && timed && time.Until(deadline) < time.Since(begun) {
			break
		}
		p.next++
		group.Go(func() {
			defer func() { <-slots }()
			p.change(ctx, c, now[i], set)
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if n := p.unavailable; n >= maxUnavailable {
		p.unavailable = 0
		return fmt.Errorf("stopped after %d calls that failed: %w", n, p.last)
	}
	return nil
}

// change makes one change, if the limiter still has the rate that the plan saw.
func (p *Plan) change(ctx context.Context, c Change, now *look.Short, set Setter) {
	var done bool
	var err error
	current := now != nil && sameRate(now.Fields, c.before)
	if current {
		done, err = set(ctx, c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now != nil && !current {
		p.Meanwhile++
		return
	}
	if p.done(c.Name, done, err); errors.Is(err, limit.ErrUnavailable) {
		p.unavailable++
		p.last = err
	}
}

// sameRate reports whether two limiters have one rate, whatever its origin.
func sameRate(a, b look.Fields) bool {
	return a.Rate == b.Rate && a.IntervalMS == b.IntervalMS && a.Type == b.Type && a.KeepAliveMS == b.KeepAliveMS
}

// done counts a change, with the lock held.
func (p *Plan) done(name string, set bool, err error) {
	switch {
	case errors.Is(err, context.Canceled):
	case err != nil:
		p.Failed++
		if len(p.Failures) < FirstNames {
			p.Failures = append(p.Failures, Failure{name, p.explain(name, err)})
		}
	case set:
		p.Changed++
	default:
		p.Gone++
	}
}
