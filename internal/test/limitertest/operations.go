package limitertest

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// Operations are all calls of a limiter that go to Redis, with arguments that are in
// order. What they leave behind beside the limiter is in its slot of a cluster.
var Operations = map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) error{
	"TryAcquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.TryAcquire(ctx, 1, 0)) },
	"TryAcquire, waiting": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		return Second(l.TryAcquire(ctx, 1, time.Hour))
	},
	"Acquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Acquire(ctx, 1) },
	"Take":    func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.Take(ctx, 1)) },
	"Peek":    func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.Peek(ctx, 1)) },
	"TakeUpTo": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, _, err := l.TakeUpTo(ctx, 1)
		return err
	},
	"Reset":            func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Reset(ctx) },
	"Release":          func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Release(ctx, 1) },
	"AvailablePermits": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.AvailablePermits(ctx)) },
	"TrySetRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		return Second(l.TrySetRate(ctx, Every(7, time.Hour)))
	},
	"SetRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		return l.SetRate(ctx, Every(7, time.Hour))
	},
	"UpdateRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		return Second(l.UpdateRate(ctx, Every(7, time.Hour), rratelimiter.KeepState()))
	},
	"Config": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.Config(ctx)) },
	"Expire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.Expire(ctx, time.Hour)) },
	"ExpireAt": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		return Second(l.ExpireAt(ctx, time.Now().Add(time.Hour)))
	},
	"ClearExpire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.ClearExpire(ctx)) },
	"TTL": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, _, err := l.TTL(ctx)
		return err
	},
	"Exists":              func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.Exists(ctx)) },
	"Delete":              func(ctx context.Context, l *rratelimiter.RateLimiter) error { return Second(l.Delete(ctx)) },
	"Rename":              func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Rename(ctx, Besides(l.Name())) },
	"Rename, to its name": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Rename(ctx, l.Name()) },
}

// Reads are those of Operations that change nothing, or nothing that matters.
var Reads = map[string]bool{
	"Peek": true, "AvailablePermits": true, "Config": true, "TTL": true, "Exists": true, "Rename, to its name": true,
}

// Second returns the error of a call of which nothing else matters.
func Second[T any](_ T, err error) error { return err }
