package merging_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// small is the most entries that Redis keeps in a listpack.
const small = 128

// use is one caller's way to use permits for a time: n calls, one after another.
type use func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int)

func eachCall(n int, cfg rratelimiter.Config, call func(i int)) {
	for i := range n {
		time.Sleep(cfg.Interval / time.Duration(cfg.Rate))
		call(i)
	}
}

func lone(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
	t.Helper()
	l := client.RateLimiter(name)
	eachCall(n, cfg, func(int) { limitertest.Try(t, l, 1) })
}

var uses = map[string]use{
	"TryAcquire": lone,
	"a handle for each call": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		eachCall(n, cfg, func(int) { limitertest.Try(t, client.RateLimiter(name), 1) })
	},
	"a Keyed for each call": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		eachCall(n, cfg, func(int) {
			_, err := client.Keyed("", cfg).Take(t.Context(), name, 1)
			require.NoError(t, err)
		})
	},
	"Take": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		l := client.RateLimiter(name)
		eachCall(n, cfg, func(int) { limitertest.Take(t, l, 1) })
	},
	"TakeReturnable, one of four undone later": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		k := client.Keyed("", cfg)
		var undo []func(context.Context) error
		eachCall(n, cfg, func(i int) {
			d, back, err := k.TakeReturnable(t.Context(), name, 1)
			require.NoError(t, err)
			if d.Granted && i%4 == 0 {
				undo = append(undo, back)
			}
			if len(undo) > 20 {
				require.NoError(t, undo[0](t.Context()))
				undo = undo[1:]
			}
		})
	},
	"permits of which some are released": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		l := client.RateLimiter(name)
		eachCall(n, cfg, func(i int) {
			if limitertest.Try(t, l, 2) && i%2 == 0 {
				require.NoError(t, l.Release(t.Context(), 1))
			}
		})
	},
	"reservations settled at once": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		l := client.RateLimiter(name)
		eachCall(n, cfg, func(i int) {
			if r, err := l.Reserve(t.Context(), 2, 0); assert.NoError(t, err) && r.Granted {
				require.NoError(t, r.Settle(t.Context(), int64(1+i%3)))
			}
		})
	},
	"reservations with a hold, settled later": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		l := client.RateLimiter(name)
		var open []*rratelimiter.Reservation
		eachCall(n, cfg, func(i int) {
			if r, err := l.Reserve(t.Context(), 2, 0, rratelimiter.Hold(cfg.Interval/4)); assert.NoError(t, err) && r.Granted {
				open = append(open, r)
			}
			if len(open) > 8 {
				one := rand.IntN(len(open))
				require.NoError(t, open[one].Settle(t.Context(), int64(1+i%3)))
				open = append(open[:one], open[one+1:]...)
			}
		})
	},
	"TakeAll": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		a, b := client.RateLimiter(name), client.RateLimiter("{"+name+"}:day", rratelimiter.WithDefault(limitertest.Hourly(1_000_000)))
		eachCall(n, cfg, func(int) {
			_, err := client.TakeAll(t.Context(), a.Claim(1), b.Claim(3))
			require.NoError(t, err)
		})
	},
	"TryAcquireAll, which may wait": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		a, b := client.RateLimiter(name), client.RateLimiter("{"+name+"}:day", rratelimiter.WithDefault(limitertest.Hourly(1_000_000)))
		eachCall(n, cfg, func(int) {
			_, err := client.TryAcquireAll(t.Context(), time.Second, a.Claim(1), b.Claim(3))
			require.NoError(t, err)
		})
	},
	"ReserveAll": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		a, b := client.RateLimiter(name), client.RateLimiter("{"+name+"}:day", rratelimiter.WithDefault(limitertest.Hourly(1_000_000)))
		eachCall(n, cfg, func(i int) {
			r, err := client.ReserveAll(t.Context(), 0, a.Claim(2), b.Claim(3))
			require.NoError(t, err)
			if r.Granted {
				require.NoError(t, r.Settle(t.Context(), int64(1+i%3), 4))
			}
		})
	},
	"a lease": func(t *testing.T, client *rratelimiter.Client, name string, cfg rratelimiter.Config, n int) {
		l := client.RateLimiter(name, rratelimiter.WithLease(rratelimiter.Lease{Permits: 3}))
		eachCall(n, cfg, func(int) { limitertest.Try(t, l, 1) })
	},
}

// Many callers ask at once, each by a call or with a member of its own.
func TestSet_OfManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]func(t *testing.T, l, beside *rratelimiter.RateLimiter, client *rratelimiter.Client){
		"claims": func(t *testing.T, l, beside *rratelimiter.RateLimiter, client *rratelimiter.Client) {
			assert.True(t, limitertest.TryAll(t, client, 1, l, beside))
		},
		"reservations": func(t *testing.T, l, _ *rratelimiter.RateLimiter, _ *rratelimiter.Client) {
			assert.NoError(t, limitertest.Reserve(t, l, 2).Settle(t.Context(), 1))
		},
	}, func(t *testing.T, call func(t *testing.T, l, beside *rratelimiter.RateLimiter, client *rratelimiter.Client)) {
		const callers, rounds = 256, 4
		rdb := limitertest.FarAway(t, time.Millisecond)
		client := limitertest.NewClient(t, rdb)
		cfg := rratelimiter.WithDefault(limitertest.Every(1_000_000, interval))
		l, beside := client.RateLimiter("{many}", cfg), client.RateLimiter("{many}2", cfg)
		limitertest.MustAcquire(t, l, 1)
		for range rounds {
			limitertest.Together(callers, func(int) { call(t, l, beside, client) })
		}
		for range 2 {
			limitertest.MustAcquire(t, l, 1)
		}
		keys := limitertest.KeysOf(l)
		assert.EqualValues(t, 1+rounds*callers+2, limitertest.InUse(t, rdb, keys.Permits))
		assert.LessOrEqual(t, rdb.ZCard(t.Context(), keys.Permits).Val(), int64(few+callers), "what is not named yet, and what is exact")
	})
}

// Each call takes of as many limiters as there may be.
func TestSet_OfManyLimiters(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client, claims := limitertest.NewClient(t, rdb), []rratelimiter.Claim(nil)
		for i := range rratelimiter.MaxLimiters {
			l := client.RateLimiter(fmt.Sprint("{many}", i), rratelimiter.WithDefault(limitertest.Every(10_000, interval)))
			claims = append(claims, l.Claim(1))
		}
		for range few + 3*together {
			_, err := client.TakeAll(t.Context(), claims...)
			require.NoError(t, err)
		}
		for i := range claims {
			keys := limitertest.KeysOf(client.RateLimiter(fmt.Sprint("{many}", i)))
			assert.EqualValues(t, few+3*together, limitertest.InUse(t, rdb, keys.Permits))
			assert.LessOrEqual(t, rdb.ZCard(t.Context(), keys.Permits).Val(), int64(few+together+2))
		}
	})
}

// Each caller releases some of what it was granted, so that the newest member is never as it was granted.
func TestSet_OfPermitsThatAreReleased(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		const calls = 200
		merges, l := countMerges(rdb), limitertest.NewLimiter(t, rdb, limitertest.Every(10_000, interval))
		for range calls {
			limitertest.MustAcquire(t, l, 2)
			require.NoError(t, l.Release(t.Context(), 1))
			time.Sleep(time.Millisecond) // the newest is the last
		}
		keys := limitertest.KeysOf(l)
		assert.EqualValues(t, calls, limitertest.InUse(t, rdb, keys.Permits))
		assert.LessOrEqual(t, rdb.ZCard(t.Context(), keys.Permits).Val(), int64(few+together+2))
		assert.LessOrEqual(t, merges.Load(), int64(2*calls/together), "one that finds what has changed, and one that merges the rest")
	})
}

func TestSet_StaysSmall(t *testing.T) {
	t.Parallel()
	for name, use := range uses {
		rates := []int64{400}
		if name == "TryAcquire" {
			rates = []int64{150, 1000}
		}
		for _, rate := range rates {
			limitertest.Virtual(t, map[string]int64{name: rate}, func(t *testing.T, rdb redistest.Client, rate int64) {
				cfg := rratelimiter.PerMinute(rate)
				client := limitertest.NewClient(t, rdb)
				limiter := redistest.Name(t)
				l := client.RateLimiter(limiter)
				limitertest.MustTrySetRate(t, l, cfg)
				most := int64(0)
				for range 25 {
					use(t, client, limiter, cfg, int(rate/20))
					most = max(most, rdb.ZCard(t.Context(), limitertest.KeysOf(l).Permits).Val())
				}
				t.Logf("%d a minute: at most %d members", rate, most)
				assert.LessOrEqual(t, most, int64(small))
				assert.Equal(t, rate, limitertest.Available(t, l)+limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
			})
		}
	}
}
