package soak_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
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

var (
	minutes = flag.Float64("minutes", 0, "how long the soak in real time goes on; 0: none")
	manyOf  = flag.Int("keys", 10_000, "how many keys are used once, of each kind of limiter; in thousands by five")
)

// growth is by how many bytes the heap may differ between two looks.
const growth = int64(512 << 10)

// ahead are the options that answer from memory.
var ahead = []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{Permits: 50}), rratelimiter.WithRefusalCache()}

// limiters returns one of each kind that has keys.
func limiters(client *rratelimiter.Client, rdb *redis.Client, name string, rate int64, interval time.Duration) map[string]limit.Limiter {
	return map[string]limit.Limiter{
		"keyed":        client.Keyed(name+":keyed:", rratelimiter.Config{Rate: rate, Interval: interval}),
		"leased":       client.Keyed(name+":leased:", rratelimiter.Config{Rate: 100 * rate, Interval: interval}, ahead...),
		"fixed window": fixedwindow.New(rdb, fixedwindow.Config{Limit: rate, Window: interval}),
		"sliding log":  slidinglog.New(rdb, slidinglog.Config{Limit: rate, Window: interval}),
		"token bucket": tokenbucket.New(rdb, tokenbucket.Config{Capacity: rate, Refill: rate, Interval: interval}),
	}
}

// usage is what a soak has in use at a moment.
type usage struct {
	heap, goroutines int64
	keys             int64 // in Redis
}

func used(t *testing.T, rdb *redis.Client) usage {
	t.Helper()
	keys, err := rdb.DBSize(t.Context()).Result()
	require.NoError(t, err)
	return usage{heap: heap(), goroutines: int64(runtime.NumGoroutine()), keys: keys}
}

// heap is the memory in use after a collection, and a second one for what finalizers freed.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An hour of calls of all kinds leaves no more in use than its first minutes.
func TestAnHour(t *testing.T) { //nolint:paralleltest // it measures the heap
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		soak(t, rdb, time.Hour, 10*time.Minute, 4*time.Second, math.MaxInt64)
	})
}

// TestSoak is the same in real time, on a server of its own.
func TestSoak(t *testing.T) { //nolint:paralleltest // it measures the heap
	if *minutes == 0 {
		t.Skip("asked for by -minutes only")
	}
	server := redistest.StartRedis(t)
	rdb := server.Client(t, &onePool)
	connect(t, rdb)
	length := time.Duration(*minutes * float64(time.Minute))
	soak(t, rdb, length, length/6, 2*time.Millisecond, 200)
	clients, err := rdb.ClientList(t.Context()).Result()
	require.NoError(t, err)
	t.Logf("connections:\n%s", clients)
}

// onePool makes pipelines use the connections of all others, so that connect can make them all.
var onePool = redis.Options{PoolSize: 32, PipelinePoolSize: -1}

// connect makes all connections that the client may have: a busy machine has it need more
// of them as time goes, of 64 kB each, or 256 if they were in a pool for pipelines.
func connect(t *testing.T, rdb *redis.Client) {
	t.Helper()
	var all []*redis.Conn
	for range rdb.Options().PoolSize {
		conn := rdb.Conn()
		require.NoError(t, conn.Ping(t.Context()).Err())
		all = append(all, conn)
	}
	for _, conn := range all {
		require.NoError(t, conn.Close())
	}
}

// soakCalls are calls of limiters of all kinds.
func soakCalls(ctx context.Context, client *rratelimiter.Client, rdb *redis.Client) (calls []func(draw *rand.Rand) error) {
	plain := rratelimiter.PerSecond(3)
	plain.KeepAlive = time.Minute
	for i, opts := range [][]rratelimiter.LimiterOption{
		nil,
		{rratelimiter.WithLease(rratelimiter.Lease{Permits: 2})},
		{rratelimiter.WithRefusalCache()},
	} {
		l := client.RateLimiter(fmt.Sprint("soak:", i), append(opts, rratelimiter.WithDefault(plain))...)
		calls = append(calls, func(draw *rand.Rand) error {
			timeout := time.Duration(draw.IntN(2)) * time.Duration(draw.Int64N(int64(200*time.Millisecond)))
			ok, err := l.TryAcquire(ctx, 1+draw.Int64N(2), timeout)
			if ok && err == nil && draw.IntN(4) == 0 {
				err = l.Release(ctx, 1)
			}
			return err
		})
	}
	for kind, l := range limiters(client, rdb, "soak", 2, 10*time.Second) {
		calls = append(calls, func(draw *rand.Rand) error {
			_, err := l.Take(ctx, fmt.Sprint(kind, draw.IntN(100)), 1)
			return err
		})
	}
	return calls
}

// soak lets callers use limiters and looks at the process's usage every so often. Nothing may
// grow after the first look. Of this many calls one may have no answer within its time, which
// is a fifth of a second for some: less than a busy machine may keep it from running.
func soak(t *testing.T, rdb *redis.Client, length, every, pause time.Duration, latePart int64) {
	t.Helper()
	client := rratelimiter.New(rdb)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	calls := soakCalls(ctx, client, rdb)
	var callers sync.WaitGroup
	var made, late atomic.Int64
	for i := range uint64(4) {
		draw := rand.New(rand.NewPCG(1, i))
		callers.Go(func() {
			for ctx.Err() == nil {
				err := calls[draw.IntN(len(calls))](draw)
				made.Add(1)
				switch {
				case ctx.Err() != nil:
				case errors.Is(err, rratelimiter.ErrUnavailable) || errors.Is(err, rratelimiter.ErrUnknownOutcome):
					late.Add(1) // its time was over before this machine got the answer there
				default:
					assert.NoError(t, err)
				}
				time.Sleep(time.Duration(draw.Int64N(int64(2 * pause))))
			}
		})
	}
	var first usage
	for start := time.Now(); time.Since(start) < length; {
		time.Sleep(every)
		now := used(t, rdb)
		t.Logf("after %v: %+v", time.Since(start).Round(time.Second), now)
		first = cmp.Or(first, now)
		assert.LessOrEqual(t, now.heap, first.heap+growth, "heap")
		assert.LessOrEqual(t, now.goroutines, first.goroutines+20, "goroutines")
		assert.LessOrEqual(t, now.keys, 2*first.keys+20, "keys in Redis")
	}
	end()
	callers.Wait()
	t.Logf("%d calls, %d of them without an answer in time", made.Load(), late.Load())
	assert.LessOrEqual(t, late.Load(), made.Load()/latePart, "calls without an answer in time")
	require.NoError(t, client.Close(context.WithoutCancel(ctx)))
}

// Keys that are used once are forgotten, by the program and by Redis.
func TestKeysUsedOnceLeaveNothing(t *testing.T) { //nolint:paralleltest // it measures the heap
	redistest.SkipShort(t, "many keys")
	server := redistest.StartRedis(t)
	rdb := server.Client(t, &onePool)
	memory := func() int64 {
		n, err := rdb.InfoMap(t.Context(), "memory").Result()
		require.NoError(t, err)
		bytes, err := strconv.ParseInt(n["Memory"]["used_memory"], 10, 64)
		require.NoError(t, err)
		return bytes
	}
	client := rratelimiter.New(rdb)
	all := limiters(client, rdb, "once", 5, time.Second)
	use := func(name string, keys int) {
		for kind, l := range all {
			start := time.Now()
			useOnce(t, l, kind+name, keys)
			t.Logf("%s: %d keys in %v", kind, keys, time.Since(start).Round(time.Millisecond))
		}
		require.Eventually(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 }, 2*time.Minute, 20*time.Millisecond, "keys that stay")
		connect(t, rdb)
	}
	// Some are remembered until as many others take their places, five thousand at a time.
	use("remembered", 6_000)
	before, inRedis, goroutines := heap(), memory(), runtime.NumGoroutine()
	use("used", *manyOf)
	grown, grownInRedis := heap()-before, memory()-inRedis
	runtime.KeepAlive(all)
	t.Logf("heap %+d kB, Redis %+d kB, %d connections", grown/1024, grownInRedis/1024, rdb.PoolStats().TotalConns)
	assert.Less(t, grown, growth, "heap")
	assert.Less(t, grownInRedis, growth, "memory of Redis")
	assert.LessOrEqual(t, runtime.NumGoroutine(), goroutines+5, "goroutines")
	require.NoError(t, client.Close(t.Context()))
}

// useOnce takes a permit of each of that many keys.
func useOnce(t *testing.T, l limit.Limiter, name string, keys int) {
	t.Helper()
	const callers = 64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := c; i < keys; i += callers {
				d, err := l.Take(t.Context(), fmt.Sprint(name, i), 1)
				if !assert.NoError(t, err) || !assert.True(t, d.Granted) {
					return
				}
			}
		})
	}
	wg.Wait()
}

// Keys that had a lease and whose handles were forgotten give it back, and leave nothing.
func TestForgottenLeasesGoBack(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "many keys")
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := rratelimiter.New(rdb)
		l := client.Keyed("forgotten:", rratelimiter.PerMinute(1000), ahead...)
		const keys, takes = 300, 4
		for i := range keys {
			for range takes {
				d, err := l.Take(t.Context(), strconv.Itoa(i), 1)
				require.NoError(t, err)
				require.True(t, d.Granted)
			}
		}
		for i := range 11_000 {
			l.Limiter("another" + strconv.Itoa(i)) // takes the place of one that is forgotten
		}
		free := func(key int) int64 {
			return limitertest.Available(t, client.RateLimiter("forgotten:"+strconv.Itoa(key)))
		}
		for i := range keys {
			require.Less(t, free(i), int64(1000-takes), "there is a lease")
		}
		time.Sleep(4 * time.Second)
		for i := range keys {
			require.EqualValues(t, 1000-takes, free(i))
		}
		time.Sleep(2 * time.Minute)
		assert.Empty(t, redistest.Keys(t, rdb, "*")) // DBSIZE counts what has expired, until that is met
		limitertest.CheckIdle(t, client)
	})
}

// BenchmarkHotKeys measures what a key in demand costs in memory: its handle, and a lease
// beside it.
//
//	go test ./tests/soak -run '^$' -bench HotKeys
func BenchmarkHotKeys(b *testing.B) {
	rdb := redistest.StartRedis(b).Client(b, &onePool)
	const keys = 4000
	for _, bench := range []struct {
		name string
		opts []rratelimiter.LimiterOption
	}{{"plain", nil}, {"refusals", ahead[1:]}, {"leased", ahead[:1]}, {"both", ahead}} {
		b.Run(bench.name, func(b *testing.B) {
			client := rratelimiter.New(rdb)
			l := client.Keyed(bench.name, rratelimiter.PerHour(100_000), bench.opts...)
			take := func(key string) {
				for range 4 {
					if d, err := l.Take(b.Context(), key, 1); err != nil || !d.Granted {
						b.Fatal(d, err)
					}
				}
			}
			take("first")
			before := heap()
			for i := range keys {
				take(strconv.Itoa(i))
			}
			grown := heap() - before
			for b.Loop() {
				take("0")
			}
			b.ReportMetric(float64(grown)/keys, "B/key")
			runtime.KeepAlive(l)
			if err := client.Close(b.Context()); err != nil {
				b.Error(err)
			}
		})
	}
}
