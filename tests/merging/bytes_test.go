package merging_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

var measure = flag.Bool("measure", false, "print how large the sets of all kinds of use are in Redis")

// usage is a way to use limiters for an interval and more. opts are for every handle.
type usage struct {
	name    string
	all     bool // with -measure only
	most    int64
	limits  []rratelimiter.Config
	clients int
	calls   int
	every   time.Duration
	call    func(t *testing.T, u *user)
	trip    time.Duration // to Redis
}

// user is one call's Client, and its handles of the limits.
type user struct {
	client *rratelimiter.Client
	limits []*rratelimiter.RateLimiter
	later  *sync.WaitGroup
}

func (u *user) claims(permits ...int64) (all []rratelimiter.Claim) {
	for i, l := range u.limits {
		all = append(all, l.Claim(permits[i]))
	}
	return all
}

func takeOne(t *testing.T, u *user) {
	t.Helper()
	limitertest.Try(t, u.limits[0], 1)
}

func takeAtOnce(t *testing.T, u *user) {
	t.Helper()
	limitertest.Together(256, func(int) { takeOne(t, u) })
}

// reserve reserves as many permits of each limit, and settles less or more of them after up to a time.
func reserve(within time.Duration, permits ...int64) func(t *testing.T, u *user) {
	return func(t *testing.T, u *user) {
		t.Helper()
		settle := func(wait time.Duration, end func() error) {
			u.later.Go(func() {
				time.Sleep(wait)
				assert.NoError(t, end())
			})
		}
		var wait time.Duration
		if within > 0 {
			wait = rand.N(within)
		}
		used := make([]int64, len(permits))
		for i, n := range permits {
			if used[i] = n; n > 1 {
				used[i] = n/2 + rand.Int64N(n)
			}
		}
		if len(u.limits) == 1 {
			r, err := u.limits[0].Reserve(t.Context(), permits[0], 0)
			require.NoError(t, err)
			settle(wait, func() error { return r.Settle(t.Context(), used[0]) })
			return
		}
		r, err := u.client.ReserveAll(t.Context(), 0, u.claims(permits...)...)
		require.NoError(t, err)
		settle(wait, func() error { return r.Settle(t.Context(), used...) })
	}
}

func takeAll(t *testing.T, u *user) {
	t.Helper()
	_, err := u.client.TakeAll(t.Context(), u.claims(1, 1)...)
	require.NoError(t, err)
}

var (
	perMinute     = []rratelimiter.Config{rratelimiter.PerMinute(1000)}
	perMinuteMuch = []rratelimiter.Config{rratelimiter.PerMinute(1_000_000)}
	perDay        = []rratelimiter.Config{rratelimiter.PerDay(10_000)}
	both          = []rratelimiter.Config{rratelimiter.PerMinute(1000), rratelimiter.PerDay(10_000)}
	gateway       = []rratelimiter.Config{
		rratelimiter.PerMinute(100), rratelimiter.PerDay(10_000), rratelimiter.PerMinute(20_000), rratelimiter.PerDay(1_000_000),
	}
)

var usages = []usage{
	{"50 a minute", false, 50, []rratelimiter.Config{rratelimiter.PerMinute(50)}, 1, 60, 1200 * time.Millisecond, takeOne, 0},
	{"1000 a minute", false, 128, perMinute, 1, 1300, 60 * time.Millisecond, takeOne, 0},
	{"1000 a minute, three Clients", true, 3 * (64 + together), perMinute, 3, 1300, 60 * time.Millisecond, takeOne, 0},
	{"1000 a minute, reservations settled at once", true, 128, perMinute, 1, 700, 120 * time.Millisecond, reserve(0, 2), 0},
	{"the same, settled after up to 10 s", true, 256, perMinute, 1, 700, 120 * time.Millisecond, reserve(10*time.Second, 2), 0},
	{"10,000 a day, used 200 times", false, 128, perDay, 1, 230, 432 * time.Second, takeOne, 0},
	{"10,000 a day", true, 128, perDay, 1, 11_000, 8640 * time.Millisecond, takeOne, 0},
	{"`TakeAll` of 1000 a minute and 10,000 a day", true, 256, both, 1, 3000, 70 * time.Millisecond, takeAll, 0},
	{"`ReserveAll` of them, settled after up to 10 s", true, 384, both, 1, 2000, 150 * time.Millisecond, reserve(10*time.Second, 2, 2), 0},
	{"a million a minute, 256 callers for 5 s", true, few + 3*together, perMinuteMuch, 1, 1000, 5 * time.Millisecond, takeAtOnce, time.Millisecond},
	{
		"the gateway's four, 2000 requests in a day", true, 512, gateway, 1, 2300, 43200 * time.Millisecond,
		reserve(10*time.Second, 1, 1, 300, 300), 0,
	},
	{
		"the same, by three gateways", true, 3 * 256, gateway, 3, 2300, 43200 * time.Millisecond,
		reserve(10*time.Second, 1, 1, 300, 300), 0,
	},
}

// run uses the limits and returns the members of their sets.
func (u *usage) run(t *testing.T, opts ...rratelimiter.LimiterOption) (sets [][]redis.Z) {
	synctest.Test(t, func(t *testing.T) {
		rdb := limitertest.FarAway(t, u.trip)
		var later sync.WaitGroup
		users := make([]*user, u.clients)
		for i := range users {
			one := &user{client: limitertest.NewClient(t, rdb), later: &later}
			for j, cfg := range u.limits {
				one.limits = append(one.limits, one.client.RateLimiter(fmt.Sprint("{ann}", j), append(opts, rratelimiter.WithDefault(cfg))...))
			}
			users[i] = one
		}
		for i := range u.calls {
			time.Sleep(u.every)
			u.call(t, users[i%len(users)])
		}
		for _, l := range users[0].limits {
			sets = append(sets, rdb.ZRangeWithScores(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Val())
		}
		later.Wait()
	})
	return sets
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
			exact, exactBytes := bytesOf(t, u.run(t, rratelimiter.WithExact()))
			members, bytes := bytesOf(t, u.run(t))
			assert.LessOrEqual(t, members, u.most)
			assert.LessOrEqual(t, bytes, exactBytes)
			fmt.Fprintf(&table, "| %s | %d | %d | %d | %d |\n", u.name, exact, exactBytes, members, bytes)
		})
	}
	t.Log("| use | members, exact | bytes | members | bytes |\n" + table.String())
}
