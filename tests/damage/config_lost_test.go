package damage_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Without the configuration nobody knows of which rate the value is the rest: the
// permits in use count, so that no more than the new rate is granted.
func TestKeepStateWhereTheConfigurationIsLost(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, cfg := range []rratelimiter.Config{limitertest.Every(1, time.Hour), limitertest.Every(2, time.Hour), limitertest.Every(9, time.Hour), limitertest.PerClient(2, time.Hour)} {
			before := cfg
			before.Rate = 5
			l := limitertest.NewLimiter(t, rdb, before)
			limitertest.MustAcquire(t, l, 1)
			require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
			require.NoError(t, l.SetRate(t.Context(), cfg, rratelimiter.KeepState()))
			assert.EqualValues(t, cfg.Rate-1, limitertest.Grants(t, l, 20))
		}
	})
}

// What is in use no more tells nothing either: a Redisson would take the value as
// it is for what is free.
func TestKeepStateWhereTheConfigurationIsLostAndAllHasRunOut(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(50, time.Hour))
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(2 * time.Minute)
		require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(2, time.Minute), rratelimiter.KeepState()))
		assert.Equal(t, []string{l.Name()}, limitertest.LimiterKeys(t, rdb, l.Name()))
		assert.Equal(t, 2, limitertest.Grants(t, l, 20))
	})
}

// madeAnewBy gives the limiter of that name a configuration, and returns a handle.
type madeAnewBy func(t *testing.T, c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter

// eachMadeAnew runs a test by each of madeAnew, in virtual time.
func eachMadeAnew(t *testing.T, test func(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, makeAnew madeAnewBy)) {
	t.Helper()
	for what, makeAnew := range madeAnew {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				test(t, rdb, limitertest.NewClient(t, rdb), makeAnew)
			})
		})
	}
}

// madeAnew are the calls that give a limiter a configuration, after its own was
// lost alone, as Redisson's unlink or an eviction leaves it. Each returns a
// handle.
var madeAnew = map[string]madeAnewBy{
	"TrySetRate": func(t *testing.T, c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
		t.Helper()
		limitertest.MustTrySetRate(t, c.RateLimiter(name), cfg)
		return c.RateLimiter(name)
	},
	"KeepState": func(t *testing.T, c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
		t.Helper()
		require.NoError(t, c.RateLimiter(name).SetRate(t.Context(), cfg, rratelimiter.KeepState()))
		return c.RateLimiter(name)
	},
	"WithDefault": func(_ *testing.T, c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
		return c.RateLimiter(name, rratelimiter.WithDefault(cfg))
	},
	"TryAcquireAll": func(t *testing.T, c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
		t.Helper()
		l, other := c.RateLimiter(name, rratelimiter.WithDefault(cfg)), c.RateLimiter(limitertest.Besides(name))
		limitertest.MustTrySetRate(t, other, limitertest.Every(1, time.Hour))
		limitertest.MustAcquire(t, other, 1)
		granted, err := c.TryAcquireAll(t.Context(), 1, 0, l, other)
		require.NoError(t, err)
		require.False(t, granted)
		return c.RateLimiter(name)
	},
}

// A rate of 100 is lost while 10 are in use; what is free by the new one is told
// by what is in use, whatever the value is.
func TestPermitsInUseCountWhereTheConfigurationIsLost(t *testing.T) {
	t.Parallel()
	for what, makeAnew := range madeAnew {
		for version, kind := range map[string]rratelimiter.RateType{
			"4.7.0": rratelimiter.PerClient, "3.52.0": rratelimiter.Overall, "3.27.2": rratelimiter.Overall,
			"3.20.1": rratelimiter.Overall, "3.16.8": rratelimiter.Overall, "3.15.5": rratelimiter.PerClient,
		} {
			t.Run(what+"/"+version, func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					for _, tc := range []struct{ rate, free, later int }{{10, 0, 4}, {15, 5, 9}, {5, 0, 0}, {200, 190, 194}} {
						for _, value := range []string{"", "90", "0", "-7", "gone"} {
							client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version), rratelimiter.WithClientID("id"))
							l := client.RateLimiter(redistest.Name(t))
							limitertest.MustTrySetRate(t, l, rratelimiter.Config{Type: kind, Rate: 100, Interval: time.Minute})
							limitertest.MustAcquire(t, l, 4)
							time.Sleep(20 * time.Second)
							limitertest.MustAcquire(t, l, 6)
							require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
							k := redisson.KeysOf(l.Name(), "id")
							if kind == rratelimiter.PerClient {
								k.Value = k.ClientValue
							}
							if value == "gone" {
								require.NoError(t, rdb.Del(t.Context(), k.Value).Err())
							} else if value != "" {
								require.NoError(t, rdb.Set(t.Context(), k.Value, value, redis.KeepTTL).Err())
							}

							l = makeAnew(t, client, l.Name(), rratelimiter.Config{Type: kind, Rate: int64(tc.rate), Interval: time.Minute})
							many := max(0, tc.free-20)
							assert.True(t, many == 0 || limitertest.Try(t, l, int64(many)), "of a rate of %d, beside value %q", tc.rate, value)
							assert.Equal(t, tc.free-many, limitertest.Grants(t, l, tc.free-many+1), "of a rate of %d, beside value %q", tc.rate, value)
							time.Sleep(40 * time.Second)
							assert.Equal(t, tc.later-tc.free, limitertest.Grants(t, l, tc.later-tc.free+1), "of a rate of %d, when four are back", tc.rate)
							time.Sleep(time.Minute)
							assert.EqualValues(t, tc.rate, limitertest.Available(t, l))
						}
					}
				})
			})
		}
	}
}

// A value without a set beside it is the rest of nothing: the set was lost too.
// All that is in use of another type counts no more.
func TestNothingIsInUseWhereTheConfigurationIsLost(t *testing.T) {
	t.Parallel()
	for what, makeAnew := range madeAnew {
		for _, was := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
			for _, is := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
				t.Run(what+"/"+was.String()+" to "+is.String(), func(t *testing.T) {
					t.Parallel()
					redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
						client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"))
						l := client.RateLimiter("name")
						limitertest.MustTrySetRate(t, l, rratelimiter.Config{Type: was, Rate: 100, Interval: time.Hour})
						limitertest.MustAcquire(t, l, 97)
						k := redisson.KeysOf("name", "id")
						lost := []string{"name"}
						if was == is {
							lost = append(lost, k.Permits, k.ClientPermits)
						}
						require.NoError(t, rdb.Del(t.Context(), lost...).Err())
						cfg := rratelimiter.Config{Type: is, Rate: 10, Interval: time.Hour}
						l = makeAnew(t, client, "name", cfg)
						value, there := limitertest.StoredValue(t, rdb, map[rratelimiter.RateType]string{0: k.Value, 1: k.ClientValue}[is])
						assert.True(t, what == "WithDefault" || !there || value == 10, "a Redisson would take the value for what is free")
						assert.Equal(t, 10, limitertest.Grants(t, l, 11))
					})
				})
			}
		}
	}
}

// Of a window's value nobody knows of which rate it is the rest, but the set
// tells what at least is in use.
func TestAWindowWhereTheConfigurationIsLost(t *testing.T) {
	t.Parallel()
	eachMadeAnew(t, func(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, makeAnew madeAnewBy) {
		l := client.RateLimiter("name")
		limitertest.MustTrySetRate(t, l, limitertest.Every(100, time.Minute))
		require.True(t, limitertest.AsRedisson3123(t, rdb, l, 1))
		limitertest.MustAcquire(t, l, 8)
		require.NoError(t, rdb.Del(t.Context(), "name").Err())
		l = makeAnew(t, client, "name", limitertest.Every(10, time.Minute))
		assert.Equal(t, 2, limitertest.Grants(t, l, 3))
		assert.Equal(t, time.Minute, rdb.PTTL(t.Context(), limitertest.KeysOf(l).Value).Val())
	})
}

// The steps of a large set change nothing until the last, so that one whose
// answer was lost leaves nothing half done; nothing is granted before.
func TestTheConfigurationIsMadeAnewInTheLastStep(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for name, tc := range map[string]struct {
			script *lua.Script
			args   []any
			token  int
		}{
			"TrySetRate":    {lua.TrySetRate, []any{1000, 3_600_000, 0, 0, "", ""}, 5},
			"KeepState":     {lua.SetRate, []any{1000, 3_600_000, 0, 0, 1, "", ""}, 6},
			"WithDefault":   {lua.Acquire, []any{limitertest.NewMember(t, codec.LayoutD2, 1), 1, "1000 3600000 0 0", "", "", ""}, 5},
			"TryAcquireAll": {lua.AcquireAll, []any{limitertest.NewMember(t, codec.LayoutD2, 1), 1, "", "", "", "1000 3600000 0 0"}, 4},
		} {
			l := limitertest.NewHandle(t, rdb)
			k := limitertest.KeysOf(l)
			require.NoError(t, rdb.Set(t.Context(), k.Value, 77, 0).Err())
			limitertest.AddGrants(t, rdb, k.Permits, time.Minute, 600, 1)
			for step := 0; ; step++ {
				before := limitertest.ReadState(t, rdb, l.Name())
				answer, err := rdb.Eval(t.Context(), tc.script.Source, k.List(), tc.args...).Result()
				require.NoError(t, err, name)
				if again, ok := answer.([]any); ok && again[0] == "again" {
					require.Equal(t, before, limitertest.ReadState(t, rdb, l.Name()), name)
					tc.args[tc.token] = again[1]
					continue
				}
				assert.Equal(t, 2, step, name)
				value, _ := limitertest.StoredValue(t, rdb, k.Value)
				assert.Equal(t, 1000-limitertest.InUse(t, rdb, k.Permits), value, name)
				break
			}
		}
	})
}

// A value that ends with a configuration that had a time to live is no window
// where it counts nothing: a Redisson that finds it gone, beside permits in use,
// would grant the whole rate.
func TestAValueThatCountsNothingGoesWithItsConfiguration(t *testing.T) {
	t.Parallel()
	eachMadeAnew(t, func(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, makeAnew madeAnewBy) {
		l := client.RateLimiter("name")
		limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Minute))
		limitertest.MustAcquire(t, l, 3)
		_, err := l.Expire(t.Context(), 2*time.Minute)
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context(), 3))
		time.Sleep(90 * time.Second)
		require.NoError(t, rdb.Del(t.Context(), "name").Err())
		l = makeAnew(t, client, "name", limitertest.Every(10, time.Minute))
		limitertest.MustAcquire(t, l, 10)
		time.Sleep(45 * time.Second)
		value, there := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
		assert.True(t, there)
		assert.Zero(t, value)
	})
}
