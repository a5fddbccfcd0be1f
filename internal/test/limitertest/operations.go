package limitertest

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// Operations are all calls of a limiter that go to Redis, with arguments that are in
// order. What they leave behind beside the limiter is in its slot of a cluster.
var Operations = map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) error{
	"TryAcquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.TryAcquire(ctx, 1, 0)
		return err
	},
	"TryAcquire, waiting": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.TryAcquire(ctx, 1, time.Hour)
		return err
	},
	"Acquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Acquire(ctx, 1) },
	"Take": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Take(ctx, 1)
		return err
	},
	"Peek": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Peek(ctx, 1)
		return err
	},
	"TakeUpTo": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, _, err := l.TakeUpTo(ctx, 1)
		return err
	},
	"Reset":   func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Reset(ctx) },
	"Release": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Release(ctx, 1) },
	"AvailablePermits": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.AvailablePermits(ctx)
		return err
	},
	"TrySetRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.TrySetRate(ctx, Every(7, time.Hour))
		return err
	},
	"SetRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		return l.SetRate(ctx, Every(7, time.Hour))
	},
	"UpdateRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.UpdateRate(ctx, Every(7, time.Hour), rratelimiter.KeepState())
		return err
	},
	"Config": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Config(ctx)
		return err
	},
	"Expire": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Expire(ctx, time.Hour)
		return err
	},
	"ExpireAt": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.ExpireAt(ctx, time.Now().Add(time.Hour))
		return err
	},
	"ClearExpire": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.ClearExpire(ctx)
		return err
	},
	"TTL": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, _, err := l.TTL(ctx)
		return err
	},
	"Exists": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Exists(ctx)
		return err
	},
	"Delete": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Delete(ctx)
		return err
	},
	"Rename":              func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Rename(ctx, Besides(l.Name())) },
	"Rename, to its name": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Rename(ctx, l.Name()) },
}

// Reads are those of Operations that change nothing, or nothing that matters.
var Reads = map[string]bool{
	"Peek": true, "AvailablePermits": true, "Config": true, "TTL": true, "Exists": true, "Rename, to its name": true,
}

// Second returns the error of a call of which nothing else matters.
func Second[T any](_ T, err error) error { return err }
