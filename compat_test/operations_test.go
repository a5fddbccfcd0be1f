package compat_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// kinds are the operations of the random turns, each as often as its weight
// says.
var kinds = []struct {
	kind   string
	weight int
}{
	{"tryAcquire", 40},
	{"tryAcquireTimeout", 5}, // in Go Take or, as often, an acquire that brings a rate
	{"release", 10},
	{"availablePermits", 12},
	{"trySetRate", 4},
	{"setRate", 3},
	{"setRateArgs", 5}, // in Go with KeepState or, as often, without
	{"updateRate", 5},
	{"getConfig", 3},
	{"expire", 2},
	{"expireAt", 2},
	{"clearExpire", 2},
	{"ttl", 3},
	{"exists", 2},
	{"delete", 1},
	{"rename", 1}, // in Java unlink
}

func (w *world) kind(l *limiter) string {
	if l.state.config == nil {
		switch w.rnd.IntN(4) {
		case 0, 1:
			return "trySetRate"
		case 2:
			return "tryAcquireTimeout"
		}
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := w.rnd.IntN(total)
	for _, k := range kinds {
		if n < k.weight {
			return k.kind
		}
		n -= k.weight
	}
	panic("unreachable")
}

// operation draws what an actor does next to a limiter.
func (w *world) operation(ctx context.Context, who *actor, l *limiter) *operation {
	op := &operation{kind: w.kind(l)}
	if who.java != nil && op.kind == "rename" {
		op.kind = "unlink"
	}
	if who.java != nil {
		w.javaOperation(ctx, op, who, l)
	} else {
		w.goOperation(ctx, op, who, l)
	}
	return op
}

func (w *world) rateConfig() rateConfig {
	cfg := rateConfig{kind: "0", rate: 1 + w.rnd.Int64N(12), interval: []int64{20_000, 30_000, 60_000}[w.rnd.IntN(3)]}
	switch w.rnd.IntN(20) {
	case 0:
		cfg.rate = 5000
	case 1, 2, 3:
		cfg.rate += 20
	}
	if w.rnd.IntN(3) == 0 {
		cfg.kind = "1"
	}
	if w.rnd.IntN(3) == 0 {
		cfg.keepAlive = []int64{cfg.interval, 2 * cfg.interval, 300_000}[w.rnd.IntN(3)]
	}
	return cfg
}

func (cfg rateConfig) public() rratelimiter.Config {
	public := rratelimiter.Config{
		Rate:      cfg.rate,
		Interval:  time.Duration(cfg.interval) * time.Millisecond,
		KeepAlive: time.Duration(cfg.keepAlive) * time.Millisecond,
	}
	if cfg.kind == "1" {
		public.Type = rratelimiter.PerClient
	}
	return public
}

func (cfg rateConfig) String() string {
	return fmt.Sprintf("%s, %d, %d ms, keep-alive %d ms", typeName(cfg.kind), cfg.rate, cfg.interval, cfg.keepAlive)
}

func (w *world) permits(l *limiter) int64 {
	rate := max(1, l.state.rate())
	switch w.rnd.IntN(40) {
	case 0:
		return 0
	case 1:
		return -1 - w.rnd.Int64N(3)
	case 2, 3:
		return rate + 1
	case 4, 5, 6, 7:
		return rate
	}
	return 1 + w.rnd.Int64N(min(rate, 5))
}

// moment draws a time to live and the moment when it is over, once in a while
// in the past.
func (w *world) moment() (time.Duration, time.Time) {
	ttl := []time.Duration{25 * time.Second, 50 * time.Second, 200 * time.Second}[w.rnd.IntN(3)]
	at := time.Now().Add(ttl)
	if w.rnd.IntN(6) == 0 {
		at = time.Now().Add(-10 * time.Second)
	}
	return ttl, at.Truncate(time.Millisecond)
}

func exactly(at time.Time) span { return span{at.UnixMilli(), at.UnixMilli()} }

func only(f func(*call) answer) []func(*call) (answer, bool) {
	return []func(*call) (answer, bool){func(c *call) (answer, bool) { return f(c), true }}
}

func (w *world) javaOperation(ctx context.Context, op *operation, who *actor, l *limiter) {
	java, name := who.java, l.name
	op.text = op.kind
	argument := func(format string, args ...any) { op.text = op.kind + "(" + fmt.Sprintf(format, args...) + ")" }
	switch op.kind {
	case "tryAcquire":
		n := w.permits(l)
		argument("%d", n)
		op.do = func() answer { return javaSays(java.TryAcquireNow(ctx, name, n)) }
		op.may = only(func(c *call) answer { return javaTryAcquire(c, n) })
	case "tryAcquireTimeout":
		n := w.permits(l)
		argument("%d, 0 ms", n)
		op.do = func() answer { return javaSays(java.TryAcquire(ctx, name, n, 0)) }
		op.may = only(func(c *call) answer { return javaTryAcquire(c, n) })
	case "release":
		n := w.permits(l)
		argument("%d", n)
		op.do = func() answer { return javaSays("done", java.Release(ctx, name, n)) }
		op.may = only(func(c *call) answer { return javaRelease(c, n) })
	case "availablePermits":
		op.do = func() answer { return javaSays(java.AvailablePermits(ctx, name)) }
		op.may = only(javaAvailablePermits)
	case "trySetRate":
		cfg := w.rateConfig()
		argument("%v", cfg)
		op.do = func() answer { return javaSays(java.TrySetRate(ctx, name, cfg.public())) }
		op.may = only(func(c *call) answer { return javaTrySetRate(c, cfg) })
	case "setRate":
		cfg := w.rateConfig()
		argument("%v", cfg)
		op.do = func() answer { return javaSays("done", java.SetRate(ctx, name, cfg.public())) }
		op.may = only(func(c *call) answer { return javaSetRate(c, cfg) })
	case "setRateArgs":
		cfg, keep := w.rateConfig(), w.rnd.IntN(4) > 0
		argument("%v, keepState %v", cfg, keep)
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return javaSays("done", java.SetRateArgs(ctx, name, cfg.public(), keep)) }
		op.may = only(func(c *call) answer { return javaSetRateArgs(c, cfg, keep, false) })
	case "updateRate":
		cfg, keep := w.rateConfig(), w.rnd.IntN(4) > 0
		argument("%v, keepState %v", cfg, keep)
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return javaSays(java.UpdateRate(ctx, name, cfg.public(), keep)) }
		op.may = only(func(c *call) answer { return javaSetRateArgs(c, cfg, keep, true) })
	case "getConfig":
		op.do = func() answer {
			cfg, err := java.Config(ctx, name)
			return javaSays(fmt.Sprint(cfg.Type, cfg.Rate, cfg.Interval.Milliseconds()), err)
		}
		op.may = only(javaConfig)
	case "expire":
		after, _ := w.moment()
		argument("%v", after)
		op.do = func() answer { return javaSays(java.Expire(ctx, name, after)) }
		op.may = only(func(c *call) answer { return expire(c, c.after(after.Milliseconds())) })
	case "expireAt":
		_, at := w.moment()
		argument("%d", at.UnixMilli())
		op.do = func() answer { return javaSays(java.ExpireAt(ctx, name, at)) }
		op.may = only(func(c *call) answer { return expire(c, exactly(at)) })
	case "clearExpire":
		op.do = func() answer { return javaSays(java.ClearExpire(ctx, name)) }
		op.may = only(clearExpire)
	case "ttl":
		op.do = func() answer { return says(java.TTL(ctx, name))(javaProblem) }
		op.may = only(ttl)
	case "exists":
		op.do = func() answer { return javaSays(java.Exists(ctx, name)) }
		op.may = only(exists)
	case "delete":
		op.do = func() answer { return javaSays(java.Delete(ctx, name)) }
		op.may = only(remove)
	case "unlink":
		op.do = func() answer { return javaSays(java.Unlink(ctx, name)) }
		op.may = only(javaUnlink)
	}
}

func (w *world) goOperation(ctx context.Context, op *operation, who *actor, l *limiter) {
	// A handle that has just been made looks for leaked permits when it is
	// refused; one that did so less than an interval ago does not.
	fresh := w.rnd.IntN(2) == 0
	limiter := who.held[l.name]
	if fresh || limiter == nil {
		limiter = who.goes.RateLimiter(l.name)
	}
	if !fresh {
		who.held[l.name] = limiter
	}
	op.text = op.kind
	argument := func(format string, args ...any) { op.text = op.kind + "(" + fmt.Sprintf(format, args...) + ")" }
	switch op.kind {
	case "tryAcquire":
		n := w.permits(l)
		argument("%d), fresh handle (%v", n, fresh)
		op.do = func() answer { return goSays(limiter.TryAcquire(ctx, n, 0)) }
		op.may, op.rule = goMayAcquire(n, nil, fresh), soundPair
	case "tryAcquireTimeout":
		n := w.permits(l)
		if w.rnd.IntN(2) == 0 {
			op.kind = "take"
			op.text = fmt.Sprintf("take(%d), fresh handle (%v)", n, fresh)
			op.do = func() answer {
				d, err := limiter.Take(ctx, n)
				if err != nil {
					return say(goProblem(err))
				}
				return say(d.Granted, d.Limit, d.Remaining).with(milliseconds(d.RetryAfter), milliseconds(d.ResetAfter))
			}
			op.may, op.rule = goMayTake(n, fresh), soundPair
			return
		}
		cfg := w.rateConfig()
		op.kind = "withDefault"
		op.text = fmt.Sprintf("tryAcquire(%d) with default %v", n, cfg)
		limiter = who.goes.RateLimiter(l.name, rratelimiter.WithDefault(cfg.public()))
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return goSays(limiter.TryAcquire(ctx, n, 0)) }
		op.may, op.rule = goMayAcquire(n, &cfg, true), soundPair
	case "release":
		n := w.permits(l)
		argument("%d", n)
		op.do = func() answer { return goSays("done", limiter.Release(ctx, n)) }
		op.may = only(func(c *call) answer { return goRelease(c, n) })
		if n > 0 {
			op.rule = soundPair
		}
	case "availablePermits":
		op.do = func() answer { return goSays(limiter.AvailablePermits(ctx)) }
		op.may, op.rule = only(goAvailablePermits), soundPair
	case "trySetRate":
		cfg := w.rateConfig()
		argument("%v", cfg)
		op.do = func() answer { return goSays(limiter.TrySetRate(ctx, cfg.public())) }
		op.may = only(func(c *call) answer { return goTrySetRate(c, cfg) })
	case "setRate", "setRateArgs":
		cfg, keep := w.rateConfig(), op.kind == "setRateArgs" && w.rnd.IntN(4) > 0
		argument("%v, keepState %v", cfg, keep)
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return goSays("done", limiter.SetRate(ctx, cfg.public(), keepState(keep)...)) }
		op.may = only(func(c *call) answer { return goSetRate(c, cfg, keep, false) })
	case "updateRate":
		cfg, keep := w.rateConfig(), w.rnd.IntN(4) > 0
		argument("%v, keepState %v", cfg, keep)
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return goSays(limiter.UpdateRate(ctx, cfg.public(), keepState(keep)...)) }
		op.may = only(func(c *call) answer { return goSetRate(c, cfg, keep, true) })
	case "getConfig":
		op.do = func() answer {
			cfg, err := limiter.Config(ctx)
			return goSays(fmt.Sprint(cfg.Type, cfg.Rate, cfg.Interval.Milliseconds(), cfg.KeepAlive.Milliseconds()), err)
		}
		op.may = only(goConfig)
	case "expire":
		after, _ := w.moment()
		argument("%v", after)
		op.do = func() answer { return goSays(limiter.Expire(ctx, after)) }
		op.may = only(func(c *call) answer { return expire(c, c.after(after.Milliseconds())) })
	case "expireAt":
		_, at := w.moment()
		argument("%d", at.UnixMilli())
		op.do = func() answer { return goSays(limiter.ExpireAt(ctx, at)) }
		op.may = only(func(c *call) answer { return expire(c, exactly(at)) })
	case "clearExpire":
		op.do = func() answer { return goSays(limiter.ClearExpire(ctx)) }
		op.may = only(clearExpire)
	case "ttl":
		op.do = func() answer { return says(limiter.TTL(ctx))(goProblem) }
		op.may = only(ttl)
	case "exists":
		op.do = func() answer { return goSays(limiter.Exists(ctx)) }
		op.may = only(exists)
	case "delete":
		op.do = func() answer { return goSays(limiter.Delete(ctx)) }
		op.may = only(remove)
	case "rename":
		to := w.limiters[w.rnd.IntN(len(w.limiters))]
		argument("%s", to.name)
		if to != l {
			op.second = to
		}
		op.do = func() answer { return goSays("done", limiter.Rename(ctx, to.name)) }
		op.may = only(goRename)
	}
}

// soundPair tells what is wrong after any call of ours that had to do with
// permits; Redisson relies on it.
func soundPair(c *call) string {
	p := c.pair()
	switch {
	case p.value > c.rate():
		return "the value is above the rate"
	case p.value < c.rate() && len(p.rows) == 0:
		return "permits are missing while none are in use"
	}
	return ""
}

// goMayAcquire tells what TryAcquire may do. What has run out may stay while
// the value suffices. Leaked permits may be overlooked by a handle of long
// standing.
func goMayAcquire(n int64, fallback *rateConfig, fresh bool) []func(*call) (answer, bool) {
	return []func(*call) (answer, bool){
		func(c *call) (answer, bool) { return goTryAcquireAtOnce(c, n) },
		func(c *call) (answer, bool) { return goTryAcquire(c, n, fallback, true), true },
		func(c *call) (answer, bool) { return goTryAcquire(c, n, fallback, false), !fresh },
	}
}

func goMayTake(n int64, fresh bool) []func(*call) (answer, bool) {
	return []func(*call) (answer, bool){
		func(c *call) (answer, bool) { return goDecision(c, n, true), true },
		func(c *call) (answer, bool) { return goDecision(c, n, false), !fresh },
	}
}

func keepState(keep bool) []rratelimiter.RateOption {
	if keep {
		return []rratelimiter.RateOption{rratelimiter.KeepState()}
	}
	return nil
}

func milliseconds(d time.Duration) span { return span{d.Milliseconds(), d.Milliseconds()} }

func javaSays(value any, err error) answer { return saysOr(value, err, javaProblem) }

func goSays(value any, err error) answer { return saysOr(value, err, goProblem) }

func saysOr(value any, err error, problem func(error) string) answer {
	if err != nil {
		return say(problem(err))
	}
	return say(value)
}

// says is saysOr for a time to live.
func says(ttl time.Duration, err error) func(problem func(error) string) answer {
	return func(problem func(error) string) answer {
		switch {
		case err != nil:
			return say(problem(err))
		case ttl < 0:
			return say(int64(ttl))
		}
		return say("ms").with(milliseconds(ttl))
	}
}

func javaProblem(err error) string {
	if thrown, ok := errors.AsType[*javaError](err); ok {
		switch {
		case thrown.Class == "IllegalArgumentException":
			return illegal
		case strings.Contains(thrown.Message, "RateLimiter is not initialized"):
			return notInitialized
		case strings.Contains(thrown.Message, "Requested permits amount cannot exceed defined rate"):
			return exceedsRate
		case strings.Contains(thrown.Message, "arithmetic on a nil value"):
			return nilArithmetic
		}
	}
	return "error: " + err.Error()
}

func goProblem(err error) string {
	switch {
	case errors.Is(err, rratelimiter.ErrInvalidPermits):
		return illegal
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return notInitialized
	case errors.Is(err, rratelimiter.ErrPermitsExceedRate):
		return exceedsRate
	}
	return "error: " + err.Error()
}
