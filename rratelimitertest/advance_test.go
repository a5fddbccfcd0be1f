package rratelimitertest_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
)

func exhausted(t *testing.T, env *rratelimitertest.Env, cfg rratelimiter.Config, opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
	t.Helper()
	l := env.Client.RateLimiter("orders", append(opts, rratelimiter.WithDefault(cfg))...)
	limitertest.MustAcquire(t, l, cfg.Rate)
	return l
}

// TestAdvance runs these outside a bubble and in one.
func TestAdvance(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, advancing, func(t *testing.T, test func(t *testing.T, env *rratelimitertest.Env)) {
		test(t, rratelimitertest.New(t, rratelimiter.WithCallTimeout(time.Minute)))
	})
	t.Run("in a bubble", func(t *testing.T) {
		t.Parallel()
		limitertest.Bubbles(t, advancing, func(t *testing.T, test func(t *testing.T, env *rratelimitertest.Env)) {
			test(t, rratelimitertest.New(t))
		})
	})
}

var advancing = limitertest.Tests[*rratelimitertest.Env]{
	"PermitsComeBack": func(t *testing.T, env *rratelimitertest.Env) {
		l := exhausted(t, env, rratelimiter.PerMinute(2))
		assert.Equal(t, limit.Decision{Limit: 2, RetryAfter: time.Minute, ResetAfter: time.Minute}, limitertest.Take(t, l, 1))
		env.Advance(time.Minute - time.Millisecond)
		assert.Equal(t, limit.Decision{Limit: 2, RetryAfter: time.Millisecond, ResetAfter: time.Millisecond}, limitertest.Take(t, l, 1))
		env.Advance(time.Millisecond)
		assert.True(t, limitertest.Take(t, l, 2).Granted)
		server, err := env.Redis.Time(t.Context()).Result()
		require.NoError(t, err)
		assert.True(t, server.Equal(env.Now()), "%v, %v", server, env.Now())
	},
	// Outside a bubble the server is ahead of the Client after an Advance.
	"GrantsBeforeItCanBeReleasedAndSettled": func(t *testing.T, env *rratelimitertest.Env) {
		l := env.Client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
		r := limitertest.Reserve(t, l, 3)
		limitertest.MustAcquire(t, l, 3)
		env.Advance(50 * time.Second)
		require.NoError(t, l.Release(t.Context(), 2))
		require.NoError(t, r.Settle(t.Context(), 5))
		assert.EqualValues(t, 4, limitertest.Available(t, l))
		env.Advance(10 * time.Second)
		assert.EqualValues(t, 8, limitertest.Available(t, l), "two were charged when it was settled")
		env.Advance(50 * time.Second)
		assert.EqualValues(t, 10, limitertest.Available(t, l))

		unused := limitertest.Reserve(t, l, 10)
		env.Advance(time.Hour)
		require.NoError(t, unused.Cancel(t.Context()))
		assert.EqualValues(t, 10, limitertest.Available(t, l))
	},
}

// In a bubble callers, leases and refusals that are remembered go by the same time.
func TestAdvance_MovesAllInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := rratelimitertest.New(t)
		leased := env.Client.RateLimiter("leased", rratelimiter.WithDefault(rratelimiter.PerMinute(1000)),
			rratelimiter.WithLease(rratelimiter.Lease{Permits: 50}))
		for range 40 {
			limitertest.MustAcquire(t, leased, 1)
		}
		look := env.Client.RateLimiter("leased")
		assert.Less(t, limitertest.Available(t, look), int64(960), "some are taken ahead")
		l := exhausted(t, env, rratelimiter.PerMinute(1), rratelimiter.WithRefusalCache())
		limitertest.MustRefuse(t, l, 1)
		var granted atomic.Bool
		go func() {
			ok, err := l.TryAcquire(t.Context(), 1, time.Hour)
			granted.Store(ok && err == nil)
		}()
		env.Advance(10 * time.Second)
		assert.EqualValues(t, 960, limitertest.Available(t, look), "the lease has ended")
		env.Advance(50*time.Second - 1)
		assert.False(t, granted.Load())
		env.Advance(1)
		assert.True(t, granted.Load())
		env.Advance(time.Minute)
		limitertest.MustAcquire(t, l, 1)
	})
}

// failing are the ways in which a server may fail.
var failing = map[string]func(*rratelimitertest.Env){"down": (*rratelimitertest.Env).Down, "hung": (*rratelimitertest.Env).Hang}

// unavailable runs calls while the server is away, and after it.
func unavailable(t *testing.T, env *rratelimitertest.Env, fail func(*rratelimitertest.Env)) {
	t.Helper()
	l := exhausted(t, env, rratelimiter.PerMinute(2))
	window := fixedwindow.New(limitertest.OpenClient(env.Redis), fixedwindow.Config{Limit: 1, Window: time.Minute})
	fail(env)
	for range 3 {
		require.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrUnavailable)
		require.ErrorIs(t, limitertest.Second(window.Take(t.Context(), "ann", 1)), rratelimiter.ErrUnavailable)
	}
	require.ErrorIs(t, l.Acquire(t.Context(), 1), rratelimiter.ErrUnavailable)
	env.Up()
	limitertest.MustRefuse(t, l, 1) // what the server kept is there
	env.Advance(time.Minute)
	limitertest.MustAcquire(t, l, 1)
}

func TestDown_CallsFail(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, failing, func(t *testing.T, fail func(*rratelimitertest.Env)) { unavailable(t, rratelimitertest.New(t), fail) })
	t.Run("outside a bubble", func(t *testing.T) {
		t.Parallel()
		unavailable(t, rratelimitertest.New(t, rratelimiter.WithCallTimeout(time.Minute)), (*rratelimitertest.Env).Down)
	})
}
