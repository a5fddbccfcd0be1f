package concurrency_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// usage is the moments at which permits were used, since the first.
type usage struct {
	mu    sync.Mutex
	start time.Time
	at    []time.Duration
}

func (u *usage) add(permits int64) {
	now := time.Since(u.start)
	u.mu.Lock()
	defer u.mu.Unlock()
	for range permits {
		u.at = append(u.at, now)
	}
}

// most returns the most permits that any span of that length has seen.
func (u *usage) most(span time.Duration) int {
	slices.Sort(u.at)
	most, from := 0, 0
	for i, at := range u.at {
		for u.at[from] <= at-span {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// Several Clients with leases and one without, in bursts and through a bad network:
// what is used obeys the rate for each span of the interval less the lease's life,
// what is charged obeys the limit, and nothing is lost.
func TestLeasesObeyTheLimit(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	const rate, interval, life = 1000, time.Second, 100 * time.Millisecond
	for seed := range uint64(1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				name := redistest.Name(t)
				used := &usage{start: time.Now()}
				ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
				defer cancel()
				var clients []*rratelimiter.Client
				var callers sync.WaitGroup
				for i := range 4 {
					var opts []rratelimiter.LimiterOption
					if i > 0 {
						opts = append(opts, limitertest.Ahead(life))
					}
					proxy := redistest.MiniProxy(t, m)
					faults := rand.New(rand.NewPCG(seed, uint64(i)))
					proxy.OnCommand(func(redistest.Command) redistest.Action {
						switch p := faults.IntN(100); {
						case p < 1:
							return redistest.DropAnswer
						case p < 5:
							return redistest.Pass.After(time.Duration(faults.IntN(60)) * time.Millisecond)
						}
						return redistest.Pass
					})
					client := limitertest.NewClient(t, proxy.Client(t, &redis.Options{ReadTimeout: time.Minute}))
					clients = append(clients, client)
					l := client.RateLimiter(name, append(opts, rratelimiter.WithDefault(limitertest.Every(rate, interval)))...)
					for j := range 3 {
						random := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
						callers.Go(func() {
							for ctx.Err() == nil {
								for range random.IntN(150) {
									permits := int64(1)
									if random.IntN(50) == 0 {
										permits = 1 + random.Int64N(50)
									}
									timeout := time.Duration(random.IntN(2)) * 10 * time.Millisecond
									ok, err := l.TryAcquire(context.WithoutCancel(ctx), permits, timeout)
									if err == nil && ok {
										used.add(permits)
									}
									time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
								}
								time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
							}
						})
					}
				}
				callers.Wait()
				for _, c := range clients {
					require.NoError(t, c.Close(t.Context()))
				}
				assert.LessOrEqual(t, used.most(interval-life), rate)
				assert.Greater(t, len(used.at), rate, "most permits are used")
				t.Log(len(used.at), used.most(interval-life), used.most(interval))
				l := limitertest.NewClient(t, rdb).RateLimiter(name)
				time.Sleep(2 * interval)
				assert.EqualValues(t, rate, limitertest.Available(t, l))
			})
		})
	}
}

// A use is a permit that a caller was granted at some moment between two.
type use struct{ after, before time.Duration }

// The same in real time. When a permit is used can't be told to the moment: those
// are counted that were used within a span for certain.
func TestLeasesObeyTheLimitInRealTime(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const rate, interval, life = 1000, 300 * time.Millisecond, 30 * time.Millisecond
		name := redistest.Name(t)
		all := make([][]use, 9)
		var callers sync.WaitGroup
		start := time.Now()
		for i := range 3 {
			l := limitertest.NewClient(t, rdb).RateLimiter(name, limitertest.Ahead(life), rratelimiter.WithDefault(limitertest.Every(rate, interval)))
			for j := range 3 {
				callers.Go(func() {
					for now := time.Since(start); now < 1200*time.Millisecond; {
						ok, err := l.TryAcquire(t.Context(), 1, 20*time.Millisecond)
						if err != nil && !assert.ErrorIs(t, err, rratelimiter.ErrUnavailable) { // a busy machine
							return
						}
						then := time.Since(start)
						if ok {
							all[3*i+j] = append(all[3*i+j], use{now, then})
						}
						now = then
					}
				})
			}
		}
		callers.Wait()
		uses := slices.Concat(all...)
		slices.SortFunc(uses, func(a, b use) int { return cmp.Compare(a.after, b.after) })
		// Redis counts whole milliseconds.
		const span = interval - life - time.Millisecond
		most := 0
		for i, first := range uses {
			within := 0
			for _, u := range uses[i:] {
				if u.after > first.after+span {
					break
				}
				if u.before <= first.after+span {
					within++
				}
			}
			most = max(most, within)
		}
		t.Logf("%d uses, at most %d in %v", len(uses), most, span)
		assert.LessOrEqual(t, most, rate)
		assert.NotEmpty(t, uses)
	})
}

// Three Clients with leases and remembered refusals, whose callers do all that
// callers do; the server tells what came of it.
func TestLeasesUnderTheHammer(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		t.Helper()
		server := redistest.StartRedis(t)
		cfg := rratelimiter.Config{Type: kind, Rate: 500, Interval: 250 * time.Millisecond}
		name := redistest.Name(t)
		for _, s := range lua.All() {
			require.NoError(t, server.Client(t, nil).ScriptLoad(t.Context(), s.Source).Err())
		}
		stop := trace(t, server)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		end := time.Now().Add(time.Second)
		var held atomic.Int64
		var clients []*rratelimiter.Client
		var callers sync.WaitGroup
		for number := range uint64(3) {
			client := rratelimiter.New(server.Client(t, nil))
			clients = append(clients, client)
			l := client.RateLimiter(name, rratelimiter.WithDefault(cfg), limitertest.Ahead(0), noticed())
			for worker := range uint64(8) {
				draw := rand.New(rand.NewPCG(seed, number*8+worker))
				callers.Go(func() {
					for time.Now().Before(end) {
						permits := int64(1)
						ok, err := l.TryAcquire(t.Context(), permits, 0)
						if draw.IntN(2) == 0 {
							held.Add(granted(permits, ok))
							permits, ok, err = hammerOnce(t.Context(), l, draw)
						}
						if err != nil && !errors.Is(err, context.Canceled) && !assert.ErrorIs(t, err, context.DeadlineExceeded) {
							return
						}
						held.Add(granted(permits, ok))
						if ok && draw.IntN(10) == 0 {
							assert.NoError(t, l.Release(t.Context(), 1+draw.Int64N(permits)))
						}
					}
				})
			}
		}
		callers.Wait()
		for _, client := range clients {
			require.NoError(t, client.Close(t.Context()))
		}
		ledgers, unwanted := replay(t, stop(), cfg)
		var charged int64
		for _, l := range ledgers {
			charged += l.granted
		}
		assert.Equal(t, held.Load(), charged-unwanted, "permits that callers were told of")
		t.Logf("%d permits held, %d given back", held.Load(), unwanted)
	})
}

// Clients with leases and the same demand on a limiter that has too little for
// all get about the same, and one without leases is not shut out.
func TestScarcePermitsAreShared(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for _, clients := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const rate, intervals = 400, 8
				_, m := redistest.Mini(t)
				name := redistest.Name(t)
				got := make([]atomic.Int64, clients+1)
				ctx, cancel := context.WithTimeout(t.Context(), intervals*time.Second)
				defer cancel()
				var callers sync.WaitGroup
				for i := range clients + 1 {
					var opts []rratelimiter.LimiterOption
					if i > 0 {
						opts = append(opts, limitertest.Ahead(0))
					}
					proxy := redistest.MiniProxy(t, m)
					delay := rand.New(rand.NewPCG(uint64(i), uint64(clients)))
					proxy.OnCommand(func(redistest.Command) redistest.Action {
						return redistest.Pass.After(time.Duration(100+delay.IntN(400)) * time.Microsecond)
					})
					client := limitertest.NewClient(t, proxy.Client(t, nil))
					l := client.RateLimiter(name, append(opts, rratelimiter.WithDefault(limitertest.Every(rate, time.Second)))...)
					for range 4 {
						callers.Go(func() {
							for {
								if l.Acquire(ctx, 1) != nil {
									return
								}
								got[i].Add(1)
								time.Sleep(100 * time.Microsecond)
							}
						})
					}
				}
				callers.Wait()
				total := int64(0)
				for i := range got {
					total += got[i].Load()
				}
				t.Logf("%d leasing Clients; without leases: %d; with: %v", clients, got[0].Load(), func() (all []int64) {
					for i := 1; i <= clients; i++ {
						all = append(all, got[i].Load())
					}
					return all
				}())
				fair := total / int64(clients+1)
				for i := range got {
					assert.Greater(t, got[i].Load(), fair/3, "Client %d of %d permits", i, total)
					assert.Less(t, got[i].Load(), 3*fair, "Client %d of %d permits", i, total)
				}
				assert.Greater(t, total, int64(rate*intervals*9/10), "the permits are used")
			})
		})
	}
}

// BenchmarkLease measures callers that are served from leases.
//
//	go test -run '^$' -bench Lease -cpu 2 ./tests/concurrency
func BenchmarkLease(b *testing.B) {
	rdb := redistest.Redis(b)
	limiter := limitertest.NewHandle(b, rdb, rratelimiter.WithDefault(limitertest.Every(1<<40, time.Second)), limitertest.Ahead(0))
	ctx := b.Context()
	b.SetParallelism(4) // 8 callers on 2 processors
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if ok, err := limiter.TryAcquire(ctx, 1, 0); !ok || err != nil {
				b.Error(ok, err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}

// Other callers may bring a new lease while a Release waits for its turn.
func TestReleaseMeetsALaterLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(10_000, time.Minute), 0)
		taken := s.takeMore(t, 100)
		letGo := s.Hold(t, lua.GiveBack, 1)
		released := s.Go(func() (bool, error) { return true, s.plain.Release(t.Context(), 50) })
		require.Equal(t, "waits", released.Outcome())
		for range 50 {
			before := s.Sent.Total()
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			taken++
			if s.Sent.Total() == before {
				break
			}
		}
		letGo()
		synctest.Wait()
		t.Log(released.Outcome(), "taken", taken, "in use", s.inUse(t))
		s.Until(s.Now() + 4*time.Second)
		s.CheckInUse(t, 10_000, taken-50)
	})
}
