package concurrency_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
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
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// Calls that one script call can't decide together go in one flight, so that callers of several kinds
// wait no longer than callers of one.
func TestCallers_OfSeveralKindsShareFlights(t *testing.T) {
	t.Parallel()
	const callers, rounds, trip = 256, 10, 10 * ms
	cfg := rratelimiter.PerHour(1 << 40)
	type call = func(ctx context.Context) error
	limitertest.Bubbles(t, map[string]func(c *rratelimiter.Client, rdb redistest.Client) []call{
		"two handles, one without a default": func(c *rratelimiter.Client, _ redistest.Client) []call {
			with, without := limitertest.ByDefault(c, "orders", cfg), c.RateLimiter("orders")
			return []call{
				func(ctx context.Context) error { return limitertest.Granted(with.TryAcquire(ctx, 1, 0)) },
				func(ctx context.Context) error { return limitertest.Granted(without.TryAcquire(ctx, 1, 0)) },
			}
		},
		"two defaults": func(c *rratelimiter.Client, _ redistest.Client) []call {
			one, other := limitertest.ByDefault(c, "orders", cfg), limitertest.ByDefault(c, "orders", rratelimiter.PerHour(1<<41))
			return []call{
				func(ctx context.Context) error { return limitertest.Granted(one.TryAcquire(ctx, 1, 0)) },
				func(ctx context.Context) error { return limitertest.Granted(other.TryAcquire(ctx, 1, 0)) },
			}
		},
		"a Keyed beside a handle": func(c *rratelimiter.Client, _ redistest.Client) []call {
			keyed := c.Keyed("orders", cfg)
			l := c.RateLimiter(keyed.Limiter("1").Name())
			return []call{
				func(ctx context.Context) error { return limitertest.Granted(keyed.TryAcquire(ctx, "1", 1, 0)) },
				func(ctx context.Context) error { return limitertest.Granted(l.TryAcquire(ctx, 1, 0)) },
			}
		},
		"TakeUpTo": func(c *rratelimiter.Client, _ redistest.Client) []call {
			l := limitertest.ByDefault(c, "orders", cfg)
			return []call{
				func(ctx context.Context) error { _, _, err := l.TakeUpTo(ctx, 10); return err },
				func(ctx context.Context) error { return limitertest.Granted(l.TryAcquire(ctx, 1, 0)) },
			}
		},
		"Reserve": func(c *rratelimiter.Client, _ redistest.Client) []call {
			l := limitertest.ByDefault(c, "orders", cfg)
			return []call{
				func(ctx context.Context) error { _, err := l.Reserve(ctx, 1, 0); return err },
				func(ctx context.Context) error { return limitertest.Granted(l.TryAcquire(ctx, 1, 0)) },
			}
		},
		"a sliding log": func(c *rratelimiter.Client, _ redistest.Client) []call {
			l := slidinglog.New(c, slidinglog.Config{Limit: 100_000, Window: time.Hour})
			return []call{
				func(ctx context.Context) error { _, _, err := l.TakeUpTo(ctx, "ann", 3); return err },
				func(ctx context.Context) error { _, err := l.Take(ctx, "ann", 1); return err },
			}
		},
		"a token bucket": func(c *rratelimiter.Client, _ redistest.Client) []call {
			l := tokenbucket.New(c, tokenbucket.Config{Capacity: 100_000, Refill: 100, Interval: time.Second})
			return []call{
				func(ctx context.Context) error { _, _, err := l.TakeUpTo(ctx, "ann", 3); return err },
				func(ctx context.Context) error { _, err := l.Take(ctx, "ann", 1); return err },
			}
		},
	}, func(t *testing.T, calls func(c *rratelimiter.Client, rdb redistest.Client) []call) {
		rdb := limitertest.FarAway(t, trip)
		c := rratelimiter.New(rdb, limitertest.Patient())
		all := calls(c, rdb)
		for _, one := range all {
			require.NoError(t, one(t.Context()), "the server knows the scripts, and the limiter its rate")
		}
		start := time.Now()
		limitertest.Together(callers, func(i int) {
			for range rounds {
				assert.NoError(t, all[i%len(all)](t.Context()))
			}
		})
		assert.LessOrEqual(t, time.Since(start), 3*rounds*trip, strconv.Itoa(callers*rounds)+" calls")
		synctest.Wait()
		require.NoError(t, c.Close(t.Context()))
	})
}

// Requests for limiters of all kinds of a Client share flights: those whose calls are repeated after a lost answer, and those
// whose calls are not, and so have more time.
func TestClient_LimitersShareFlightsWithThoseThatAreRepeatedAlike(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 2, MaxConcurrentDials: 1}) // one flight at a time
		c := limitertest.OpenClient(rdb)
		orders := c.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(100)), rratelimiter.WithExact())
		all := []func(ctx context.Context) error{
			func(ctx context.Context) error { return limitertest.Granted(orders.TryAcquire(ctx, 1, 0)) },
		}
		for _, l := range []limit.Limiter{
			fixedwindow.New(c, fixedwindow.Config{Limit: 100, Window: time.Hour}),
			slidinglog.New(c, slidinglog.Config{Limit: 100, Window: time.Hour}),
			tokenbucket.New(c, tokenbucket.Config{Capacity: 100, Refill: 1, Interval: time.Hour}),
		} {
			all = append(all, func(ctx context.Context) error { return limitertest.Second(l.Take(ctx, fmt.Sprintf("%T", l), 1)) })
		}
		for _, call := range all {
			require.NoError(t, call(t.Context()), "the server knows the scripts by then")
		}
		var sent []int
		hold := make(chan struct{})
		rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
			if cmds[0].Name() == "evalsha" {
				sent = append(sent, len(cmds))
				<-hold
			}
		}))
		var wg sync.WaitGroup
		for _, call := range append(all[:1:1], all...) {
			wg.Go(func() { assert.NoError(t, call(t.Context())) })
			synctest.Wait()
		}
		close(hold)
		wg.Wait()
		assert.Equal(t, []int{1, 2, 2}, sent)
		limitertest.CheckIdle(t, c)
	})
}

// Callers who take permits of several limiters again and again do not hold up callers of one of these.
func TestTryAcquire_GoesBesideManyTakeAlls(t *testing.T) {
	t.Parallel()
	const callers, trip = 80, 10 * ms
	synctest.Test(t, func(t *testing.T) {
		c := rratelimiter.New(limitertest.FarAway(t, trip))
		cfg := rratelimiter.PerHour(1 << 40)
		one, other := limitertest.ByDefault(c, "{shop}orders", cfg), limitertest.ByDefault(c, "{shop}visits", cfg)
		var wg sync.WaitGroup
		var done atomic.Bool
		defer done.Store(true)
		for i := range callers {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * trip / callers)
				for !done.Load() {
					_, err := c.TakeAll(t.Context(), one.Claim(1), other.Claim(2))
					assert.NoError(t, err)
				}
			})
		}
		time.Sleep(5 * trip)
		for range 4 {
			start := time.Now()
			limitertest.MustAcquire(t, one, 1)
			assert.LessOrEqual(t, time.Since(start), 3*trip)
		}
		done.Store(true)
		wg.Wait()
		require.NoError(t, c.Close(t.Context()))
	})
}

// Settlements beside Releases of other limiters fail no more than each kind alone, and delay no Take.
func TestSettle_BesideReleases(t *testing.T) {
	t.Parallel()
	const each, trip = 200, 100 * ms
	synctest.Test(t, func(t *testing.T) {
		c := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		settled, released := limitertest.ByDefault(c, "settled", rratelimiter.PerHour(1<<40)), c.Keyed("released:", rratelimiter.PerHour(1000))
		reservations := make([]*rratelimiter.Reservation, each)
		limitertest.Together(each, func(i int) {
			reservations[i] = limitertest.Reserve(t, settled, 10)
			assert.NoError(t, limitertest.Granted(released.TryAcquire(t.Context(), strconv.Itoa(i), 2, 0)))
		})
		start := time.Now()
		limitertest.Together(2*each+1, func(i int) {
			switch {
			case i == 2*each:
				time.Sleep(ms)
				limitertest.Take(t, settled, 1)
				assert.LessOrEqual(t, time.Since(start), 2*trip+ms)
			case i%2 == 0:
				assert.NoError(t, reservations[i/2].Settle(t.Context(), 5))
			default:
				assert.NoError(t, released.Release(t.Context(), strconv.Itoa(i/2), 1))
			}
		})
		assert.LessOrEqual(t, time.Since(start), 10*trip)
		require.NoError(t, c.Close(t.Context()))
	})
}

// Settlements of one limiter that come at once, of more and of less than was reserved, all succeed, near
// and far.
func TestSettle_HundredsAtOnceSucceed(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]time.Duration{"0ms": 0, "100ms": 100 * ms}, func(t *testing.T, trip time.Duration) {
		const all = 300
		c := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		l := limitertest.ByDefault(c, "orders", rratelimiter.PerHour(1<<40))
		reservations := make([]*rratelimiter.Reservation, all)
		limitertest.Together(all, func(i int) { reservations[i] = limitertest.Reserve(t, l, 10) })
		start := time.Now()
		limitertest.Together(all, func(i int) { assert.NoError(t, reservations[i].Settle(t.Context(), int64(5+10*(i%2)))) })
		assert.LessOrEqual(t, time.Since(start), 4*trip)
		assert.Equal(t, int64(1<<40-all*10), limitertest.Available(t, l))
		require.NoError(t, c.Close(t.Context()))
	})
}
