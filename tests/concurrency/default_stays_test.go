package concurrency_test

import (
	"bytes"
	"fmt"
	"log/slog"
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
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A rate that somebody has set for one limiter stays, also where it is the default of
// the program before.
func TestRateSetOnPurposeStays(t *testing.T) {
	t.Parallel()
	first, second := rratelimiter.PerMinute(1000), rratelimiter.PerMinute(2)
	ways := map[string]func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config){
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
			_, err := l.Delete(t.Context())
			require.NoError(t, err)
			limitertest.MustTrySetRate(t, l, cfg)
		},
		"WithRate": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
			limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter(l.Name(), rratelimiter.WithRate(cfg)), 1)
		},
		"WithRate, made anew": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
			other := limitertest.NewClient(t, rdb).RateLimiter(l.Name(), rratelimiter.WithRate(cfg))
			limitertest.MustAcquire(t, other, 1)
			_, err := l.Delete(t.Context())
			require.NoError(t, err)
			limitertest.MustAcquire(t, other, 1)
		},
		// As Redisson does, and what an earlier program of this package left.
		"Redisson's setRate": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
			require.NoError(t, rdb.HSet(t.Context(), l.Name(), "rate", cfg.Rate, "interval", cfg.Interval.Milliseconds(), "type", 0).Err())
			require.NoError(t, rdb.Del(t.Context(), limitertest.KeysOf(l).Value, limitertest.KeysOf(l).Permits).Err())
		},
		"unknown": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
			require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
			require.NoError(t, rdb.HSet(t.Context(), l.Name(), "rate", cfg.Rate, "interval", cfg.Interval.Milliseconds(), "type", 0, "keepAliveTime", 0).Err())
		},
	}
	for name, set := range ways {
		for _, cfg := range []rratelimiter.Config{rratelimiter.PerMinute(50), first} {
			if name == "Redisson's setRate" && cfg == first {
				continue // there is no difference: what was set is what was there
			}
			if name == "WithRate" && cfg == first {
				continue // it sets nothing, since that is the rate
			}
			t.Run(fmt.Sprint(name, " ", cfg.Rate), func(t *testing.T) {
				t.Parallel()
				redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
					l := limitertest.NewClient(t, rdb).RateLimiter(redistest.Name(t), rratelimiter.WithDefault(first))
					limitertest.MustAcquire(t, l, 1)
					set(t, rdb, l, cfg)
					for range 3 {
						program := limitertest.NewClient(t, rdb)
						later := program.RateLimiter(l.Name(), rratelimiter.WithDefault(second))
						limitertest.MustAcquire(t, later, 1)
						_, err := program.TryAcquireAll(t.Context(), 1, 0, later, program.RateLimiter(limitertest.Besides(l.Name()), rratelimiter.WithDefault(second)))
						require.NoError(t, err)
						assert.Equal(t, cfg.Rate, configOf(t, later).Rate)
					}
				})
			})
		}
	}
}

// During a roll-out the default of the program that began last holds, however often the
// others ask by new handles; each tells the log once.
func TestProgramsWithOtherDefaultsDoNotFight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		changes := 0
		rdb.AddHook(limitertest.BeforeScript(lua.SetRate, func() { changes++ }))
		var logs [2]bytes.Buffer
		var clients [2]*rratelimiter.Client
		for i := range clients {
			clients[i] = limitertest.NewClient(t, rdb, rratelimiter.WithLogger(slog.New(slog.NewTextHandler(&logs[i], nil))))
		}
		before, after := rratelimiter.PerMinute(1000), rratelimiter.PerMinute(2)
		ask := func(i int, cfg rratelimiter.Config, key string) {
			_, err := clients[i].Keyed("user:", cfg).Take(t.Context(), key, 1)
			require.NoError(t, err)
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
	})
}

// A limiter that a program with an older default makes anew, while a handle of the newer
// one knows it, has the newer default within a minute of use.
func TestDefaultOfALimiterMadeAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		old := limitertest.NewClient(t, rdb).Keyed("user:", rratelimiter.PerMinute(1000))
		client := limitertest.NewClient(t, rdb)
		users := client.Keyed("user:", rratelimiter.PerMinute(2))
		take := func(k *rratelimiter.KeyedLimiter) limit.Decision {
			d, err := k.Take(t.Context(), "ann", 1)
			require.NoError(t, err)
			return d
		}
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
	})
}

// What a program remembers of the rate before ends with the change.
func TestChangedDefaultEndsWhatIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter("{a}", rratelimiter.WithDefault(rratelimiter.PerHour(3))), 3)
		client := limitertest.NewClient(t, rdb)
		seen := client.RateLimiter("{a}", rratelimiter.WithRefusalCache())
		limitertest.MustRefuse(t, seen, 1)
		waiting := make(chan error, 1)
		go func() { waiting <- client.RateLimiter("{a}").Acquire(t.Context(), 1) }()
		synctest.Wait()
		limitertest.MustAcquire(t, client.RateLimiter("{a}", rratelimiter.WithDefault(rratelimiter.PerHour(100))), 1)
		synctest.Wait()
		require.Len(t, waiting, 1, "who waits asks anew")
		require.NoError(t, <-waiting)
		limitertest.MustAcquire(t, seen, 95)
		limitertest.MustRefuse(t, seen, 1)
	})
}

// A change of the default ends the leases of the program that makes it.
func TestChangedDefaultAndLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter("a", rratelimiter.WithDefault(rratelimiter.PerMinute(100_000))), 1)
		l := limitertest.NewClient(t, rdb).RateLimiter("a", rratelimiter.WithDefault(rratelimiter.PerMinute(100)), limitertest.Ahead(0))
		granted := 1
		for range 1000 {
			if limitertest.Try(t, l, 1) {
				granted++
			}
			time.Sleep(10 * time.Millisecond)
		}
		assert.LessOrEqual(t, granted, 100)
		assert.Greater(t, granted, 80)
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 100, limitertest.Available(t, l))
	})
}

// Peek and what else only reads tell what there is, and change nothing.
func TestChangedDefaultAndReads(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := redistest.Name(t)
		limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerHour(1000))), 1)
		l := limitertest.NewClient(t, rdb).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerHour(2)))
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
	for name, keepAlive := range map[string]time.Duration{"for ever": 0, "kept alive": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				cfg := rratelimiter.Config{Rate: 1000, Interval: time.Minute, KeepAlive: keepAlive}
				limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter("a", rratelimiter.WithDefault(cfg)), 1)
				require.NoError(t, limitertest.NewClient(t, rdb).RateLimiter("other").SetRate(t.Context(), cfg), "the server knows the script from here on")
				sent := limitertest.CountCommands(rdb)
				calls := func(cfg rratelimiter.Config) (each []int) {
					l := limitertest.NewClient(t, rdb).RateLimiter("a", rratelimiter.WithDefault(cfg))
					for range 3 {
						before := sent.Scripts()
						limitertest.MustAcquire(t, l, 1)
						each = append(each, sent.Scripts()-before)
					}
					return each
				}
				assert.Equal(t, []int{1, 1, 1}, calls(cfg))
				cfg.Rate = 2000
				assert.Equal(t, []int{3, 1, 1}, calls(cfg))
				cfg.Rate = 3000
				require.NoError(t, limitertest.NewClient(t, rdb).RateLimiter("a").SetRate(t.Context(), cfg))
				cfg.Rate = 4000
				before := sent.Scripts()
				assert.Equal(t, []int{1, 1, 1}, calls(cfg))
				assert.Equal(t, 3, sent.Scripts()-before)
			})
		})
	}
}
