package outage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Guard answers for Redis as a [limit.Failure] says. Its local limiters are shared by
// all that have the Guard.
type Guard struct {
	Uncharged Uncharged

	observer *observe.Observer
	locals   *local.Limiter
	clock    *clock.Clock
	sleeper  sleeper
	closed   chan struct{}
	close    sync.Once
}

// NewGuard returns a Guard that tells the observer when servers are asked no more, and
// again.
//
// asked are the callers who ask a server, as a test's clock sees them; nil where no
// caller waits by the Guard.
func NewGuard(observer *observe.Observer, c *clock.Clock, asked clock.Sleeper) *Guard {
	g := &Guard{Uncharged: Uncharged{Clock: c}, observer: observer, locals: local.New(c), clock: c, closed: make(chan struct{})}
	if asked != nil {
		g.sleeper.asked = asked
		g.sleeper.clock = c
		c.Join(&g.sleeper)
	}
	return g
}

// errOpen says why a call was not sent.
var errOpen = fmt.Errorf("%w: the last calls were not decided, and this one was not sent", limit.ErrUnavailable)

// Ask asks Redis, if its server is not known to leave calls undecided, and tells
// whether that is the outcome. probe tells whether the server answers. ask tells too
// whether a context ended before Redis had said anything.
func (g *Guard) Ask(b *Breaker, probe func() bool, ask func() (unanswered bool, err error)) (undecided bool, err error) {
	if !b.Allows(probe, g.changed) {
		return true, errOpen
	}
	start := g.clock.Now()
	unanswered, err := ask()
	switch {
	case errors.Is(err, limit.ErrUnavailable):
		undecided = true
	case errors.Is(err, context.DeadlineExceeded) && unanswered && b.Left(start):
		// Nobody is there to be answered, but the server is silent.
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return false, err
	default:
		b.Decided()
		return false, err
	}
	if b.Failed(start) {
		g.changed(true)
	}
	return undecided, err
}

func (g *Guard) changed(open bool) {
	kind := limit.AskedAgain
	if open {
		kind = limit.AskedNoMore
	}
	g.observer.Happened(limit.Event{Kind: kind})
}

// Instead decides for Redis, which left it undecided because of err. Where rule is zero,
// the limiter's rate is not known. What is granted is not charged: it goes to the
// account, and giveBack undoes it.
func (g *Guard) Instead(how limit.Failure, of Account, n int64, rule local.Rule, err error) (
	d limit.Decision, by limit.Source, giveBack func(context.Context) error, _ error,
) {
	uncharged := func(undo func()) func(context.Context) error {
		g.Uncharged.Add(of, n, rule.Window)
		return func(context.Context) error {
			undo()
			g.Uncharged.Take(of, n)
			return nil
		}
	}
	share, isLocal := how.Local()
	switch {
	case how.Open():
		return limit.Decision{Granted: true}, limit.FromOpen, uncharged(func() {}), nil
	case !isLocal || rule.Permits < 1:
		return limit.Decision{}, "", nil, err
	}
	part := Share(rule, share)
	if n > part.Permits {
		return limit.Decision{Limit: part.Permits}, limit.FromLocal, nil, nil
	}
	d, undo := g.locals.Take(of.Limiter, n, part)
	if d.Granted {
		giveBack = uncharged(undo)
	}
	return d, limit.FromLocal, giveBack, nil
}

// UpToInstead is Instead for as many permits as there are, at most n. It tells how many
// that were.
func (g *Guard) UpToInstead(how limit.Failure, of Account, n int64, rule local.Rule, err error) (
	taken int64, d limit.Decision, by limit.Source, _ error,
) {
	if _, isLocal := how.Local(); isLocal {
		n = min(n, max(1, rule.Permits))
	}
	for {
		d, by, _, failed := g.Instead(how, of, n, rule, err)
		switch {
		case failed != nil || d.Granted:
			if !d.Granted {
				n = 0
			}
			return n, d, by, failed
		case n > d.Limit: // more than the share ever has
			n = d.Limit
		case n == 1:
			return 0, d, by, nil
		default:
			n = max(1, d.Remaining) // the figures are those of one permit
		}
	}
}

// Share returns a part of a rule: fewer permits, and where that would be less than one,
// one in a longer window.
func Share(rule local.Rule, share float64) local.Rule {
	part := float64(rule.Permits) * share
	if part >= 1 {
		rule.Permits = int64(part)
		return rule
	}
	window := float64(rule.Window) / part
	return local.Rule{Permits: 1, Window: time.Duration(min(window, float64(math.MaxInt64/2)))}
}
