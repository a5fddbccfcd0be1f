package concurrency_test

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

// takers are the ways in which a program takes permits of a limiter by default.
var takers = map[string]func(c *rratelimiter.Client, cfg rratelimiter.Config) func(t *testing.T) bool{
	"Keyed": func(c *rratelimiter.Client, cfg rratelimiter.Config) func(t *testing.T) bool {
		users := c.Keyed("user:", cfg)
		return func(t *testing.T) bool {
			ok, err := users.TryAcquire(t.Context(), "ann", 1, 0)
			require.NoError(t, err)
			return ok
		}
	},
	"Keyed, figures": func(c *rratelimiter.Client, cfg rratelimiter.Config) func(t *testing.T) bool {
		users := c.Keyed("user:", cfg)
		return func(t *testing.T) bool {
			d, err := users.Take(t.Context(), "ann", 1)
			require.NoError(t, err)
			return d.Granted
		}
	},
	"Keyed, up to": func(c *rratelimiter.Client, cfg rratelimiter.Config) func(t *testing.T) bool {
		users := c.Keyed("user:", cfg)
		return func(t *testing.T) bool {
			_, d, err := users.TakeUpTo(t.Context(), "ann", 1)
			require.NoError(t, err)
			return d.Granted
		}
	},
	"WithDefault": func(c *rratelimiter.Client, cfg rratelimiter.Config) func(t *testing.T) bool {
		l := c.RateLimiter("user:ann", rratelimiter.WithDefault(cfg))
		return func(t *testing.T) bool { return limitertest.Try(t, l, 1) }
	},
	"a handle for each call": func(c *rratelimiter.Client, cfg rratelimiter.Config) func(t *testing.T) bool {
		return func(t *testing.T) bool {
			return limitertest.Try(t, c.RateLimiter("user:ann", rratelimiter.WithDefault(cfg)), 1)
		}
	},
	"TryAcquireAll": func(c *rratelimiter.Client, cfg rratelimiter.Config) func(t *testing.T) bool {
		l := c.RateLimiter("user:ann", rratelimiter.WithDefault(cfg))
		other := c.RateLimiter("{user:ann}other", rratelimiter.WithDefault(limitertest.Every(1_000_000, time.Hour)))
		return func(t *testing.T) bool {
			ok, err := c.TryAcquireAll(t.Context(), 1, 0, other, l)
			require.NoError(t, err)
			return ok
		}
	},
}

// grantsOf returns how many calls are granted of three at a time, every 59 seconds.
func grantsOf(t *testing.T, times int, take func(t *testing.T) bool) int {
	t.Helper()
	granted := 0
	for range times {
		time.Sleep(59 * time.Second)
		for range 3 {
			if take(t) {
				granted++
			}
		}
	}
	return granted
}

func TestChangedDefaultReachesBusyKeys(t *testing.T) {
	t.Parallel()
	for name, taker := range takers {
		for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
			for layout, opts := range map[string][]rratelimiter.Option{"": nil, "3.17.0": {rratelimiter.WithRedissonVersion("3.17.0")}, "3.12.0": {rratelimiter.WithRedissonVersion("3.12.0")}} {
				if layout == "3.12.0" && name == "TryAcquireAll" {
					continue // is ErrUnsupported
				}
				t.Run(name+" "+kind.String()+" "+layout, func(t *testing.T) {
					t.Parallel()
					redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
						opts := append([]rratelimiter.Option{rratelimiter.WithClientID("shop")}, opts...)
						before, after := rratelimiter.PerMinute(1000), rratelimiter.PerMinute(2)
						before.Type, after.Type = kind, kind
						old := taker(limitertest.NewClient(t, rdb, opts...), before)
						assert.Equal(t, 15, grantsOf(t, 5, old))
						time.Sleep(59 * time.Second)
						require.True(t, old(t))
						time.Sleep(59 * time.Second)
						require.True(t, old(t))
						client := limitertest.NewClient(t, rdb, opts...)
						take := taker(client, after)
						if layout == "3.12.0" {
							assert.True(t, take(t), "the window began just now")
						}
						assert.False(t, take(t), "permits in use stay so")
						assert.LessOrEqual(t, grantsOf(t, 20, take), 41, "two in each minute; by the old rate it would be 60")
						cfg, err := client.RateLimiter("user:ann").Config(t.Context())
						require.NoError(t, err)
						assert.EqualValues(t, 2, cfg.Rate)
					})
				})
			}
		}
	}
}

// Of all Clients made in one moment, the last is the newest program.
func TestClientsOfOneMomentKeepTheirOrder(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		name, after := redistest.Name(t), rratelimiter.PerMinute(2)
		limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerMinute(1000))), 1)
		for range 999 {
			limitertest.NewClient(t, rdb)
		}
		l := limitertest.NewClient(t, rdb).RateLimiter(name, rratelimiter.WithDefault(after))
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, after.Rate, configOf(t, l).Rate)
	})
}
