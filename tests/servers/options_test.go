package servers_test

import (
	"context"
	"fmt"
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
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

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

// usersOf returns who has permits of the limiter in use; marks, which are drawn, are left out.
func usersOf(t *testing.T, l *rratelimiter.RateLimiter) holders.Holders {
	t.Helper()
	found := limitertest.Must(holders.Of(t.Context(), l))(t)
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
			{Kind: holders.Named, Name: "ann 7f9c", Permits: 25}, {Kind: holders.Redisson, Permits: 9},
			{Kind: holders.Named, Name: "bob", Permits: 7}, {Kind: holders.Unmarked, Permits: 7}, {Kind: holders.Unnamed, Permits: 3},
		}}, usersOf(t, bob))
		var own *rratelimiter.RateLimiter
		for name, permits := range map[string]int64{"ann": 4, "carl": 3, "": 2} {
			own = of("own", name)
			require.NoError(t, limitertest.Second(own.TrySetRate(t.Context(), limitertest.PerClient(10, time.Hour))))
			limitertest.MustAcquire(t, own, permits)
		}
		known(t, rdb, 4)
		assert.Equal(t, holders.Holders{Shares: []holders.Share{
			{Kind: holders.Named, Name: "ann", Permits: 4}, {Kind: holders.Named, Name: "carl", Permits: 3},
		}}, usersOf(t, own))
	})
}

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
	pauses := limitertest.Rows(0, 500*time.Millisecond, 1500*time.Millisecond)
	limitertest.Virtual(t, pauses, func(t *testing.T, rdb redistest.Client, later time.Duration) {
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
		time.Sleep(time.Second) // until the name is noted: a bubble must not end beneath a request
		require.ErrorIs(t, l.Acquire(t.Context(), 1), rratelimiter.ErrClosed)
	})
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

func durable(t testing.TB, rdb rratelimiter.Redis, wait time.Duration, opts ...rratelimiter.Option) *rratelimiter.Client {
	t.Helper()
	return limitertest.NewClient(t, rdb, append(opts, rratelimiter.WithReplicas(1, wait))...)
}

// patient is how long replicas that do confirm may take for it on a busy machine.
const patient = 20 * time.Second

func limiterOf(client *rratelimiter.Client, name string, rate int64, opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
	return client.RateLimiter(name, append(opts, rratelimiter.WithDefault(limitertest.Every(rate, time.Hour)))...)
}

func waits(t *testing.T, rdb redistest.Client) int {
	t.Helper()
	return max(0, figure(t, rdb, "commandstats", "cmdstat_wait:calls="))
}

func awaitAvailable(t *testing.T, l *rratelimiter.RateLimiter, want int64) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		free, err := l.AvailablePermits(t.Context())
		assert.NoError(c, err)
		assert.Equal(c, want, free)
	}, time.Minute, 10*time.Millisecond)
}

// atOnce lets callers call at the same time, each again and again, and counts those that are granted and those that fail in this way.
func atOnce(t *testing.T, callers, rounds int, target error, call func() (bool, error)) (granted, failed int64) {
	t.Helper()
	var yes, no atomic.Int64
	limitertest.Together(callers, func(int) {
		for range rounds {
			switch ok, err := call(); {
			case err != nil:
				assert.ErrorIs(t, err, target)
				no.Add(1)
			case ok:
				yes.Add(1)
			}
		}
	})
	return yes.Load(), no.Load()
}

func TestWithReplicasAGrantCountsOnceAReplicaHasIt(t *testing.T) {
	t.Parallel()
	r := startReplica(t)
	rdb := r.client(t)
	recorder := &limitertest.Recorder{}
	before := durable(t, rdb, patient)
	held := limitertest.Reserve(t, limiterOf(before, "{a}", 10), 5)
	require.NoError(t, held.Settle(t.Context(), 3))
	owed := limitertest.Reserve(t, limiterOf(before, "{a}c", 10), 1)
	require.True(t, limitertest.TryAll(t, before, 1, limiterOf(before, "{a}", 10), limiterOf(before, "{a}b", 20)))
	client := durable(t, rdb, 200*time.Millisecond, rratelimiter.WithObserver(recorder))
	l, other := limiterOf(client, "{a}", 10), limiterOf(client, "{a}b", 20)
	limitertest.MustRefuse(t, l, 7)
	lasting := limitertest.Reserve(t, limiterOf(before, "{a}d", 10), 1)
	sent := waits(t, rdb)
	require.NoError(t, lasting.Renew(t.Context()))
	assert.Greater(t, waits(t, rdb), sent, "a failover must not bring the old date back")
	var renewed *rratelimiter.Reservation
	impatient := limiterOf(durable(t, rdb, 200*time.Millisecond), "{a}d", 10)
	require.Eventually(t, func() bool { // the replica may be late on a busy machine
		var err error
		renewed, err = impatient.Reserve(t.Context(), 1, 0)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	close(r.silent)
	require.ErrorIs(t, renewed.Renew(t.Context()), rratelimiter.ErrNotReplicated)
	require.NoError(t, owed.Settle(t.Context(), 2), "a settlement needs no replicas")
	for name, call := range map[string]func(ctx context.Context) error{
		"TryAcquire": func(ctx context.Context) error { return limitertest.Second(l.TryAcquire(ctx, 1, 0)) },
		"Acquire":    func(ctx context.Context) error { return l.Acquire(ctx, 2) },
		"Take":       func(ctx context.Context) error { return limitertest.Second(l.Take(ctx, 1)) },
		"Reserve": func(ctx context.Context) error {
			r, err := l.Reserve(ctx, 2, 0)
			assert.Nil(t, r)
			return err
		},
		"TakeUpTo": func(ctx context.Context) error {
			taken, d, err := l.TakeUpTo(ctx, 100)
			assert.Zero(t, taken)
			assert.False(t, d.Granted)
			return err
		},
		"TryAcquireAll": func(ctx context.Context) error {
			return limitertest.Second(client.TryAcquireAll(ctx, time.Minute, l.Claim(1), other.Claim(1)))
		},
	} {
		err := call(t.Context())
		require.ErrorIs(t, err, rratelimiter.ErrNotReplicated, name)
		require.NotErrorIs(t, err, rratelimiter.ErrUnavailable, name)
		require.ErrorContains(t, err, "0 of the 1 replicas that WithReplicas asks for confirmed within 200ms", name)
		awaitAvailable(t, l, 6)
		awaitAvailable(t, other, 19)
	}
	limitertest.MustRefuse(t, l, 7)
	require.ErrorIs(t, limitertest.Second(l.Take(t.Context(), 11)), rratelimiter.ErrPermitsExceedRate)
	assert.Eventually(t, func() bool {
		events := recorder.Events()
		return len(events) == 1 && events[0].Kind == limit.ReplicasBehind
	}, time.Minute, 10*time.Millisecond)
	others := func(d limit.Decided) bool { return d.Kind != limit.KindNotReplicated }
	assert.Len(t, slices.DeleteFunc(recorder.Decisions(), others), 7, "six calls, one of which asks two limiters")
	r.takeOver(t)
	afterFailover(t, l)
	assert.EqualValues(t, 6, limitertest.Available(t, l))
	assert.EqualValues(t, 19, limitertest.Available(t, other))
}

// What a lease takes ahead is a grant like any other.
func TestWithReplicasALeaseNeedsReplicas(t *testing.T) {
	t.Parallel()
	r := startReplica(t)
	recorder := &limitertest.Recorder{}
	lease := rratelimiter.WithLease(rratelimiter.Lease{Permits: 1000})
	burst := func(wait time.Duration, name string) (granted, failed int64, l *rratelimiter.RateLimiter) {
		l = limiterOf(durable(t, r.client(t), wait, rratelimiter.WithObserver(recorder)), name, 100_000, lease)
		granted, failed = atOnce(t, 8, 40, rratelimiter.ErrNotReplicated, func() (bool, error) { return l.TryAcquire(t.Context(), 1, 0) })
		return granted, failed, l
	}
	granted, failed, _ := burst(patient, "a")
	assert.EqualValues(t, 320, granted)
	assert.Zero(t, failed)
	require.Eventually(t, func() bool { return len(recorder.Leases()) > 0 }, time.Minute, 10*time.Millisecond)
	close(r.silent)
	granted, failed, b := burst(50*time.Millisecond, "b")
	assert.Zero(t, granted)
	assert.EqualValues(t, 320, failed)
	awaitAvailable(t, b, 100_000)
	for _, lease := range recorder.Leases() {
		assert.Equal(t, "a", lease.Limiter)
	}
}

func TestWithReplicasCallersOfOneFlightWaitOnce(t *testing.T) {
	t.Parallel()
	r := startReplica(t)
	recorder := &limitertest.Recorder{}
	rdb := r.client(t)
	client := durable(t, rdb, patient, rratelimiter.WithObserver(recorder))
	const callers, rounds, rate = 64, 20, 1000
	l := limiterOf(client, redistest.Name(t), rate)
	before := waits(t, rdb)
	granted, failed := atOnce(t, callers, rounds, nil, func() (bool, error) { return l.TryAcquire(t.Context(), 1, 0) })
	require.NoError(t, client.Close(t.Context()))
	assert.EqualValues(t, rate, granted, "those beyond the rate are refused")
	assert.Zero(t, failed)
	after := waits(t, rdb) - before
	assert.Eventually(t, func() bool { return len(recorder.Flights()) == after }, time.Minute, 10*time.Millisecond,
		"%d WAITs, %d flights", after, len(recorder.Flights()))
	assert.Less(t, after, callers*rounds/2)
}

// Where no replica confirms, and where the user may not WAIT, nothing is granted that is not known to be durable. It is no
// outage, however short callers' timeouts are.
func TestWithReplicas_NoReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	const wait = 10 * time.Millisecond
	l := limiterOf(durable(t, rdb, wait, rratelimiter.WithFailure(limit.FailOpen())), "a", 2)
	mayNot := redistest.AddUser(t, server, nil, redistest.LeastCommands, redistest.KeysOf("b"))
	refused := limiterOf(durable(t, mayNot, wait), "b", 2)
	for range 5 {
		for l, says := range map[*rratelimiter.RateLimiter]string{l: "see that replicas are connected", refused: "NOPERM"} {
			_, err := l.Take(t.Context(), 1)
			require.ErrorIs(t, err, rratelimiter.ErrNotReplicated, "no outage")
			require.ErrorContains(t, err, says)
			awaitAvailable(t, l, 2)
		}
	}
	limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter("a"), 2)
	limitertest.MustRefuse(t, l, 1)
	shadow := limiterOf(durable(t, rdb, wait, rratelimiter.WithShadow()), "c", 2)
	limitertest.MustAcquire(t, shadow, 1)
	awaitAvailable(t, shadow, 2)
	recorder := &limitertest.Recorder{}
	client := limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, 2500*time.Millisecond),
		rratelimiter.WithFailure(limit.FailOpen()), rratelimiter.WithObserver(recorder))
	plain := limitertest.NewClient(t, rdb) // loads the scripts into the server
	d, e := limiterOf(plain, "{d}", 10), limiterOf(plain, "{d}e", 10)
	limitertest.MustAcquire(t, d, 1)
	require.True(t, limitertest.TryAll(t, plain, 1, d, e))
	const timeout = 500 * time.Millisecond
	both := []rratelimiter.Claim{client.RateLimiter("{d}").Claim(1), client.RateLimiter("{d}e").Claim(1)}
	require.ErrorIs(t, limitertest.Second(client.TryAcquireAll(t.Context(), timeout, both...)), rratelimiter.ErrNotReplicated)
	_, failed := atOnce(t, 4, 1, rratelimiter.ErrNotReplicated, func() (bool, error) { return client.RateLimiter("{d}").TryAcquire(t.Context(), 1, timeout) })
	assert.EqualValues(t, 4, failed)
	for _, e := range recorder.Events() {
		assert.NotEqual(t, limit.AskedNoMore, e.Kind)
	}
	awaitAvailable(t, d, 8)
}

// Each master of a cluster is waited for by itself, and limiters whose slot goes elsewhere are followed.
func TestWithReplicasOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	rdb := cluster.Client(t, &redistest.Options{ReadTimeout: time.Minute})
	client, impatient := durable(t, rdb, patient), durable(t, rdb, 300*time.Millisecond)
	names := make([]string, 30)
	for i := range names {
		names[i] = fmt.Sprintf("l%d", i)
	}
	all := func(check func(name string)) { limitertest.Together(len(names), func(i int) { check(names[i]) }) }
	try := func(client *rratelimiter.Client, name string) error {
		return limitertest.Second(limiterOf(client, name, 100).TryAcquire(t.Context(), 1, 0))
	}
	fine := func(name string) { assert.NoError(t, try(client, name)) }
	for range 5 {
		all(fine)
	}
	sum := 0
	for _, node := range cluster.Nodes() {
		n := waits(t, node.Client(t, nil))
		assert.Equal(t, node.IsMaster(t), n > 0, "%d WAITs", n)
		sum += n
	}
	assert.LessOrEqual(t, sum, 5*len(names))
	slot := cluster.Slot(t, names[0])
	_, replicas := cluster.Owner(t, slot)
	cluster.Failover(t, replicas[0], false)
	require.Eventually(t, func() bool { return try(client, names[0]) == nil }, time.Minute, 10*time.Millisecond)
	all(fine)
	master, replicas := cluster.Owner(t, slot)
	require.Len(t, replicas, 1)
	replicas[0].Kill()
	awaitReplication(t, master, "connected_slaves:0")
	all(func(name string) {
		if owner, _ := cluster.Owner(t, cluster.Slot(t, name)); owner == master {
			assert.ErrorIs(t, try(impatient, name), rratelimiter.ErrNotReplicated)
			return
		}
		fine(name)
	})
}

// WAIT goes to the shard of the limiter, though it has no key.
func TestWithReplicasOnARing(t *testing.T) {
	t.Parallel()
	ring := redistest.StartRing(t, 2)
	first := ring.Servers[0] // the other one has no replica
	follow(t, first, redistest.StartRedis(t), first.Addr())
	rdb := ring.Client(t, nil)
	client, impatient := durable(t, rdb, patient), durable(t, rdb, 50*time.Millisecond)
	granted := 0
	for i := range 20 {
		name := fmt.Sprintf("l%d", i)
		if nodes.Addr(limitertest.Must(nodes.Of(t.Context(), rdb, name))(t)) == first.Addr() {
			granted++
			limitertest.MustAcquire(t, limiterOf(client, name, 5), 1)
			continue
		}
		l := limiterOf(impatient, name, 5)
		require.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrNotReplicated)
		awaitAvailable(t, l, 5)
	}
	assert.NotZero(t, granted)
	assert.NotEqual(t, 20, granted)
}

// A repeat that finds the grant of an attempt whose answer was lost is waited for, by
// the mark that it leaves. A second repeat leaves none, so that no one can tell.
func TestWithReplicasAfterLostAnswers(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]int{"none": 0, "one": 1, "two": 2}, func(t *testing.T, lost int) {
		r := startReplica(t)
		proxy := redistest.StartProxy(t, r.master.Addr())
		l := durable(t, proxy.Client(t, &redistest.Options{PoolSize: 3}), patient).RateLimiter("a")
		limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Hour))
		limitertest.MustAcquire(t, l, 1) // the script is known, and that the limiter is shared
		seen := 0
		proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Contains("evalsha " + lua.Acquire.SHA) {
				if seen++; seen <= lost {
					return redistest.DropAnswer
				}
			}
			return redistest.Pass
		})
		err := limitertest.Granted(l.TryAcquire(t.Context(), 4, 0))
		if lost == 2 {
			require.ErrorIs(t, err, rratelimiter.ErrNotReplicated)
			awaitAvailable(t, l, 9)
			return
		}
		require.NoError(t, err)
		r.takeOver(t)
		other := limitertest.NewClient(t, r.client(t)).RateLimiter("a")
		afterFailover(t, other)
		assert.EqualValues(t, 5, limitertest.Available(t, other))
	})
}

// BenchmarkWithReplicas measures what durable grants cost: callers without, and with one WAIT for each round trip.
//
//	go test -run '^$' -bench WithReplicas ./tests/servers
func BenchmarkWithReplicas(b *testing.B) {
	master := redistest.StartRedis(b)
	follow(b, master, redistest.StartRedis(b), master.Addr())
	for way, opts := range map[string][]rratelimiter.Option{"plain": nil, "WithReplicas": {rratelimiter.WithReplicas(1, time.Second)}} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("callers=%d/%s", callers, way), func(b *testing.B) {
				client := limitertest.NewClient(b, master.Client(b, nil), opts...)
				l := limitertest.ByDefault(client, redistest.Name(b), rratelimiter.PerSecond(1_000_000))
				limitertest.MustAcquire(b, l, 1)
				b.ResetTimer()
				limitertest.Together(callers, func(i int) {
					for n := i; n < b.N; n += callers {
						assert.NoError(b, l.Acquire(b.Context(), 1))
					}
				})
			})
		}
	}
}
