package soak_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

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
	minutes = flag.Float64("minutes", 0, "how long TestSoak goes on; 0: none")
	manyOf  = flag.Int("keys", 10_000, "how many keys are used once, of each kind of limiter")
)

// ahead are the options that answer from memory.
var ahead = []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{Permits: 50}), rratelimiter.WithRefusalCache()}

// limiters returns one of each kind that has keys.
func limiters(client *rratelimiter.Client, rdb redistest.Client, name string, rate int64, interval time.Duration) map[string]limit.Limiter {
	return map[string]limit.Limiter{
		"keyed":        client.Keyed(name+":keyed:", rratelimiter.Config{Rate: rate, Interval: interval, KeepAlive: 6 * interval}),
		"leased":       client.Keyed(name+":leased:", rratelimiter.Config{Rate: 100 * rate, Interval: interval}, ahead...),
		"fixed window": fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: rate, Window: interval}),
		"sliding log":  slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: rate, Window: interval}),
		"token bucket": tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: rate, Refill: rate, Interval: interval}),
	}
}

// usage is what is in use; a collection follows another for what finalizers freed.
type usage struct{ heap, goroutines, redis int64 }

func used(tb testing.TB, rdb redistest.Client) usage {
	tb.Helper()
	info := rdb.InfoMap(tb.Context(), "memory").Val()
	inRedis, _ := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64) // miniredis does not know
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{int64(m.HeapAlloc), int64(runtime.NumGoroutine()), inRedis}
}

// growth is how much more may be in use, in bytes.
const growth = int64(512 << 10)

// flat checks that no more is in use than before.
func (u usage) flat(t *testing.T, now usage) {
	t.Helper()
	t.Logf("%+v, before %+v", now, u)
	assert.LessOrEqual(t, now.heap, u.heap+growth, "heap")
	assert.LessOrEqual(t, now.goroutines, u.goroutines+20, "goroutines")
	assert.LessOrEqual(t, now.redis, u.redis+growth, "memory of Redis")
}

// connected starts a server. The client has made all of its connections: a busy machine has it
// need more of them as time goes, of 64 kB each, or 256 if they were in a pool for pipelines.
func connected(tb testing.TB) redistest.Client {
	tb.Helper()
	rdb := redistest.StartRedis(tb).Client(tb, &redistest.Options{PoolSize: 32, MinIdleConns: 32, PipelinePoolSize: -1})
	require.Eventually(tb, func() bool { return rdb.PoolStats().IdleConns == 32 }, time.Minute, time.Millisecond)
	return rdb
}

// An hour of calls of all kinds leaves no more in use than its first minutes.
func TestSoak_VirtualHour(t *testing.T) { //nolint:paralleltest // it measures the heap
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { soak(t, rdb, time.Hour, 4*time.Second, false) })
}

// TestSoak is the same in real time.
func TestSoak(t *testing.T) { //nolint:paralleltest // it measures the heap
	if *minutes == 0 {
		t.Skip("asked for by -minutes only")
	}
	soak(t, connected(t), time.Duration(*minutes*float64(time.Minute)), 2*time.Millisecond, true)
}

// soak lets callers use limiters and looks at what is in use. A busy machine may not get each answer in time.
func soak(t *testing.T, rdb redistest.Client, length, pause time.Duration, busy bool) {
	t.Helper()
	client := rratelimiter.New(rdb, limitertest.Patient())
	all := limiters(client, rdb, "soak", 3, 10*time.Second)
	kinds := slices.Sorted(maps.Keys(all))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	call := func(draw *rand.Rand) error {
		kind := kinds[draw.IntN(len(kinds))]
		l, key := all[kind], fmt.Sprint(kind, draw.IntN(100))
		keyed, ok := l.(*rratelimiter.KeyedLimiter)
		if !ok {
			return limitertest.Second(l.Take(ctx, key, 1))
		}
		granted, err := keyed.Limiter(key).TryAcquire(ctx, 1+draw.Int64N(2), time.Duration(draw.Int64N(int64(200*time.Millisecond))))
		if granted && draw.IntN(4) == 0 {
			err = keyed.Limiter(key).Release(ctx, 1)
		}
		return err
	}
	var callers sync.WaitGroup
	for i := range uint64(4) {
		draw := rand.New(rand.NewPCG(1, i))
		callers.Go(func() {
			for ctx.Err() == nil {
				err := call(draw)
				late := errors.Is(err, limit.ErrUnavailable) || errors.Is(err, limit.ErrUnknownOutcome)
				assert.True(t, err == nil || ctx.Err() != nil || busy && late, err)
				time.Sleep(time.Duration(draw.Int64N(int64(2 * pause))))
			}
		})
	}
	time.Sleep(length / 6)
	first := used(t, rdb)
	for range 5 {
		time.Sleep(length / 6)
		first.flat(t, used(t, rdb))
	}
	end()
	callers.Wait()
	require.NoError(t, client.Close(context.WithoutCancel(ctx)))
	require.Eventually(t, func() bool { return len(rdb.Keys(context.WithoutCancel(ctx), "*").Val()) == 0 }, 2*time.Minute, time.Second, "keys that stay")
}

// Client and Redis forget keys that are used once. A Keyed remembers them for some minutes, so each time has its own.
func TestKeysUsedOnceLeaveNothing(t *testing.T) { //nolint:paralleltest // it measures the heap
	redistest.SkipShort(t, "many keys")
	rdb := connected(t)
	client := rratelimiter.New(rdb, limitertest.Patient())
	use := func(name string, keys int) {
		for kind, l := range limiters(client, rdb, "once", 5, time.Second) {
			var wg sync.WaitGroup
			const callers = 64
			for c := range callers {
				wg.Go(func() {
					for i := c; i < keys; i += callers {
						d, err := l.Take(t.Context(), fmt.Sprint(kind, name, i), 1)
						if !assert.NoError(t, err) || !assert.True(t, d.Granted) {
							return
						}
					}
				})
			}
			wg.Wait()
		}
		require.Eventually(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 }, 2*time.Minute, 20*time.Millisecond, "keys that stay")
	}
	use("first", 1000)
	before := used(t, rdb)
	use("used", *manyOf)
	after := used(t, rdb)
	for range 100 { // on a busy machine leases end late
		if after.heap <= before.heap+growth {
			break
		}
		time.Sleep(100 * time.Millisecond)
		after = used(t, rdb)
	}
	before.flat(t, after)
	require.NoError(t, client.Close(t.Context()))
}

// Keys that had a lease and whose handles are forgotten, as those of a Keyed that is dropped, give it back, and leave nothing.
func TestForgottenLeasesGoBack(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "many keys")
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := rratelimiter.New(rdb, limitertest.Patient())
		const keys, takes = 300, 4
		free := func(key int) int64 {
			return limitertest.Available(t, client.RateLimiter("forgotten:"+strconv.Itoa(key)))
		}
		func() {
			l := client.Keyed("forgotten:", rratelimiter.PerMinute(1000), ahead...)
			for i := range keys {
				for range takes {
					limitertest.MustAcquire(t, l.Limiter(strconv.Itoa(i)), 1)
				}
				require.Less(t, free(i), int64(1000-takes), "there is a lease")
			}
		}()
		runtime.GC()
		time.Sleep(4 * time.Second)
		for i := range keys {
			require.EqualValues(t, 1000-takes, free(i))
		}
		time.Sleep(2 * time.Minute)
		assert.Empty(t, redistest.Keys(t, rdb, "*")) // DBSIZE counts what has expired, until that is met
		limitertest.CheckIdle(t, client)
	})
}

// BenchmarkHotKeys measures what a key in demand costs in memory: its handle, and a lease beside it.
func BenchmarkHotKeys(b *testing.B) {
	rdb := connected(b)
	for name, opts := range map[string][]rratelimiter.LimiterOption{"plain": nil, "refusals": ahead[1:], "leased": ahead[:1], "both": ahead} {
		b.Run(name, func(b *testing.B) {
			client := rratelimiter.New(rdb, limitertest.Patient())
			l := client.Keyed(name, rratelimiter.PerHour(100_000), opts...)
			take := func(key int) {
				for range 4 {
					limitertest.MustAcquire(b, l.Limiter(strconv.Itoa(key)), 1)
				}
			}
			take(-1)
			before, keys := used(b, rdb), 0
			for ; b.Loop(); keys++ {
				take(keys)
			}
			b.ReportMetric(float64(used(b, rdb).heap-before.heap)/float64(keys), "B/key")
			runtime.KeepAlive(l)
			require.NoError(b, client.Close(b.Context()))
		})
	}
}
