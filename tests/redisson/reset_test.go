package redisson_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Reset leaves the configuration and its time to live, and what Redisson takes for a
// limiter of which nothing is in use: no value and no set.
func TestReset(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"4.7.0", "3.16.8", "3.12.3"} {
		limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
			t.Helper()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version))
				l := client.RateLimiter("orders")
				require.NoError(t, l.SetRate(t.Context(), rratelimiter.Config{Type: kind, Rate: 5, Interval: time.Minute, KeepAlive: time.Hour}))
				other := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)).RateLimiter("orders")
				limitertest.MustAcquire(t, l, 3)
				limitertest.MustAcquire(t, other, 2)
				time.Sleep(time.Second)
				before, lives := limitertest.ReadState(t, rdb, "orders")["orders"], limitertest.TTLs(t, rdb, "orders")["orders"]

				require.NoError(t, l.Reset(t.Context()))
				assert.Equal(t, before, limitertest.ReadState(t, rdb, "orders")["orders"])
				assert.Equal(t, lives, limitertest.TTLs(t, rdb, "orders")["orders"])
				if kind == rratelimiter.Overall {
					assert.Equal(t, []string{"orders"}, limitertest.LimiterKeys(t, rdb, "orders"))
				} else {
					assert.EqualValues(t, 3, limitertest.Available(t, other), "what others keep stays")
				}
				limitertest.MustAcquire(t, l, 5)
				limitertest.MustRefuse(t, l, 1)
				d, err := l.Peek(t.Context(), 1)
				require.NoError(t, err)
				assert.Equal(t, time.Minute, d.RetryAfter)
			})
		})
	}
}

func TestResetWithoutARate(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := limitertest.NewHandle(t, rdb)
		require.ErrorIs(t, l.Reset(t.Context()), rratelimiter.ErrNotInitialized)
		l = limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(limitertest.Every(3, time.Hour)))
		require.NoError(t, l.Reset(t.Context()))
		limitertest.MustAcquire(t, l, 3)
		require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
		require.NoError(t, l.Reset(t.Context()))
		limitertest.MustAcquire(t, l, 3)
	})
}

func TestResetWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(3, time.Hour))
		limitertest.MustAcquire(t, s.RateLimiter, 3)
		c := s.StartAcquire(t.Context(), 2)
		s.Until(time.Second)
		require.NoError(t, s.Reset(t.Context()))
		synctest.Wait()
		assert.Equal(t, "true at 1s", c.Outcome())
		assert.EqualValues(t, 1, limitertest.Available(t, s.RateLimiter))
	})
}

func TestResetEndsLeases(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewHandle(t, rdb, limitertest.Ahead(0), rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
		for range 200 {
			limitertest.MustAcquire(t, l, 1)
		}
		require.NoError(t, l.Reset(t.Context()))
		assert.EqualValues(t, 1000, limitertest.Available(t, l))
		d, err := l.Take(t.Context(), 1000)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		limitertest.MustRefuse(t, l, 1)
	})
}

func TestResetIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false)
	limitertest.MustAcquire(t, w.RateLimiter, 6)
	w.On(lua.Reset, redistest.DropAnswer)
	require.ErrorIs(t, w.Reset(t.Context()), rratelimiter.ErrUnknownOutcome)
	assert.Equal(t, 1, w.Sent(lua.Reset))
	w.CheckHeld(t, 0, "reset")
	w.On(lua.Reset, redistest.Cut)
	require.ErrorIs(t, w.Reset(t.Context()), rratelimiter.ErrUnknownOutcome)
}

// TakeUpTo takes what Peek tells to be free, whatever the state.
func TestTakeUpToTakesWhatIsFree(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"4.7.0", "3.20.0", "3.16.8", "3.16.0", "3.12.3"} {
		t.Run("beside "+version, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				draw := rand.New(rand.NewPCG(8, 5))
				client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID(ownID), rratelimiter.WithRedissonVersion(version))
				granted, refused := 0, 0
				for range 100 {
					name := redistest.Name(t)
					s := drawState(t, draw, rdb, name)
					l := client.RateLimiter(name, rratelimiter.WithDefault(s.cfg))
					one, err := l.Peek(t.Context(), 1)
					if err != nil {
						continue
					}
					free := one.Remaining
					if one.Granted {
						free++
						granted++
					} else {
						refused++
					}
					n := 1 + draw.Int64N(2*s.cfg.Rate)
					taken, d, err := l.TakeUpTo(t.Context(), n)
					require.NoError(t, err)
					require.Equal(t, min(n, free), taken, "%+v", s.cfg)
					require.Equal(t, taken > 0, d.Granted)
					require.Equal(t, free-taken, d.Remaining)
					after, err := l.Peek(t.Context(), 1)
					require.NoError(t, err)
					left := after.Remaining
					if after.Granted {
						left++
					}
					require.GreaterOrEqual(t, left, free-taken, "a refusal finds what leaked: %+v", s.cfg)
					require.NoError(t, rdb.FlushAll(t.Context()).Err())
				}
				assert.Greater(t, granted, 20)
				assert.Greater(t, refused, 5)
			})
		})
	}
}
