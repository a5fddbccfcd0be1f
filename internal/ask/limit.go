package ask

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Limit is one limit that requests must pass: its limiter, and what answers while that does not decide.
type Limit struct {
	Name string

	options  *Options
	own      limit.Limiter // its own fallback; nil: none
	length   time.Duration // of the limiter's window; 0: what the limiter says
	prefix   string        // of its keys
	settled  bool          // grants are settled later
	plans    plans
	limiter  limit.Limiter
	fallback limit.Limiter // nil: none
	keyed    outage.Keyed  // of the limiter; nil if it is not one of this module
	policy   outage.Policy

	// Of a limiter that is not one of this module.
	breaker outage.Breaker
	rates   outage.Rates
}

// Limit returns the Limit of that name, whose keys begin with prefix. Its own fallback, if it has one, takes
// precedence over the options. window is the length of its window; 0: what the limiter says, if it is a
// limit.Windowed.
func (o *Options) Limit(name, prefix string, limiter, own limit.Limiter, window time.Duration) (*Limit, error) {
	l := &Limit{Name: name, options: o, own: own, length: window, prefix: prefix, settled: o.Settled, fallback: own}
	l.setLimiter(limiter)
	if l.fallback == nil {
		l.fallback = o.Fallback
	}
	l.policy.Outer = outage.Watcher{Observer: o.observer, Limiter: name}
	if l.policy.Failure == nil { // the limiter's own comes before the middleware's
		l.policy.Failure = o.Failure
		if l.fallback != nil {
			l.policy.Fallback = fallback(l.fallback)
		}
	}
	if _, needsRate := l.policy.Local(); needsRate && !l.windowed() && l.keyed == nil {
		return nil, errors.New("WithFailure: FailLocal needs a limiter that knows its window, a limit.Windowed")
	}
	if k, ok := l.keyed.(interface{ Begins(prefix string) }); ok {
		if o.Tagged {
			prefix += "{" // the brace of a hash tag ends a prefix
		}
		k.Begins(prefix)
	}
	return l, nil
}

// setLimiter sets the limiter, with its own policy.
func (l *Limit) setLimiter(limiter limit.Limiter) {
	l.limiter, l.keyed = limiter, outage.KeyedOf(limiter)
	if l.keyed != nil {
		l.policy = l.keyed.Policy()
	} else {
		l.policy.Guard = outage.NewGuard()
	}
}

// windowed reports whether the length of the limit's window is known.
func (l *Limit) windowed() bool {
	_, windowed := l.limiter.(limit.Windowed)
	return windowed || l.length > 0
}

// Window returns the length of the limit's window; 0 if it is not known.
func (l *Limit) Window() time.Duration {
	if w, ok := l.limiter.(limit.Windowed); ok && l.length == 0 {
		return w.Window()
	}
	return l.length
}

// fallback returns what asks a limiter in place of another.
func fallback(limiter limit.Limiter) func(context.Context, outage.Ask) (outage.Answer, error) {
	l := &Limit{}
	l.setLimiter(limiter)
	return func(ctx context.Context, q outage.Ask) (outage.Answer, error) {
		q.Waits, q.Timeout, q.Reserve = false, 0, q.Reserve && l.reserves() // Settle must not fail because of an outage
		q.Undo = !q.Reserve
		p := l.part(q)
		defer leave(ctx, &p)
		return p.Policy.Decide(ctx, p.Asker, p.Ask)
	}
}

// part returns an ask as it is put to the limiter.
func (l *Limit) part(q outage.Ask) outage.Part {
	if s, ok := l.limiter.(limit.Suffixed); ok {
		q.Key = keypart.EscapeSuffix(q.Key, s.KeySuffix())
	}
	p := outage.Part{Policy: &l.policy, Ask: q}
	if l.keyed != nil {
		p.Asker = l.keyed.Asker(q.Key)
	} else {
		p.Asker = &asker{Limit: l}
	}
	return p
}

// leave ends a part: of a probe, no one waits for the answer any more.
func leave(ctx context.Context, p *outage.Part) {
	if a, isForeign := p.Asker.(*asker); isForeign {
		a.leave(ctx, p.Ask.Within)
	}
}

// Err returns the limiters' own errors, as far as they have the method, and one if grants are to be settled and
// can't be.
func (l *Limit) Err() error {
	var faults []error
	if l.settled && !l.reserves() {
		faults = append(faults, fmt.Errorf("%q can't be settled: %w", l.Name, errNoReserver))
	}
	for _, limiter := range []limit.Limiter{l.limiter, l.fallback} {
		if checked, ok := limiter.(interface{ Err() error }); ok {
			faults = append(faults, checked.Err())
		}
	}
	return errors.Join(faults...)
}

var errNoReserver = fmt.Errorf("%w: the limiter is not a limit.Reserver; those of Client.Keyed and of package fixedwindow are", limit.ErrUnsupported)

// reserves reports whether the limiter's grants can be settled.
func (l *Limit) reserves() bool {
	_, ok := l.limiter.(limit.Reserver)
	return ok
}

// waiter is a limiter that waits for permits itself: in order, and woken when permits are released.
type waiter interface {
	limit.Limiter
	Acquire(ctx context.Context, key string, n int64) error
	Release(ctx context.Context, key string, n int64) error
}

// Waits reports whether the limiter waits for permits itself.
func (l *Limit) Waits() bool {
	_, ok := l.limiter.(waiter)
	return ok
}

// Question returns the question for the Limit about so many permits of a key.
func (l *Limit) Question(key string, permits int64) Question {
	return Question{Limit: l, Key: key, Permits: permits, Start: time.Now()}
}
