package rratelimiter

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/engine"
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

type failureOption limit.Failure

// WithFailure says what answers the calls that ask for permits while Redis does not
// decide, in place of ErrUnavailable: [limit.FailOpen] grants, [limit.FailLocal] has a
// limiter of this process decide, [limit.FailClosed] leaves the error. TryAcquireAll
// goes by the Client's.
//
// After three calls in a row that a server left undecided, no more are sent to it: the
// policy answers at once, while one probe at a time looks for the server to be back.
// A caller's deadline that ends before Redis has said anything counts for that too, and
// the caller gets its error.
//
// What is granted so is charged nowhere but here: see [RateLimiter.Release]. A caller that waits, and that the local limiter refuses, asks again
// when that has permits, or Redis is back.
func WithFailure(f limit.Failure) SharedOption { return failureOption(f) }

func (o failureOption) client(c *Client) error {
	return limit.WithFailure(limit.Failure(o))(&c.options)
}

func (o failureOption) limiter(l *RateLimiter) error {
	var chosen limit.Options
	err := limit.WithFailure(limit.Failure(o))(&chosen)
	l.failure = chosen.Failure
	return err
}

// rate is what a handle knows of its limiter's.
type rate struct {
	config atomic.Pointer[Config]
	heard  atomic.Int64 // when Redis last told that it is so, Unix ns
	asking atomic.Bool
}

// learnAgain is how old what a handle knows of its limiter's rate becomes while the
// limiter is used: most grants do not tell the rate, and others may change it.
const learnAgain = time.Minute

// rule is the limiter's rate for a local limiter; zero where it is not known.
func (l *RateLimiter) rule() local.Rule {
	cfg := l.fallback
	if known := l.known.config.Load(); known != nil {
		cfg = *known
	}
	return local.Rule{Permits: cfg.Rate, Window: cfg.Interval}
}

// learn has the handle know the limiter's rate for when Redis does not answer: the
// figures of a decision tell whether that is another than it was, nil where there are
// none.
func (l *RateLimiter) learn(how limit.Failure, figures *limit.Decision) {
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
			cfg, err := l.Config(context.Background())
			if err == nil {
				l.known.config.Store(&cfg)
				l.known.heard.Store(now)
			}
			return err
		})
	}()
}

// askGuarded asks Redis, and where that does not decide, the policy.
func (l *RateLimiter) askGuarded(ctx context.Context, w engine.Wish) (d limit.Decision, by limit.Source, err error) {
	c, start, timeout := l.client, l.client.clock.Now(), w.Timeout
	defer c.guard.Enter()()
	var unanswered bool
	w.Unanswered = &unanswered
	for {
		if err := c.engine.Closed(); err != nil {
			return limit.Decision{}, "", err
		}
		undecided, err := c.guard.Ask(c.engine.Breaker(ctx, &l.facts), func() bool { return c.engine.Answers(&l.facts) }, func() (bool, error) {
			var err error
			d, by, err = c.engine.Acquire(ctx, &l.facts, w)
			return unanswered, err
		})
		if !undecided {
			switch {
			case err != nil:
			case w.Figures && by == limit.FromRedis:
				l.learn(*l.failure, &d)
			default:
				l.learn(*l.failure, nil)
			}
			return d, by, err
		}
		if w.UpTo != nil {
			*w.UpTo, d, by, err = c.guard.UpToInstead(*l.failure, l.account(), w.Permits, l.rule(), err)
			return d, by, err
		}
		d, by, giveBack, err := c.guard.Instead(*l.failure, l.account(), w.Permits, l.rule(), err)
		if giveBack != nil && w.Undo != nil {
			*w.Undo = giveBack
		}
		if err != nil || d.Granted || !w.Waits {
			return d, by, err
		}
		more, err := c.waitOutage(ctx, d.RetryAfter, start, timeout)
		if !more || err != nil {
			return d, by, err
		}
		if w.Timeout = timeout - c.clock.Since(start); timeout > 0 && w.Timeout <= 0 {
			w.Waits, w.Timeout = false, 0
		}
	}
}

// outagePause is how long a caller that waits lets pass before it looks whether Redis
// is back.
const outagePause = 500 * time.Millisecond

// waitOutage waits for a local limiter's permits, or to look for Redis. It tells whether
// the caller is to ask again: not where its timeout, 0 for none, is over.
func (c *Client) waitOutage(ctx context.Context, wait time.Duration, start time.Time, timeout time.Duration) (more bool, err error) {
	if wait <= 0 || wait > outagePause {
		wait = outagePause
	}
	if timeout > 0 {
		left := timeout - c.clock.Since(start)
		if left <= 0 {
			return false, nil
		}
		wait = min(wait, left)
	}
	if err := c.engine.Begin(); err != nil {
		return false, err
	}
	defer c.engine.End()
	err = c.guard.Wait(ctx, wait)
	return err == nil, err
}

// askAllGuarded is askGuarded for several limiters.
func (c *Client) askAllGuarded(
	ctx context.Context, permits int64, timeout time.Duration, limiters []*RateLimiter, facts []*engine.Limiter,
) (granted bool, by limit.Source, err error) {
	start, left := c.clock.Now(), timeout
	defer c.guard.Enter()()
	for {
		if err := c.engine.Closed(); err != nil {
			return false, "", err
		}
		undecided, err := c.guard.Ask(c.engine.Breaker(ctx, facts[0]), func() bool { return c.engine.Answers(facts[0]) }, func() (bool, error) {
			var err error
			granted, err = c.engine.AcquireAll(ctx, facts, permits, left)
			return left <= 0, err // else Redis may have refused, and the caller waited
		})
		if !undecided {
			if err == nil {
				for _, l := range limiters {
					l.learn(*c.options.Failure, nil)
				}
			}
			return granted, limit.FromRedis, err
		}
		wait, by, err := c.allInstead(permits, limiters, err)
		if err != nil || wait == 0 || timeout <= 0 {
			return wait == 0 && err == nil, by, err
		}
		if more, err := c.waitOutage(ctx, wait, start, timeout); !more || err != nil {
			return false, by, err
		}
		left = timeout - c.clock.Since(start)
	}
}

// allInstead has the policy decide for all limiters together. Where one refuses, wait
// is when it may not; 0 says that all granted.
func (c *Client) allInstead(permits int64, limiters []*RateLimiter, cause error) (wait time.Duration, by limit.Source, err error) {
	var undo []func(context.Context) error
	for _, l := range limiters {
		d, from, giveBack, failed := c.guard.Instead(*c.options.Failure, l.account(), permits, l.rule(), cause)
		by = from
		if giveBack != nil {
			undo = append(undo, giveBack)
		}
		if failed == nil && d.Granted {
			continue
		}
		for _, giveBack := range undo {
			_ = giveBack(context.Background()) // takes back what is in memory only
		}
		return cmp.Or(d.RetryAfter, outagePause), by, failed
	}
	return 0, by, nil
}

type shadowOption struct{}

// WithShadow has limiters decide, charge and tell the observer, and refuse nobody and
// have nobody wait: to see what a limit would do. What one would have refused, or could
// not decide, is granted and not charged: see [RateLimiter.Release].
// Mistakes, and contexts that end, stay errors. TryAcquireAll goes by the Client's.
func WithShadow() SharedOption { return shadowOption{} }

func (shadowOption) client(c *Client) error {
	return limit.WithShadow()(&c.options)
}

func (shadowOption) limiter(l *RateLimiter) error {
	l.shadow = true
	return nil
}
