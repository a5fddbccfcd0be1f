package compat_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// goOperation makes op what this module does, and may do.
func goOperation(ctx context.Context, op *operation, who *actor, l *limiter, args arguments) {
	m, n, cfg := who.module, args.permits, args.rate
	// A handle that has just been made looks for leaked permits when it is
	// refused; one that did so less than an interval ago does not.
	fresh := !args.held
	limiter := who.held[l.name]
	if fresh || limiter == nil {
		limiter = who.goes.RateLimiter(l.name)
	}
	if !fresh {
		who.held[l.name] = limiter
	}
	argument := func(format string, values ...any) { op.text = op.kind + "(" + fmt.Sprintf(format, values...) + ")" }
	switch op.kind {
	case "tryAcquire":
		argument("%d), fresh handle (%v", n, fresh)
		op.do = func() answer { return goSays(limiter.TryAcquire(ctx, n, 0)) }
		op.may, op.rule = m.mayAcquire(n, nil, fresh), m.sound
	case "tryAcquireTimeout":
		if args.other {
			op.kind = "take"
			op.text = fmt.Sprintf("take(%d), fresh handle (%v)", n, fresh)
			op.do = func() answer {
				d, err := limiter.Take(ctx, n)
				if err != nil {
					return say(goProblem(err))
				}
				return say(d.Granted, d.Limit, d.Remaining).with(milliseconds(d.RetryAfter), milliseconds(d.ResetAfter))
			}
			op.may, op.rule = m.mayTake(n, fresh), m.sound
			return
		}
		op.kind = "withDefault"
		op.text = fmt.Sprintf("tryAcquire(%d) with default %v", n, cfg)
		limiter = who.goes.RateLimiter(l.name, rratelimiter.WithDefault(cfg.public()))
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return goSays(limiter.TryAcquire(ctx, n, 0)) }
		op.may, op.rule = m.mayAcquire(n, &cfg, true), m.sound
	case "release":
		argument("%d", n)
		op.do = func() answer { return goSays("done", limiter.Release(ctx, n)) }
		op.may = only(func(c *call) answer { return m.release(c, n) })
		if n > 0 && !m.windowed {
			op.rule = m.sound
		}
	case "availablePermits":
		op.do = func() answer { return goSays(limiter.AvailablePermits(ctx)) }
		op.may, op.rule = only(m.availablePermits), m.sound
	case "trySetRate":
		argument("%v", cfg)
		op.do = func() answer { return goSays(limiter.TrySetRate(ctx, cfg.public())) }
		op.may = only(func(c *call) answer { return m.trySetRate(c, cfg) })
	case "setRate", "setRateArgs":
		keep := op.kind == "setRateArgs" && args.keep
		argument("%v, keepState %v", cfg, keep)
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return goSays("done", limiter.SetRate(ctx, cfg.public(), keepState(keep)...)) }
		op.may = only(func(c *call) answer { return m.setRate(c, cfg, keep, false) })
	case "updateRate":
		keep := args.keep
		argument("%v, keepState %v", cfg, keep)
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return goSays(limiter.UpdateRate(ctx, cfg.public(), keepState(keep)...)) }
		op.may = only(func(c *call) answer { return m.setRate(c, cfg, keep, true) })
	case "getConfig":
		op.do = func() answer {
			cfg, err := limiter.Config(ctx)
			return goSays(fmt.Sprint(cfg.Type, cfg.Rate, cfg.Interval.Milliseconds(), cfg.KeepAlive.Milliseconds()), err)
		}
		op.may = only(goConfig)
	case "expire":
		argument("%v", args.ttl)
		op.do = func() answer { return goSays(limiter.Expire(ctx, args.ttl)) }
		op.may = only(func(c *call) answer { return m.expire(c, c.after(args.ttl.Milliseconds())) })
	case "expireAt":
		argument("%d", args.at.UnixMilli())
		op.do = func() answer { return goSays(limiter.ExpireAt(ctx, args.at)) }
		op.may = only(func(c *call) answer { return m.expire(c, exactly(args.at)) })
	case "clearExpire":
		op.do = func() answer { return goSays(limiter.ClearExpire(ctx)) }
		op.may = only(m.clearExpire)
	case "ttl":
		op.do = func() answer { return says(goTTL(limiter.TTL(ctx)))(goProblem) }
		op.may = only(ttl)
	case "exists":
		op.do = func() answer { return goSays(limiter.Exists(ctx)) }
		op.may = only(exists)
	case "delete":
		op.do = func() answer { return goSays(limiter.Delete(ctx)) }
		op.may = only(remove)
	case "rename":
		to := args.to
		argument("%s", to.name)
		if to != l {
			op.second = to
		}
		op.do = func() answer { return goSays("done", limiter.Rename(ctx, to.name)) }
		op.may = only(goRename)
	}
}

// sound tells what is wrong after any call of ours that had to do with
// permits; Redisson relies on it.
func (m *module) sound(c *call) string {
	p := c.pair()
	switch {
	case p.value > c.rate():
		return "the value is above the rate"
	case p.hasValue && p.value < c.rate() && len(p.rows) == 0 && !m.isWindow(c, p):
		return "permits are missing while none are in use"
	}
	return ""
}

// mayAcquire tells what TryAcquire may do. What has run out may stay while
// the value suffices. Leaked permits may be overlooked by a handle of long
// standing.
func (m *module) mayAcquire(n int64, fallback *rateConfig, fresh bool) []func(*call) (answer, bool) {
	return []func(*call) (answer, bool){
		func(c *call) (answer, bool) { return m.tryAcquireAtOnce(c, n) },
		func(c *call) (answer, bool) { return m.tryAcquire(c, n, fallback, true), true },
		func(c *call) (answer, bool) { return m.tryAcquire(c, n, fallback, false), !fresh },
		func(c *call) (answer, bool) {
			refused, may := m.refuseAtOnce(c, n)
			return refused, may && !fresh
		},
	}
}

func (m *module) mayTake(n int64, fresh bool) []func(*call) (answer, bool) {
	return []func(*call) (answer, bool){
		func(c *call) (answer, bool) { return m.decision(c, n, true), true },
		func(c *call) (answer, bool) { return m.decision(c, n, false), !fresh },
	}
}

func goProblem(err error) string {
	switch {
	case errors.Is(err, rratelimiter.ErrInvalidPermits):
		return illegal
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return notInitialized
	case errors.Is(err, rratelimiter.ErrPermitsExceedRate):
		return exceedsRate
	case errors.Is(err, rratelimiter.ErrUnsupported):
		return unsupported
	}
	return "error: " + err.Error()
}

// goTTL is TTL's answer as Java tells it: -1 where the limiter does not expire, -2
// where there is none.
func goTTL(ttl time.Duration, expires bool, err error) (time.Duration, error) {
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return -2, nil
	case err == nil && !expires:
		return -1, nil
	}
	return ttl, err
}
