package concurrency_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
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
					for now := time.Duration(0); now < 1200*ms; now = time.Since(used.start) {
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

var keptAlive = rratelimiter.Config{Rate: 1000, Interval: time.Second, KeepAlive: 2 * time.Second}

var leaseCallerTests = map[string]leaseTest{
	"lease of larger requests": {limitertest.Every(1000, time.Minute), 0, func(t *testing.T, s *leaseScene) {
		taken := s.takeMore(t, 50)
		free := 1000 - taken
		limitertest.MustAcquire(t, s.RateLimiter, free-10)
		assert.LessOrEqual(t, s.inUse(t), taken+free-10+1, "hardly anything is taken ahead of the rest")
		limitertest.MustRefuse(t, s.RateLimiter, 11)
		limitertest.MustAcquire(t, s.RateLimiter, 10)
		assert.Zero(t, limitertest.Available(t, s.Other), "none is kept that was not used")
	}},
	"lease beside Take": {limitertest.Every(1000, time.Minute), 0, func(t *testing.T, s *leaseScene) {
		s.takeMore(t, 50)
		charged := s.inUse(t)
		d := mustTake(t, s.RateLimiter, 1)
		assert.True(t, d.Granted)
		assert.Equal(t, 1000-charged-1, d.Remaining, "permits of a lease are in use")
		assert.Equal(t, charged+1, s.inUse(t), "the lease stays")
	}},
	// Who is refused for want of what a lease holds gets it at once.
	"lease goes back for the line": {limitertest.Every(1000, time.Minute), 10 * time.Second, func(t *testing.T, s *leaseScene) {
		taken := s.takeMore(t, 20)
		s.Until(time.Second)
		waits := s.Go(func() (bool, error) { return true, s.plain.Acquire(t.Context(), 1000-taken) })
		assert.Equal(t, "true at 1s", waits.Outcome())
		s.CheckInUse(t, 1000, 1000)
	}},
	// Nothing is taken ahead in a round that asks again for one who was refused.
	"lease is not taken beside the refused": {limitertest.Every(1000, time.Minute), time.Second, func(t *testing.T, s *leaseScene) {
		s.takeMore(t, 20)
		s.Until(2 * time.Second)
		limitertest.MustAcquire(t, s.Other, limitertest.Available(t, s.Other)-50)
		first := s.Go(func() (bool, error) { return true, s.plain.Acquire(t.Context(), 100) })
		second := s.StartAcquire(t.Context(), 1)
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			assert.False(t, c.Contains(lua.GiveBack.SHA), "there is nothing to give back")
			return redistest.Pass
		})
		for range 5 {
			require.NoError(t, s.plain.Release(t.Context(), 1))
			synctest.Wait()
		}
		ended(t, "waits", first, second)
		s.Until(2 * time.Minute)
		assert.NotEqual(t, "waits", first.Outcome())
		assert.NotEqual(t, "waits", second.Outcome())
	}},
	// A limiter that refuses is asked by the same short commands as without leases.
	"refusals cost no more beside leases": {limitertest.Every(1000, time.Minute), 0, func(t *testing.T, s *leaseScene) {
		s.takeMore(t, 10)
		limitertest.MustAcquire(t, s.RateLimiter, limitertest.Available(t, s.Other))
		for range 50 {
			require.NoError(t, limitertest.Second(s.TryAcquire(t.Context(), 1, 0)))
		}
		var asked []string
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			asked = c.Args
			return redistest.Pass
		})
		for range 10 {
			limitertest.MustRefuse(t, s.RateLimiter, 1)
			keys, err := strconv.Atoi(asked[2])
			require.NoError(t, err)
			assert.Len(t, asked[3+keys:], 1, "a member: one permit goes without saying")
		}
	}},
	// Those that came while a lease was on its way are served from it, in order.
	"lease serves those that gathered": {limitertest.Every(10_000, time.Minute), 0, func(t *testing.T, s *leaseScene) {
		s.drain(t, 100)
		letGo := s.Hold(t, lua.Acquire, 1)
		var callers []*limitertest.Caller
		for i := range 90 {
			if i%2 == 0 {
				callers = append(callers, s.StartAcquire(t.Context(), 1))
			} else {
				callers = append(callers, s.StartTryAcquire(t.Context(), 1, 0))
			}
		}
		before := s.Sent.Total()
		letGo()
		ended(t, "true at 0s", callers...)
		assert.Equal(t, before, s.Sent.Total(), "one call was enough for all")
	}},
	"lease of callers that went away": {limitertest.Every(10_000, time.Minute), 0, func(t *testing.T, s *leaseScene) {
		taken := s.drain(t, 100)
		letGo := s.Hold(t, lua.Acquire, 1)
		leave := leaver(t, s.Scene, func(ctx context.Context) (bool, error) { return s.TryAcquire(ctx, 1, 0) })
		leave()
		letGo()
		s.Proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Cut))
		assert.Equal(t, taken, s.inUse(t), "what was taken ahead has gone back with the caller's")
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		require.ErrorIs(t, limitertest.Second(s.TryAcquire(endedContext(t), 1, 0)), context.Canceled, "also where a lease has permits")
		require.ErrorIs(t, s.Acquire(endedContext(t), 1), context.Canceled)
		require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 0, 0)), rratelimiter.ErrInvalidPermits)
		s.Until(3*time.Second + 100*ms)
		s.CheckInUse(t, 10_000, taken+1)
	}},
	// What is left over of a lease makes the next smaller.
	"lease follows demand": {limitertest.Every(100_000, time.Second), 0, func(t *testing.T, s *leaseScene) {
		s.takeMore(t, 1000)
		s.Until(time.Second)
		before, took := s.Sent.Scripts(), int64(0)
		for range 200 {
			time.Sleep(5 * ms)
			for range 10 { // 100 in the life of a lease
				limitertest.MustAcquire(t, s.RateLimiter, 1)
				took++
			}
			assert.Less(t, s.inUse(t), took+1000)
		}
		calls := s.Sent.Scripts() - before
		assert.Less(t, calls, 120, "for 20 lives of leases and 2000 permits")
	}},
	// Close gives back what was taken ahead. That no goroutine is left, the bubble sees to.
	"Close gives leases back": {limitertest.Every(10_000, time.Hour), 0, func(t *testing.T, s *leaseScene) {
		taken := s.takeMore(t, 100)
		held := make(chan struct{})
		s.Proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Late.When(held)))
		closed := s.Close(t.Context())
		s.Until(500 * ms)
		assert.Equal(t, "waits", closed.Outcome())
		require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrClosed)
		close(held)
		synctest.Wait()
		assert.Equal(t, "true at 500ms", closed.Outcome())
		s.CheckInUse(t, 10_000, taken)
	}},
	"Close with a lease on its way": {limitertest.Every(10_000, time.Hour), 0, func(t *testing.T, s *leaseScene) {
		taken := s.drain(t, 100)
		letGo := s.Hold(t, lua.Acquire, 1)
		asked := s.StartTryAcquire(t.Context(), 1, 0)
		closed := s.Close(t.Context())
		letGo()
		ended(t, "true at 0s", asked, closed)
		s.CheckInUse(t, 10_000, taken+1)
	}},
	"a lease keeps the limiter alive": {keptAlive, 0, func(t *testing.T, s *leaseScene) {
		for range 500 {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			time.Sleep(10 * ms)
		}
		time.Sleep(1900 * ms)
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		time.Sleep(2100 * ms)
		exists, err := s.Exists(t.Context())
		require.NoError(t, err)
		assert.False(t, exists)
	}},
}

func TestLeasesOfCallers(t *testing.T) {
	t.Parallel()
	onLeaseScenes(t, leaseCallerTests)
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

// Names that have had a lease leave nothing once it is over.
func TestLeasesOfManyNames(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb)
		sent := limitertest.CountCommands(rdb)
		for i := range 50 {
			name := fmt.Sprintf("%s:%d", redistest.Name(t), i)
			l := client.RateLimiter(name, limitertest.Ahead(0), rratelimiter.WithDefault(limitertest.Every(1000, time.Minute)))
			for range 20 {
				limitertest.MustAcquire(t, l, 1)
			}
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Zero(t, engine.Of(client).Groups())
		before := sent.Total()
		require.NoError(t, client.Close(endedContext(t)), "there is nothing to wait for")
		assert.Equal(t, before, sent.Total())
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
