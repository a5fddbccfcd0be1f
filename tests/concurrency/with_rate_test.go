package concurrency_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

func configOf(t *testing.T, l *rratelimiter.RateLimiter) rratelimiter.Config {
	t.Helper()
	cfg, err := l.Config(t.Context())
	require.NoError(t, err)
	return cfg
}

func TestWithRateSetsTheRateAndKeepsPermitsInUse(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client := limitertest.NewClient(t, rdb)
		l := client.RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Hour))
		limitertest.MustAcquire(t, l, 4)

		want := rratelimiter.Config{Rate: 6, Interval: 2 * time.Hour, KeepAlive: 3 * time.Hour}
		coded := client.RateLimiter(l.Name(), rratelimiter.WithRate(want))
		d, err := coded.Take(t.Context(), 1)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		assert.EqualValues(t, 6, d.Limit)
		assert.EqualValues(t, 1, d.Remaining)
		assert.Equal(t, want, configOf(t, l))
	})
}

func TestWithRateByEachCall(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error{
		"TryAcquire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(l.TryAcquire(ctx, 1, 0))
		},
		"TryAcquire, waiting": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(l.TryAcquire(ctx, 1, time.Second))
		},
		"Acquire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return l.Acquire(ctx, 1)
		},
		"Take": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(l.Take(ctx, 1))
		},
		"TakeUpTo": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, _, err := l.TakeUpTo(ctx, 1)
			return err
		},
		"TryAcquireAll of one": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(c.TryAcquireAll(ctx, 1, 0, l))
		},
		"TryAcquireAll of two": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			other := c.RateLimiter("{"+l.Name()+"}other", rratelimiter.WithRate(limitertest.Every(2, time.Hour)))
			return limitertest.Second(c.TryAcquireAll(ctx, 1, time.Second, l, other))
		},
	} {
		for _, before := range []string{"none", "another", "its own"} {
			t.Run(name+", "+before, func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					client := limitertest.NewClient(t, rdb)
					own := limitertest.Every(5, time.Hour)
					plain := client.RateLimiter("a")
					switch before {
					case "another":
						limitertest.MustTrySetRate(t, plain, limitertest.Every(50, time.Hour))
					case "its own":
						limitertest.MustTrySetRate(t, plain, own)
					}
					l := client.RateLimiter("a", rratelimiter.WithRate(own))
					require.NoError(t, call(t.Context(), client, l))
					assert.Equal(t, own, configOf(t, plain))
					assert.EqualValues(t, 4, limitertest.Available(t, plain))

					_, err := plain.Delete(t.Context())
					require.NoError(t, err)
					require.NoError(t, call(t.Context(), client, l), "a limiter that has gone")
					assert.Equal(t, own, configOf(t, plain))
				})
			})
		}
	}
}

func TestWithRateComparesOnce(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, rdb)
		plain := client.RateLimiter("a")
		limitertest.MustTrySetRate(t, plain, limitertest.Every(50, time.Hour))
		scripts := map[string]*int{}
		for _, s := range []*lua.Script{lua.Config, lua.SetRate, lua.TrySetRate} {
			calls := 0
			scripts[s.Name] = &calls
			rdb.AddHook(limitertest.BeforeScript(s, func() { calls++ }))
		}
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(20, time.Hour)))
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() { assert.True(t, limitertest.Try(t, l, 1)) })
		}
		callers.Wait()
		require.NoError(t, plain.SetRate(t.Context(), limitertest.Every(30, time.Hour), rratelimiter.KeepState()))
		*scripts[lua.SetRate.Name]-- // it goes by EVALSHA too
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, 1, *scripts[lua.Config.Name])
		assert.Equal(t, 1, *scripts[lua.SetRate.Name])
		assert.Equal(t, 0, *scripts[lua.TrySetRate.Name])
		assert.EqualValues(t, 30, configOf(t, plain).Rate, "the rate that was set last holds")
	})
}

func TestWithRatePeekWritesNothing(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, rdb)
		limitertest.MustTrySetRate(t, client.RateLimiter("a"), limitertest.Every(50, time.Hour))
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(20, time.Hour)))
		limitertest.RequireUntouched(t, rdb, "a", func() {
			d, err := l.Peek(t.Context(), 1)
			require.NoError(t, err)
			assert.EqualValues(t, 50, d.Limit)
		})
		limitertest.MustAcquire(t, l, 1)
		d, err := l.Peek(t.Context(), 1)
		require.NoError(t, err)
		assert.EqualValues(t, 20, d.Limit)
	})
}

func TestWithRateTellsOfProgramsThatDisagree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		told, log := &limitertest.Recorder{}, &bytes.Buffer{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(told), rratelimiter.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		other := limitertest.NewClient(t, rdb)
		ours, theirs := limitertest.Every(20, time.Minute), rratelimiter.Config{Rate: 30, Interval: time.Hour, KeepAlive: 2 * time.Hour}
		a := client.RateLimiter("a", rratelimiter.WithRate(ours))
		b := other.RateLimiter("a", rratelimiter.WithRate(theirs))
		require.NoError(t, b.Acquire(t.Context(), 1))
		for range 3 {
			_, err := a.Take(t.Context(), 1)
			require.NoError(t, err)
		}
		synctest.Wait()
		replaced := limit.Event{
			Kind: limit.RateReplaced, Limiter: "a",
			Found: limit.Rate{Permits: 30, Interval: time.Hour, KeepAlive: 2 * time.Hour},
			Want:  limit.Rate{Permits: 20, Interval: time.Minute},
		}
		assert.Equal(t, []limit.Event{replaced}, told.Events())
		assert.Contains(t, log.String(), `msg="rratelimiter: rate replaced" limiter=a found="30 in 1h0m0s, kept alive for 2h0m0s" want="20 in 1m0s"`)

		require.NoError(t, other.RateLimiter("a").SetRate(t.Context(), theirs))
		for range 3 {
			_, err := a.Take(t.Context(), 1)
			require.NoError(t, err)
		}
		synctest.Wait()
		differs := limit.Event{
			Kind: limit.RateDiffers, Limiter: "a",
			Found: limit.Rate{Permits: 30, Interval: time.Hour}, Want: limit.Rate{Permits: 20, Interval: time.Minute},
		}
		assert.Equal(t, []limit.Event{replaced, differs}, told.Events(), "once")
		assert.Equal(t, theirs, configOf(t, b), "they do not fight")
		assert.Contains(t, log.String(), `rate differs`)
	})
}

func TestWithRateTriesAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb)
		limitertest.MustTrySetRate(t, client.RateLimiter("a"), limitertest.Every(50, time.Hour))
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(20, time.Hour)))
		m.SetError("LOADING Redis is loading the dataset in memory")
		_, err := l.TryAcquire(t.Context(), 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		require.ErrorContains(t, err, "WithRate")
		require.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
		m.SetError("")
		limitertest.MustAcquire(t, l, 1)
		assert.EqualValues(t, 20, configOf(t, l).Rate)
	})
}

func TestWithRateGoesByThePolicyForOutages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailLocal(0.5)))
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(20, time.Hour)))
		m.SetError("LOADING Redis is loading the dataset in memory")
		d, err := l.Take(t.Context(), 1)
		require.NoError(t, err)
		assert.Equal(t, int64(10), d.Limit)
		m.SetError("")
	})
}

func TestWithRateKeepsToTheCallersTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb)
		rdb.AddHook(limitertest.Slow(500 * time.Millisecond))
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(1, time.Hour)))
		start := time.Now()
		_, err := l.TryAcquire(t.Context(), 1, 100*time.Millisecond)
		require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		assert.Equal(t, 200*time.Millisecond, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Acquire(ctx, 1), context.DeadlineExceeded)
		time.Sleep(time.Minute)
		limitertest.MustAcquire(t, l, 1)
	})
}
