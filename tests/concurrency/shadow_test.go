package concurrency_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A limiter in shadow charges what it grants, tells what it would refuse, and lets all
// through at once.
func TestShadow(t *testing.T) {
	t.Parallel()
	observed(t, func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder, rdb *redis.Client) {
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(5, time.Hour)), rratelimiter.WithShadow())
		start := time.Now()
		limitertest.MustAcquire(t, l, 4)
		limitertest.MustAcquire(t, l, 2)
		require.NoError(t, l.Acquire(t.Context(), 3))
		granted, err := l.TryAcquire(t.Context(), 1000, time.Minute)
		require.NoError(t, err)
		assert.True(t, granted)
		d, err := l.Take(t.Context(), 2)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		assert.Zero(t, d.RetryAfter)
		assert.Zero(t, time.Since(start))
		var outcomes []limit.Outcome
		for _, d := range r.Decisions() {
			assert.True(t, d.Shadow)
			outcomes = append(outcomes, d.Outcome)
		}
		assert.Equal(t, []limit.Outcome{limit.Granted, limit.Refused, limit.Refused, limit.Failed, limit.Refused}, outcomes)

		plain := client.RateLimiter("orders")
		assert.Equal(t, int64(1), limitertest.Available(t, plain), "what was granted is charged")
		require.NoError(t, l.Release(t.Context(), 1007))
		assert.Equal(t, int64(1), limitertest.Available(t, plain), "what was let through is not")
		require.NoError(t, l.Release(t.Context(), 1))
		assert.Equal(t, int64(2), limitertest.Available(t, plain))

		_, err = l.TryAcquire(t.Context(), 0, 0)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidPermits)
		ended, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, l.Acquire(ended, 1), context.Canceled)
		limitertest.MustAcquire(t, client.RateLimiter("none", rratelimiter.WithShadow()), 1)
	})
}

func TestShadowOfAClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow())
		one := client.RateLimiter("{shop}a", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)), rratelimiter.WithRefusalCache())
		two := client.RateLimiter("{shop}b", rratelimiter.WithDefault(limitertest.Every(9, time.Hour)))
		for range 5 {
			granted, err := client.TryAcquireAll(t.Context(), 1, time.Minute, one, two)
			require.NoError(t, err)
			assert.True(t, granted)
			limitertest.MustAcquire(t, one, 1)
		}
		assert.Equal(t, int64(8), limitertest.Available(t, two), "the one that they were granted together")
		_, back, err := client.Keyed("users:", limitertest.Every(1, time.Hour)).TakeReturnable(t.Context(), "ann", 7)
		require.NoError(t, err)
		require.NoError(t, back(t.Context()))
	})
}

func TestShadowOfALimiterOfKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := &limitertest.Recorder{}
		cfg := fixedwindow.Config{Limit: 2, Window: time.Hour}
		l := fixedwindow.New(rdb, cfg, limit.WithShadow(), limit.WithObserver(r))
		for range 5 {
			d, back, err := l.TakeReturnable(t.Context(), "ann", 1)
			require.NoError(t, err)
			assert.True(t, d.Granted)
			require.NotNil(t, back)
			require.NoError(t, back(t.Context()))
			d, err = l.Take(t.Context(), "ann", 1)
			require.NoError(t, err)
			assert.True(t, d.Granted)
		}
		refused := 0
		for _, d := range r.Decisions() {
			if assert.True(t, d.Shadow) && d.Outcome == limit.Refused {
				refused++
			}
		}
		assert.Equal(t, 6, refused, "two a round, once two are taken")
		d, err := fixedwindow.New(rdb, cfg).Take(t.Context(), "ann", 1)
		require.NoError(t, err)
		assert.False(t, d.Granted)
	})
}

// What is undone of what was let through is not taken off what is released later.
func TestShadowUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow())
		keyed := client.Keyed("users:", limitertest.Every(5, time.Hour))
		_, _, err := keyed.TakeReturnable(t.Context(), "ann", 5)
		require.NoError(t, err)
		_, back, err := keyed.TakeReturnable(t.Context(), "ann", 3)
		require.NoError(t, err)
		require.NoError(t, back(t.Context()))
		require.NoError(t, keyed.Release(t.Context(), "ann", 3))
		assert.Equal(t, int64(3), limitertest.Available(t, keyed.Limiter("ann")))
	})
}

func TestShadowTakesAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow())
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(5, time.Hour)))
		keys := fixedwindow.New(rdb, fixedwindow.Config{Limit: 5, Window: time.Hour}, limit.WithShadow())
		for range 3 {
			n, _, err := l.TakeUpTo(t.Context(), 4)
			require.NoError(t, err)
			assert.Equal(t, int64(4), n)
			n, _, err = keys.TakeUpTo(t.Context(), "ann", 4)
			require.NoError(t, err)
			assert.Equal(t, int64(4), n)
		}
		require.NoError(t, l.Release(t.Context(), 7))
		assert.Zero(t, limitertest.Available(t, l), "these were let through")
		require.NoError(t, l.Release(t.Context(), 5))
		assert.Equal(t, int64(5), limitertest.Available(t, l))

		_, err := client.TryAcquireAll(t.Context(), 1, 0, client.RateLimiter("a"), client.RateLimiter("b"))
		assert.ErrorIs(t, err, rratelimiter.ErrUnsupported, "a mistake of the program's")
	})
}

// A limiter that only watches refuses nobody because Redis hangs, whatever the Redis
// client makes of an attempt's time.
func TestShadowWhileRedisHangs(t *testing.T) {
	t.Parallel()
	for _, inline := range []bool{false, true} {
		t.Run(fmt.Sprint(inline), func(t *testing.T) {
			t.Parallel()
			p := redistest.StartProxy(t, redistest.Shared(t).Addr())
			rdb := p.Client(t, &redis.Options{ContextTimeoutEnabled: inline})
			client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow(), rratelimiter.WithCallTimeout(200*time.Millisecond))
			window := fixedwindow.New(rdb, fixedwindow.Config{Limit: 5, Window: time.Hour}, limit.WithShadow(), limit.WithCallTimeout(200*time.Millisecond))
			p.OnCommand(func(redistest.Command) redistest.Action { return redistest.DropAnswer })
			name := redistest.Name(t)
			plain := client.RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerHour(5)))
			rated := client.RateLimiter(name+"rate", rratelimiter.WithRate(rratelimiter.PerHour(5)))
			for range 3 {
				limitertest.MustAcquire(t, plain, 1)
				limitertest.MustAcquire(t, rated, 1)
				d, err := window.Take(t.Context(), name, 1)
				require.NoError(t, err)
				assert.True(t, d.Granted)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			require.Error(t, limitertest.Second(plain.TryAcquire(ctx, 1, 0)), "nobody waits for the answer any more")
		})
	}
}

// TryAcquireAll refuses as its Client says, and so the observer is told.
func TestShadowOfOneOfAll(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	told := &limitertest.Recorder{}
	client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(told))
	watched := client.RateLimiter("{s}a", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)), rratelimiter.WithShadow())
	other := client.RateLimiter("{s}b", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)))
	for _, want := range []bool{true, false} {
		ok, err := client.TryAcquireAll(t.Context(), 1, 0, watched, other)
		require.NoError(t, err)
		assert.Equal(t, want, ok)
	}
	for _, d := range told.Decisions() {
		assert.False(t, d.Shadow, d.Limiter)
	}
}
