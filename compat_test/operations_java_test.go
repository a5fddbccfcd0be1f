package compat_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/test/redissondriver"
)

// javaOperation makes op what Redisson does, and may do.
func javaOperation(ctx context.Context, op *operation, who *actor, l *limiter, args arguments) {
	javaPermits(ctx, op, who, l, args.permits)
	javaRates(ctx, op, who, l, args)
	javaLifetime(ctx, op, who, l, args)
}

// argue has an operation say its arguments.
func (op *operation) argue(format string, values ...any) {
	op.text = op.kind + "(" + fmt.Sprintf(format, values...) + ")"
}

func javaPermits(ctx context.Context, op *operation, who *actor, l *limiter, n int64) {
	java, r, name := who.java, who.redisson, l.name
	switch op.kind {
	case "tryAcquire":
		op.argue("%d", n)
		op.do = func() answer { return javaSays(java.TryAcquireNow(ctx, name, n)) }
		op.may = only(func(c *call) answer { return r.tryAcquire(c, n) })
	case "tryAcquireTimeout":
		op.argue("%d, 0 ms", n)
		op.do = func() answer { return javaSays(java.TryAcquire(ctx, name, n, 0)) }
		op.may = only(func(c *call) answer { return r.tryAcquire(c, n) })
	case "release":
		op.argue("%d", n)
		op.do = func() answer { return javaSays("done", java.Release(ctx, name, n)) }
		op.may = only(func(c *call) answer { return r.release(c, n) })
	case "availablePermits":
		op.do = func() answer { return javaSays(java.AvailablePermits(ctx, name)) }
		op.may = only(r.availablePermits)
	}
}

func javaRates(ctx context.Context, op *operation, who *actor, l *limiter, args arguments) {
	java, r, name, cfg := who.java, who.redisson, l.name, args.rate
	if !r.takesTTL {
		cfg.keepAlive = 0
	}
	switch op.kind {
	case "trySetRate":
		op.argue("%v", cfg)
		op.do = func() answer { return javaSays(java.TrySetRate(ctx, name, cfg.public())) }
		op.may = only(func(c *call) answer { return r.trySetRate(c, cfg) })
	case "setRate":
		op.argue("%v", cfg)
		op.do = func() answer { return javaSays("done", java.SetRate(ctx, name, cfg.public())) }
		op.may = only(func(c *call) answer { return r.setRate(c, cfg) })
	case "setRateArgs":
		op.argue("%v, keepState %v", cfg, args.keep)
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return javaSays("done", java.SetRateArgs(ctx, name, cfg.public(), args.keep)) }
		op.may = only(func(c *call) answer { return r.setRateArgs(c, cfg, args.keep, false) })
	case "updateRate":
		op.argue("%v, keepState %v", cfg, args.keep)
		op.intervals = []int64{cfg.interval}
		op.do = func() answer { return javaSays(java.UpdateRate(ctx, name, cfg.public(), args.keep)) }
		op.may = only(func(c *call) answer { return r.setRateArgs(c, cfg, args.keep, true) })
	case "getConfig":
		op.do = func() answer {
			cfg, err := java.Config(ctx, name)
			return javaSays(fmt.Sprint(cfg.Type, cfg.Rate, cfg.Interval.Milliseconds()), err)
		}
		op.may = only(r.getConfig)
	}
}

func javaLifetime(ctx context.Context, op *operation, who *actor, l *limiter, args arguments) {
	java, r, name := who.java, who.redisson, l.name
	switch op.kind {
	case "expire":
		op.argue("%v", args.ttl)
		op.do = func() answer { return javaSays(java.Expire(ctx, name, args.ttl)) }
		op.may = only(func(c *call) answer { return r.expire(c, c.after(args.ttl.Milliseconds())) })
	case "expireAt":
		op.argue("%d", args.at.UnixMilli())
		op.do = func() answer { return javaSays(java.ExpireAt(ctx, name, args.at)) }
		op.may = only(func(c *call) answer { return r.expire(c, exactly(args.at)) })
	case "clearExpire":
		op.do = func() answer { return javaSays(java.ClearExpire(ctx, name)) }
		op.may = only(r.clearExpire)
	case "ttl":
		op.do = func() answer { return says(java.TTL(ctx, name))(javaProblem) }
		op.may = only(ttl)
	case "exists":
		op.do = func() answer { return javaSays(java.Exists(ctx, name)) }
		op.may = only(exists)
	case "delete":
		op.do = func() answer { return javaSays(java.Delete(ctx, name)) }
		op.may = only(r.remove)
	case "unlink":
		op.do = func() answer { return javaSays(java.Unlink(ctx, name)) }
		op.may = only(r.unlink)
	}
}

func javaProblem(err error) string {
	if thrown, ok := errors.AsType[*redissondriver.ThrownError](err); ok {
		// Behind that is the command, some releases with the script's text.
		message, _, _ := strings.Cut(thrown.Message, ". channel: ")
		switch {
		case thrown.Class == "IllegalArgumentException":
			return illegal
		case strings.Contains(message, "RateLimiter is not initialized"):
			return notInitialized
		case strings.Contains(message, "Requested permits amount cannot exceed defined rate"),
			strings.Contains(message, "Requested permits amount could not exceed defined rate"):
			return exceedsRate
		case strings.Contains(message, "arithmetic on a nil value"):
			return nilArithmetic
		case strings.Contains(message, "to 'unpack'"):
			return nothingToUnpack
		case strings.Contains(message, "Unexpected exception while processing command"):
			return notDecoded
		}
	}
	return "error: " + err.Error()
}
