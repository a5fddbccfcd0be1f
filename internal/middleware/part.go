package middleware

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// part is a question as its limiter is asked it, by a policy of its own, and the answer. The permits are an estimate if
// they are to be settled.
type part struct {
	question *Question
	policy   *outage.Policy
	of       outage.Asker
	ask      decide.Ask

	answer decide.Answer
	err    error
}

// part returns a question as the limiter is asked it. q is nil if no question learns the answer.
func (l *Limit) part(q *Question, ask decide.Ask) part {
	if l.suffix != "" {
		ask.Key = keypart.EscapeSuffix(ask.Key, l.suffix)
	}
	p := part{question: q, policy: &l.policy, ask: ask}
	switch {
	case l.keyed == nil:
		p.of = &asker{Limit: l}
	case q == nil:
		p.of = l.keyed.Asker(ask)
	default:
		if q.of == nil { // a KeyedFunc asks the program for the key's rate: once for each request
			q.of = l.keyed.Asker(ask)
		}
		p.of = q.of
	}
	return p
}

// leave ends a part: of a probe, no one waits for the answer any more.
func (p *part) leave(ctx context.Context) {
	if a, isForeign := p.of.(*asker); isForeign {
		a.leave(ctx)
	}
}

// maxTries is how often a limiter is asked for an estimate that is above its limit, which may change meanwhile.
const maxTries = 3

// decide lets ask answer a part. If an estimate is above the limit, the whole limit is asked for.
func (p *part) decide(ctx context.Context, start time.Time, ask func() (decide.Answer, error)) {
	for tries := 1; ; tries++ {
		p.answer, p.err = ask()
		if tries == maxTries || !p.lower() {
			break
		}
		p.ask.Within = p.question.left()
	}
	p.end(ctx, start)
}

// lower lowers an estimate to the limit of the answer, and reports whether it was above that: such a request would
// never pass, though it may cost less, or can be charged the rest.
func (p *part) lower() bool {
	most := p.answer.Limit
	if tooCostly(p.err) && most == 0 {
		most = math.MaxInt32 // that limiters can count, so that the answer says what the limit is
	}
	if !p.ask.Reserve || !p.question.Limit.settled() || p.answer.Granted || p.err != nil && !tooCostly(p.err) || most <= 0 || most >= p.ask.Permits {
		return false
	}
	p.ask.Permits = most
	return true
}

// tooCostly reports whether waiting can't make a request pass: if it asks for more than 0 permits, too many are the
// only possible mistake.
func tooCostly(err error) bool {
	return errors.Is(err, limit.ErrPermitsExceedRate) || errors.Is(err, limit.ErrInvalidPermits)
}

// end completes an answer and records it.
func (p *part) end(ctx context.Context, start time.Time) {
	p.answer, p.err = p.policy.Complete(ctx, p.of, p.ask, p.answer, p.err, start)
	p.question.record(p)
}

// round is the parts that one call asks.
type round struct {
	group any // of all of them; nil if it is one that goes alone
	parts []part
}

// rounds returns the questions to which no answer is at hand, without those whose grant is kept.
func rounds(ctx context.Context, questions []Question) (all []*round) {
	for i := range questions {
		q, start := &questions[i], time.Now()
		if q.kept {
			continue
		}
		p := q.Limit.part(q, q.asked(q.Limit.reserved()))
		var known bool
		if p.answer, known, _ = p.of.FromMemory(ctx, p.ask); known {
			p.end(ctx, start)
			continue
		}
		var group any
		if joint, ok := p.of.(outage.Joint); ok && !q.Limit.Shadow {
			group = joint.Group(p.ask)
		}
		at := slices.IndexFunc(all, func(r *round) bool { return group != nil && r.group == group })
		if at < 0 {
			at, all = len(all), append(all, &round{group: group})
		}
		all[at].parts = append(all[at].parts, p)
	}
	return all
}

func (r *round) ask(ctx context.Context) {
	if len(r.parts) == 1 || !r.together(ctx) {
		decide.AtOnce(len(r.parts), func(i int) { r.parts[i].question.Ask(ctx) })
	}
}

// together answers the parts, none in shadow, by one call. While Redis does not decide, the policy of each answers. If an
// estimate is above its limit, another call asks for the whole limit. If any other part asks for more than its limit, it
// is too costly, and the others are left unsettled.
//
// It returns false if one of the limiters can't be asked: then nothing was charged, and each is to be asked alone.
func (r *round) together(ctx context.Context) bool {
	start, ask := time.Now(), r.parts[0].ask
	ask.Reserve = true // those that are not to be settled can be undone
	for tries := 0; ; tries++ {
		a, sent, err := r.send(ctx, ask)
		if !sent {
			return false
		}
		costly := slices.IndexFunc(r.parts, func(p part) bool { return p.answer.Limit > 0 }) // of an error
		switch known := a.Known; {
		case a.Undecided:
			decide.AtOnce(len(r.parts), func(i int) { // the fallback of each has its time
				p := &r.parts[i]
				p.decide(ctx, start, func() (decide.Answer, error) { return p.policy.Instead(ctx, p.of, p.ask, known, err) })
			})
			return true
		case !slices.Contains(mistakes, limit.KindOf(err)):
			for i := range r.parts {
				r.parts[i].decided(ctx, start)
			}
			return true
		case costly < 0:
			return false
		case tries == len(r.parts) || !r.parts[costly].lower():
			r.parts[costly].err = errors.Unwrap(err) // without the limiter's name, which end adds
			r.parts[costly].end(ctx, start)
			return true
		}
		ask.Within = r.parts[costly].question.left()
	}
}

// send asks the limiters of the parts by one call, unless one of them can't be asked.
func (r *round) send(ctx context.Context, ask decide.Ask) (a decide.Answer, sent bool, err error) {
	all, asks, by := make([]outage.Asker, len(r.parts)), make([]decide.Ask, len(r.parts)), make([]*outage.Policy, len(r.parts))
	for i, p := range r.parts {
		all[i], asks[i], by[i] = p.of, p.ask, p.policy
	}
	of := all[0].(outage.Joint).Together(all, asks) //nolint:forcetypeassert // it has a group
	if _, _, err = of.FromMemory(ctx, ask); err != nil {
		return a, false, err
	}
	ask.Start = time.Now()
	a, err = outage.Send(ctx, of, ask, by...)
	for i := range r.parts {
		p := &r.parts[i]
		p.ask.Start = ask.Start
		p.answer, p.err = decide.Answer{By: a.By, Known: a.Known}, err
		if len(a.Each) > 0 {
			p.answer = a.Each[i]
		}
	}
	return a, true, err
}

// decided ends a part that Redis has answered together with others.
func (p *part) decided(ctx context.Context, start time.Time) {
	p.policy.Learn(p.of, p.ask, p.answer, p.err)
	p.end(ctx, start)
}

// mistakes are errors of one limiter, which the others need not share.
var mistakes = []limit.ErrorKind{limit.KindExceeds, limit.KindInvalid, limit.KindCorrupt, limit.KindUnsupported, limit.KindNotInitialized}
