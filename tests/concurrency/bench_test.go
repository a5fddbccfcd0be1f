package concurrency_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// BenchmarkTryAcquire measures what options and a timeout cost 256 callers that are granted their permits at once.
//
//	go test -run '^$' -bench TryAcquire -cpu 1,2 ./tests/concurrency
func BenchmarkTryAcquire(b *testing.B) {
	rdb := redistest.StartRedis(b).Client(b, nil)
	const plenty = 1 << 40
	for _, of := range []struct {
		name    string
		timeout time.Duration
		keys    int
		opts    []rratelimiter.LimiterOption
	}{
		{"plain", 0, 1, nil},
		{"timeout", time.Second, 1, nil},
		{"open", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailOpen())}},
		{"local", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailLocal(0.5))}},
		{"leased", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}},
		{"two leased", 0, 2, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}},
	} {
		b.Run(of.name, func(b *testing.B) {
			client := limitertest.NewClient(b, rdb)
			limiters := make([]*rratelimiter.RateLimiter, of.keys)
			for i := range limiters {
				opts := append([]rratelimiter.LimiterOption{rratelimiter.WithDefault(rratelimiter.PerHour(plenty))}, of.opts...)
				limiters[i] = client.RateLimiter(fmt.Sprint(redistest.Name(b), i), opts...)
				limitertest.MustAcquire(b, limiters[i], 1)
			}
			var callers atomic.Int64
			b.SetParallelism(128)
			b.ReportAllocs()
			b.RunParallel(func(next *testing.PB) {
				l := limiters[int(callers.Add(1))%of.keys]
				for next.Next() {
					if ok, err := l.TryAcquire(b.Context(), 1, of.timeout); err != nil || !ok {
						b.Error(ok, err)
						return
					}
				}
			})
			require.NoError(b, client.Close(b.Context()))
		})
	}
}

var byMemory = map[string][]rratelimiter.LimiterOption{
	"plain": nil, "both": {rratelimiter.WithLease(rratelimiter.Lease{}), rratelimiter.WithRefusalCache()},
}

// manyKeys returns that many keys.
func manyKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "user-" + strconv.Itoa(i)
	}
	return keys
}

// BenchmarkHandle measures what it takes to find handles of keys, a few and many; try it with -cpu 1,2.
func BenchmarkHandle(b *testing.B) {
	for _, n := range []int{16, 100_000} {
		b.Run(fmt.Sprint("of ", n), func(b *testing.B) {
			k := rratelimiter.New(answering{}).Keyed("bench:", rratelimiter.PerMinute(100))
			keys := manyKeys(n)
			for _, key := range keys {
				k.Limiter(key)
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.Uint32(); pb.Next(); i += 7919 {
					k.Limiter(keys[i%uint32(n)])
				}
			})
		})
	}
}

// BenchmarkNewHandle measures what a key costs that is used for the first time, and the memory of its handle.
func BenchmarkNewHandle(b *testing.B) {
	keys := manyKeys(100_000)
	for name, opts := range byMemory {
		b.Run(name, func(b *testing.B) {
			client := rratelimiter.New(answering{}, limitertest.Patient())
			var k *rratelimiter.KeyedLimiter
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i %= len(keys); i == 0 {
					k = client.Keyed("bench:", rratelimiter.PerMinute(100), opts...)
				}
				k.Limiter(keys[i])
			}
		})
		b.Run(name+" memory", func(b *testing.B) {
			for b.Loop() {
				client := rratelimiter.New(answering{}, limitertest.Patient())
				k := client.Keyed("bench:", rratelimiter.PerMinute(100), opts...)
				all := make([]*rratelimiter.RateLimiter, 0, len(keys))
				heap := func() uint64 {
					var m runtime.MemStats
					runtime.GC()
					runtime.GC()
					runtime.ReadMemStats(&m)
					return m.HeapAlloc
				}
				before := heap()
				for _, key := range keys {
					all = append(all, k.Limiter(key))
				}
				b.ReportMetric(float64(heap()-before)/float64(len(keys)), "B/handle")
				runtime.KeepAlive(all)
				runtime.KeepAlive(k)
			}
		})
	}
}

// BenchmarkLeasesOfKeys measures decisions from the leases of a few keys; try it with -cpu 1,2.
func BenchmarkLeasesOfKeys(b *testing.B) {
	for _, of := range []struct {
		name string
		keys int
		own  bool // each caller has a key of his own
	}{{"one", 1, false}, {"two, one for each caller", 2, true}, {"two", 2, false}, {"sixteen", 16, false}} {
		b.Run(of.name, func(b *testing.B) {
			client := limitertest.NewClient(b, redistest.Redis(b))
			k := client.Keyed(redistest.Name(b)+":", limitertest.Every(1_000_000_000, time.Hour), rratelimiter.WithLease(rratelimiter.Lease{}))
			keys := manyKeys(of.keys)
			for _, key := range keys {
				require.NoError(b, k.Acquire(b.Context(), key, 1))
			}
			ctx := b.Context()
			var callers atomic.Uint32
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				i, step := rand.Uint32(), uint32(1)
				if of.own {
					i, step = callers.Add(1), 0
				}
				for ; pb.Next(); i += step {
					if ok, err := k.TryAcquire(ctx, keys[i%uint32(len(keys))], 1, 0); err != nil || !ok {
						b.Error(ok, err)
					}
				}
			})
		})
	}
}
