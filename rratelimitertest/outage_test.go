package rratelimitertest_test

import (
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

// during runs test in a bubble for each way in which a server may fail.
func during(t *testing.T, test func(t *testing.T, env *rratelimitertest.Env, fail func()), opts ...rratelimiter.Option) {
	t.Helper()
	for name, fail := range map[string]func(*rratelimitertest.Env){
		"down": (*rratelimitertest.Env).Down, "hung": (*rratelimitertest.Env).Hang,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				env := rratelimitertest.New(t, opts...)
				test(t, env, func() { fail(env) })
			})
		})
	}
}

// unavailable runs calls while the server is away, and after it.
func unavailable(t *testing.T, env *rratelimitertest.Env, fail func()) {
	t.Helper()
	l := exhausted(t, env, rratelimiter.PerMinute(2))
	window := fixedwindow.New(limitertest.OpenClient(env.Redis), fixedwindow.Config{Limit: 1, Window: time.Minute})
	fail()
	for range 3 {
		_, err := l.TryAcquire(t.Context(), 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		_, err = window.Take(t.Context(), "ann", 1)
		require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
	}
	require.ErrorIs(t, l.Acquire(t.Context(), 1), rratelimiter.ErrUnavailable)
	env.Up()
	limitertest.MustRefuse(t, l, 1) // what the server kept is there
	env.Advance(time.Minute)
	limitertest.MustAcquire(t, l, 1)
}

func TestDown_CallsFail(t *testing.T) {
	t.Parallel()
	during(t, unavailable)
	t.Run("outside a bubble", func(t *testing.T) {
		t.Parallel()
		env := rratelimitertest.New(t, rratelimiter.WithCallTimeout(time.Minute))
		unavailable(t, env, env.Down)
	})
}

func TestDown_TheLocalLimiterAnswers(t *testing.T) {
	t.Parallel()
	during(t, func(t *testing.T, env *rratelimitertest.Env, fail func()) {
		l := exhausted(t, env, rratelimiter.PerMinute(4))
		fail()
		for i := range 6 {
			assert.Equal(t, i < 2, limitertest.Try(t, l, 1), "call %d", i)
		}
		env.Advance(45 * time.Second)
		limitertest.MustRefuse(t, l, 1)
		env.Advance(20 * time.Second)
		assert.True(t, limitertest.Try(t, l, 1), "the local limiter's permits came back")
		env.Up()
		env.Advance(time.Second)
		for i := range 5 {
			assert.Equal(t, i < 4, limitertest.Try(t, l, 1), "call %d of Redis", i)
		}
	}, rratelimiter.WithFailure(limit.FailLocal(0.5)))
}
