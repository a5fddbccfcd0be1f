package concurrency_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// farAway returns a client of a miniredis to which each pipeline takes that long.
func farAway(t *testing.T, trip time.Duration) redistest.Client {
	_, m := redistest.Mini(t)
	far := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 20})
	far.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
		time.Sleep(trip)
		return next()
	}))
	return far
}

// granted returns an error if permits were not granted.
func granted(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("refused")
	}
	return err
}

// Calls that one script call can't decide together go in one flight, so that callers of several kinds
// wait no longer than callers of one.
func TestCallers_OfSeveralKindsShareFlights(t *testing.T) {
	t.Parallel()
	const callers, rounds, trip = 256, 10, 10 * ms
	cfg := rratelimiter.PerHour(1 << 40)
	type call = func(ctx context.Context) error
	bubbles(t, map[string]func(c *rratelimiter.Client, rdb redistest.Client) []call{
		"two handles, one without a default": func(c *rratelimiter.Client, _ redistest.Client) []call {
			with, without := byDefault(c, "orders", cfg), c.RateLimiter("orders")
			return []call{
				func(ctx context.Context) error { return granted(with.TryAcquire(ctx, 1, 0)) },
				func(ctx context.Context) error { return granted(without.TryAcquire(ctx, 1, 0)) },
			}
		},
		"two defaults": func(c *rratelimiter.Client, _ redistest.Client) []call {
			one, other := byDefault(c, "orders", cfg), byDefault(c, "orders", rratelimiter.PerHour(1<<41))
			return []call{
				func(ctx context.Context) error { return granted(one.TryAcquire(ctx, 1, 0)) },
				func(ctx context.Context) error { return granted(other.TryAcquire(ctx, 1, 0)) },
			}
		},
		"a Keyed beside a handle": func(c *rratelimiter.Client, _ redistest.Client) []call {
			keyed := c.Keyed("orders", cfg)
			l := c.RateLimiter(keyed.Limiter("1").Name())
			return []call{
				func(ctx context.Context) error { return granted(keyed.TryAcquire(ctx, "1", 1, 0)) },
				func(ctx context.Context) error { return granted(l.TryAcquire(ctx, 1, 0)) },
			}
		},
		"TakeUpTo": func(c *rratelimiter.Client, _ redistest.Client) []call {
			l := byDefault(c, "orders", cfg)
			return []call{
				func(ctx context.Context) error { _, _, err := l.TakeUpTo(ctx, 10); return err },
				func(ctx context.Context) error { return granted(l.TryAcquire(ctx, 1, 0)) },
			}
		},
		"Reserve": func(c *rratelimiter.Client, _ redistest.Client) []call {
			l := byDefault(c, "orders", cfg)
			return []call{
				func(ctx context.Context) error { _, err := l.Reserve(ctx, 1, 0); return err },
				func(ctx context.Context) error { return granted(l.TryAcquire(ctx, 1, 0)) },
			}
		},
		"a sliding log": func(_ *rratelimiter.Client, rdb redistest.Client) []call {
			l := slidinglog.New(rdb, slidinglog.Config{Limit: 100_000, Window: time.Hour})
			return []call{
				func(ctx context.Context) error { _, _, err := l.TakeUpTo(ctx, "ann", 3); return err },
				func(ctx context.Context) error { _, err := l.Take(ctx, "ann", 1); return err },
			}
		},
		"a token bucket": func(_ *rratelimiter.Client, rdb redistest.Client) []call {
			l := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 100_000, Refill: 100, Interval: time.Second})
			return []call{
				func(ctx context.Context) error { _, _, err := l.TakeUpTo(ctx, "ann", 3); return err },
				func(ctx context.Context) error { _, err := l.Take(ctx, "ann", 1); return err },
			}
		},
	}, func(t *testing.T, calls func(c *rratelimiter.Client, rdb redistest.Client) []call) {
		rdb := farAway(t, trip)
		c := rratelimiter.New(rdb)
		all := calls(c, rdb)
		for _, one := range all {
			require.NoError(t, one(t.Context()), "the server knows the scripts, and the limiter its rate")
		}
		start := time.Now()
		together(callers, func(i int) {
			for range rounds {
				assert.NoError(t, all[i%len(all)](t.Context()))
			}
		})
		assert.LessOrEqual(t, time.Since(start), 3*rounds*trip, strconv.Itoa(callers*rounds)+" calls")
		synctest.Wait()
		require.NoError(t, c.Close(t.Context()))
	})
}

// A line of several kinds is served in its order, in a few flights.
func TestLine_OfSeveralKindsIsServedTogether(t *testing.T) {
	t.Parallel()
	const callers, trip = 200, 20 * ms
	cfg := rratelimiter.PerSecond(callers)
	bubbles(t, map[string][]func(t *testing.T, l, other *rratelimiter.RateLimiter) error{
		"TryAcquire and Reserve": {
			func(t *testing.T, l, _ *rratelimiter.RateLimiter) error {
				return granted(l.TryAcquire(t.Context(), 1, forever))
			},
			func(t *testing.T, l, _ *rratelimiter.RateLimiter) error {
				r, err := l.Reserve(t.Context(), 1, forever)
				return granted(err == nil && r.Granted, err)
			},
		},
		"handles with and without a default": {
			func(t *testing.T, l, _ *rratelimiter.RateLimiter) error {
				return granted(l.TryAcquire(t.Context(), 1, forever))
			},
			func(t *testing.T, _, other *rratelimiter.RateLimiter) error {
				return granted(other.TryAcquire(t.Context(), 1, forever))
			},
		},
	}, func(t *testing.T, calls []func(t *testing.T, l, other *rratelimiter.RateLimiter) error) {
		c := rratelimiter.New(farAway(t, trip))
		l, other := byDefault(c, "orders", cfg), c.RateLimiter("orders")
		require.NoError(t, granted(l.TryAcquire(t.Context(), callers, 0)))
		start := time.Now()
		together(callers, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			assert.NoError(t, calls[i%2](t, l, other))
		})
		assert.LessOrEqual(t, time.Since(start), time.Second+6*trip)
		require.NoError(t, c.Close(t.Context()))
	})
}

// Settlements beside Releases of other limiters fail no more than each kind alone, and delay no Take.
func TestSettle_BesideReleases(t *testing.T) {
	t.Parallel()
	const each, trip = 200, 100 * ms
	synctest.Test(t, func(t *testing.T) {
		c := rratelimiter.New(farAway(t, trip))
		settled, released := byDefault(c, "settled", rratelimiter.PerHour(1<<40)), c.Keyed("released:", rratelimiter.PerHour(1000))
		reservations := make([]*rratelimiter.Reservation, each)
		together(each, func(i int) {
			reservations[i] = reserve(t, settled, 10)
			assert.NoError(t, granted(released.TryAcquire(t.Context(), strconv.Itoa(i), 2, 0)))
		})
		start := time.Now()
		together(2*each+1, func(i int) {
			switch {
			case i == 2*each:
				time.Sleep(ms)
				mustTake(t, settled, 1)
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
func TestSettle_ThousandsAtOnce(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]time.Duration{"0ms": 0, "100ms": 100 * ms}, func(t *testing.T, trip time.Duration) {
		const all = 600
		c := rratelimiter.New(farAway(t, trip))
		l := byDefault(c, "orders", rratelimiter.PerHour(1<<40))
		reservations := make([]*rratelimiter.Reservation, all)
		together(all, func(i int) { reservations[i] = reserve(t, l, 10) })
		start := time.Now()
		together(all, func(i int) { assert.NoError(t, reservations[i].Settle(t.Context(), int64(5+10*(i%2)))) })
		assert.LessOrEqual(t, time.Since(start), 4*trip)
		assert.Equal(t, int64(1<<40-all*10), limitertest.Available(t, l))
		require.NoError(t, c.Close(t.Context()))
	})
}
