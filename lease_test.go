package rratelimiter_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/rratelimiter/rratelimiter/internal/engine"
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
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// ahead is the option of leases that are as large as may be.
func ahead(life time.Duration) rratelimiter.LimiterOption {
	return rratelimiter.WithLease(rratelimiter.Lease{Permits: 1 << 20, Life: life})
}

// A leaseScene is a heldScene whose limiter takes permits ahead.
type leaseScene struct {
	*heldScene

	plain *rratelimiter.RateLimiter // a handle of the same Client, without leases
}

// newLeaseScene must be called in a bubble.
func newLeaseScene(t *testing.T, cfg rratelimiter.Config, life time.Duration) *leaseScene {
	t.Helper()
	s := &leaseScene{heldScene: newHeldScene(t, cfg)}
	s.plain = s.RateLimiter
	s.RateLimiter = s.client.RateLimiter(s.Name(), ahead(life))
	return s
}

// take takes single permits until a lease has been found, and returns how many.
func (s *leaseScene) take(t *testing.T) (taken int64) {
	t.Helper()
	for range 50 {
		before := s.sent.total()
		mustAcquire(t, s.RateLimiter, 1)
		taken++
		if s.sent.total() == before {
			return taken
		}
	}
	t.Fatal("nothing is taken ahead")
	return 0
}

// takeMore is take until the lease holds more than so many.
func (s *leaseScene) takeMore(t *testing.T, permits int64) (taken int64) {
	t.Helper()
	for {
		taken += s.take(t)
		if s.inUse(t)-taken > permits {
			return taken
		}
		require.Less(t, taken, int64(100_000))
	}
}

// inUse returns what Redis holds as in use.
func (s *leaseScene) inUse(t *testing.T) int64 {
	t.Helper()
	synctest.Wait()
	return used(t, s.mini, keysOf(s.RateLimiter).Permits)
}

func TestBadLeases(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		opts   []rratelimiter.LimiterOption
		client []rratelimiter.Option
		want   error
	}{
		"no permits":       {opts: []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}, want: rratelimiter.ErrInvalidConfig},
		"negative permits": {opts: []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{Permits: -1})}, want: rratelimiter.ErrInvalidConfig},
		"too many permits": {opts: []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{Permits: rratelimiter.MaxPermits + 1})}, want: rratelimiter.ErrInvalidConfig},
		"negative life":    {opts: []rratelimiter.LimiterOption{ahead(-1)}, want: rratelimiter.ErrInvalidConfig},
		"as long as the interval": {
			opts: []rratelimiter.LimiterOption{ahead(time.Second), rratelimiter.WithDefault(every(1, time.Second))},
			want: rratelimiter.ErrInvalidConfig,
		},
		"beside an old Redisson": {
			opts:   []rratelimiter.LimiterOption{ahead(0)},
			client: []rratelimiter.Option{rratelimiter.WithRedissonVersion("3.34.1")},
			want:   rratelimiter.ErrUnsupported,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := newClient(t, rdb, tt.client...).RateLimiter(redistest.Name(t), tt.opts...)
				sent := countCommands(rdb)
				for name, call := range methods {
					require.ErrorIs(t, call(t.Context(), l), tt.want, name)
				}
				assert.Zero(t, sent.total())
			})
		})
	}
}

func TestLeaseSparesRoundTrips(t *testing.T) {
	t.Parallel()
	bothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		t.Helper()
		redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
			sent := countCommands(rdb)
			id := rratelimiter.WithClientID("one")
			client := newClient(t, rdb, id)
			l := client.RateLimiter(redistest.Name(t), ahead(0),
				rratelimiter.WithDefault(rratelimiter.Config{Type: kind, Rate: 100_000, Interval: time.Hour}))
			for i := range 5000 {
				ctx := t.Context()
				if i%2 == 0 {
					ctx = context.WithoutCancel(ctx)
				}
				if i%3 == 0 {
					require.NoError(t, l.Acquire(ctx, 1))
					continue
				}
				ok, err := l.TryAcquire(ctx, 1, time.Duration(i%2)*time.Minute)
				require.NoError(t, err)
				require.True(t, ok)
			}
			assert.Less(t, sent.total(), 30)
			require.NoError(t, client.Close(t.Context()))
			again := newClient(t, rdb, id).RateLimiter(l.Name())
			assert.EqualValues(t, 95_000, available(t, again), "the rest went back")
		})
	})
}

func TestLeaseEndsAndGivesBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ given, life time.Duration }{
		{0, 50 * ms},
		{200 * ms, 200 * ms},
		{900 * ms, 500 * ms}, // half the interval at most
	} {
		t.Run(tt.given.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseScene(t, every(1000, time.Second), tt.given)
				taken := s.takeMore(t, 10)
				s.until(tt.life - 1)
				assert.Greater(t, s.inUse(t), taken, "the lease lives")
				s.until(tt.life)
				s.checkInUse(t, 1000, taken)
				before := s.sent.total()
				mustAcquire(t, s.RateLimiter, 1)
				assert.Greater(t, s.sent.total(), before, "it asks Redis")
				s.until(time.Second)
				assert.EqualValues(t, 999, available(t, s.other), "what was used is in use for an interval")
			})
		})
	}
}

// Callers that come at the moment at which a lease ends are not served from it,
// whether its timer has run or not.
func TestLeaseIsOverAtItsEnd(t *testing.T) {
	t.Parallel()
	redistest.SkipSlow(t)
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			s := newLeaseScene(t, every(2000, time.Second), 0)
			taken := s.takeMore(t, 60)
			var callers sync.WaitGroup
			for range 50 {
				callers.Go(func() {
					time.Sleep(50*ms - s.now())
					ok, err := s.TryAcquire(t.Context(), 1, 0)
					assert.NoError(t, err)
					assert.True(t, ok)
				})
			}
			callers.Wait()
			synctest.Wait()
			members, err := s.mini.ZRangeWithScores(t.Context(), keysOf(s.RateLimiter).Permits, 0, -1).Result()
			require.NoError(t, err)
			before := int64(0)
			for _, m := range members {
				if m.Score < float64(time.Now().UnixMilli()) {
					before += permitsIn(m.Member.(string))
				}
			}
			assert.Equal(t, taken, before, "charged before and used")
			s.until(200 * ms)
			s.checkInUse(t, 2000, taken+50)
		})
	}
}

// What others change is noticed when the lease ends.
func TestLeaseBesideChangesOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Minute), 0)
		s.takeMore(t, 20)
		s.until(time.Second)
		require.NoError(t, s.other.SetRate(t.Context(), every(1, time.Minute)))
		before := s.sent.total()
		for range 10 {
			mustAcquire(t, s.RateLimiter, 1)
		}
		assert.Equal(t, before, s.sent.total())
		s.until(3 * time.Second)
		assert.EqualValues(t, 1, available(t, s.other), "nothing came back of what is no more")
		mustAcquire(t, s.RateLimiter, 1)
		mustRefuse(t, s.RateLimiter, 1)
	})
}

// Whoever uses a lease at its last moment uses it before its end.
func TestLeaseLivesFromWhenItWasAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Second), 100*ms)
		taken := s.takeMore(t, 4)
		for s.inUse(t) > taken {
			mustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.hold(t, lua.Acquire, 1)
		asked := s.tryAcquire(t.Context(), 1, 0)
		s.until(90 * ms)
		letGo()
		assert.Equal(t, "true at 90ms", asked.outcome())
		taken++
		before := s.sent.total()
		mustAcquire(t, s.RateLimiter, 1)
		taken++
		assert.Equal(t, before, s.sent.total(), "there is a lease")
		s.until(100 * ms)
		s.checkInUse(t, 1000, taken)
	})
}

func TestLeaseThatComesTooLate(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]redistest.Action{
		"late answer": redistest.Pass.After(150 * ms),
		"lost answer": redistest.DropAnswer.After(150 * ms),
		"never run":   redistest.Cut.After(150 * ms),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseScene(t, every(1000, time.Second), 100*ms)
				taken := s.takeMore(t, 4)
				for s.inUse(t) > taken {
					mustAcquire(t, s.RateLimiter, 1)
					taken++
				}
				s.proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, fault))
				mustAcquire(t, s.RateLimiter, 1)
				taken++
				s.checkInUse(t, 1000, taken)
			})
		})
	}
}

// Answers are lost of the call that takes a lease, and of the one that gives its
// rest back.
func TestLeaseWithLostAnswers(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]*lua.Script{"acquire": lua.Acquire, "give back": lua.GiveBack} {
		for kind, fault := range map[string]redistest.Action{"lost": redistest.DropAnswer, "cut": redistest.Cut, "twice": redistest.Duplicate} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newLeaseScene(t, every(10_000, time.Minute), 0)
					s.proxy.OnCommand(redistest.Nth(3, script.SHA, fault))
					taken := s.takeMore(t, 100)
					for range 3 {
						s.until(s.now() + 3*time.Second)
						s.checkInUse(t, 10_000, taken)
						taken += s.takeMore(t, 10)
					}
					s.until(s.now() + 3*time.Second)
					s.checkInUse(t, 10_000, taken)
				})
			})
		}
	}
}

func TestLeaseIsEndedByChangesOfItsClient(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(ctx context.Context, s *leaseScene) error
		inUse  func(taken int64) int64 // after it; below 0: there is no value
	}{
		"Release": {func(ctx context.Context, s *leaseScene) error { return s.plain.Release(ctx, 2) },
			func(taken int64) int64 { return taken - 2 }},
		"SetRate": {func(ctx context.Context, s *leaseScene) error {
			return s.plain.SetRate(ctx, every(1000, time.Minute))
		}, nil},
		"SetRate, KeepState": {func(ctx context.Context, s *leaseScene) error {
			return s.plain.SetRate(ctx, every(1000, time.Minute), rratelimiter.KeepState())
		}, func(taken int64) int64 { return taken }},
		"UpdateRate": {func(ctx context.Context, s *leaseScene) error {
			_, err := s.plain.UpdateRate(ctx, every(1000, time.Minute), rratelimiter.KeepState())
			return err
		}, func(taken int64) int64 { return taken }},
		"Delete": {func(ctx context.Context, s *leaseScene) error {
			_, err := s.plain.Delete(ctx)
			return err
		}, nil},
		"Expire": {func(ctx context.Context, s *leaseScene) error {
			_, err := s.plain.Expire(ctx, time.Hour)
			return err
		}, func(taken int64) int64 { return taken }},
		"Rename": {func(ctx context.Context, s *leaseScene) error {
			return s.plain.Rename(ctx, besides(s.Name()))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseScene(t, every(1000, time.Minute), 0)
				taken := s.takeMore(t, 20)
				require.NoError(t, tt.change(t.Context(), s))
				if tt.inUse != nil {
					s.checkInUse(t, 1000, tt.inUse(taken))
				} else {
					assert.Zero(t, s.inUse(t))
				}
				before := s.sent.total()
				_, err := s.TryAcquire(t.Context(), 1, 0)
				if name == "Delete" || name == "Rename" {
					require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
				}
				assert.Greater(t, s.sent.total(), before, "the lease has ended")
				if name == "Rename" {
					renamed := s.client.RateLimiter(besides(s.Name()))
					assert.Equal(t, 1000-taken, available(t, renamed), "the rest went back before")
				}
			})
		})
	}
}

// A lease that is on its way while the limiter is changed is none.
func TestLeaseThatIsOnItsWayWhileTheRateIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Minute), 0)
		taken := s.takeMore(t, 8)
		for s.inUse(t) > taken {
			mustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.hold(t, lua.Acquire, 1)
		asked := s.tryAcquire(t.Context(), 1, 0)
		require.NoError(t, s.SetRate(t.Context(), every(5, time.Minute), rratelimiter.KeepState()))
		letGo()
		assert.Equal(t, "true at 0s", asked.outcome())
		mustRefuse(t, s.RateLimiter, 1)
		synctest.Wait()
		assert.Equal(t, taken+1, s.inUse(t), "its permits went back")
	})
}

// One that was taken while the limiter was being changed ends as well.
func TestLeaseThatIsTakenWhileTheRateIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Minute), 0)
		letGo := s.hold(t, lua.SetRate, 1)
		set := s.call(func() (bool, error) { return true, s.SetRate(t.Context(), every(5000, time.Minute)) })
		taken := s.takeMore(t, 20)
		letGo()
		assert.Equal(t, "true at 0s", set.outcome())
		s.checkInUse(t, 5000, taken)
		before := s.sent.total()
		mustAcquire(t, s.RateLimiter, 1)
		assert.Greater(t, s.sent.total(), before)
	})
}

func TestLeaseOfLargerRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Minute), 0)
		taken := s.takeMore(t, 50)
		free := 1000 - taken
		mustAcquire(t, s.RateLimiter, free-10)
		assert.LessOrEqual(t, s.inUse(t), taken+free-10+1, "hardly anything is taken ahead of the rest")
		mustRefuse(t, s.RateLimiter, 11)
		mustAcquire(t, s.RateLimiter, 10)
		assert.Zero(t, available(t, s.other), "none is kept that was not used")
	})
}

func TestLeaseBesideTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Minute), 0)
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
				s := newLeaseScene(t, every(1000, time.Minute), 10*time.Second)
				mustAcquire(t, s.other, 500)
				s.until(time.Second)
				taken := 500 + s.takeMore(t, 20+500)
				givenBack := 0
				s.proxy.OnCommand(func(c redistest.Command) redistest.Action {
					if c.Contains(lua.GiveBack.SHA) {
						givenBack++
					}
					return redistest.Pass
				})
				// More than will be free a minute after the other's 500.
				waits := s.call(func() (bool, error) { return true, waiter(s).Acquire(t.Context(), 1000-taken+500+1) })
				s.checkInUse(t, 1000, taken)
				for range 20 {
					mustAcquire(t, s.RateLimiter, 1)
					taken++
					assert.Equal(t, taken, s.inUse(t), "nothing is taken ahead while somebody waits")
					time.Sleep(ms)
				}
				s.until(time.Minute + 500*ms)
				assert.Equal(t, "waits", waits.outcome())
				assert.Equal(t, 1, givenBack)
				s.until(time.Minute + 2*time.Second)
				assert.NotEqual(t, "waits", waits.outcome())
			})
		})
	}
}

// Who is refused for want of what a lease holds gets it at once.
func TestLeaseGoesBackForTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Minute), 10*time.Second)
		taken := s.takeMore(t, 20)
		s.until(time.Second)
		waits := s.call(func() (bool, error) { return true, s.plain.Acquire(t.Context(), 1000-taken) })
		assert.Equal(t, "true at 1s", waits.outcome())
		s.checkInUse(t, 1000, 1000)
	})
}

// Nothing is taken ahead in a round that asks again for one who was refused.
func TestLeaseIsNotTakenBesideTheRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Minute), time.Second)
		s.takeMore(t, 20)
		s.until(2 * time.Second)
		mustAcquire(t, s.other, available(t, s.other)-50)
		first := s.call(func() (bool, error) { return true, s.plain.Acquire(t.Context(), 100) })
		second := s.acquire(t.Context(), 1)
		s.proxy.OnCommand(func(c redistest.Command) redistest.Action {
			assert.False(t, c.Contains(lua.GiveBack.SHA), "there is nothing to give back")
			return redistest.Pass
		})
		for range 5 {
			require.NoError(t, s.plain.Release(t.Context(), 1))
			synctest.Wait()
		}
		assert.Equal(t, "waits", first.outcome())
		assert.Equal(t, "waits", second.outcome())
		s.until(2 * time.Minute)
		assert.NotEqual(t, "waits", first.outcome())
		assert.NotEqual(t, "waits", second.outcome())
	})
}

// A limiter that refuses is asked by the same short commands as without leases.
func TestRefusalsCostNoMoreBesideLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(1000, time.Minute), 0)
		s.takeMore(t, 10)
		mustAcquire(t, s.RateLimiter, available(t, s.other))
		for range 50 {
			_, err := s.TryAcquire(t.Context(), 1, 0)
			require.NoError(t, err)
		}
		var asked []string
		s.proxy.OnCommand(func(c redistest.Command) redistest.Action {
			asked = c.Args
			return redistest.Pass
		})
		for range 10 {
			mustRefuse(t, s.RateLimiter, 1)
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
		s := newLeaseScene(t, every(10_000, time.Minute), 0)
		taken := s.takeMore(t, 100)
		for s.inUse(t) > taken {
			mustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.hold(t, lua.Acquire, 1)
		var callers []*caller
		for i := range 90 {
			if i%2 == 0 {
				callers = append(callers, s.acquire(t.Context(), 1))
			} else {
				callers = append(callers, s.tryAcquire(t.Context(), 1, 0))
			}
		}
		before := s.sent.total()
		letGo()
		for _, c := range callers {
			assert.Equal(t, "true at 0s", c.outcome())
		}
		assert.Equal(t, before, s.sent.total(), "one call was enough for all")
	})
}

func TestLeaseOfCallersThatWentAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(10_000, time.Minute), 0)
		taken := s.takeMore(t, 100)
		for s.inUse(t) > taken {
			mustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.hold(t, lua.Acquire, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.tryAcquire(ctx, 1, 0)
		cancel()
		synctest.Wait()
		letGo()
		gone.requireEnd(t, context.Canceled, 0)
		s.proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Cut))
		assert.Equal(t, taken, s.inUse(t), "what was taken ahead has gone back with the caller's")
		mustAcquire(t, s.RateLimiter, 1)
		_, err := s.TryAcquire(ctx, 1, 0)
		require.ErrorIs(t, err, context.Canceled, "also where a lease has permits")
		require.ErrorIs(t, s.Acquire(ctx, 1), context.Canceled)
		_, err = s.TryAcquire(t.Context(), 0, 0)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidPermits)
		s.until(3*time.Second + 100*ms)
		s.checkInUse(t, 10_000, taken+1)
	})
}

// A caller now and then has nothing taken ahead, nor has one whose server is as
// far away as a lease lives.
func TestNoLeaseWithoutDemand(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ pause, delay time.Duration }{
		"now and then": {pause: 30 * ms},
		"far away":     {delay: 60 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseScene(t, every(1000, time.Second), 0)
				s.proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Pass.After(tt.delay) })
				before := s.sent.scripts()
				for range 50 {
					mustAcquire(t, s.RateLimiter, 1)
					time.Sleep(tt.pause)
				}
				assert.LessOrEqual(t, s.sent.scripts()-before, 52, "a call each")
			})
		})
	}
}

// A lease is as large as what is used of it: what is left over makes the next
// smaller.
func TestLeaseFollowsDemand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(100_000, time.Second), 0)
		s.takeMore(t, 1000)
		s.until(time.Second)
		before, took := s.sent.scripts(), int64(0)
		for range 200 {
			time.Sleep(5 * ms)
			for range 10 { // 100 in the life of a lease
				mustAcquire(t, s.RateLimiter, 1)
				took++
			}
			assert.Less(t, s.inUse(t), took+1000)
		}
		calls := s.sent.scripts() - before
		assert.Less(t, calls, 120, "for 20 lives of leases and 2000 permits")
	})
}

func TestLeaseKeepsTheLimiterAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := every(1000, time.Second)
		cfg.KeepAlive = 2 * time.Second
		s := newLeaseScene(t, cfg, 0)
		for range 500 {
			mustAcquire(t, s.RateLimiter, 1)
			time.Sleep(10 * ms)
		}
		time.Sleep(1900 * ms)
		mustAcquire(t, s.RateLimiter, 1)
		time.Sleep(2100 * ms)
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
		s := newLeaseScene(t, every(10_000, time.Hour), 0)
		taken := s.takeMore(t, 100)
		held := make(chan struct{})
		s.proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Late.When(held)))
		closed := s.close(t.Context())
		s.until(500 * ms)
		assert.Equal(t, "waits", closed.outcome())
		_, err := s.TryAcquire(t.Context(), 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrClosed)
		close(held)
		synctest.Wait()
		assert.Equal(t, "true at 500ms", closed.outcome())
		s.checkInUse(t, 10_000, taken)
	})
}

func TestCloseWithALeaseOnItsWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, every(10_000, time.Hour), 0)
		taken := s.takeMore(t, 100)
		for s.inUse(t) > taken {
			mustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.hold(t, lua.Acquire, 1)
		asked := s.tryAcquire(t.Context(), 1, 0)
		closed := s.close(t.Context())
		letGo()
		assert.Equal(t, "true at 0s", asked.outcome())
		assert.Equal(t, "true at 0s", closed.outcome())
		s.checkInUse(t, 10_000, taken+1)
	})
}

// Names that have had a lease leave nothing once it is over.
func TestLeasesOfManyNames(t *testing.T) {
	t.Parallel()
	redistest.SkipSlow(t)
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := newClient(t, rdb)
		sent := countCommands(rdb)
		for i := range 300 {
			l := client.RateLimiter(fmt.Sprintf("%s:%d", redistest.Name(t), i), ahead(0), rratelimiter.WithDefault(every(1000, time.Minute)))
			for range 20 {
				mustAcquire(t, l, 1)
			}
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Zero(t, engine.Of(client).Groups())
		before := sent.total()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, client.Close(ended), "there is nothing to wait for")
		assert.Equal(t, before, sent.total())
	})
}

// Leases of many limiters at once, whose batches go together.
func TestLeasesOfManyLimitersAtOnce(t *testing.T) {
	t.Parallel()
	redistest.SkipSlow(t)
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const limiters, callers, each = 40, 3, 100
		client := newClient(t, rdb)
		prefix := redistest.Name(t)
		name := func(i int) string { return fmt.Sprintf("%s:%d", prefix, i) }
		var all sync.WaitGroup
		for i := range limiters {
			l := client.RateLimiter(name(i), ahead(0), rratelimiter.WithDefault(every(100_000, time.Hour)))
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
		again := newClient(t, rdb)
		for i := range limiters {
			assert.EqualValues(t, 100_000-callers*each, available(t, again.RateLimiter(name(i))))
		}
	})
}

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
	redistest.SkipSlow(t)
	const rate, interval, life = 1000, time.Second, 100 * ms
	for seed := range uint64(1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				name := redistest.Name(t)
				used := &usage{start: time.Now()}
				ctx, cancel := context.WithTimeout(t.Context(), 1500*ms)
				defer cancel()
				var clients []*rratelimiter.Client
				var callers sync.WaitGroup
				for i := range 4 {
					var opts []rratelimiter.LimiterOption
					if i > 0 {
						opts = append(opts, ahead(life))
					}
					proxy := redistest.MiniProxy(t, m)
					faults := rand.New(rand.NewPCG(seed, uint64(i)))
					proxy.OnCommand(func(redistest.Command) redistest.Action {
						switch p := faults.IntN(100); {
						case p < 1:
							return redistest.DropAnswer
						case p < 5:
							return redistest.Pass.After(time.Duration(faults.IntN(60)) * ms)
						}
						return redistest.Pass
					})
					client := newClient(t, proxy.Client(t, &redis.Options{ReadTimeout: time.Minute}))
					clients = append(clients, client)
					l := client.RateLimiter(name, append(opts, rratelimiter.WithDefault(every(rate, interval)))...)
					for j := range 3 {
						random := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
						callers.Go(func() {
							for ctx.Err() == nil {
								for range random.IntN(150) {
									permits := int64(1)
									if random.IntN(50) == 0 {
										permits = 1 + random.Int64N(50)
									}
									timeout := time.Duration(random.IntN(2)) * 10 * ms
									ok, err := l.TryAcquire(context.WithoutCancel(ctx), permits, timeout)
									if err == nil && ok {
										used.add(permits)
									}
									time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
								}
								time.Sleep(time.Duration(random.IntN(500)) * ms)
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
				l := newClient(t, rdb).RateLimiter(name)
				time.Sleep(2 * interval)
				assert.EqualValues(t, rate, available(t, l))
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
	redistest.SkipSlow(t)
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const rate, interval, life = 1000, 300 * ms, 30 * ms
		name := redistest.Name(t)
		all := make([][]use, 9)
		var callers sync.WaitGroup
		start := time.Now()
		for i := range 3 {
			l := newClient(t, rdb).RateLimiter(name, ahead(life), rratelimiter.WithDefault(every(rate, interval)))
			for j := range 3 {
				callers.Go(func() {
					for now := time.Since(start); now < 1200*ms; {
						ok, err := l.TryAcquire(t.Context(), 1, 20*ms)
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
		const span = interval - life - ms
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

func granted(permits int64, ok bool) int64 {
	if !ok {
		return 0
	}
	return permits
}

// Three Clients with leases and remembered refusals, whose callers do all that
// callers do; the server tells what came of it.
func TestLeasesUnderTheHammer(t *testing.T) {
	t.Parallel()
	bothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		t.Helper()
		server := redistest.StartRedis(t)
		cfg := rratelimiter.Config{Type: kind, Rate: 500, Interval: 250 * ms}
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
			l := client.RateLimiter(name, rratelimiter.WithDefault(cfg), ahead(0), noticed())
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
	redistest.SkipSlow(t)
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
						opts = append(opts, ahead(0))
					}
					proxy := redistest.MiniProxy(t, m)
					delay := rand.New(rand.NewPCG(uint64(i), uint64(clients)))
					proxy.OnCommand(func(redistest.Command) redistest.Action {
						return redistest.Pass.After(time.Duration(100+delay.IntN(400)) * time.Microsecond)
					})
					client := newClient(t, proxy.Client(t, nil))
					l := client.RateLimiter(name, append(opts, rratelimiter.WithDefault(every(rate, time.Second)))...)
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
//	go test -run '^$' -bench Lease -cpu 2 .
func BenchmarkLease(b *testing.B) {
	rdb := redistest.Redis(b)
	limiter := newHandle(b, rdb, rratelimiter.WithDefault(every(1<<40, time.Second)), ahead(0))
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
		s := newLeaseScene(t, every(10_000, time.Minute), 0)
		taken := s.takeMore(t, 100)
		letGo := s.hold(t, lua.GiveBack, 1)
		released := s.call(func() (bool, error) { return true, s.plain.Release(t.Context(), 50) })
		require.Equal(t, "waits", released.outcome())
		for range 50 {
			before := s.sent.total()
			mustAcquire(t, s.RateLimiter, 1)
			taken++
			if s.sent.total() == before {
				break
			}
		}
		letGo()
		synctest.Wait()
		t.Log(released.outcome(), "taken", taken, "in use", s.inUse(t))
		s.until(s.now() + 4*time.Second)
		s.checkInUse(t, 10_000, taken-50)
	})
}
