package merging_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

var measure = flag.Bool("measure", false, "print how large the sets of all kinds of use are in Redis")

// small is the most entries that Redis keeps in a listpack.
const small = 128

// usage is a way to use limiters for an interval and more.
type usage struct {
	name    string
	all     bool // with -measure only
	most    int64
	limits  []rratelimiter.Config
	clients int
	calls   int
	every   time.Duration
	call    call
	trip    time.Duration // to Redis
	set     bool          // the first limit is set by others, and not known to the handles
}

// A call is one of a user's, the i-th.
type call func(t *testing.T, u *user, i int)

// user is one of the Clients, with its handles of the limits.
type user struct {
	*rratelimiter.RateLimiter // of the first limit

	cfg    rratelimiter.Config // of that
	client *rratelimiter.Client
	limits []*rratelimiter.RateLimiter
	undo   []func(context.Context) error
	open   []*rratelimiter.Reservation
	later  *sync.WaitGroup
}

func (u *user) claims(permits ...int64) (all []rratelimiter.Claim) {
	for i, l := range u.limits {
		all = append(all, l.Claim(permits[i]))
	}
	return all
}

func takeOne(t *testing.T, u *user, _ int) { limitertest.Try(t, u.RateLimiter, 1) }

func takeAtOnce(t *testing.T, u *user, i int) {
	limitertest.Together(256, func(int) { takeOne(t, u, i) })
}

// reserve reserves as many permits of each limit, and settles less or more of them after up to a time.
func reserve(within time.Duration, permits ...int64) call {
	return func(t *testing.T, u *user, _ int) {
		used := make([]int64, len(permits))
		for i, n := range permits {
			if used[i] = n; n > 1 {
				used[i] = n/2 + rand.Int64N(n+1)
			}
		}
		settle := func() error { return nil }
		if len(u.limits) == 1 {
			if r, err := u.Reserve(t.Context(), permits[0], 0); assert.NoError(t, err) && r.Granted {
				settle = func() error { return r.Settle(t.Context(), used[0]) }
			}
		} else if r, err := u.client.ReserveAll(t.Context(), 0, u.claims(permits...)...); assert.NoError(t, err) && r.Granted {
			settle = func() error { return r.Settle(t.Context(), used...) }
		}
		if within == 0 {
			require.NoError(t, settle())
			return
		}
		u.later.Go(func() {
			time.Sleep(rand.N(within))
			assert.NoError(t, settle())
		})
	}
}

func takeAll(t *testing.T, u *user, _ int) {
	require.NoError(t, limitertest.Second(u.client.TakeAll(t.Context(), u.claims(1, 1)...)))
}

var (
	perMinute     = []rratelimiter.Config{rratelimiter.PerMinute(1000)}
	perMinuteMuch = []rratelimiter.Config{rratelimiter.PerMinute(1_000_000)}
	perDay        = []rratelimiter.Config{rratelimiter.PerDay(10_000)}
	both          = []rratelimiter.Config{rratelimiter.PerMinute(1000), rratelimiter.PerDay(10_000)}
	gateway       = []rratelimiter.Config{
		rratelimiter.PerMinute(100), rratelimiter.PerDay(10_000), rratelimiter.PerMinute(20_000), rratelimiter.PerDay(1_000_000),
	}
	requests = reserve(10*time.Second, 1, 1, 300, 300) // of a gateway
)

var usages = []usage{
	{"50 a minute", false, 50, []rratelimiter.Config{rratelimiter.PerMinute(50)}, 1, 60, 1200 * time.Millisecond, takeOne, 0, false},
	{"1000 a minute", false, 128, perMinute, 1, 1300, 60 * time.Millisecond, takeOne, 0, false},
	{"1000 a minute, three Clients", false, 3 * (64 + together), perMinute, 3, 1300, 60 * time.Millisecond, takeOne, 0, false},
	{"1000 a minute, reservations settled at once", true, 128, perMinute, 1, 700, 120 * time.Millisecond, reserve(0, 2), 0, false},
	{"the same, settled after up to 10 s", true, 256, perMinute, 1, 700, 120 * time.Millisecond, reserve(10*time.Second, 2), 0, false},
	{"10,000 a day, used 200 times", false, 128, perDay, 1, 230, 432 * time.Second, takeOne, 0, false},
	{"10,000 a day", true, 128, perDay, 1, 11_000, 8640 * time.Millisecond, takeOne, 0, false},
	{"`TakeAll` of 1000 a minute and 10,000 a day", true, 256, both, 1, 3000, 70 * time.Millisecond, takeAll, 0, false},
	{"`ReserveAll` of them, settled after up to 10 s", true, 384, both, 1, 2000, 150 * time.Millisecond, reserve(10*time.Second, 2, 2), 0, false},
	{"a million a minute, 256 callers for 5 s", true, few + 3*together, perMinuteMuch, 1, 1000, 5 * time.Millisecond, takeAtOnce, time.Millisecond, false},
	{"the gateway's four, 2000 requests in a day", true, 512, gateway, 1, 2300, 43200 * time.Millisecond, requests, 0, false},
	{"the same, by three gateways", true, 3 * 256, gateway, 3, 2300, 43200 * time.Millisecond, requests, 0, false},
}

// run uses the limits by handles with these options; it returns their sets' members at the end, and the most the first had.
func (u *usage) run(t *testing.T, opts ...rratelimiter.LimiterOption) (sets [][]redis.Z, most int64) {
	synctest.Test(t, func(t *testing.T) {
		rdb := limitertest.FarAway(t, u.trip)
		var later sync.WaitGroup
		users := make([]*user, u.clients)
		for i := range users {
			one := &user{client: limitertest.NewClient(t, rdb), cfg: u.limits[0], later: &later}
			for j, cfg := range u.limits {
				with := append(slices.Clip(opts), rratelimiter.WithDefault(cfg))
				if j == 0 && u.set {
					with = opts
				}
				one.limits = append(one.limits, one.client.RateLimiter(fmt.Sprint("{ann}", j), with...))
			}
			one.RateLimiter, users[i] = one.limits[0], one
		}
		first := limitertest.KeysOf(users[0].RateLimiter).Permits
		if u.set {
			limitertest.MustTrySetRate(t, limitertest.NewClient(t, rdb).RateLimiter(users[0].Name()), u.limits[0])
		}
		for i := range u.calls {
			time.Sleep(u.every)
			u.call(t, users[i%len(users)], i)
			if i%20 == 0 {
				most = max(most, rdb.ZCard(t.Context(), first).Val())
			}
		}
		for _, l := range users[0].limits {
			sets = append(sets, rdb.ZRangeWithScores(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Val())
		}
		later.Wait()
		assert.Equal(t, u.limits[0].Rate, limitertest.Available(t, users[0].RateLimiter)+limitertest.InUse(t, rdb, first))
	})
	return sets, most
}

// bytesOf returns how much memory the sets take in a real Redis.
func bytesOf(t *testing.T, sets [][]redis.Z) (members, bytes int64) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t, nil)
	for i, set := range sets {
		key := redistest.Name(t) + fmt.Sprint(i)
		for _, z := range set {
			require.NoError(t, rdb.ZAdd(t.Context(), key, z).Err())
		}
		members += int64(len(set))
		bytes += rdb.MemoryUsage(t.Context(), key).Val()
		rdb.Del(t.Context(), key)
	}
	return members, bytes
}

// The figures of production.md and choosing.md:
//
//	go test ./tests/merging -run TestBytes -v -measure
func TestBytes(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	for _, u := range usages {
		if u.all && !*measure {
			continue
		}
		t.Run(u.name, func(t *testing.T) {
			exactSets, _ := u.run(t, rratelimiter.WithExact())
			sets, _ := u.run(t)
			exact, exactBytes := bytesOf(t, exactSets)
			members, bytes := bytesOf(t, sets)
			assert.LessOrEqual(t, members, u.most)
			assert.LessOrEqual(t, bytes, exactBytes)
			fmt.Fprintf(&table, "| %s | %d | %d | %d | %d |\n", u.name, exact, exactBytes, members, bytes)
		})
	}
	t.Log("| use | members, exact | bytes | members | bytes |\n" + table.String())
}

// uses are those of one limit, beside which claims have another.
var uses = map[string]call{
	"TryAcquire":             takeOne,
	"a handle for each call": func(t *testing.T, u *user, _ int) { limitertest.Try(t, u.client.RateLimiter(u.Name()), 1) },
	"a Keyed for each call": func(t *testing.T, u *user, _ int) {
		require.NoError(t, limitertest.Second(u.client.Keyed("", u.cfg).Take(t.Context(), u.Name(), 1)))
	},
	"Take": func(t *testing.T, u *user, _ int) { limitertest.Take(t, u.RateLimiter, 1) },
	"TakeReturnable, one of four undone later": func(t *testing.T, u *user, i int) {
		d, back, err := u.client.Keyed("", u.cfg).TakeReturnable(t.Context(), u.Name(), 1)
		require.NoError(t, err)
		if d.Granted && i%4 == 0 {
			u.undo = append(u.undo, back)
		}
		if len(u.undo) > 20 {
			require.NoError(t, u.undo[0](t.Context()))
			u.undo = u.undo[1:]
		}
	},
	"permits of which some are released": func(t *testing.T, u *user, i int) {
		if limitertest.Try(t, u.RateLimiter, 2) && i%2 == 0 {
			require.NoError(t, u.Release(t.Context(), 1))
		}
	},
	"reservations settled at once": reserve(0, 2),
	"reservations with a hold, settled later": func(t *testing.T, u *user, i int) {
		if r, err := u.Reserve(t.Context(), 2, 0, rratelimiter.Hold(15*time.Second)); assert.NoError(t, err) && r.Granted {
			u.open = append(u.open, r)
		}
		if len(u.open) > 8 {
			one := rand.IntN(len(u.open))
			require.NoError(t, u.open[one].Settle(t.Context(), int64(1+i%3)))
			u.open = append(u.open[:one], u.open[one+1:]...)
		}
	},
	"TakeAll": takeAll,
	"TryAcquireAll, which may wait": func(t *testing.T, u *user, _ int) {
		require.NoError(t, limitertest.Second(u.client.TryAcquireAll(t.Context(), time.Second, u.claims(1, 3)...)))
	},
	"ReserveAll": reserve(0, 2, 3),
	"a lease": func(t *testing.T, u *user, i int) {
		if i%20 == 0 {
			u.RateLimiter = u.client.RateLimiter(u.Name(), rratelimiter.WithLease(rratelimiter.Lease{Permits: 3}))
		}
		takeOne(t, u, i)
	},
}

func TestSet_StaysSmall(t *testing.T) {
	t.Parallel()
	for name, use := range uses {
		rates := []int64{400}
		if name == "TryAcquire" {
			rates = []int64{150, 1000}
		}
		for _, rate := range rates {
			t.Run(fmt.Sprint(name, ", ", rate), func(t *testing.T) {
				t.Parallel()
				limits := []rratelimiter.Config{rratelimiter.PerMinute(rate)}
				if strings.Contains(name, "All") {
					limits = append(limits, limitertest.Hourly(1_000_000))
				}
				u := usage{limits: limits, clients: 1, calls: int(rate / 4 * 5), every: time.Minute / time.Duration(rate), call: use, set: true}
				_, most := u.run(t)
				assert.LessOrEqual(t, most, int64(small))
			})
		}
	}
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
		beside      []rratelimiter.Option
		of          []rratelimiter.LimiterOption
		keyed       bool
	}
	exact := []rratelimiter.LimiterOption{rratelimiter.WithExact()}
	version := func(text string) []rratelimiter.Option {
		return []rratelimiter.Option{rratelimiter.WithRedissonVersion(text)}
	}
	limitertest.Virtual(t, map[string]row{
		"a small limit":           {rate: 128, takes: 128},
		"the first grants":        {rate: 1000, takes: few},
		"WithExact":               {rate: 1000, takes: few + together + 8, of: exact},
		"WithExact of a Keyed":    {rate: 1000, takes: few + together + 8, of: exact, keyed: true},
		"beside Redisson 3.34.1":  {rate: 1000, takes: few + together + 8, beside: version("3.34.1")},
		"beside Redisson 3.20.1":  {rate: 1000, takes: few + together + 8, beside: version("3.20.1")},
		"the rate becomes small":  {rate: 128, takes: 100},
		"a limit that others set": {rate: 100, takes: 100},
	}, func(t *testing.T, rdb redistest.Client, c row) {
		merges, name := countMerges(rdb), redistest.Name(t)
		client, cfg := limitertest.NewClient(t, rdb, c.beside...), limitertest.Every(c.rate, time.Minute)
		l := client.RateLimiter(name, c.of...)
		if c.keyed {
			l = client.Keyed("", cfg, c.of...).Limiter(name)
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

// Permits of a call that handles share come back to the millisecond if one of them is WithExact.
func TestWithExact_OfOneOfACallsHandles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, rounds := newScene(t, 1000, 3), few+together+8
		exact := s.Client.RateLimiter(s.Name(), rratelimiter.WithExact())
		for range rounds {
			letGo := s.Hold(t, lua.Acquire, 1)
			for _, l := range []*rratelimiter.RateLimiter{exact, s.RateLimiter, exact, s.RateLimiter} { // the last three share a call
				s.Go(func() (bool, error) { return l.TryAcquire(t.Context(), 1, 0) })
			}
			letGo()
		}
		s.take(t, 2) // these would take a merging call along
		assert.Equal(t, 1+2*rounds+2, s.members(t), "none was merged")
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
				ok := limitertest.Must(java.TryAcquire(t, n))(t)
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
