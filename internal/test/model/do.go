package model

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Do has a Client's handle do an operation, now being base, and returns what it says. Handles must be WithExact, since the model
// merges nothing.
func Do(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter, op Op, base int64) Answer {
	switch n := op.Permits; op.Do {
	case "tryAcquire":
		return Says(l.TryAcquire(ctx, n, 0))
	case "withDefault":
		return Says(client.RateLimiter(l.Name(), rratelimiter.WithDefault(op.Rate.Public()), rratelimiter.WithExact()).TryAcquire(ctx, n, 0))
	case "wait":
		// A waiting caller asks at times that are drawn. To know when limiters were last asked, and so
		// how long they live, one that was refused asks once more.
		granted, err := op.acquire(ctx, client, l, time.Duration(op.TTL)*time.Millisecond)
		if err == nil && !granted {
			_, _ = op.acquire(ctx, client, l, 0)
		}
		return Says(granted, err)
	case "acquireAll":
		return Says(op.acquireAll(ctx, client, l, 0))
	case "take":
		d, err := l.Take(ctx, n)
		return saysDecision(d, err)
	case "reserve":
		r, err := l.Reserve(ctx, n, 0, rratelimiter.Hold(time.Duration(op.Hold)*time.Millisecond))
		if err != nil {
			return Says(nil, err)
		}
		return saysDecision(r.Decision, nil)
	case "peek":
		d, err := l.Peek(ctx, n)
		return saysDecision(d, err)
	case "takeUpTo":
		taken, d, err := l.TakeUpTo(ctx, n)
		return saysDecision(d, err, taken)
	case "reset":
		return Says("done", l.Reset(ctx))
	case "release":
		return Says("done", l.Release(ctx, n))
	case "settle":
		return Says("done", op.Settle(ctx, l))
	case "availablePermits":
		return Says(l.AvailablePermits(ctx))
	case "trySetRate":
		return Says(l.TrySetRate(ctx, op.Rate.Public()))
	case "setRate", "setRateArgs":
		return Says("done", l.SetRate(ctx, op.Rate.Public(), op.keepState()...))
	case "updateRate":
		return Says(l.UpdateRate(ctx, op.Rate.Public(), op.keepState()...))
	case "getConfig":
		cfg, err := l.Config(ctx)
		return Says(fmt.Sprint(cfg.Type, cfg.Rate, cfg.Interval.Milliseconds(), cfg.KeepAlive.Milliseconds()), err)
	case "expire":
		return Says(l.Expire(ctx, time.Duration(op.TTL)*time.Millisecond))
	case "expireAt":
		return Says(l.ExpireAt(ctx, time.UnixMilli(base+op.At)))
	case "clearExpire":
		return Says(l.ClearExpire(ctx))
	case "ttl":
		left, err := TTL(l.TTL(ctx))
		return SayTTL(left, problem(err))
	case "exists":
		return Says(l.Exists(ctx))
	case "delete":
		return Says(l.Delete(ctx))
	case "rename":
		return Says("done", l.Rename(ctx, op.To[0]))
	}
	panic("no operation: " + op.Do)
}

// Settle settles a row as if it were a reservation.
func (op Op) Settle(ctx context.Context, l *rratelimiter.RateLimiter) error {
	behind, _ := door.Behind[engine.Behind](l)
	member, ms := redisson.WithPermits([]byte(op.Row.Member), op.Permits), time.Millisecond
	at := time.Now().Add(-time.Duration(op.age()) * ms)
	var a decide.Answer
	hold := engine.Hold{Early: time.Duration(op.Early) * ms, At: at.UnixMilli()}
	behind.Engine.Reserved(&a, behind.Limiter, member, op.Permits, hold, at, at, false)
	return a.Settle(ctx, op.Used, func(error) {})
}

// age is how long ago the reserved row was granted.
func (op Op) age() int64 { return max(0, -op.Row.At-op.Early) }

// acquire takes permits of the limiters of a "wait".
func (op Op) acquire(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter, timeout time.Duration) (bool, error) {
	if len(op.To) == 0 {
		return l.TryAcquire(ctx, op.Permits, timeout)
	}
	return op.acquireAll(ctx, client, l, timeout)
}

func (op Op) acquireAll(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter, timeout time.Duration) (bool, error) {
	opts := []rratelimiter.LimiterOption{rratelimiter.WithExact()}
	if op.Rate != nil {
		opts = append(opts, rratelimiter.WithDefault(op.Rate.Public()))
	}
	claims := []rratelimiter.Claim{client.RateLimiter(l.Name(), opts...).Claim(op.Permits)}
	for i, name := range op.To {
		claims = append(claims, client.RateLimiter(name, opts...).Claim(op.PermitsOf(i+1)))
	}
	return client.TryAcquireAll(ctx, timeout, claims...)
}

func saysDecision(d limit.Decision, err error, more ...any) Answer {
	if err != nil {
		return Says(nil, err)
	}
	return Say(append(more, d.Granted, d.Limit, d.Remaining)...).With(d.RetryAfter.Milliseconds(), d.ResetAfter.Milliseconds())
}

func (op Op) keepState() []rratelimiter.RateOption {
	if op.Keep {
		return []rratelimiter.RateOption{rratelimiter.KeepState()}
	}
	return nil
}

// TTL is a handle's TTL as Java tells it: -1 if the limiter does not expire, -2 if there
// is none.
func TTL(left time.Duration, expires bool, err error) (time.Duration, error) {
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return -2, nil
	case err == nil && !expires:
		return -1, nil
	}
	return left, err
}

// SayTTL returns the answer of a time to live, or of what there is in place of one.
func SayTTL(left time.Duration, problem string) Answer {
	switch {
	case problem != "":
		return Say(problem)
	case left < 0:
		return Say(int64(left))
	}
	return Say("ms").With(left.Milliseconds())
}

// Says returns the answer of a call.
func Says(value any, err error) Answer {
	if err != nil {
		return Say(problem(err))
	}
	return Say(value)
}

func problem(err error) string {
	for _, known := range []struct {
		err  error
		text string
	}{
		{rratelimiter.ErrInvalidPermits, Illegal},
		{rratelimiter.ErrNotInitialized, NotInitialized},
		{rratelimiter.ErrPermitsExceedRate, ExceedsRate},
		{rratelimiter.ErrUnsupported, Unsupported},
	} {
		if errors.Is(err, known.err) {
			return known.text
		}
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return ""
}
