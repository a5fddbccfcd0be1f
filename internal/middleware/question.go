package middleware

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Question is a question to one limit about one request.
type Question struct {
	Limit    *Limit
	Place    int // of its policy among those of the middleware
	Key      string
	Permits  int64
	State    State
	Decision limit.Decision              // if granted or refused; only the Limit if too costly
	GiveBack func(context.Context) error // nil if nothing can be given back
	Returned bool                        // what was granted was given back, or never charged
	Failure  error                       // of the limiter, even if another answered
	Window   time.Duration               // of what answered in the limiter's place; 0 if nothing did, or it is not known
	Start    time.Time

	made     string                             // what the Key was made of: see [decide.Ask]
	of       outage.Asker                       // that answers for the Key; nil until it is asked, or if the limiter is not one of this module
	began    time.Time                          // when the limits were asked, which have the timeout together; zero: they have it now
	answered time.Time                          // when a grant came
	kept     bool                               // a grant waits for those of other limits
	news     bool                               // the error handler learns of the Failure: no earlier request has met that outage
	settle   func(context.Context, int64) error // sets the cost of a grant; nil if nothing can be settled
	renew    func(context.Context) error        // makes that of a grant count from now on; nil if it can't
	lasts    time.Duration                      // how long a grant counts that is not renewed; 0 if it is not known
	by       limit.Source                       // who answered
	report   func()                             // reports the answer of a limit in shadow to the limiter's observer; may be nil
	err      error                              // why it is too costly, or there is no answer
}

// State is the answer of a limit.
type State int

// The answers of a limit.
const (
	Unsettled State = iota // not asked: the request costs more than another limit
	Granted
	Refused   // for now
	TooCostly // forever: the request costs more than the limit
	Closed    // no answer: the request must not pass
	Open      // no answer: the limit is left out
)

// asked is the question as limiters get it, and name it in errors. It may reserve the permits.
func (q *Question) asked(reserve bool) decide.Ask {
	ask := decide.Ask{
		Call: "Take", Key: q.Key, Made: q.made, Permits: q.Permits, Figures: true, Undo: !reserve, Reserve: reserve, Within: q.left(),
		Watched: q.Limit.Shadow,
	}
	if reserve {
		ask.Hold = q.Limit.Hold
	}
	return ask
}

// left is how much of the middleware's timeout is left, 0 if there is none.
func (q *Question) left() time.Duration {
	timeout := q.Limit.options.Timeout
	if timeout == 0 || q.began.IsZero() {
		return timeout
	}
	return max(1, timeout-time.Since(q.began))
}

// Ask asks for the permits.
func (q *Question) Ask(ctx context.Context) {
	l, cannot := q.Limit, errNoReserver
	reserves := l.reserved() && l.reserves()
	q.ask(ctx, q.asked(reserves))
	if reserves {
		if cannot = q.Failure; q.State != Closed || !errors.Is(cannot, limit.ErrUnsupported) {
			return
		}
		q.ask(ctx, q.asked(false)) // it is limited nevertheless
	}
	if l.settled() && q.by == limit.FromLimiter && (q.State == Granted || q.State == Open) {
		q.settle = func(context.Context, int64) error { return cannot }
	}
}

// AskAndWait asks for the permits, and waits for them until ctx ends, for that long at most if the
// timeout is not 0. It is refused at once if that is known to be too short, but a place in flight may become free at any
// moment. The limiter [Limit.WaitsItself].
func (q *Question) AskAndWait(ctx context.Context, timeout time.Duration, figures bool) {
	q.askAndWait(ctx, timeout, figures, q.Limit.reserved())
	if q.Limit.reserved() && q.State == Closed && errors.Is(q.Failure, limit.ErrUnsupported) {
		q.askAndWait(ctx, timeout, figures, false) // it is limited nevertheless
	}
}

func (q *Question) askAndWait(ctx context.Context, timeout time.Duration, figures, reserve bool) {
	asked := q.asked(reserve)
	asked.Call, asked.Figures, asked.MayWait, asked.Timeout = "Acquire", figures || asked.Reserve, true, timeout
	asked.Until, _ = ctx.Deadline()
	if end := time.Now().Add(timeout); timeout > 0 && (asked.Until.IsZero() || end.Before(asked.Until)) {
		asked.Until = end
	}
	if q.Limit.InFlight {
		asked.Until = time.Time{}
	}
	q.ask(ctx, asked)
}

// ask puts a question and records the answer.
func (q *Question) ask(ctx context.Context, asked decide.Ask) {
	p := q.Limit.part(q, asked)
	defer p.leave(ctx)
	start := time.Now()
	p.decide(ctx, start, func() (decide.Answer, error) { return p.policy.Ask(ctx, p.of, p.ask, start) })
}

// record records the answer of a part, and how to undo or settle a grant.
func (q *Question) record(p *part) {
	a, err := p.answer, p.err
	q.answered, q.report = time.Now(), a.Report
	q.Permits = p.ask.Permits // an estimate may have been lowered
	q.by, q.Failure, q.Window = a.By, a.Cause, a.Window
	notSent := errors.Is(cmp.Or(err, a.Cause), outage.ErrNotSent) // a limiter may wrap one of this module
	q.news, q.err = !a.Known && !notSent, nil
	if a.By == limit.FromRedis || a.By == limit.FromMemory || a.By == "" && !notSent {
		q.by = limit.FromLimiter
	}
	if w, ok := q.Limit.Fallback.(limit.Windowed); ok && a.By == limit.FromFallback {
		q.Window = w.Window()
	}
	switch {
	case err == nil && a.Granted && a.Limit == 0:
		q.State = Open // a policy lets all pass for now
	case err == nil:
		q.Decision, q.State = a.Decision, Refused
		if a.Granted {
			q.State = Granted
		}
	case tooCostly(err):
		q.State, q.err = TooCostly, limit.ErrPermitsExceedRate // whatever the limiter calls it
		q.Decision.Limit = a.Limit                             // the rest may be unknown
	default:
		q.State, q.err, q.Failure, q.news = Closed, err, err, q.news || a.By == limit.FromFallback
		if kind := limit.KindOf(err); q.Limit.policy.Open() && (kind == limit.KindDeadline || kind == limit.KindCanceled) {
			q.State, q.err, q.by = Open, nil, limit.FromOpen // the request's time was over first
		}
	}
	q.GiveBack, q.settle, q.renew = a.Undo, nil, a.Renew
	switch {
	case err == nil && a.By == limit.FromRedis && a.Granted && a.Taken == 0: // another part refused, and none was charged
		q.GiveBack, q.Returned = nil, true
	case err == nil && a.Granted && p.ask.Reserve:
		settle := p.policy.Settler(p.of, p.ask, a)
		if q.lasts = a.ResetAfter; p.ask.Hold > 0 { // this grant is the newest
			q.lasts = min(q.lasts, p.ask.Hold)
		}
		if q.Limit.InFlight {
			charge, key, crowd := settle, q.Key, &q.Limit.options.crowd
			settle = func(ctx context.Context, used int64) error {
				defer crowd.freed(key)
				return charge(ctx, used)
			}
		}
		q.settle, q.GiveBack = settle, func(ctx context.Context) error { return settle(ctx, 0) }
	}
}

// Again returns the question to ask it once more. An estimate that was lowered stays so.
func (q *Question) Again() Question {
	return Question{Limit: q.Limit, Place: q.Place, Key: q.Key, made: q.made, Permits: q.Permits, Start: q.Start, of: q.of}
}

// Subject is the key without its prefix.
func (q *Question) Subject() string { return strings.TrimPrefix(q.Key, q.Limit.Prefix) }

// Refused reports whether the limit refused the request.
func (q *Question) Refused() bool { return q.State == Refused || q.State == TooCostly }

// Decided reports whether there is a Decision with figures.
func (q *Question) Decided() bool { return q.State == Granted || q.State == Refused }

// Blocks reports whether the same request would have to wait for the limit: because it refused, or because what
// it granted to a refused request stays taken and leaves too few.
func (q *Question) Blocks() bool {
	return q.Refused() || q.Decided() && !q.Returned && !q.kept && q.Decision.Remaining < q.Permits
}

// Wait is how long it takes until the limit has more to give, 0 if it has all or never will. A limit in flight has more
// whenever a request ends.
func (q *Question) Wait() time.Duration {
	switch {
	case q.State == Granted && q.Limit.InFlight, q.Hopeless():
		return 0
	case q.State == Granted:
		return max(0, q.Decision.ResetAfter)
	case q.Limit.InFlight && q.Decision.RetryAfter > 0:
		return min(q.Decision.RetryAfter, time.Second)
	}
	if q.Decision.RetryAfter <= 0 {
		return unnamedWait
	}
	return q.Decision.RetryAfter
}

// unnamedWait is how long to wait after a refusal by a limiter that does not say so: soon, but not at once.
const unnamedWait = 100 * time.Millisecond

// RetryAfter is how long it takes until a refused request could pass all limits, 0 if waiting does not help.
func RetryAfter(questions []Question) (longest time.Duration) {
	for i := range questions {
		switch q := &questions[i]; {
		case q.Hopeless():
			return 0
		case q.Blocks():
			longest = max(longest, q.Wait())
		}
	}
	return longest
}

// Hopeless reports whether no waiting turns the refusal into a grant.
func (q *Question) Hopeless() bool {
	d := q.Decision
	return q.State == TooCostly || q.State == Refused && (d.Limit <= 0 || d.RetryAfter == math.MaxInt64)
}

// Live returns the questions to limits that are not in shadow.
func Live(questions []Question) []Question {
	shadow := func(q Question) bool { return q.Limit.Shadow }
	if !slices.ContainsFunc(questions, shadow) {
		return questions
	}
	return slices.DeleteFunc(slices.Clone(questions), shadow)
}

// Report reports the answers to the observer: those of limits in shadow only if all others let the request pass.
func (v Verdict) Report(ctx context.Context, questions []Question) {
	for i := range questions {
		if q := &questions[i]; !q.Limit.Shadow || !v.Refused && !v.Closed && !v.Gone {
			q.Report(ctx)
		}
	}
}

// Report reports the outcome of the question.
func (q *Question) Report(ctx context.Context) {
	of := q.Limit.options
	if q.report != nil {
		q.report()
	}
	if q.State == Unsettled || !of.observer.Watches() {
		return
	}
	of.observer.Decided(ctx, limit.Decided{
		Limiter: q.Limit.Name, Call: of.Middleware, Permits: q.Permits, Source: q.by,
		Shadow: of.Shadow || q.Limit.Shadow, Start: q.Start,
		Key: q.Key, Limit: q.Decision.Limit, Remaining: q.Decision.Remaining,
	}, q.State == Granted || q.State == Open, q.err)
}
