package concurrency_test

import (
	"cmp"
	"context"
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

// A use is a permit that a caller was granted at some moment between two.
type use struct{ after, before time.Duration }

// usage is all uses of a limiter.
type usage struct {
	mu    sync.Mutex
	start time.Time
	uses  []use
}

func (u *usage) add(after time.Duration, permits int64) {
	now := time.Since(u.start)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.uses = append(u.uses, slices.Repeat([]use{{after, now}}, int(permits))...)
}

func (u *usage) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.uses)
}

// most returns the most permits that were used, for certain, within a span of that length.
func (u *usage) most(span time.Duration) int {
	slices.SortFunc(u.uses, func(a, b use) int { return cmp.Compare(a.after, b.after) })
	most := 0
	for i, first := range u.uses {
		within := 0
		for _, u := range u.uses[i:] {
			if u.after > first.after+span {
				break
			}
			if u.before <= first.after+span {
				within++
			}
		}
		most = max(most, within)
	}
	return most
}

// burst has a caller use permits in bursts until ctx ends.
func (u *usage) burst(ctx context.Context, l *rratelimiter.RateLimiter, random *rand.Rand) {
	for ctx.Err() == nil {
		for range random.IntN(150) {
			permits := int64(1)
			if random.IntN(50) == 0 {
				permits = 1 + random.Int64N(50)
			}
			timeout := time.Duration(random.IntN(2)) * 10 * ms
			ok, err := l.TryAcquire(context.WithoutCancel(ctx), permits, timeout)
			if err == nil && ok {
				u.add(time.Since(u.start), permits)
			}
			time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
		}
		time.Sleep(time.Duration(random.IntN(500)) * ms)
	}
}

// Several Clients with leases and one without, in bursts and through a bad network:
// what is used obeys the rate for each span of the interval less the lease's life,
// what is charged obeys the limit, and nothing is lost.
func TestLeasesObeyTheLimit(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	const rate, interval, life = 1000, time.Second, 100 * ms
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		name := redistest.Name(t)
		used := &usage{start: time.Now()}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*ms)
		defer cancel()
		var clients []*rratelimiter.Client
		var callers sync.WaitGroup
		for i := range 4 {
			opts := []rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(rate, interval))}
			if i > 0 {
				opts = append(opts, limitertest.Ahead(life))
			}
			proxy := redistest.MiniProxy(t, m)
			faults := rand.New(rand.NewPCG(0, uint64(i)))
			proxy.OnCommand(func(redistest.Command) redistest.Action {
				switch p := faults.IntN(100); {
				case p < 1:
					return redistest.DropAnswer
				case p < 5:
					return redistest.Pass.After(time.Duration(faults.IntN(60)) * ms)
				}
				return redistest.Pass
			})
			client := limitertest.NewClient(t, proxy.Client(t, &redis.Options{ReadTimeout: time.Minute}))
			clients = append(clients, client)
			l := client.RateLimiter(name, opts...)
			for j := range 3 {
				callers.Go(func() { used.burst(ctx, l, rand.New(rand.NewPCG(0, uint64(10*i+j)))) })
			}
		}
		callers.Wait()
		for _, c := range clients {
			require.NoError(t, c.Close(t.Context()))
		}
		assert.LessOrEqual(t, used.most(interval-life-1), rate)
		assert.Greater(t, len(used.uses), rate, "most permits are used")
		time.Sleep(2 * interval)
		assert.EqualValues(t, rate, limitertest.Available(t, limitertest.NewClient(t, rdb).RateLimiter(name)))
	})
}

// The same in real time: counts the permits that were used within a span for certain.
func TestLeasesObeyTheLimitInRealTime(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const rate, interval, life = 1000, 300 * ms, 30 * ms
		name := redistest.Name(t)
		used := &usage{start: time.Now()}
		var callers sync.WaitGroup
		for range 3 {
			l := limitertest.NewClient(t, rdb).RateLimiter(name, limitertest.Ahead(life), rratelimiter.WithDefault(limitertest.Every(rate, interval)))
			for range 3 {
				callers.Go(func() {
					for now := time.Duration(0); now < 1200*ms || now < time.Minute && used.count() < rate; now = time.Since(used.start) {
						ok, err := l.TryAcquire(t.Context(), 1, 20*ms)
						if err != nil && !assert.ErrorIs(t, err, rratelimiter.ErrUnavailable) { // a busy machine
							return
						}
						if ok {
							used.add(now, 1)
						}
					}
				})
			}
		}
		callers.Wait()
		most := used.most(interval - life - ms) // Redis counts whole milliseconds.
		t.Logf("%d uses, at most %d", len(used.uses), most)
		assert.LessOrEqual(t, most, rate)
		assert.NotEmpty(t, used.uses)
	})
}

// Clients with the same demand get about the same of what is scarce, with leases or without.
func TestScarcePermitsAreShared(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	bubbles(t, map[string]int{"2": 2, "3": 3, "4": 4}, func(t *testing.T, clients int) {
		const rate, intervals = 400, 8
		_, m := redistest.Mini(t)
		name := redistest.Name(t)
		got := make([]int64, clients+1)
		ctx, cancel := context.WithTimeout(t.Context(), intervals*time.Second)
		defer cancel()
		var callers sync.WaitGroup
		for i := range got {
			opts := []rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(rate, time.Second))}
			if i > 0 {
				opts = append(opts, limitertest.Ahead(0))
			}
			proxy := redistest.MiniProxy(t, m)
			delay := rand.New(rand.NewPCG(uint64(i), uint64(clients)))
			proxy.OnCommand(func(redistest.Command) redistest.Action {
				return redistest.Pass.After(time.Duration(100+delay.IntN(400)) * time.Microsecond)
			})
			l := limitertest.NewClient(t, proxy.Client(t, nil)).RateLimiter(name, opts...)
			for range 4 {
				callers.Go(func() {
					for l.Acquire(ctx, 1) == nil {
						atomic.AddInt64(&got[i], 1)
						time.Sleep(100 * time.Microsecond)
					}
				})
			}
		}
		callers.Wait()
		total := int64(0)
		for _, n := range got {
			total += n
		}
		t.Logf("%d leasing Clients; without leases: %d; with: %v", clients, got[0], got[1:])
		fair := total / int64(len(got))
		for i, n := range got {
			assert.Greater(t, n, fair/3, "Client %d of %d permits", i, total)
			assert.Less(t, n, 3*fair, "Client %d of %d permits", i, total)
		}
		assert.Greater(t, total, int64(rate*intervals*9/10), "the permits are used")
	})
}

// Callers in line come before leases, those of the same handle and of others.
func TestLeaseDoesNotOvertakeTheLine(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]bool{"of the same handle": true, "of another handle": false}, func(t *testing.T, same bool) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 10*time.Second)
		limitertest.MustAcquire(t, s.Other, 500)
		s.Until(time.Second)
		taken := 500 + s.takeMore(t, 20+500)
		givenBack := 0
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Contains(lua.GiveBack.SHA) {
				givenBack++
			}
			return redistest.Pass
		})
		l := s.plain
		if same {
			l = s.RateLimiter
		}
		// More than will be free a minute after the other's 500.
		waits := s.Go(func() (bool, error) { return true, l.Acquire(t.Context(), 1000-taken+500+1) })
		s.CheckInUse(t, 1000, taken)
		for range 20 {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			taken++
			assert.Equal(t, taken, s.inUse(t), "nothing is taken ahead while somebody waits")
			time.Sleep(ms)
		}
		s.Until(time.Minute + 500*ms)
		assert.Equal(t, "waits", waits.Outcome())
		assert.Equal(t, 1, givenBack)
		s.Until(time.Minute + 2*time.Second)
		assert.NotEqual(t, "waits", waits.Outcome())
	})
}

// Nothing is taken ahead for a caller now and then, nor at a distance of a lease's life.
func TestNoLeaseWithoutDemand(t *testing.T) {
	t.Parallel()
	type row struct{ pause, delay time.Duration }
	bubbles(t, map[string]row{"now and then": {pause: 30 * ms}, "far away": {delay: 60 * ms}}, func(t *testing.T, row row) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Second), 0)
		s.Proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Pass.After(row.delay) })
		before := s.Sent.Scripts()
		for range 50 {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			time.Sleep(row.pause)
		}
		assert.LessOrEqual(t, s.Sent.Scripts()-before, 52, "a call each")
	})
}

// Leases of many limiters at once, whose batches go together, and of one beside refusals that
// are remembered.
func TestLeasesOfManyCallers(t *testing.T) {
	t.Parallel()
	type row struct {
		limiters, callers, tries int
		rate                     int64
		calls                    int
	}
	each(t, map[string]row{
		"many limiters":    {40, 3, 100, 100_000, 12_000},
		"one that refuses": {1, 8, 1000, 1000, 500},
	}, func(t *testing.T, row row) {
		redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
			client, name := limitertest.NewClient(t, rdb, patient), redistest.Name(t)
			opts := []rratelimiter.LimiterOption{limitertest.Ahead(0), rratelimiter.WithRefusalCache()}
			opts = append(opts, rratelimiter.WithDefault(limitertest.Every(row.rate, time.Hour)))
			sent := limitertest.CountCommands(rdb)
			granted := make([]int64, row.limiters)
			together(row.limiters*row.callers, func(i int) {
				i %= row.limiters
				l := client.RateLimiter(fmt.Sprint(name, ":", i), opts...)
				for range row.tries {
					ok, err := l.TryAcquire(t.Context(), 1, 0)
					assert.NoError(t, err)
					if ok {
						atomic.AddInt64(&granted[i], 1)
					}
				}
			})
			assert.Less(t, sent.Scripts(), row.calls)
			require.NoError(t, client.Close(t.Context()))
			again, want := limitertest.NewClient(t, rdb), min(row.rate, int64(row.callers*row.tries))
			for i := range granted {
				assert.Equal(t, want, granted[i])
				assert.Equal(t, row.rate-want, limitertest.Available(t, again.RateLimiter(fmt.Sprint(name, ":", i))))
			}
		})
	})
}
