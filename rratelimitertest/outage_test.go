package rratelimitertest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
)

// quick is a call timeout for tests by the machine's time.
var quick = rratelimiter.WithCallTimeout(500 * time.Millisecond)

// outages are the ways in which a server may fail.
var outages = map[string]func(*rratelimitertest.Env){
	"down": (*rratelimitertest.Env).Down, "hung": (*rratelimitertest.Env).Hang,
}

// during runs test outside a bubble and in one, for each way to fail.
func during(t *testing.T, test func(t *testing.T, env *rratelimitertest.Env, fail func()), opts ...rratelimiter.Option) {
	t.Helper()
	for name, fail := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothWith(t, append(opts, quick), func(t *testing.T, env *rratelimitertest.Env) {
				test(t, env, func() { fail(env) })
			})
		})
	}
}

func TestAServerThatIsAway(t *testing.T) {
	t.Parallel()
	during(t, func(t *testing.T, env *rratelimitertest.Env, fail func()) {
		l := exhausted(t, env, rratelimiter.PerMinute(2))
		window := fixedwindow.New(env.Redis, fixedwindow.Config{Limit: 1, Window: time.Minute}, limit.WithCallTimeout(500*time.Millisecond))
		fail()
		for range 3 {
			_, err := l.TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
			_, err = window.Take(t.Context(), "ann", 1)
			require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		}
		require.ErrorIs(t, l.Acquire(t.Context(), 1), rratelimiter.ErrUnavailable)
		env.Up()
		assert.False(t, limitertest.Try(t, l, 1), "what it kept is there")
		env.Advance(time.Minute)
		limitertest.MustAcquire(t, l, 1)
	})
}

// The policy for outages goes by the test's time: its local limiter, and its looks for
// the server.
func TestALocalLimiterInATestsTime(t *testing.T) {
	t.Parallel()
	during(t, func(t *testing.T, env *rratelimitertest.Env, fail func()) {
		l := exhausted(t, env, rratelimiter.PerMinute(4))
		fail()
		for i := range 6 {
			assert.Equal(t, i < 2, limitertest.Try(t, l, 1), "call %d", i)
		}
		env.Advance(50 * time.Second)
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

// A caller whom the local limiter refuses waits for it, or for the server.
func TestACallerWaitsDuringAnOutage(t *testing.T) {
	t.Parallel()
	during(t, func(t *testing.T, env *rratelimitertest.Env, fail func()) {
		l := exhausted(t, env, rratelimiter.PerMinute(1))
		fail()
		for range 3 {
			limitertest.Try(t, l, 1)
		}
		var calls log
		short := calls.call("short", func() (bool, error) { return l.TryAcquire(t.Context(), 1, 5*time.Second) })
		env.AwaitWaiting(1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := calls.call("gone", func() (bool, error) { return true, l.Acquire(ctx, 1) })
		env.AwaitWaiting(2)
		env.Advance(4 * time.Second)
		assert.Empty(t, calls.told())
		env.Advance(time.Second)
		<-short
		cancel()
		<-gone
		assert.Equal(t, []string{"short false <nil>", `gone true rratelimiter: Acquire "{shop}:orders": context canceled`}, calls.told())

		long := calls.call("long", func() (bool, error) { return true, l.Acquire(t.Context(), 1) })
		env.AwaitWaiting(1)
		env.Up()
		env.Advance(2 * time.Second) // Redis has refused: that permit was taken in the same minute
		assert.Len(t, calls.told(), 2)
		env.Advance(time.Minute)
		<-long
		assert.Equal(t, "long true <nil>", calls.told()[2])
	}, rratelimiter.WithFailure(limit.FailLocal(1)))
}
