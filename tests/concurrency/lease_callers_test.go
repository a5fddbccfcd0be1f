package concurrency_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
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

func TestLeaseOfLargerRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 0)
		taken := s.takeMore(t, 50)
		free := 1000 - taken
		limitertest.MustAcquire(t, s.RateLimiter, free-10)
		assert.LessOrEqual(t, s.inUse(t), taken+free-10+1, "hardly anything is taken ahead of the rest")
		limitertest.MustRefuse(t, s.RateLimiter, 11)
		limitertest.MustAcquire(t, s.RateLimiter, 10)
		assert.Zero(t, limitertest.Available(t, s.Other), "none is kept that was not used")
	})
}

func TestLeaseBesideTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 0)
		s.takeMore(t, 50)
		charged := s.inUse(t)
		d, err := s.Take(t.Context(), 1)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		assert.Equal(t, 1000-charged-1, d.Remaining, "permits of a lease are in use")
		assert.Equal(t, charged+1, s.inUse(t), "the lease stays")
	})
}

// Who stands in line comes before leases, one's own and those of other handles.
func TestLeaseDoesNotOvertakeTheLine(t *testing.T) {
	t.Parallel()
	for name, waiter := range map[string]func(s *leaseScene) *rratelimiter.RateLimiter{
		"of the same handle": func(s *leaseScene) *rratelimiter.RateLimiter { return s.RateLimiter },
		"of another handle":  func(s *leaseScene) *rratelimiter.RateLimiter { return s.plain },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
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
				// More than will be free a minute after the other's 500.
				waits := s.Go(func() (bool, error) { return true, waiter(s).Acquire(t.Context(), 1000-taken+500+1) })
				s.CheckInUse(t, 1000, taken)
				for range 20 {
					limitertest.MustAcquire(t, s.RateLimiter, 1)
					taken++
					assert.Equal(t, taken, s.inUse(t), "nothing is taken ahead while somebody waits")
					time.Sleep(time.Millisecond)
				}
				s.Until(time.Minute + 500*time.Millisecond)
				assert.Equal(t, "waits", waits.Outcome())
				assert.Equal(t, 1, givenBack)
				s.Until(time.Minute + 2*time.Second)
				assert.NotEqual(t, "waits", waits.Outcome())
			})
		})
	}
}

// Who is refused for want of what a lease holds gets it at once.
func TestLeaseGoesBackForTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 10*time.Second)
		taken := s.takeMore(t, 20)
		s.Until(time.Second)
		waits := s.Go(func() (bool, error) { return true, s.plain.Acquire(t.Context(), 1000-taken) })
		assert.Equal(t, "true at 1s", waits.Outcome())
		s.CheckInUse(t, 1000, 1000)
	})
}

// Nothing is taken ahead in a round that asks again for one who was refused.
func TestLeaseIsNotTakenBesideTheRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), time.Second)
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
		assert.Equal(t, "waits", first.Outcome())
		assert.Equal(t, "waits", second.Outcome())
		s.Until(2 * time.Minute)
		assert.NotEqual(t, "waits", first.Outcome())
		assert.NotEqual(t, "waits", second.Outcome())
	})
}

// A limiter that refuses is asked by the same short commands as without leases.
func TestRefusalsCostNoMoreBesideLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 0)
		s.takeMore(t, 10)
		limitertest.MustAcquire(t, s.RateLimiter, limitertest.Available(t, s.Other))
		for range 50 {
			_, err := s.TryAcquire(t.Context(), 1, 0)
			require.NoError(t, err)
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
	})
}

// Those that came while a lease was on its way are served from it, in order.
func TestLeaseServesThoseThatGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(10_000, time.Minute), 0)
		taken := s.takeMore(t, 100)
		for s.inUse(t) > taken {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			taken++
		}
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
		for _, c := range callers {
			assert.Equal(t, "true at 0s", c.Outcome())
		}
		assert.Equal(t, before, s.Sent.Total(), "one call was enough for all")
	})
}

func TestLeaseOfCallersThatWentAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(10_000, time.Minute), 0)
		taken := s.takeMore(t, 100)
		for s.inUse(t) > taken {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.Hold(t, lua.Acquire, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.StartTryAcquire(ctx, 1, 0)
		cancel()
		synctest.Wait()
		letGo()
		gone.RequireEnd(t, context.Canceled, 0)
		s.Proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Cut))
		assert.Equal(t, taken, s.inUse(t), "what was taken ahead has gone back with the caller's")
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		_, err := s.TryAcquire(ctx, 1, 0)
		require.ErrorIs(t, err, context.Canceled, "also where a lease has permits")
		require.ErrorIs(t, s.Acquire(ctx, 1), context.Canceled)
		_, err = s.TryAcquire(t.Context(), 0, 0)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidPermits)
		s.Until(3*time.Second + 100*time.Millisecond)
		s.CheckInUse(t, 10_000, taken+1)
	})
}

// A caller now and then has nothing taken ahead, nor has one whose server is as
// far away as a lease lives.
func TestNoLeaseWithoutDemand(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ pause, delay time.Duration }{
		"now and then": {pause: 30 * time.Millisecond},
		"far away":     {delay: 60 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseScene(t, limitertest.Every(1000, time.Second), 0)
				s.Proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Pass.After(tt.delay) })
				before := s.Sent.Scripts()
				for range 50 {
					limitertest.MustAcquire(t, s.RateLimiter, 1)
					time.Sleep(tt.pause)
				}
				assert.LessOrEqual(t, s.Sent.Scripts()-before, 52, "a call each")
			})
		})
	}
}

// A lease is as large as what is used of it: what is left over makes the next
// smaller.
func TestLeaseFollowsDemand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(100_000, time.Second), 0)
		s.takeMore(t, 1000)
		s.Until(time.Second)
		before, took := s.Sent.Scripts(), int64(0)
		for range 200 {
			time.Sleep(5 * time.Millisecond)
			for range 10 { // 100 in the life of a lease
				limitertest.MustAcquire(t, s.RateLimiter, 1)
				took++
			}
			assert.Less(t, s.inUse(t), took+1000)
		}
		calls := s.Sent.Scripts() - before
		assert.Less(t, calls, 120, "for 20 lives of leases and 2000 permits")
	})
}

func TestLeaseKeepsTheLimiterAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := limitertest.Every(1000, time.Second)
		cfg.KeepAlive = 2 * time.Second
		s := newLeaseScene(t, cfg, 0)
		for range 500 {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(1900 * time.Millisecond)
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		time.Sleep(2100 * time.Millisecond)
		exists, err := s.Exists(t.Context())
		require.NoError(t, err)
		assert.False(t, exists)
	})
}

// A Client that is closed gives back what it took ahead, and leaves nothing; the
// bubble sees to goroutines.
func TestCloseGivesLeasesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(10_000, time.Hour), 0)
		taken := s.takeMore(t, 100)
		held := make(chan struct{})
		s.Proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Late.When(held)))
		closed := s.Close(t.Context())
		s.Until(500 * time.Millisecond)
		assert.Equal(t, "waits", closed.Outcome())
		_, err := s.TryAcquire(t.Context(), 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrClosed)
		close(held)
		synctest.Wait()
		assert.Equal(t, "true at 500ms", closed.Outcome())
		s.CheckInUse(t, 10_000, taken)
	})
}

func TestCloseWithALeaseOnItsWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(10_000, time.Hour), 0)
		taken := s.takeMore(t, 100)
		for s.inUse(t) > taken {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.Hold(t, lua.Acquire, 1)
		asked := s.StartTryAcquire(t.Context(), 1, 0)
		closed := s.Close(t.Context())
		letGo()
		assert.Equal(t, "true at 0s", asked.Outcome())
		assert.Equal(t, "true at 0s", closed.Outcome())
		s.CheckInUse(t, 10_000, taken+1)
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
		for i := range 300 {
			l := client.RateLimiter(fmt.Sprintf("%s:%d", redistest.Name(t), i), limitertest.Ahead(0), rratelimiter.WithDefault(limitertest.Every(1000, time.Minute)))
			for range 20 {
				limitertest.MustAcquire(t, l, 1)
			}
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Zero(t, engine.Of(client).Groups())
		before := sent.Total()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, client.Close(ended), "there is nothing to wait for")
		assert.Equal(t, before, sent.Total())
	})
}

// Leases of many limiters at once, whose batches go together.
func TestLeasesOfManyLimitersAtOnce(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const limiters, callers, each = 40, 3, 100
		client := limitertest.NewClient(t, rdb)
		prefix := redistest.Name(t)
		name := func(i int) string { return fmt.Sprintf("%s:%d", prefix, i) }
		var all sync.WaitGroup
		for i := range limiters {
			l := client.RateLimiter(name(i), limitertest.Ahead(0), rratelimiter.WithDefault(limitertest.Every(100_000, time.Hour)))
			for range callers {
				all.Go(func() {
					for range each {
						ok, err := l.TryAcquire(t.Context(), 1, 0)
						assert.NoError(t, err)
						assert.True(t, ok)
					}
				})
			}
		}
		all.Wait()
		require.NoError(t, client.Close(t.Context()))
		again := limitertest.NewClient(t, rdb)
		for i := range limiters {
			assert.EqualValues(t, 100_000-callers*each, limitertest.Available(t, again.RateLimiter(name(i))))
		}
	})
}
