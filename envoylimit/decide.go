package envoylimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

const callName = "ShouldRateLimit"

// returnTime is how long an answer has to reach the caller, unless that is more than an eighth of all the time.
const returnTime = 10 * time.Millisecond

// answer is what a counter said.
type answer struct {
	decision limit.Decision
	by       limit.Source
	over     bool      // refused, or more used than the limit
	costly   bool      // it is more than the counter ever grants
	open     bool      // nothing is known, and it passes
	start    time.Time // when it was asked; zero: it was not
	reserved []byte
	undo     func(context.Context) error
	err      error
}

// group is questions that one call to Redis answers.
type group struct {
	kind      any // what those of a group have in common; nil: it is one question
	questions []*question
	counters  []counter
}

// mild reports whether the limit refuses nothing by itself.
func (r *rule) mild() bool { return r.shadow || r.quota }

// refuses reports whether the question's limit refuses by itself.
func (q *question) refuses() bool {
	return q.over && !q.mild() && q.deed < giveBack
}

// decide asks all questions. What some granted goes back if another refuses or fails.
func (c *call) decide(ctx context.Context) error {
	if len(c.questions) == 0 {
		c.passes = true
		return nil
	}
	if end, has := ctx.Deadline(); has {
		c.until = end.Add(-min(time.Until(end)/8, returnTime))
	}
	c.foresee()
	c.askAll(ctx)
	if err := c.judge(); err != nil {
		c.undo(ctx, false)
		return err
	}
	if !c.passes {
		c.undo(ctx, true)
		return nil
	}
	var err error
	for _, q := range c.questions {
		if q.deed != giveBack {
			continue
		}
		if failure := c.giveBack(ctx, q); !q.shadow {
			err = errors.Join(err, failure)
		}
	}
	if err != nil {
		c.undo(ctx, false)
	}
	return err
}

// foresee answers what can never be granted: questions too, of a limit of 0, which counts nothing. The others are then only
// looked at.
func (c *call) foresee() {
	hopeless := false
	for _, q := range c.questions {
		if q.deed >= giveBack || q.limit > 0 && (q.deed != take || q.permits <= q.most()) {
			continue
		}
		q.over, q.costly, q.decision = true, true, limit.Decision{RetryAfter: q.window, ResetAfter: q.window}
		hopeless = hopeless || q.refuses()
	}
	for _, q := range c.questions {
		if hopeless && q.deed == take && !q.over {
			q.deed = look
		}
	}
}

// answered reports whether a question needs no asking.
func (q *question) answered() bool { return q.over || q.limit == 0 || q.deed == giveBack }

// askAll asks all questions. Those that may refuse are asked one after the other, in an order that all calls have: what a
// call is granted before it is refused is then in the way only of calls that are refused as well. Once one has refused, the
// rest is only looked at. Once one has failed, the rest is not asked, but what was spent is charged.
func (c *call) askAll(ctx context.Context) {
	rest := c.groups()
	beside := len(rest) > 1 || slices.ContainsFunc(c.questions, func(q *question) bool { return q.quota && q.over || q.deed == giveBack })
	for len(rest) > 0 && rest[0].questions[0].strict() {
		g := rest[0]
		c.ask(ctx, g, beside)
		rest = rest[1:]
		if slices.ContainsFunc(g.questions, func(q *question) bool { return q.err != nil }) {
			rest = slices.DeleteFunc(looks(rest), func(g *group) bool { return g.questions[0].deed == look })
			break
		}
		if slices.ContainsFunc(g.questions, (*question).refuses) {
			rest = looks(rest)
			break
		}
	}
	decide.AtOnce(len(rest), func(i int) { c.ask(ctx, rest[i], beside) })
}

// strict reports whether the question's limit grants all or refuses by itself.
func (q *question) strict() bool { return q.deed == take && !q.mild() }

// looks returns the questions of groups, each by itself. Those that would take permits only look.
func looks(groups []*group) (all []*group) {
	for _, g := range groups {
		for i, q := range g.questions {
			if q.deed == take {
				q.deed = look
			}
			all = append(all, &group{questions: g.questions[i : i+1], counters: g.counters[i : i+1]})
		}
	}
	return all
}

// inOrder compares two questions: those that are strict come first.
func inOrder(a, b *question) int {
	switch {
	case a.strict() && !b.strict():
		return -1
	case b.strict() && !a.strict():
		return 1
	}
	return cmp.Or(cmp.Compare(a.algorithm, b.algorithm), cmp.Compare(a.key, b.key))
}

// groups returns the questions to ask, in order, those of sliding logs that grant together in one group.
func (c *call) groups() []*group {
	var all []*group
	slices.SortStableFunc(c.questions, inOrder)
	for _, q := range c.questions {
		if q.answered() {
			continue
		}
		of := c.service.counterOf(q)
		g := &group{}
		if joint, is := of.Asker.(outage.Joint); is && len(c.questions) > 1 && q.strict() {
			g.kind = joint.Group(q.ask(""))
		}
		at := slices.IndexFunc(all, func(other *group) bool {
			return g.kind != nil && other.kind == g.kind && len(other.questions) < rratelimiter.MaxLimiters
		})
		if at < 0 {
			at, all = len(all), append(all, g)
		}
		g = all[at]
		g.questions, g.counters = append(g.questions, q), append(g.counters, of)
	}
	return all
}

// ask returns what a counter is asked.
func (q *question) ask(key string) decide.Ask {
	a := decide.Ask{Call: callName, Key: key, Permits: q.permits, Figures: true}
	if q.deed == take && q.estimate > 0 {
		a.Reserve, a.Hold = true, q.held()
	}
	return a
}

// ask asks a group. beside says that others are asked too, or a quota is over, so that a grant may have to go back.
func (c *call) ask(ctx context.Context, g *group, beside bool) {
	q, of := g.questions[0], &g.counters[0]
	for _, q := range g.questions {
		q.start = time.Now()
	}
	switch {
	case len(g.questions) > 1:
		c.askTogether(ctx, g, beside)
	case q.deed == look:
		c.look(ctx, q, of)
	case q.deed == always:
		c.chargeInTime(ctx, q, of)
	case q.deed == settle:
		c.settle(ctx, q, of)
	default:
		ask := q.ask(of.key)
		ask.Undo = !ask.Reserve && beside
		a, err := c.answer(ctx, of.Asker, ask)
		q.record(a, err)
	}
}

// answer asks a counter, but not quite as long as the caller waits: what the domain says of failures is to arrive in time.
func (c *call) answer(ctx context.Context, of outage.Asker, ask decide.Ask) (decide.Answer, error) {
	start := time.Now()
	asking, cancel := c.inTime(ctx)
	defer cancel()
	a, err := c.policy.Ask(asking, of, ask, start)
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, limit.ErrUnavailable) && ctx.Err() == nil {
		a, err = c.policy.Instead(ctx, of, ask, a.Known, fmt.Errorf("%w: not in the caller's time: %w", limit.ErrUnavailable, err))
	}
	return unobserved.Complete(ctx, of, ask, a, err, start) // see report
}

// inTime returns a context that ends while there is time for an answer to reach the caller.
func (c *call) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); !has {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, c.until)
}

// askTogether asks the counters of a group by one script call, which charges all or none.
func (c *call) askTogether(ctx context.Context, g *group, beside bool) {
	var all []outage.Asker
	var asks []decide.Ask
	whole := decide.Ask{Call: callName, Figures: true, Reserve: beside} // what is reserved can be undone
	for i, q := range g.questions {
		ask := q.ask(g.counters[i].key)
		whole.Reserve = whole.Reserve || ask.Reserve
		all, asks = append(all, g.counters[i].Asker), append(asks, ask)
	}
	of := all[0].(outage.Joint).Together(all, asks) //nolint:forcetypeassert // it has a group
	a, err := c.answer(ctx, of, whole)
	for i, q := range g.questions {
		one := decide.Answer{Decision: limit.Decision{Granted: true}, By: a.By, Undo: a.Undo}
		if i < len(a.Each) {
			one = a.Each[i]
		}
		if i > 0 && one.Settle == nil && len(a.Each) == 0 {
			one.Undo = nil // the first undoes all
		}
		failure := err
		if errors.Is(err, limit.ErrPermitsExceedRate) && one.Limit == 0 {
			failure = nil // another one's, and this one was not asked
		}
		q.record(one, failure)
		if !a.Granted {
			q.undo, q.reserved = nil, nil
		}
	}
}

// record records the answer to a question.
func (q *question) record(a decide.Answer, err error) {
	q.decision, q.by, q.undo = a.Decision, a.By, a.Undo
	switch {
	case errors.Is(err, limit.ErrPermitsExceedRate): // the limit in Redis is lower than the configured one
		q.over, q.costly = true, true
		q.decision.RetryAfter, q.decision.ResetAfter = q.window, q.window
	case err != nil:
		q.err = err
	case !a.Granted:
		q.over = true
	case a.Limit == 0:
		q.open = true
	}
	if q.err != nil || q.over {
		return
	}
	if a.Settle != nil {
		q.undo = func(ctx context.Context) error { return a.Settle(ctx, 0, func(error) {}) }
	}
	if a.Reserved != nil && q.estimate > 0 && q.deed == take {
		q.reserved, _ = a.Reserved.AppendBinary(nil) // without one the hold ends it
	}
}

// judge sums up the answers: an error if one is missing.
func (c *call) judge() error {
	quotas, over := 0, 0
	c.passes = true
	for _, q := range c.questions {
		if q.err != nil && !q.shadow {
			return q.err
		}
		if q.quota && q.deed < giveBack {
			quotas++
			if q.over && !q.shadow {
				over++
			}
		}
		c.passes = c.passes && !q.refuses()
	}
	if quotas > 0 && quotas == over {
		c.passes = false
	}
	return nil
}

// toTheEnd does what goes on even if the caller's time is over, and reports whether it is done while there is time for an
// answer. What it uses must be its own: Redis may be away.
func (c *call) toTheEnd(ctx context.Context, do func(ctx context.Context)) bool {
	waits, cancel := c.inTime(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(context.WithoutCancel(ctx))
	}()
	select {
	case <-done:
		return true
	case <-waits.Done():
		return false
	}
}

// undo gives back what was granted. What fails only leaves the limits tighter. With answers it asks what holds then.
func (c *call) undo(ctx context.Context, answers bool) {
	var all []*question
	var granted []question
	for _, q := range c.questions {
		if q.undo != nil {
			all, granted = append(all, q), append(granted, *q)
			q.undo, q.reserved = nil, nil
		}
	}
	if len(all) > 0 && c.toTheEnd(ctx, func(ctx context.Context) {
		decide.AtOnce(len(granted), func(i int) { c.giveBackGranted(ctx, &granted[i], answers) })
	}) {
		for i, q := range all {
			q.decision = granted[i].decision
		}
	}
}

// giveBackGranted gives back what a question was granted.
func (c *call) giveBackGranted(ctx context.Context, q *question, answers bool) {
	if q.undo(ctx) != nil {
		return
	}
	q.decision.Remaining = min(q.decision.Remaining+q.permits, q.decision.Limit)
	if q.by != limit.FromRedis || !answers {
		return
	}
	of := c.service.counterOf(q)
	if d, err := of.peek(ctx, 0); err == nil {
		q.decision = d
	}
}
