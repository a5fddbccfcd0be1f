package servers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// If memory is full, no call takes more of it, calls that take permits are errors, and what
// frees permits works.
func TestFullMemory(t *testing.T) {
	t.Parallel()
	for _, version := range redistest.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			rdb, ctx := redistest.StartServer(t, version).Client(t, nil), t.Context()
			full := func(limit string) { require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", limit).Err()) }
			client := limitertest.NewClient(t, rdb)
			rate := limitertest.Every(100, time.Hour)
			kept := rratelimiter.Config{Rate: 100, Interval: time.Hour, KeepAlive: 24 * time.Hour}
			own := limitertest.PerClient(100, time.Hour)
			keyed := map[string]limit.Returner{
				"keyed":  client.Keyed("keyed:", rate),
				"window": fixedwindow.New(rdb, fixedwindow.Config{Limit: 100, Window: time.Hour}),
				"log":    slidinglog.New(rdb, slidinglog.Config{Limit: 100, Window: time.Hour}),
				"bucket": tokenbucket.New(rdb, tokenbucket.Config{Capacity: 100, Refill: 1, Interval: time.Hour}),
			}
			limiters := map[string]*rratelimiter.RateLimiter{}
			for name, cfg := range map[string]rratelimiter.Config{"plain": rate, "kept": kept, "own": own} {
				limiters[name] = client.RateLimiter("{shop}:"+name, rratelimiter.WithDefault(cfg))
				limitertest.MustAcquire(t, limiters[name], 3)
			}
			var undo []func(context.Context) error
			for name, l := range keyed {
				_, giveBack, err := l.TakeReturnable(ctx, name+":old", 3)
				require.NoError(t, err, name)
				undo = append(undo, giveBack)
			}

			full("1")
			before := dataset(t, rdb)
			for i := range 20 {
				fresh := func(cfg rratelimiter.Config) *rratelimiter.RateLimiter {
					return client.RateLimiter(fmt.Sprintf("{shop}:new:%d:%v", i, cfg), rratelimiter.WithDefault(cfg))
				}
				calls := map[string]error{
					"WithDefault":      limitertest.Second(fresh(rate).TryAcquire(ctx, 1, 0)),
					"WithRate":         limitertest.Second(client.RateLimiter(fmt.Sprint("rate:", i), rratelimiter.WithRate(kept)).Take(ctx, 1)),
					"per client":       limitertest.Second(fresh(own).Take(ctx, 1)),
					"TrySetRate":       limitertest.Second(client.RateLimiter(fmt.Sprint("set:", i)).TrySetRate(ctx, rate)),
					"SetRate":          client.RateLimiter(fmt.Sprint("set:", i)).SetRate(ctx, kept, rratelimiter.KeepState()),
					"TryAcquireAll":    limitertest.Second(client.TryAcquireAll(ctx, 1, 0, limiters["kept"], fresh(rate), limiters["plain"])),
					"TryAcquireAll, 2": limitertest.Second(client.TryAcquireAll(ctx, 1, 0, limiters["kept"], limiters["own"])),
				}
				for name, l := range limiters {
					calls["known "+name] = limitertest.Second(l.TryAcquire(ctx, 1, 0))
				}
				for name, l := range keyed {
					calls["new "+name] = limitertest.Second(l.Take(ctx, fmt.Sprint(name, i), 1))
					calls["known "+name] = limitertest.Second(l.Take(ctx, name+":old", 1))
				}
				for name, err := range calls {
					assert.ErrorIs(t, err, limit.ErrUnavailable, name)
					assert.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome, name)
				}
			}
			assert.Equal(t, before, dataset(t, rdb), "keys, and bytes that they take")
			for name, l := range limiters {
				assert.NoError(t, l.Release(ctx, 1), name)
			}
			for _, giveBack := range undo {
				assert.NoError(t, giveBack(ctx))
			}
			assert.LessOrEqual(t, dataset(t, rdb)[1], before[1])

			full("0")
			for name, l := range limiters {
				assert.EqualValues(t, 98, limitertest.Available(t, l), name)
				limitertest.MustAcquire(t, l, 5)
			}
			for name, l := range keyed {
				d, err := l.Take(ctx, name+":old", 100)
				assert.NoError(t, err, name)
				assert.True(t, d.Granted, "%s: all have been given back", name)
			}
			for _, name := range []string{"plain", "kept"} {
				assert.EqualValues(t, 100, total(t, rdb, "{shop}:"+name), name)
			}
			full("1")
			there, err := limiters["kept"].Delete(ctx)
			assert.NoError(t, err)
			assert.True(t, there)
		})
	}
}

// dataset returns how many keys a server has, and the bytes that they take.
func dataset(t *testing.T, rdb *redis.Client) [2]int64 {
	t.Helper()
	keys := rdb.Keys(t.Context(), "*").Val()
	all := [2]int64{int64(len(keys))}
	for _, key := range keys {
		used, err := rdb.MemoryUsage(t.Context(), key).Result()
		require.NoError(t, err, key)
		all[1] += used
	}
	return all
}

// total returns the free permits of a limiter, and those in use.
func total(t *testing.T, rdb *redis.Client, name string) int64 {
	t.Helper()
	sum, err := rdb.Get(t.Context(), name+":value").Int64()
	require.NoError(t, err)
	for _, row := range rdb.ZRange(t.Context(), name+":permits", 0, -1).Val() {
		member, err := codec.Parse(row)
		require.NoError(t, err)
		sum += int64(member.Permits)
	}
	return sum
}
