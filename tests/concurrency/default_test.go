package concurrency_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A taker takes a permit of the limiter "user:ann", whose rate is cfg by default.
type taker func(t *testing.T, c *rratelimiter.Client, cfg rratelimiter.Config) (take func() bool)

// takers are the ways in which a program takes permits of a limiter by default.
var takers = map[string]taker{
	"Keyed": func(t *testing.T, c *rratelimiter.Client, cfg rratelimiter.Config) func() bool {
		users := c.Keyed("user:", cfg)
		return func() bool {
			ok, err := users.TryAcquire(t.Context(), "ann", 1, 0)
			require.NoError(t, err)
			return ok
		}
	},
	"Keyed, figures": func(t *testing.T, c *rratelimiter.Client, cfg rratelimiter.Config) func() bool {
		users := c.Keyed("user:", cfg)
		return func() bool { return limittest.Take(t, users, "ann", 1).Granted }
	},
	"Keyed, up to": func(t *testing.T, c *rratelimiter.Client, cfg rratelimiter.Config) func() bool {
		users := c.Keyed("user:", cfg)
		return func() bool {
			_, d, err := users.TakeUpTo(t.Context(), "ann", 1)
			require.NoError(t, err)
			return d.Granted
		}
	},
	"WithDefault": func(t *testing.T, c *rratelimiter.Client, cfg rratelimiter.Config) func() bool {
		l := byDefault(c, "user:ann", cfg)
		return func() bool { return limitertest.Try(t, l, 1) }
	},
	"a handle for each call": func(t *testing.T, c *rratelimiter.Client, cfg rratelimiter.Config) func() bool {
		return func() bool { return limitertest.Try(t, byDefault(c, "user:ann", cfg), 1) }
	},
	"TryAcquireAll": func(t *testing.T, c *rratelimiter.Client, cfg rratelimiter.Config) func() bool {
		l, other := byDefault(c, "user:ann", cfg), byDefault(c, "{user:ann}other", limitertest.Every(1_000_000, time.Hour))
		return func() bool { return tryAll(t, c, 1, other, l) }
	},
}

// grantsOf returns how many calls are granted of three at a time, every 59 seconds.
func grantsOf(times int, take func() bool) (granted int) {
	for range times {
		time.Sleep(59 * time.Second)
		for range 3 {
			if take() {
				granted++
			}
		}
	}
	return granted
}

func TestChangedDefaultReachesBusyKeys(t *testing.T) {
	t.Parallel()
	for _, beside := range []string{"4.7.0", "3.17.0", "3.12.0"} {
		for name, taker := range takers {
			if beside == "3.12.0" && name == "TryAcquireAll" {
				continue // is ErrUnsupported
			}
			t.Run(name+", "+beside, func(t *testing.T) {
				t.Parallel()
				limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) { changeDefault(t, taker, kind, beside) })
			})
		}
	}
}

func changeDefault(t *testing.T, taker taker, kind rratelimiter.RateType, beside string) {
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		opts := []rratelimiter.Option{rratelimiter.WithClientID("shop"), rratelimiter.WithRedissonVersion(beside)}
		before, after := rratelimiter.PerMinute(1000), rratelimiter.PerMinute(2)
		before.Type, after.Type = kind, kind
		old := taker(t, limitertest.NewClient(t, rdb, opts...), before)
		assert.Equal(t, 15, grantsOf(5, old))
		time.Sleep(59 * time.Second)
		require.True(t, old())
		time.Sleep(59 * time.Second)
		require.True(t, old())
		client := limitertest.NewClient(t, rdb, opts...)
		take := taker(t, client, after)
		if beside == "3.12.0" {
			assert.True(t, take(), "the window began just now")
		}
		assert.False(t, take(), "permits in use stay so")
		assert.LessOrEqual(t, grantsOf(20, take), 41, "two in each minute; by the old rate it would be 60")
		assert.EqualValues(t, 2, configOf(t, client.RateLimiter("user:ann")).Rate)
	})
}

// Of all Clients made in one moment, the last is the newest program.
func TestClientsOfOneMomentKeepTheirOrder(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		name, after := redistest.Name(t), rratelimiter.PerMinute(2)
		limitertest.MustAcquire(t, byDefault(limitertest.NewClient(t, rdb), name, rratelimiter.PerMinute(1000)), 1)
		for range 999 {
			limitertest.NewClient(t, rdb)
		}
		l := byDefault(limitertest.NewClient(t, rdb), name, after)
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, after.Rate, configOf(t, l).Rate)
	})
}

// setters set the rate of one limiter on purpose.
var setters = map[string]func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config){
	"SetRate": func(t *testing.T, _ *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
		require.NoError(t, l.SetRate(t.Context(), cfg))
	},
	"KeepState": func(t *testing.T, _ *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
		require.NoError(t, l.SetRate(t.Context(), cfg, rratelimiter.KeepState()))
	},
	"UpdateRate": func(t *testing.T, _ *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
		set, err := l.UpdateRate(t.Context(), cfg)
		require.NoError(t, err)
		require.True(t, set)
	},
	"TrySetRate": func(t *testing.T, _ *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
		require.NoError(t, makeAnew(cfg)(t.Context(), nil, l))
	},
	"WithRate": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
		limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter(l.Name(), rratelimiter.WithRate(cfg)), 1)
	},
	"WithRate, made anew": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
		other := limitertest.NewClient(t, rdb).RateLimiter(l.Name(), rratelimiter.WithRate(cfg))
		limitertest.MustAcquire(t, other, 1)
		require.NoError(t, limitertest.Second(l.Delete(t.Context())))
		limitertest.MustAcquire(t, other, 1)
	},
	// As Redisson does, and what an earlier program of this package left.
	"Redisson's setRate": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
		damage(t, rdb, l, fmt.Sprintf("HSET config rate %d interval %d type 0; DEL value permits", cfg.Rate, cfg.Interval.Milliseconds()))
	},
	"unknown": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
		fields := fmt.Sprintf("rate %d interval %d type 0 keepAliveTime 0", cfg.Rate, cfg.Interval.Milliseconds())
		damage(t, rdb, l, "DEL config; HSET config "+fields)
	},
}

// A rate that was set for one limiter stays, also if it is the default of the program
// before.
func TestRateSetOnPurposeStays(t *testing.T) {
	t.Parallel()
	first, second := rratelimiter.PerMinute(1000), rratelimiter.PerMinute(2)
	for name, set := range setters {
		for _, cfg := range []rratelimiter.Config{rratelimiter.PerMinute(50), first} {
			if cfg == first && (name == "Redisson's setRate" || name == "WithRate") {
				continue // there is no difference: what was set is what was there
			}
			t.Run(fmt.Sprint(name, " ", cfg.Rate), func(t *testing.T) {
				t.Parallel()
				redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
					l := byDefault(limitertest.NewClient(t, rdb), redistest.Name(t), first)
					limitertest.MustAcquire(t, l, 1)
					set(t, rdb, l, cfg)
					for range 3 {
						program := limitertest.NewClient(t, rdb)
						later := byDefault(program, l.Name(), second)
						limitertest.MustAcquire(t, later, 1)
						tryAll(t, program, 1, later, byDefault(program, limitertest.Besides(l.Name()), second))
						assert.Equal(t, cfg.Rate, configOf(t, later).Rate)
					}
				})
			})
		}
	}
}

var defaultTests = tests[*redis.Client]{
	// During a roll-out the default of the program that began last holds, however often the
	// others ask by new handles; each tells the log once.
	"programs with other defaults do not fight": func(t *testing.T, rdb *redis.Client) {
		changes := 0
		rdb.AddHook(limitertest.BeforeScript{Script: lua.SetRate, Do: func() { changes++ }})
		var logs [2]bytes.Buffer
		var clients [2]*rratelimiter.Client
		for i := range clients {
			clients[i] = limitertest.NewClient(t, rdb, logTo(&logs[i]))
		}
		before, after := rratelimiter.PerMinute(1000), rratelimiter.PerMinute(2)
		ask := func(i int, cfg rratelimiter.Config, key string) {
			limittest.Take(t, clients[i].Keyed("user:", cfg), key, 1)
		}
		keys := []string{"ann", "bob", "eve"}
		for _, key := range keys {
			ask(0, before, key)
		}
		for range 200 {
			for _, key := range keys {
				ask(1, after, key)
				ask(0, before, key)
			}
			time.Sleep(7 * time.Second)
		}
		synctest.Wait()
		assert.Equal(t, len(keys), changes, "one for each key")
		for _, key := range keys {
			assert.EqualValues(t, 2, configOf(t, clients[0].RateLimiter("user:"+key)).Rate)
		}
		assert.Equal(t, 1, strings.Count(logs[1].String(), "\n"), logs[1].String())
		assert.Contains(t, logs[1].String(), `rate replaced" limiter=user: found="1000 in 1m0s, kept alive for 1m0s" want="2 in 1m0s, kept alive for 1m0s"`)
		assert.Equal(t, 1, strings.Count(logs[0].String(), "\n"), logs[0].String())
		assert.Contains(t, logs[0].String(), `rate differs" limiter=user: found="2 in 1m0s" want="1000 in 1m0s"`)

		// The program before, begun again, is the one that began last.
		clients[0] = limitertest.NewClient(t, rdb)
		ask(0, before, "ann")
		assert.EqualValues(t, 1000, configOf(t, clients[0].RateLimiter("user:ann")).Rate)
	},
	// A limiter that a program with an older default makes anew, while a handle of the newer
	// one knows it, has the newer default within a minute of use.
	"default of a limiter made anew": func(t *testing.T, rdb *redis.Client) {
		old := limitertest.NewClient(t, rdb).Keyed("user:", rratelimiter.PerMinute(1000))
		client := limitertest.NewClient(t, rdb)
		users := client.Keyed("user:", rratelimiter.PerMinute(2))
		take := func(k *rratelimiter.KeyedLimiter) limit.Decision { return limittest.Take(t, k, "ann", 1) }
		assert.EqualValues(t, 2, take(users).Limit)
		time.Sleep(61 * time.Second) // the limiter has gone
		assert.EqualValues(t, 1000, take(old).Limit)
		assert.EqualValues(t, 2, take(users).Limit)

		time.Sleep(61 * time.Second)
		assert.EqualValues(t, 2, take(users).Limit)
		_, err := users.Limiter("ann").Delete(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 1000, take(old).Limit)
		time.Sleep(59 * time.Second)
		take(users)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 2, take(users).Limit)
	},
	// What a program remembers of the rate before ends with the change.
	"changed default ends what is remembered": func(t *testing.T, rdb *redis.Client) {
		limitertest.MustAcquire(t, byDefault(limitertest.NewClient(t, rdb), "{a}", rratelimiter.PerHour(3)), 3)
		client := limitertest.NewClient(t, rdb)
		seen := client.RateLimiter("{a}", rratelimiter.WithRefusalCache())
		limitertest.MustRefuse(t, seen, 1)
		waiting := make(chan error, 1)
		go func() { waiting <- client.RateLimiter("{a}").Acquire(t.Context(), 1) }()
		synctest.Wait()
		limitertest.MustAcquire(t, byDefault(client, "{a}", rratelimiter.PerHour(100)), 1)
		synctest.Wait()
		require.Len(t, waiting, 1, "who waits asks anew")
		require.NoError(t, <-waiting)
		limitertest.MustAcquire(t, seen, 95)
		limitertest.MustRefuse(t, seen, 1)
	},
	// A change of the default ends the leases of the program that makes it.
	"changed default and leases": func(t *testing.T, rdb *redis.Client) {
		limitertest.MustAcquire(t, byDefault(limitertest.NewClient(t, rdb), "a", rratelimiter.PerMinute(100_000)), 1)
		l := limitertest.NewClient(t, rdb).RateLimiter("a", rratelimiter.WithDefault(rratelimiter.PerMinute(100)), limitertest.Ahead(0))
		granted := 1
		for range 1000 {
			if limitertest.Try(t, l, 1) {
				granted++
			}
			time.Sleep(10 * ms)
		}
		assert.LessOrEqual(t, granted, 100)
		assert.Greater(t, granted, 80)
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 100, limitertest.Available(t, l))
	},
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	onMini(t, defaultTests)
}

// Peek and what else only reads tell what there is, and change nothing.
func TestChangedDefaultAndReads(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := redistest.Name(t)
		limitertest.MustAcquire(t, byDefault(limitertest.NewClient(t, rdb), name, rratelimiter.PerHour(1000)), 1)
		l := byDefault(limitertest.NewClient(t, rdb), name, rratelimiter.PerHour(2))
		limitertest.RequireUntouched(t, rdb, name, func() {
			d, err := l.Peek(t.Context(), 1)
			require.NoError(t, err)
			assert.EqualValues(t, 1000, d.Limit)
			assert.EqualValues(t, 999, limitertest.Available(t, l))
			assert.EqualValues(t, 1000, configOf(t, l).Rate)
		})
		limitertest.MustAcquire(t, l, 1)
		assert.EqualValues(t, 2, configOf(t, l).Rate)
	})
}

// A decision is one script call, as ever: the first of a handle, and of a program that
// finds what it wants or what was set on purpose. Only a change takes two more.
func TestDefaultCostsNoCall(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]time.Duration{"for ever": 0, "kept alive": time.Hour}, func(t *testing.T, keepAlive time.Duration) {
		rdb, _ := redistest.Mini(t)
		cfg := rratelimiter.Config{Rate: 1000, Interval: time.Minute, KeepAlive: keepAlive}
		limitertest.MustAcquire(t, byDefault(limitertest.NewClient(t, rdb), "a", cfg), 1)
		require.NoError(t, limitertest.NewClient(t, rdb).RateLimiter("other").SetRate(t.Context(), cfg), "the server knows the script from here on")
		sent := limitertest.CountCommands(rdb)
		calls := func(rate int64) (each []int) {
			cfg.Rate = rate
			l := byDefault(limitertest.NewClient(t, rdb), "a", cfg)
			before := sent.Scripts()
			for range 3 {
				limitertest.MustAcquire(t, l, 1)
				each = append(each, sent.Scripts()-before)
			}
			return each
		}
		assert.Equal(t, []int{1, 2, 3}, calls(1000))
		assert.Equal(t, []int{3, 4, 5}, calls(2000))
		cfg.Rate = 3000
		require.NoError(t, limitertest.NewClient(t, rdb).RateLimiter("a").SetRate(t.Context(), cfg))
		assert.Equal(t, []int{1, 2, 3}, calls(4000))
	})
}
