package middleware

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/recent"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Terms are what a limit is made of.
type Terms struct {
	Name     string
	Limiter  limit.Limiter
	Prefix   string        // of its keys
	Length   time.Duration // of the limiter's window; 0: what the limiter says, if it is a limit.Windowed
	Fallback limit.Limiter // nil: that of the options
	Settle   bool          // grants are settled by handlers
	Charges  bool          // grants are settled by the request's status
	InFlight bool          // grants come back when the request has ended
	Hold     time.Duration // how long a grant counts that is not settled; 0: an interval
	Shadow   bool          // it refuses no request
}

// settled reports whether grants are estimates of what is charged once that is known.
func (t *Terms) settled() bool { return t.Settle || t.Charges }

// reserved reports whether grants are reservations.
func (t *Terms) reserved() bool { return t.settled() || t.InFlight }

// Limit is one limit that requests must pass: its limiter, and what answers while that does not decide.
type Limit struct {
	Terms

	options *Options
	plans   *recent.Map[limit.Limiter, *Limit] // of the limiters that requests have chosen
	keyed   outage.Keyed                       // of the limiter; nil if it is not one of this module
	suffix  string                             // of a key's second one; "": there is none
	policy  outage.Policy

	// Of a limiter that is not one of this module.
	breaker outage.Breaker
	rates   *outage.Rates
}

// Mark is embedded in each package's Policy, which has a limiter's methods and is none.
type Mark struct{}

func (Mark) isPolicy() {}

// isPolicy reports whether a limiter is a package's Policy, or a pointer to one.
func isPolicy(limiter limit.Limiter) bool {
	_, is := limiter.(interface{ isPolicy() })
	return is
}

// Limit returns the Limit of some terms.
func (o *Options) Limit(t Terms) (*Limit, error) {
	if t.Fallback == nil {
		t.Fallback = o.Fallback
	}
	if isPolicy(t.Limiter) || isPolicy(t.Fallback) {
		return nil, errors.New("a Policy takes the place of the limiter of its own package's New only, as a value and not as a pointer")
	}
	hold, ok := decide.RoundHold(t.Hold)
	switch {
	case t.InFlight && t.settled():
		return nil, errors.New("InFlight is for policies without Settle and Charge")
	case t.Hold == 0:
	case !ok:
		return nil, fmt.Errorf("the Hold %v is less than 1ms", t.Hold)
	case !t.reserved():
		return nil, errors.New("a Hold is for policies with Settle, Charge or InFlight")
	default:
		t.Hold = hold
	}
	l := newLimit(t)
	l.options, l.Shadow = o, t.Shadow || l.policy.Shadow
	l.policy.Outer = outage.Watcher{Observer: o.observer, Limiter: t.Name}
	if l.policy.Failure == nil { // the limiter's own comes before the middleware's
		l.policy.Failure = o.Failure
		if t.Fallback != nil {
			fallback := newLimit(Terms{Limiter: t.Fallback})
			fallback.options = o
			l.policy.Fallback = fallback.instead
		}
	}
	_, needsRate := l.policy.Local()
	_, isWindowed := t.Limiter.(limit.Windowed)
	if needsRate && !isWindowed && t.Length == 0 && l.keyed == nil {
		return nil, errors.New("WithFailure: FailLocal needs a limiter that knows its window, a limit.Windowed")
	}
	if k, ok := l.keyed.(interface{ Begins(prefix string) }); ok {
		if o.Tagged {
			t.Prefix += "{" // the brace of a hash tag ends a prefix
		}
		k.Begins(t.Prefix)
	}
	return l, nil
}

// newLimit returns the Limit with the limiter's own policy.
func newLimit(t Terms) *Limit {
	l := &Limit{
		Terms: t, policy: outage.Policy{Guard: outage.NewGuard()}, rates: outage.NewRates(),
		plans: recent.New[limit.Limiter, *Limit](maxPlans),
	}
	if keyed, own := door.Behind[outage.Keyed](t.Limiter); keyed != nil {
		if l.suffix = keyed.Suffix(); own {
			l.keyed, l.policy = keyed, keyed.Policy()
		}
	}
	return l
}

// Window returns the length of the limit's window; 0 if it is not known.
func (l *Limit) Window() time.Duration {
	if w, ok := l.Limiter.(limit.Windowed); ok && l.Length == 0 {
		return w.Window()
	}
	return l.Length
}

// instead asks the limiter in place of another.
func (l *Limit) instead(ctx context.Context, q decide.Ask) (decide.Answer, error) {
	q.MayWait, q.Timeout, q.Within = false, 0, l.options.Timeout
	q.Reserve = q.Reserve && l.reserves() // Settle must not fail because of an outage
	q.Undo = !q.Reserve
	p := l.part(nil, q)
	defer p.leave(ctx)
	a, err := p.policy.Decide(ctx, p.of, p.ask)
	if a.Settle != nil { // this limiter says whether it may be repeated
		settle := p.policy.Settler(p.of, p.ask, a)
		a.Settle = func(ctx context.Context, used int64, then func(error)) error {
			err := settle(ctx, used)
			then(err)
			return err
		}
	}
	return a, err
}

// Err returns the limiters' own errors, as far as they have the method, and one if grants are to be settled and
// can't be.
func (l *Limit) Err() error {
	var faults []error
	switch {
	case l.reserved() && !l.reserves():
		faults = append(faults, fmt.Errorf("%q can't be settled: %w", l.Name, errNoReserver))
	case l.Hold > 0 && (l.keyed == nil || !l.keyed.Holds()), l.InFlight && l.keyed != nil && !l.keyed.Holds():
		faults = append(faults, fmt.Errorf("%q can't have Hold or InFlight: %w: the limiter is not one of Client.Keyed", l.Name, limit.ErrUnsupported))
	}
	for _, limiter := range []limit.Limiter{l.Limiter, l.Fallback} {
		if checked, ok := limiter.(interface{ Err() error }); ok {
			faults = append(faults, checked.Err())
		}
	}
	return errors.Join(faults...)
}

var errNoReserver = fmt.Errorf("%w: the limiter is not a limit.Reserver; those of Client.Keyed and of package fixedwindow are", limit.ErrUnsupported)

// reserves reports whether the limiter's grants can be settled.
func (l *Limit) reserves() bool {
	_, ok := l.Limiter.(limit.Reserver)
	return ok
}

// waiter is a limiter that waits for permits itself: in order, and woken when permits are released.
type waiter interface {
	limit.Limiter
	Acquire(ctx context.Context, key string, n int64) error
	Release(ctx context.Context, key string, n int64) error
}

// WaitsItself reports whether the limiter waits for permits itself. In shadow none does, and only those of this module
// wait for a reservation.
func (l *Limit) WaitsItself() bool {
	_, ok := l.Limiter.(waiter)
	return ok && !l.Shadow && (l.keyed != nil || !l.reserved())
}

// Question returns the question for the Limit about so many permits of a key, made of a text of the program's.
func (l *Limit) Question(key, made string, permits int64) Question {
	return Question{Limit: l, Key: key, made: made, Permits: permits, Start: time.Now()}
}

// maxPlans is how many bytes the Limits take at most that are kept of limiters which requests have chosen, and planSize about
// what one takes.
const maxPlans, planSize = 2 << 20, 1 << 10

// For returns the Limit of the limiter that a request has chosen, which has all but the limiter in common with l;
// l itself if that is nil.
func (l *Limit) For(limiter limit.Limiter) (*Limit, error) {
	v := reflect.ValueOf(limiter)
	switch {
	case limiter == nil || v.Kind() == reflect.Pointer && v.IsNil():
		return l, nil
	case !v.Comparable():
		return l.with(limiter)
	case limiter == l.Limiter:
		return l, nil
	}
	if chosen, ok := l.plans.Get(limiter); ok {
		return chosen, nil
	}
	chosen, err := l.with(limiter)
	if err != nil {
		return nil, err
	}
	return l.plans.Add(limiter, chosen, planSize, func(*Limit) bool { return true }), nil
}

// with returns the Limit with another limiter.
func (l *Limit) with(limiter limit.Limiter) (*Limit, error) {
	t := l.Terms
	t.Limiter = limiter
	chosen, err := l.options.Limit(t)
	if err != nil {
		return nil, fmt.Errorf("%w: the limiter of a plan: %w", limit.ErrInvalidConfig, err)
	}
	return chosen, nil
}
