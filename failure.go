package rratelimiter

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// SharedOption configures a Client, all handles of which it then holds for, or one
// handle.
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

// WithFailure sets what answers the calls that ask for permits while Redis does not decide, in place of
// ErrUnavailable: [limit.FailOpen] grants, [limit.FailLocal] asks a limiter in this process, and
// [limit.FailClosed] leaves the error. TryAcquireAll goes by the Client's.
//
// After three calls in a row that a server left undecided, no more are sent to it: the policy answers at
// once, while one probe at a time looks for the server to be back. A caller's deadline that ends before
// Redis has said anything counts for that too, and the caller gets its error. What is granted so is not
// charged in Redis: see [RateLimiter.Release]. A caller that waits, and that the local limiter refuses,
// asks again when that has permits, or Redis is back.
func WithFailure(f limit.Failure) SharedOption { return sharedOption(limit.WithFailure(f)) }

// rate is what a handle knows of its limiter's.
type rate struct {
	last   atomic.Pointer[limit.Rate]
	heard  atomic.Int64 // when Redis last told that it is so, Unix ns
	asking atomic.Bool
}

// learnAgain is how old what a handle knows of its limiter's rate becomes while the
// limiter is used: most grants do not tell the rate, and others may change it.
const learnAgain = time.Minute

// rule is the limiter's rate for a local limiter; zero if it is not known.
func (l *asker) rule() local.Rule {
	r := l.facts.Rate
	if known := l.known.last.Load(); known != nil {
		r = *known
	}
	return local.Rule{Permits: r.Permits, Window: r.Interval}
}

// learn has the handle know the limiter's rate for when Redis does not answer: the
// figures of a decision, if there are any, tell whether that is another than it was.
func (l *asker) learn(how limit.Failure, figures *limit.Decision) {
	if _, isLocal := how.Local(); !isLocal {
		return
	}
	now := l.client.clock.Now().UnixNano()
	if known := l.rule(); known.Permits != 0 {
		heard := l.known.heard.Load()
		switch {
		case figures != nil && (figures.Limit != known.Permits || figures.ResetAfter > known.Window):
		case heard == 0 || figures != nil && figures.Granted && figures.ResetAfter == known.Window:
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
		_ = script.Guard(func() error { // a hook of the Redis client's may panic
			r, err := l.client.engine.Rate(context.Background(), &l.facts)
			if err == nil {
				l.known.last.Store(&r)
				l.known.heard.Store(now)
			}
			return err
		})
	}()
}

// WithShadow makes limiters decide, charge and report, but refuse no call and let none wait: to see what a
// limit would do. What a limiter would have refused, or could not decide, is granted and not charged: see
// [RateLimiter.Release]. Mistakes, and contexts that end, stay errors. TryAcquireAll goes by the Client's.
func WithShadow() SharedOption { return sharedOption(limit.WithShadow()) }
