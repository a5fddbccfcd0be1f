package redisson_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestRedisson01KeepAlive(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Rate: 1, Interval: time.Second, KeepAlive: time.Second})
		time.Sleep(1100 * time.Millisecond)
		exists, err := l.Exists(t.Context())
		require.NoError(t, err)
		assert.False(t, exists)

		limitertest.MustTrySetRate(t, l, rratelimiter.Config{Rate: 10, Interval: 2 * time.Second, KeepAlive: 2 * time.Second})
		time.Sleep(time.Second)
		limitertest.MustAcquire(t, l, 1)
		ttl, _, err := l.TTL(t.Context())
		require.NoError(t, err)
		assert.Greater(t, ttl, 1500*time.Millisecond)
	})
}

func TestRedisson02ExpireReachesKeysMadeLater(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 5, Interval: 5 * time.Second})
			there, err := l.Expire(t.Context(), 10*time.Second)
			require.NoError(t, err)
			assert.True(t, there)
			require.NoError(t, l.Acquire(t.Context(), 1))
			time.Sleep(12 * time.Second)
			assert.Empty(t, rdb.Keys(t.Context(), "*").Val())
		})
	})
}

func TestRedisson03ExpireReachesKeysMadeBefore(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 2, Interval: 5 * time.Second})
			limitertest.MustAcquire(t, l, 1)
			_, err := l.Expire(t.Context(), time.Second)
			require.NoError(t, err)
			time.Sleep(1100 * time.Millisecond)
			assert.Empty(t, rdb.Keys(t.Context(), "*").Val())
		})
	})
}

func TestRedisson06Config(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		for _, cfg := range []rratelimiter.Config{
			limitertest.Every(1, 5*time.Second),
			limitertest.PerClient(rratelimiter.MaxRate, time.Millisecond),
			{Rate: 7, Interval: 250 * time.Millisecond, KeepAlive: 24 * time.Hour},
		} {
			got, err := limitertest.NewLimiter(t, rdb, cfg).Config(t.Context())
			require.NoError(t, err)
			assert.Equal(t, cfg, got)
		}
	})
}

func TestRedisson07SetRateChangesTheConfig(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, 5*time.Second))
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(2, 6*time.Second)))
		got, err := l.Config(t.Context())
		require.NoError(t, err)
		assert.Equal(t, limitertest.Every(2, 6*time.Second), got)

		updated, err := l.UpdateRate(t.Context(), limitertest.Every(3, 7*time.Second))
		require.NoError(t, err)
		assert.True(t, updated)
		got, err = l.Config(t.Context())
		require.NoError(t, err)
		assert.Equal(t, limitertest.Every(3, 7*time.Second), got)
	})
}

func TestRedisson17SetRateStartsFull(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewHandle(t, rdb)
		for _, cfg := range []rratelimiter.Config{
			limitertest.PerClient(10, time.Second), limitertest.PerClient(20, time.Second), limitertest.Every(10, time.Second), limitertest.Every(20, time.Second),
		} {
			require.NoError(t, l.SetRate(t.Context(), cfg))
			got, err := l.Config(t.Context())
			require.NoError(t, err)
			assert.Equal(t, cfg, got)
			require.NoError(t, l.Acquire(t.Context(), 1))
			assert.Equal(t, cfg.Rate-1, limitertest.Available(t, l))
		}
	})
}

func TestRedisson18KeepStateOnANewLimiter(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewHandle(t, rdb)
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(10, time.Second), rratelimiter.KeepState()))
		require.NoError(t, l.Acquire(t.Context(), 3))
		assert.EqualValues(t, 7, limitertest.Available(t, l))
		time.Sleep(1100 * time.Millisecond)
		require.NoError(t, l.Acquire(t.Context(), 3))
		assert.EqualValues(t, 7, limitertest.Available(t, l))
	})
}

func TestRedisson19SetRateWithAndWithoutKeepState(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opts []rratelimiter.RateOption
		want int64
	}{
		"with":    {[]rratelimiter.RateOption{rratelimiter.KeepState()}, 17},
		"without": {nil, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, 5*time.Second))
				require.NoError(t, l.Acquire(t.Context(), 3))
				require.NoError(t, l.SetRate(t.Context(), limitertest.Every(20, 5*time.Second), tc.opts...))
				assert.Equal(t, tc.want, limitertest.Available(t, l))
			})
		})
	}
}

func TestRedisson20UpdateRateOfNothing(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewHandle(t, rdb)
			cfg := rratelimiter.Config{Type: kind, Rate: 10, Interval: 5 * time.Second}
			for _, opts := range [][]rratelimiter.RateOption{nil, {rratelimiter.KeepState()}} {
				updated, err := l.UpdateRate(t.Context(), cfg, opts...)
				require.NoError(t, err)
				assert.False(t, updated)
				assert.Empty(t, rdb.Keys(t.Context(), "*").Val())
			}
		})
	})
}

// A step of a test: what the program does, and how many permits are free then.
type step struct {
	wait    time.Duration
	acquire int64
	update  rratelimiter.Config
	free    int64
}

func TestRedissonUpdateRateKeepsState(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, steps := range map[string][]step{
		"21 the same rate": {
			{update: limitertest.Every(10, 5*second), free: 10},
			{update: limitertest.Every(10, 5*second), free: 10}, {acquire: 2, free: 8}, {acquire: 8, free: 0},
		},
		"22 a higher rate and a longer interval": {
			{update: limitertest.Every(10, 2*second), free: 10}, {wait: second, acquire: 4, free: 6},
			{update: limitertest.Every(20, 5*second), free: 16}, {acquire: 16, free: 0},
		},
		"23 a lower rate": {
			{update: limitertest.Every(10, 2*second), free: 10}, {wait: second, acquire: 3, free: 7},
			{update: limitertest.Every(5, 5*second), free: 2}, {acquire: 2, free: 0},
		},
		"24 a rate below what is in use": {
			{update: limitertest.Every(10, 2*second), free: 10}, {wait: second, acquire: 8, free: 2},
			{update: limitertest.Every(5, 5*second), free: 0},
		},
		"25 all has run out": {
			{update: limitertest.Every(10, second), free: 10}, {acquire: 8, free: 2},
			{wait: 2 * second, update: limitertest.Every(10, second), free: 10},
		},
		"26 another type starts full": {
			{update: limitertest.Every(10, 5*second), free: 10}, {acquire: 4, free: 6},
			{update: limitertest.PerClient(10, 5*second), free: 10},
		},
		"28 a shorter interval gives back what has run out by it": {
			{update: limitertest.Every(10, 5*second), free: 10}, {acquire: 3, free: 7},
			{wait: 1100 * time.Millisecond, update: limitertest.Every(10, second), free: 10},
		},
		"29 each client's own permits": {
			{update: limitertest.PerClient(10, 5*second), free: 10}, {acquire: 3, free: 7},
			{update: limitertest.PerClient(20, 5*second), free: 17},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := limitertest.NewHandle(t, rdb)
				for i, s := range steps {
					time.Sleep(s.wait)
					switch {
					case i == 0:
						require.NoError(t, l.SetRate(t.Context(), s.update, rratelimiter.KeepState()))
					case s.update.Rate > 0:
						updated, err := l.UpdateRate(t.Context(), s.update, rratelimiter.KeepState())
						require.NoError(t, err)
						require.True(t, updated)
					default:
						limitertest.MustAcquire(t, l, s.acquire)
					}
					require.Equal(t, s.free, limitertest.Available(t, l), "after step %d", i)
					if cfg, err := l.Config(t.Context()); s.free < cfg.Rate {
						require.NoError(t, err)
						limitertest.MustRefuse(t, l, s.free+1)
					}
				}
			})
		})
	}
}

func TestRedisson27AKeepAliveTimeBelowTheInterval(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewHandle(t, rdb)
		_, err := l.UpdateRate(t.Context(),
			rratelimiter.Config{Rate: 10, Interval: 5 * time.Second, KeepAlive: time.Second}, rratelimiter.KeepState())
		require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
	})
}

// Others lower and raise the rate while a client has all of the one before in use: its own
// KeepState adds no permits to those.
func TestKeepStateOfAClientCountsWhatItHasInUse(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.PerClient(17, time.Hour))
		other := limitertest.NewClient(t, rdb).RateLimiter(l.Name())
		update := func(by *rratelimiter.RateLimiter, rate int64) {
			t.Helper()
			updated, err := by.UpdateRate(t.Context(), limitertest.PerClient(rate, time.Hour), rratelimiter.KeepState())
			require.NoError(t, err)
			require.True(t, updated)
		}
		limitertest.MustAcquire(t, l, 17)
		update(other, 10)
		update(l, 21)
		assert.EqualValues(t, 4, limitertest.Available(t, l))
		update(other, 10)
		update(l, 12)
		assert.Zero(t, limitertest.Available(t, l))
		require.NoError(t, l.Release(t.Context(), 17))
		assert.EqualValues(t, 12, limitertest.Available(t, l))
	})
}
