package merging_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// countMerges counts the merging calls that rdb sends from now on.
func countMerges(rdb redistest.Client) *atomic.Int64 {
	var calls atomic.Int64
	rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		for _, cmd := range cmds {
			if args := cmd.Args(); len(args) > 1 && (args[1] == lua.Merge.SHA || args[1] == lua.Merge.Source) {
				calls.Add(1)
			}
		}
	}))
	return &calls
}

// A grant is permits that were granted at a time.
type grant struct {
	at      time.Time
	permits int64
}

// requireInTime checks that permits have come back no earlier than an interval after their grant, and at most a 64th of it later.
func requireInTime(t *testing.T, cfg rratelimiter.Config, grants []grant, free int64) {
	t.Helper()
	least, most := int64(0), int64(0)
	for _, g := range grants {
		age := time.Since(g.at)
		if age < cfg.Interval {
			least += g.permits
		}
		if age < cfg.Interval+cfg.Interval/64+time.Millisecond {
			most += g.permits
		}
	}
	require.LessOrEqual(t, free, cfg.Rate-least, "%d grants: permits came back early", len(grants))
	require.GreaterOrEqual(t, free, cfg.Rate-most, "%d grants: permits came back late", len(grants))
}

// granted returns the permits, or 0 if they were refused.
func granted(permits int64, ok bool) int64 {
	permits, _ = limitertest.Counted(permits, ok, nil)
	return permits
}

// Permits come back no earlier than an interval after their grant, and at most a 64th of it later.
func TestPermits_ComeBackInTime(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, limitertest.Seeds(3), func(t *testing.T, rdb redistest.Client, seed uint64) {
		random, merges := rand.New(rand.NewPCG(seed, 61)), countMerges(rdb)
		cfg := rratelimiter.PerMinute([]int64{150, 400}[seed%2])
		if seed == 2 {
			cfg.Type = rratelimiter.PerClient
		}
		name := redistest.Name(t)
		clients := []*rratelimiter.RateLimiter{
			limitertest.NewClient(t, rdb, rratelimiter.WithClientID("us")).RateLimiter(name),
			limitertest.NewClient(t, rdb, rratelimiter.WithClientID("us")).RateLimiter(name),
		}
		limitertest.MustTrySetRate(t, clients[0], cfg)
		var grants []grant
		for i := range 500 {
			time.Sleep(time.Duration(random.Int64N(int64(2 * cfg.Interval / time.Duration(cfg.Rate)))).Truncate(time.Millisecond))
			l, n, at := clients[random.IntN(2)], 1+random.Int64N(3), time.Now()
			switch random.IntN(4) {
			case 0:
				n = granted(n, limitertest.Take(t, l, n).Granted)
			case 1:
				var err error
				n, _, err = l.TakeUpTo(t.Context(), n)
				require.NoError(t, err)
			default:
				n = granted(n, limitertest.Try(t, l, n))
			}
			if grants = append(grants, grant{at, n}); i%3 == 0 {
				requireInTime(t, cfg, grants, limitertest.Available(t, l))
			}
		}
		assert.Greater(t, merges.Load(), int64(4))
	})
}

// Each permit is back exactly an interval after its grant: of small limits, of a Client's first grants in an interval, of a
// handle that wants it, and of a Client beside older Redissons.
func TestPermits_ComeBackToTheMillisecond(t *testing.T) {
	t.Parallel()
	type row struct {
		rate, takes int64
		version     string
		exact       bool
		keyed       bool
	}
	limitertest.Virtual(t, map[string]row{
		"a small limit":           {rate: 128, takes: 128},
		"the first grants":        {rate: 1000, takes: few},
		"WithExact":               {rate: 1000, takes: few + together + 8, exact: true},
		"WithExact of a Keyed":    {rate: 1000, takes: few + together + 8, exact: true, keyed: true},
		"beside Redisson 3.34.1":  {rate: 1000, takes: few + together + 8, version: "3.34.1"},
		"beside Redisson 3.20.1":  {rate: 1000, takes: few + together + 8, version: "3.20.1"},
		"the rate becomes small":  {rate: 128, takes: 100},
		"a limit that others set": {rate: 100, takes: 100},
	}, func(t *testing.T, rdb redistest.Client, c row) {
		merges, name := countMerges(rdb), redistest.Name(t)
		var opts []rratelimiter.Option
		if c.version != "" {
			opts = append(opts, rratelimiter.WithRedissonVersion(c.version))
		}
		var of []rratelimiter.LimiterOption
		if c.exact {
			of = append(of, rratelimiter.WithExact())
		}
		client, cfg := limitertest.NewClient(t, rdb, opts...), limitertest.Every(c.rate, time.Minute)
		l := client.RateLimiter(name, of...)
		if c.keyed {
			l = client.Keyed("", cfg, of...).Limiter(name)
		}
		limitertest.MustTrySetRate(t, limitertest.NewClient(t, rdb).RateLimiter(name), cfg)
		start := time.Now()
		for i := range c.takes {
			if i%2 == 0 {
				limitertest.MustAcquire(t, l, 1)
			} else {
				require.True(t, limitertest.Take(t, l, 1).Granted)
			}
			time.Sleep(17 * time.Millisecond)
		}
		for i := range c.takes {
			at := start.Add(time.Minute + time.Duration(i)*17*time.Millisecond)
			time.Sleep(time.Until(at) - time.Millisecond)
			require.Equal(t, c.rate-c.takes+i, limitertest.Available(t, l), "a millisecond before permit %d comes back", i)
			time.Sleep(time.Millisecond)
			require.Equal(t, c.rate-c.takes+i+1, limitertest.Available(t, l), "permit %d comes back", i)
		}
		assert.Zero(t, merges.Load())
	})
}

// The server's clock is set back, or forward, while members are merged. Nothing is lost, and all is back in time.
func TestClock_IsSet(t *testing.T) {
	t.Parallel()
	limitertest.Stepping(t, limitertest.Rows[time.Duration](-time.Hour, -10*time.Second, -100*time.Millisecond, 10*time.Second, time.Hour), func(t *testing.T, rdb redistest.Client, step func(time.Duration), by time.Duration) {
		merges, cfg := countMerges(rdb), rratelimiter.PerMinute(1000)
		l := limitertest.NewLimiter(t, rdb, cfg)
		keys, before := limitertest.KeysOf(l), int64(0)
		for range 2 {
			for range 150 {
				limitertest.Take(t, l, 1)
				time.Sleep(20 * time.Millisecond)
			}
			free, _ := limitertest.StoredValue(t, rdb, keys.Value)
			require.Equal(t, cfg.Rate, free+limitertest.InUse(t, rdb, keys.Permits))
			require.Greater(t, merges.Load(), before)
			if before == 0 {
				before = merges.Load()
				step(by)
			}
		}
		assert.LessOrEqual(t, rdb.ZCard(t.Context(), keys.Permits).Val(), int64(140))
		time.Sleep(cfg.Interval + cfg.Interval/64)
		assert.Equal(t, cfg.Rate, limitertest.Available(t, l))
	})
}

// Redissons take and release beside two of our Clients.
func TestMerged_BesideRedisson(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, limitertest.Seeds(3), func(t *testing.T, rdb redistest.Client, seed uint64) {
		random, merges := rand.New(rand.NewPCG(seed, 35)), countMerges(rdb)
		cfg := rratelimiter.PerMinute(400)
		name := redistest.Name(t)
		ours := []*rratelimiter.RateLimiter{limitertest.NewClient(t, rdb).RateLimiter(name), limitertest.NewClient(t, rdb).RateLimiter(name)}
		limitertest.MustTrySetRate(t, ours[0], cfg)
		java, keys := limitertest.Java{Redis: rdb, Name: name}, limitertest.KeysOf(ours[0])
		var grants []grant
		for i := range 400 {
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			n, at := 1+random.Int64N(2), time.Now()
			switch random.IntN(8) {
			case 0:
				ok, err := java.TryAcquire(t, n)
				require.NoError(t, err)
				grants = append(grants, grant{at, granted(n, ok)})
			case 1:
				java.AvailablePermits(t)
			default:
				grants = append(grants, grant{at, granted(n, limitertest.Try(t, ours[random.IntN(2)], n))})
			}
			free, stored := limitertest.StoredValue(t, rdb, keys.Value)
			if stored {
				require.Equal(t, cfg.Rate, free+limitertest.InUse(t, rdb, keys.Permits), "call %d", i)
			}
			requireInTime(t, cfg, grants, java.AvailablePermits(t))
		}
		require.Greater(t, merges.Load(), int64(4))
		java.Release(t, 20) // raises the value, and leaves the set alone
		for range 100 {
			limitertest.Try(t, ours[0], 1)
		}
		free, _ := limitertest.StoredValue(t, rdb, keys.Value)
		assert.LessOrEqual(t, free, cfg.Rate)
		time.Sleep(2 * cfg.Interval)
		assert.GreaterOrEqual(t, java.AvailablePermits(t), cfg.Rate)
	})
}
