package servers_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/inspect/holders"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// known waits until that many names are noted, and returns them.
func known(t *testing.T, rdb redistest.Client, count int) []string {
	t.Helper()
	var names []string
	require.Eventually(t, func() bool {
		found, err := holders.Read(t.Context(), rdb, time.Now().UnixMilli())
		if !assert.NoError(t, err) {
			return true
		}
		names = nil
		for _, c := range found.All() {
			names = append(names, c.Name)
		}
		return len(names) >= count
	}, time.Minute, 5*time.Millisecond)
	return names
}

// usersOf returns who has permits of the limiter in use; marks, which are drawn, are left
// out.
func usersOf(t *testing.T, l *rratelimiter.RateLimiter) holders.Holders {
	t.Helper()
	found, err := holders.Of(t.Context(), l)
	require.NoError(t, err)
	for i := range found.Shares {
		found.Shares[i].Mark = ""
	}
	return found
}

func TestPermitsInUseAreListedByClient(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]func(t *testing.T) redistest.Client{ // of servers of their own, on which no one else notes names
		"miniredis": func(t *testing.T) redistest.Client {
			rdb, _ := redistest.Mini(t)
			return rdb
		},
		"cluster": func(t *testing.T) redistest.Client { return redistest.StartCluster(t, 3, 0).Client(t, nil) },
		"ring":    func(t *testing.T) redistest.Client { return redistest.StartRing(t, 3).Client(t, nil) },
		"least rights": func(t *testing.T) redistest.Client {
			return redistest.AddUser(t, redistest.StartRedis(t), nil, redistest.LeastCommands,
				redistest.KeysOf("orders"), redistest.KeysOf("own"), "~"+clients.Key, "+zrevrangebyscore +scan")
		},
	}, func(t *testing.T, start func(t *testing.T) redistest.Client) {
		rdb := start(t)
		of := func(limiter, name string) *rratelimiter.RateLimiter {
			var opts []rratelimiter.Option
			if name != "" {
				opts = append(opts, rratelimiter.WithClientName(name))
			}
			return limitertest.NewClient(t, rdb, opts...).RateLimiter(limiter)
		}
		ann, bob := of("orders", "ann 7f9c"), of("orders", "bob")
		limitertest.MustTrySetRate(t, ann, limitertest.Hourly(100))
		limitertest.MustAcquire(t, ann, 20)
		limitertest.MustAcquire(t, ann, 5)
		limitertest.MustAcquire(t, bob, 7)
		limitertest.MustAcquire(t, of("orders", ""), 3)
		// What else there may be in the set counts once its value matches the rest.
		for layout, permits := range map[codec.Layout]uint32{codec.LayoutD2: 9, codec.LayoutB: 1, codec.LayoutC: 2, codec.LayoutD1: 4} {
			row := redis.Z{Score: float64(time.Now().UnixMilli()), Member: limitertest.NewMember(t, layout, permits)}
			require.NoError(t, rdb.ZAdd(t.Context(), limitertest.KeysOf(ann).Permits, row).Err())
		}
		known(t, rdb, 2)
		assert.Equal(t, holders.Holders{Whole: true, Shares: []holders.Share{
			{Kind: holders.Named, Name: "ann 7f9c", Permits: 25},
			{Kind: holders.Redisson, Permits: 9},
			{Kind: holders.Named, Name: "bob", Permits: 7},
			{Kind: holders.Unmarked, Permits: 7},
			{Kind: holders.Unnamed, Permits: 3},
		}}, usersOf(t, bob))

		var own *rratelimiter.RateLimiter
		for name, permits := range map[string]int64{"ann": 4, "carl": 3, "": 2} {
			own = of("own", name)
			require.NoError(t, limitertest.Second(own.TrySetRate(t.Context(), limitertest.PerClient(10, time.Hour))))
			limitertest.MustAcquire(t, own, permits)
		}
		known(t, rdb, 4)
		assert.Equal(t, holders.Holders{Shares: []holders.Share{
			{Kind: holders.Named, Name: "ann", Permits: 4},
			{Kind: holders.Named, Name: "carl", Permits: 3},
		}}, usersOf(t, own))
	})
}

// writesName reports whether a command writes a name.
func writesName(cmd redis.Cmder) bool {
	return strings.HasPrefix(cmd.Name(), "eval") && cmd.Args()[3] == clients.Key
}

func TestNamesAreNotedWhileTheirClientIsUsed(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		var writes atomic.Int32
		rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
			if slices.ContainsFunc(cmds, writesName) {
				writes.Add(1)
			}
		}))
		client := limitertest.NewClient(t, rdb, rratelimiter.WithClientName("ann"))
		l := client.RateLimiter("orders")
		limitertest.MustTrySetRate(t, l, limitertest.Every(1000, time.Second))
		exists := func() bool { return rdb.Exists(t.Context(), clients.Key).Val() == 1 }
		assert.False(t, exists(), "it has asked for no permits yet")
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(time.Second)
		for range 75 {
			require.Equal(t, []string{"ann"}, known(t, rdb, 1))
			for range 10 {
				limitertest.MustAcquire(t, l, 1)
				time.Sleep(6 * time.Minute)
			}
		}
		assert.LessOrEqual(t, writes.Load(), int32(1+75+1), "once an hour, by evalsha and at first by eval")
		time.Sleep(46 * time.Hour)
		assert.True(t, exists())
		time.Sleep(3 * time.Hour)
		assert.False(t, exists(), "its Client was not used for two days")
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(time.Second)
		assert.Equal(t, []string{"ann"}, known(t, rdb, 1))
	})
}

func TestWithClientName_HangHoldsUpNoCall(t *testing.T) {
	t.Parallel()
	for _, later := range []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			hang := make(chan struct{})
			rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
				if len(cmds) == 1 && writesName(cmds[0]) { // otherwise a call would hang with it
					<-hang
				}
			}))
			client := rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithClientName("ann"))
			l := limitertest.ByDefault(client, "orders", limitertest.Hourly(100))
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(later)
			limitertest.MustAcquire(t, l, 1)
			require.NoError(t, client.Close(t.Context()))
			close(hang)
			require.ErrorIs(t, l.Acquire(t.Context(), 1), rratelimiter.ErrClosed)
		})
	}
}

// Redis refuses a name for half an hour: that fails no call, is reported once, and the name noted later.
func TestWithClientName_IsRetried(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		var recorder limitertest.Recorder
		client := limitertest.NewClient(t, rdb, rratelimiter.WithClientName("ann"), rratelimiter.WithObserver(&recorder))
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(1000, time.Second)))
		require.NoError(t, rdb.Set(t.Context(), clients.Key, "another program's", 0).Err())
		for range 30 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(time.Minute)
		}
		require.Len(t, recorder.Events(), 1)
		assert.Equal(t, limit.NameNotNoted, recorder.Events()[0].Kind)
		assert.Error(t, recorder.Events()[0].Err)
		require.ErrorIs(t, limitertest.Second(holders.Of(t.Context(), l)), limit.ErrCorrupt)
		require.NoError(t, rdb.Del(t.Context(), clients.Key).Err())
		for range 60 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(time.Minute)
		}
		assert.Equal(t, []string{"ann"}, known(t, rdb, 1))
	})
}

func TestWithClientName_NamesAreBounded(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]time.Duration{"old": -time.Hour, "alive": time.Hour}, func(t *testing.T, life time.Duration) {
		rdb := redistest.StartRedis(t).Client(t, nil)
		limitertest.AddGrants(t, rdb, clients.Key, -life, 20_000, 1)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithClientName("ann"))
		l := limitertest.ByDefault(client, "orders", limitertest.Hourly(10))
		limitertest.MustAcquire(t, l, 1)
		known(t, rdb, 1)
		assert.Equal(t, int64(10_000), rdb.ZCard(t.Context(), clients.Key).Val())
		assert.Equal(t, holders.Holders{Whole: true, Shares: []holders.Share{{Kind: holders.Named, Name: "ann", Permits: 1}}}, usersOf(t, l))
	})
}
