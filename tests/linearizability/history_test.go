package linearizability_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/linear"
	"github.com/rratelimiter/rratelimiter/limit"
)

// linearCall is what a caller does with a limiter.
type linearCall struct {
	linear.Call

	limiter  int
	second   int                                     // limiter, of a call for two
	both     func(ctx context.Context) (bool, error) // the call for two
	pause    time.Duration                           // before the call
	patience time.Duration                           // until its context ends; 0: for ever
	rash     bool                                    // in place of that, it ends while a request is on its way
	dead     bool                                    // its context has ended before
}

// run makes the call and notes what comes of it. rash ends a context while a
// request may be on its way.
func (c linearCall) run(ctx context.Context, l *rratelimiter.RateLimiter, moments *moments, rash func(context.CancelFunc)) linear.Record {
	r, err := linear.Record{Call: c.Call}, error(nil)
	if c.patience > 0 || c.dead {
		ending, cancel := context.WithCancel(ctx)
		defer cancel()
		ctx = ending
		switch {
		case c.dead:
			cancel()
		case c.rash:
			rash(cancel)
		default:
			defer time.AfterFunc(c.patience, cancel).Stop()
		}
	}
	var opts []rratelimiter.RateOption
	if c.Keep {
		opts = append(opts, rratelimiter.KeepState())
	}
	r.Began, r.BeganAt = moments.next()
	switch c.Name {
	case linear.Try:
		r.OK, err = l.TryAcquire(ctx, c.Permits, c.Timeout)
	case linear.All:
		r.OK, err = c.both(ctx)
	case linear.Acquire:
		err = l.Acquire(ctx, c.Permits)
		r.OK = err == nil
	case linear.Take:
		var d limit.Decision
		d, err = l.Take(ctx, c.Permits)
		note(&r, d)
	case linear.Peek:
		var d limit.Decision
		d, err = l.Peek(ctx, c.Permits)
		note(&r, d)
	case linear.UpTo:
		var d limit.Decision
		r.Taken, d, err = l.TakeUpTo(ctx, c.Permits)
		note(&r, d)
	case linear.Release:
		err = l.Release(ctx, c.Permits)
	case linear.Available:
		r.Free, err = l.AvailablePermits(ctx)
	case linear.TrySet:
		r.OK, err = l.TrySetRate(ctx, c.Config)
	case linear.Set:
		err = l.SetRate(ctx, c.Config, opts...)
		r.OK = err == nil
	case linear.Update:
		r.OK, err = l.UpdateRate(ctx, c.Config, opts...)
	case linear.Reset:
		err = l.Reset(ctx)
		r.OK = err == nil
	case linear.Delete:
		r.OK, err = l.Delete(ctx)
	}
	r.Ended, r.EndedAt = moments.next()
	r.Outcome = linear.OutcomeOf(err)
	if c.Timeout > 0 && errors.Is(err, rratelimiter.ErrUnavailable) {
		r.Outcome = linear.Cancelled // it went before its answer came: what it was granted goes back
	}
	return r
}

// note notes the figures of a decision.
func note(r *linear.Record, d limit.Decision) {
	r.OK, r.Free, r.Limit, r.Wait, r.Reset = d.Granted, d.Remaining, d.Limit, d.RetryAfter, d.ResetAfter
}

// moments counts the moments of a history.
type moments struct {
	last atomic.Int64
	now  func() int64 // ms of a clock that stands still while something happens, or always
}

func (m *moments) next() (moment, ms int64) { return m.last.Add(1), m.now() }
