package ask

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

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

	settle settle       // nil if nothing can be settled
	by     limit.Source // who answered
	costly error        // the error if too costly
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

// settle sets the cost of a grant.
type settle func(ctx context.Context, actual int64) error

// take is the question as limiters get it, and name it in errors.
func (q *Question) take() outage.Ask {
	return outage.Ask{Call: "Take", Key: q.Key, Permits: q.Permits, Figures: true, Undo: true, Within: q.Limit.options.Timeout}
}

// asked is take, or the question that reserves the permits.
func (q *Question) asked() outage.Ask {
	asked := q.take()
	asked.Reserve = q.Limit.settled
	asked.Undo = !asked.Reserve
	return asked
}

// Ask asks for the permits.
func (q *Question) Ask(ctx context.Context) {
	if !q.Limit.settled {
		q.ask(ctx, q.asked())
		return
	}
	cannot := errNoReserver
	if q.Limit.reserves() {
		q.reserve(ctx)
		if cannot = q.Failure; q.State != Closed || !errors.Is(cannot, limit.ErrUnsupported) {
			return
		}
	}
	// It is limited nevertheless.
	q.ask(ctx, q.take())
	if q.by == limit.FromLimiter && (q.State == Granted || q.State == Open) {
		q.settle = func(context.Context, int64) error { return cannot }
	}
}

// maxReserves is how often a limiter is asked for an estimate that is above its limit, which may change meanwhile.
const maxReserves = 3

// reserve asks for permits that are settled later. If the estimate is above the limit, it asks for the whole
// limit: such a request would never pass, though it may cost less, or can be charged the rest.
func (q *Question) reserve(ctx context.Context) {
	for tries := 1; ; tries++ {
		q.ask(ctx, q.asked())
		most := q.Decision.Limit
		if q.State == TooCostly && most == 0 {
			most = math.MaxInt32 // that limiters can count, so that the answer says what the limit is
		}
		if q.State != TooCostly && q.State != Refused || most <= 0 || most >= q.Permits || tries == maxReserves {
			return
		}
		q.Permits = most
	}
}

// AskAndWait asks for the permits, and waits for them until ctx ends, for that long at most if the
// timeout is not 0. It is refused at once if that is known to be too short. The limiter [Limit.Waits].
func (q *Question) AskAndWait(ctx context.Context, timeout time.Duration) {
	asked := q.take()
	asked.Call, asked.Figures, asked.Waits, asked.Timeout = "Acquire", false, true, timeout
	asked.Until, _ = ctx.Deadline()
	if end := time.Now().Add(timeout); timeout > 0 && (asked.Until.IsZero() || end.Before(asked.Until)) {
		asked.Until = end
	}
	q.ask(ctx, asked)
}

// ask puts a question and records the answer.
func (q *Question) ask(ctx context.Context, asked outage.Ask) {
	l := q.Limit
	a, err := decide(ctx, l.limiter, l.keyed, l.policy, asked)
	q.complete(asked, a, err)
}

// complete records the answer, and how to undo or settle a grant.
func (q *Question) complete(asked outage.Ask, a outage.Answer, err error) {
	q.record(a, err)
	q.GiveBack, q.settle = a.Undo, nil
	if settle := q.settler(asked, a); err == nil && settle != nil {
		q.settle = settle
		q.GiveBack = func(ctx context.Context) error { return settle(ctx, 0) }
	}
}

// settler returns what settles a grant; nil if nothing does.
func (q *Question) settler(asked outage.Ask, a outage.Answer) settle {
	if !asked.Reserve || !a.Granted {
		return nil
	}
	return q.Limit.keyed.Settler(escaped(q.Limit.limiter, asked.Key), asked, a)
}

func (q *Question) record(a outage.Answer, err error) {
	q.by, q.Failure, q.Window = limit.FromLimiter, a.Cause, a.Window
	switch a.By {
	case limit.FromOpen, limit.FromLocal:
		q.by = a.By
	case limit.FromFallback:
		q.by = a.By
		if w, ok := q.Limit.fallback.(limit.Windowed); ok {
			q.Window = w.Window()
		}
	}
	if errors.Is(err, outage.ErrNotSent) && a.By == "" {
		q.by = ""
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
		q.State, q.costly = TooCostly, err
		q.Decision.Limit = a.Limit // the rest may be unknown
	default:
		q.Failure, q.State = err, Closed
		if kind := limit.KindOf(err); q.Limit.policy.Open() && (kind == limit.KindDeadline || kind == limit.KindCanceled) {
			q.State, q.by = Open, limit.FromOpen // the request's time was over first
		}
	}
}

// News returns what the error handler learns: the Failure, unless it only says of an outage what earlier
// requests have met.
func (q *Question) News() error {
	if outage.Known(q.Failure) {
		return nil
	}
	return q.Failure
}

// tooCostly reports whether waiting can't make a request pass: if n is above 0, too many permits is the
// only possible mistake.
func tooCostly(err error) bool {
	return errors.Is(err, limit.ErrPermitsExceedRate) || errors.Is(err, limit.ErrInvalidPermits)
}

// Again returns the question to ask it once more. An estimate that was lowered stays so.
func (q *Question) Again() Question {
	return Question{Limit: q.Limit, Place: q.Place, Key: q.Key, Permits: q.Permits, Start: q.Start}
}

// Subject is the key without its prefix.
func (q *Question) Subject() string { return strings.TrimPrefix(q.Key, q.Limit.prefix) }

// Refused reports whether the limit refused the request.
func (q *Question) Refused() bool { return q.State == Refused || q.State == TooCostly }

// Decided reports whether there is a Decision with figures.
func (q *Question) Decided() bool { return q.State == Granted || q.State == Refused }

// Blocks reports whether the same request would have to wait for the limit: because it refused, or because what
// it granted to a refused request stays taken and leaves too few.
func (q *Question) Blocks() bool {
	return q.Refused() || q.Decided() && !q.Returned && q.Decision.Remaining < q.Permits
}

// Wait is how long it takes until the limit has more to give, 0 if it has all or never will.
func (q *Question) Wait() time.Duration {
	switch {
	case q.State == Granted:
		return max(0, q.Decision.ResetAfter)
	case q.Hopeless():
		return 0
	}
	// A refusal without a time: soon, but not at once.
	return max(1, q.Decision.RetryAfter)
}

// Hopeless reports whether no waiting turns the refusal into a grant.
func (q *Question) Hopeless() bool {
	return q.State == TooCostly || q.State == Refused && Never(q.Decision)
}

// Never reports whether no waiting turns a refusal into a grant.
func Never(d limit.Decision) bool { return d.Limit <= 0 || d.RetryAfter == math.MaxInt64 }

// Report reports the outcome of the question to the observer.
func (q *Question) Report(ctx context.Context) {
	of := q.Limit.options
	if q.State == Unsettled || !of.observer.Watches() {
		return
	}
	err := q.costly
	if q.State == Closed {
		err = q.Failure
	}
	of.observer.Decided(ctx, limit.Decided{
		Limiter: q.Limit.Name, Call: of.Middleware, Permits: q.Permits, Source: q.by, Shadow: of.Shadow, Start: q.Start,
	}, q.State == Granted || q.State == Open, err)
}
