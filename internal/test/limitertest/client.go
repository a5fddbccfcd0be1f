// Package limitertest holds what several folders of tests share: limiters of new
// names, what Redis holds of them, callers whose outcomes a test names by their
// moment (Scene, HeldScene), a limiter behind a proxy that meets faults (Wire),
// several limiters at once (Family), and what a Redisson would do (Java).
package limitertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// NewClient returns a Client that is closed when t ends.
func NewClient(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.Option) *rratelimiter.Client {
	t.Helper()
	client := rratelimiter.New(rdb, opts...)
	t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
	return client
}

// NewHandle returns a limiter of a new name and a Client of its own. Nothing is
// set up in Redis.
func NewHandle(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
	t.Helper()
	return NewClient(t, rdb).RateLimiter(redistest.Name(t), opts...)
}

// Waiting returns how many requests for the limiter have gathered or are in line, for
// tests that want them in one batch.
func Waiting(client *rratelimiter.Client, limiter string) int {
	return engine.Of(client).Waiting(limiter)
}

// NewLimiter is NewHandle with a rate set.
func NewLimiter(t testing.TB, rdb rratelimiter.Redis, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
	t.Helper()
	l := NewHandle(t, rdb)
	MustTrySetRate(t, l, cfg)
	return l
}

// Every returns the Config of rate permits an interval, shared by all clients.
func Every(rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Rate: rate, Interval: interval}
}

// PerClient returns the Config of rate permits an interval for each client.
func PerClient(rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Type: rratelimiter.PerClient, Rate: rate, Interval: interval}
}

// Ahead is the option of leases that are as large as may be.
func Ahead(life time.Duration) rratelimiter.LimiterOption {
	return rratelimiter.WithLease(rratelimiter.Lease{Permits: 1 << 20, Life: life})
}

// BothTypes runs test as a subtest for each type of limiter.
func BothTypes(t *testing.T, test func(t *testing.T, kind rratelimiter.RateType)) {
	t.Helper()
	for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// MustTrySetRate gives a limiter its first rate.
func MustTrySetRate(t testing.TB, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
	t.Helper()
	set, err := l.TrySetRate(t.Context(), cfg)
	require.NoError(t, err)
	require.True(t, set, "the limiter had a rate already")
}

// Try asks once and reports whether the permits were granted.
func Try(t testing.TB, l *rratelimiter.RateLimiter, permits int64) bool {
	t.Helper()
	ok, err := l.TryAcquire(t.Context(), permits, 0)
	require.NoError(t, err)
	return ok
}

// MustAcquire takes permits that must be free.
func MustAcquire(t testing.TB, l *rratelimiter.RateLimiter, permits int64) {
	t.Helper()
	require.True(t, Try(t, l, permits), "%d permits were refused", permits)
}

// MustRefuse asks for permits that must not be free.
func MustRefuse(t testing.TB, l *rratelimiter.RateLimiter, permits int64) {
	t.Helper()
	require.False(t, Try(t, l, permits), "%d permits were granted", permits)
}

// Grants asks for one permit, tries times, and returns how often it was granted.
func Grants(t testing.TB, l *rratelimiter.RateLimiter, tries int) int {
	t.Helper()
	granted := 0
	for range tries {
		if Try(t, l, 1) {
			granted++
		}
	}
	return granted
}

// Available returns the free permits.
func Available(t testing.TB, l *rratelimiter.RateLimiter) int64 {
	t.Helper()
	permits, err := l.AvailablePermits(t.Context())
	require.NoError(t, err)
	return permits
}

// TakeOnce gives a limiter a rate, unless it has one, and takes permits of it by a
// Client of its own, whose id is "id" and what is given.
func TakeOnce(t testing.TB, rdb redis.UniversalClient, name string, cfg rratelimiter.Config, id string, permits int64) {
	t.Helper()
	client := rratelimiter.New(rdb, rratelimiter.WithClientID("id"+id))
	defer func() { require.NoError(t, client.Close(t.Context())) }()
	ok, err := client.RateLimiter(name, rratelimiter.WithDefault(cfg)).TryAcquire(t.Context(), permits, 0)
	require.NoError(t, err)
	require.True(t, ok)
}

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
	"Reserve": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		r, err := l.Reserve(ctx, 1, 0)
		if err != nil {
			return err
		}
		if err = r.Settle(ctx, 2); errors.Is(err, rratelimiter.ErrClosed) {
			return nil // in between
		}
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
