package ask

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Limit is one limit that requests must pass: its limiter, and what answers if that fails.
type Limit struct {
	Name string

	limiter  limit.Limiter
	open     bool
	fallback limit.Limiter   // nil: none
	share    *share          // nil: none
	breaker  *outage.Breaker // nil: each request asks the limiter
	observer *observe.Observer
	shadow   bool
	settled  bool // grants are settled later
}

// Limit returns the Limit of that name. Its own fallback, if it has one, takes precedence over the
// options. window returns the limit's window; nil if that is not known.
func (o *Options) Limit(name string, limiter, own limit.Limiter, window func() time.Duration) (*Limit, error) {
	l := &Limit{Name: name, limiter: limiter, fallback: own, observer: o.observer, shadow: o.Shadow, settled: o.Settled}
	if l.fallback == nil {
		l.fallback = o.Fallback
	}
	if l.fallback != nil {
		l.breaker = &outage.Breaker{}
		return l, nil
	}
	if o.Failure == nil {
		return l, nil
	}
	l.breaker, l.open = &outage.Breaker{}, o.Failure.Open()
	if part, ok := o.Failure.Local(); ok {
		if window == nil {
			return nil, errors.New("WithFailure: FailLocal needs a limiter that knows its window, a limit.Windowed")
		}
		l.share = newShare(part, window)
	}
	return l, nil
}

// Err returns the limiters' own errors, as far as they have the method.
func (l *Limit) Err() error {
	var faults []error
	for _, limiter := range []limit.Limiter{l.limiter, l.fallback} {
		if checked, ok := limiter.(interface{ Err() error }); ok {
			faults = append(faults, checked.Err())
		}
	}
	return errors.Join(faults...)
}

// Waiter is a limiter that waits for permits itself: in order, and woken when permits are released.
type Waiter interface {
	limit.Limiter
	Acquire(ctx context.Context, key string, n int64) error
	Release(ctx context.Context, key string, n int64) error
}

// Waiter returns the limiter if it is a Waiter and has no fallback: it reports too late that it can't
// decide for a fallback to help.
func (l *Limit) Waiter() (Waiter, bool) {
	w, ok := l.limiter.(Waiter)
	return w, ok && l.breaker == nil
}

// Question returns the question for the Limit about a key.
func (l *Limit) Question(key string) Question {
	return Question{Limit: l, Key: key, Next: l.limiter, by: limit.FromLimiter, Start: time.Now()}
}

// Why a limiter that left the last requests undecided was not asked.
var (
	errNotAsked = fmt.Errorf("%w: the limiter left the last requests undecided, so it was not asked", limit.ErrUnavailable)
	errProbing  = fmt.Errorf("%w: the limiter left the last requests undecided, and did not answer this one within %v", limit.ErrUnavailable, outage.Patience)
)

// begin asks the limiter, unless the breaker is open.
func (l *Limit) begin(ctx context.Context, a attempt) *Call {
	if l.breaker == nil {
		return a.begin(ctx, nil)
	}
	switch l.breaker.Admit() {
	case outage.NotSent:
		return ended(Outcome{Err: errNotAsked})
	case outage.Probing:
		return l.probe(ctx, a)
	default:
		c := a.begin(ctx, l.heard)
		c.counts = true
		return c
	}
}

// heard records a decision, even if its request has gone, and how long it took.
func (l *Limit) heard(o Outcome, took time.Duration) {
	if o.Panicked == nil && !undecided(o.Err) {
		l.breaker.Heard(took)
	}
}

// probe asks the limiter to see whether it decides again. It has its full time: the caller does not
// wait for long, and may be gone when the answer comes.
func (l *Limit) probe(ctx context.Context, a attempt) *Call {
	asking, cancel := Afterwards(ctx, a.timeout)
	var once sync.Once
	finish := func(answers bool) {
		once.Do(func() {
			if l.breaker.Probed(answers) {
				l.happened(limit.AskedAgain, nil)
			}
		})
	}
	stop := context.AfterFunc(asking, func() { finish(false) }) // it may ignore its context
	c := a.begin(asking, func(o Outcome, took time.Duration) {
		l.heard(o, took)
		stop()
		cancel()
		finish(o.Panicked == nil && !undecided(o.Err))
	})
	c.most = outage.Patience
	return c
}

// count records in the breaker how a call of the limiter for a request ended. The context is the
// request's.
func (l *Limit) count(ctx context.Context, o Outcome, start time.Time) {
	switch {
	case o.Panicked != nil:
	case !undecided(o.Err):
		l.breaker.Decided()
	case errors.Is(ctx.Err(), context.Canceled):
	case ctx.Err() != nil && !l.breaker.Left(start):
	case l.breaker.Failed(start):
		l.happened(limit.AskedNoMore, o.Err)
	}
}

func (l *Limit) happened(kind limit.EventKind, err error) {
	l.observer.Happened(limit.Event{Kind: kind, Limiter: l.Name, Err: err})
}

// undecided reports whether err leaves the decision open, so that the policy answers: Redis or the
// limiter gave no answer, or the limiter is not one of this module and returned an error of its own. A
// caller's mistake does not count.
func undecided(err error) bool {
	if errors.Is(err, limit.ErrUnavailable) {
		return true
	}
	switch limit.KindOf(err) {
	case limit.KindDeadline, limit.KindCanceled, limit.KindOther:
		return true
	default:
		return false
	}
}
