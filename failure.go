package rratelimiter

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// SharedOption configures a Client, for all its handles, or one handle.
type SharedOption interface {
	Option
	LimiterOption
}

type sharedOption limit.Option

func (o sharedOption) client(c *Client) error { return o(&c.options) }

func (o sharedOption) limiter(l *RateLimiter) error {
	own := *l.policy
	chosen := limit.Options{Failure: own.Failure, Shadow: own.Shadow}
	err := o(&chosen)
	own.Failure, own.Shadow = chosen.Failure, chosen.Shadow
	l.policy = &own
	return err
}

// WithFailure sets what answers calls that ask for permits while Redis does not decide, in place of
// ErrUnavailable: [limit.FailOpen] grants, [limit.FailLocal] asks a limiter in this process, and
// [limit.FailClosed] leaves the error. For TryAcquireAll the Client's option counts.
//
// After three undecided calls in a row no more calls are sent to that server: the policy answers at
// once, while one probe at a time checks whether the server is back. A caller's deadline that ends before
// Redis has answered counts as undecided, and the caller gets its own error. Such grants are not charged
// in Redis: see [RateLimiter.Release]. A waiting caller that the local limiter refuses asks again when the
// local limiter has permits or Redis is back.
func WithFailure(f limit.Failure) SharedOption { return sharedOption(limit.WithFailure(f)) }

// rate is what a handle knows of its limiter's rate.
type rate struct {
	last   atomic.Pointer[limit.Rate]
	heard  atomic.Int64 // when Redis last confirmed it, Unix ns
	asking atomic.Bool
}

// learnAgain is the age at which a handle in use reads its limiter's rate again: most grants
// do not report the rate, and others may change it.
const learnAgain = time.Minute

// rule is the limiter's rate for a local limiter; zero if it is not known.
func (l *asker) rule() local.Rule {
	r := l.facts.Rate
	if known := l.known.last.Load(); known != nil {
		r = *known
	}
	return local.Rule{Permits: r.Permits, Window: r.Interval}
}

// Learn makes the handle read the limiter's rate. The figures of a decision, if there are any, show
// whether the rate is another than before.
func (l *asker) Learn(q outage.Ask, a outage.Answer) {
	now := time.Now().UnixNano()
	if known := l.rule(); known.Permits != 0 {
		heard := l.known.heard.Load()
		switch {
		case q.Figures && (a.Limit != known.Permits || a.ResetAfter > known.Window):
		case heard == 0 || q.Figures && a.Granted && a.ResetAfter == known.Window:
			l.known.heard.Store(now)
			return
		case now-heard < int64(learnAgain):
			return
		}
	}
	if l.known.asking.Swap(true) {
		return
	}
	go func() {
		defer l.known.asking.Store(false)
		_ = script.RecoverPanic(func() error { // a hook of the Redis client's may panic
			r, err := l.client.engine.Rate(context.Background(), &l.facts)
			if err == nil {
				l.known.last.Store(&r)
				l.known.heard.Store(now)
			}
			return err
		})
	}()
}

// WithShadow makes limiters decide, charge and report, but refuse no call and let none wait, to see what a
// limit would do. What a limiter would have refused, or could not decide, is granted and not charged: see
// [RateLimiter.Release]. Calls with mistakes, and calls whose context ends, still return errors. For
// TryAcquireAll the Client's option counts.
func WithShadow() SharedOption { return sharedOption(limit.WithShadow()) }
