package rratelimiter_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// panicking is a hook that panics while it is on.
type panicking struct{ on atomic.Bool }

func (*panicking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *panicking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if p.on.Load() {
			panic("a hook")
		}
		return next(ctx, cmd)
	}
}

func (p *panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if p.on.Load() {
			panic("a hook")
		}
		return next(ctx, cmds)
	}
}

// Whatever the call and its context, a hook that panics reaches its caller, by the
// panic or as an error, and leaves nothing behind that later calls would wait for.
func TestAPanicLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	calls := map[string]func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error{
		"TryAcquire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := l.TryAcquire(ctx, 1, 0)
			return err
		},
		"TryAcquire with a timeout": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := l.TryAcquire(ctx, 1, time.Second)
			return err
		},
		"Acquire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return l.Acquire(ctx, 1)
		},
		"Take": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := l.Take(ctx, 1)
			return err
		},
		"AvailablePermits": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := l.AvailablePermits(ctx)
			return err
		},
		"TryAcquireAll": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := c.TryAcquireAll(ctx, 1, 0, l, c.RateLimiter("{a}other", rratelimiter.WithDefault(every(1000, time.Hour))))
			return err
		},
		"Keyed": func(ctx context.Context, c *rratelimiter.Client, _ *rratelimiter.RateLimiter) error {
			_, err := c.Keyed("keyed:", every(1000, time.Hour)).Take(ctx, "key", 1)
			return err
		},
		"Release": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return l.Release(ctx, 1)
		},
		"Migrate": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := c.Migrate(ctx, l.Name())
			return err
		},
	}
	contexts := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"background": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithoutCancel(ctx), func() {}
		},
		"cancellable": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		},
	}
	for name, call := range calls {
		for kind, with := range contexts {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rdb, m := redistest.Mini(t)
					hooked := redistest.MiniClient(t, m, nil)
					hook := &panicking{}
					hooked.AddHook(hook)
					c := rratelimiter.New(hooked)
					l := c.RateLimiter("{a}", rratelimiter.WithDefault(every(1000, time.Hour)))
					require.NoError(t, l.Acquire(t.Context(), 100))
					ctx, cancel := with(t.Context())
					defer cancel()
					start := time.Now()
					for range 5 {
						hook.on.Store(true)
						var err error
						panicked := func() (value any) {
							defer func() { value = recover() }()
							err = call(ctx, c, l)
							return nil
						}()
						if panicked == nil {
							require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
							assert.Equal(t, name != "AvailablePermits", errors.Is(err, rratelimiter.ErrUnknownOutcome), "%v", err)
							require.ErrorContains(t, err, "a hook")
						} else {
							assert.Equal(t, "a hook", panicked)
						}
						hook.on.Store(false)
						require.NoError(t, call(ctx, c, l))
						require.NoError(t, l.Release(ctx, 1))
						require.NoError(t, l.Acquire(ctx, 1))
					}
					assert.Less(t, time.Since(start), 5*time.Second)
					synctest.Wait()
					assert.Zero(t, c.Queues())
					require.NoError(t, c.Close(t.Context()))
					assert.EqualValues(t, 1, rdb.Exists(t.Context(), "{a}").Val())
				})
			})
		}
	}
}
