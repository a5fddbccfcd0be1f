package concurrency_test

import (
	"context"
	"sync"
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

// A leaseScene is a limitertest.HeldScene whose limiter takes permits ahead.
type leaseScene struct {
	*limitertest.HeldScene

	plain *rratelimiter.RateLimiter // a handle of the same Client, without leases
}

// newLeaseScene must be called in a bubble.
func newLeaseScene(t *testing.T, cfg rratelimiter.Config, life time.Duration) *leaseScene {
	t.Helper()
	s := &leaseScene{HeldScene: limitertest.NewHeldScene(t, cfg)}
	s.plain = s.RateLimiter
	s.RateLimiter = s.Client.RateLimiter(s.Name(), limitertest.Ahead(life))
	return s
}

// take takes single permits until a lease has been found, and returns how many.
func (s *leaseScene) take(t *testing.T) (taken int64) {
	t.Helper()
	for range 50 {
		before := s.Sent.Total()
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		taken++
		if s.Sent.Total() == before {
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
	return limitertest.InUse(t, s.Mini, limitertest.KeysOf(s.RateLimiter).Permits)
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
		"negative life":    {opts: []rratelimiter.LimiterOption{limitertest.Ahead(-1)}, want: rratelimiter.ErrInvalidConfig},
		"as long as the interval": {
			opts: []rratelimiter.LimiterOption{limitertest.Ahead(time.Second), rratelimiter.WithDefault(limitertest.Every(1, time.Second))},
			want: rratelimiter.ErrInvalidConfig,
		},
		"beside an old Redisson": {
			opts:   []rratelimiter.LimiterOption{limitertest.Ahead(0)},
			client: []rratelimiter.Option{rratelimiter.WithRedissonVersion("3.34.1")},
			want:   rratelimiter.ErrUnsupported,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := limitertest.NewClient(t, rdb, tt.client...).RateLimiter(redistest.Name(t), tt.opts...)
				sent := limitertest.CountCommands(rdb)
				for name, call := range limitertest.Operations {
					require.ErrorIs(t, call(t.Context(), l), tt.want, name)
				}
				assert.Zero(t, sent.Total())
			})
		})
	}
}

func TestLeaseSparesRoundTrips(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		t.Helper()
		redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
			sent := limitertest.CountCommands(rdb)
			id := rratelimiter.WithClientID("one")
			client := limitertest.NewClient(t, rdb, id)
			l := client.RateLimiter(redistest.Name(t), limitertest.Ahead(0),
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
			assert.Less(t, sent.Total(), 30)
			require.NoError(t, client.Close(t.Context()))
			again := limitertest.NewClient(t, rdb, id).RateLimiter(l.Name())
			assert.EqualValues(t, 95_000, limitertest.Available(t, again), "the rest went back")
		})
	})
}

func TestLeaseEndsAndGivesBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ given, life time.Duration }{
		{0, 50 * time.Millisecond},
		{200 * time.Millisecond, 200 * time.Millisecond},
		{900 * time.Millisecond, 500 * time.Millisecond}, // half the interval at most
	} {
		t.Run(tt.given.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseScene(t, limitertest.Every(1000, time.Second), tt.given)
				taken := s.takeMore(t, 10)
				s.Until(tt.life - 1)
				assert.Greater(t, s.inUse(t), taken, "the lease lives")
				s.Until(tt.life)
				s.CheckInUse(t, 1000, taken)
				before := s.Sent.Total()
				limitertest.MustAcquire(t, s.RateLimiter, 1)
				assert.Greater(t, s.Sent.Total(), before, "it asks Redis")
				s.Until(time.Second)
				assert.EqualValues(t, 999, limitertest.Available(t, s.Other), "what was used is in use for an interval")
			})
		})
	}
}

// Callers that come at the moment at which a lease ends are not served from it,
// whether its timer has run or not.
func TestLeaseIsOverAtItsEnd(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			s := newLeaseScene(t, limitertest.Every(2000, time.Second), 0)
			taken := s.takeMore(t, 60)
			var callers sync.WaitGroup
			for range 50 {
				callers.Go(func() {
					time.Sleep(50*time.Millisecond - s.Now())
					ok, err := s.TryAcquire(t.Context(), 1, 0)
					assert.NoError(t, err)
					assert.True(t, ok)
				})
			}
			callers.Wait()
			synctest.Wait()
			members, err := s.Mini.ZRangeWithScores(t.Context(), limitertest.KeysOf(s.RateLimiter).Permits, 0, -1).Result()
			require.NoError(t, err)
			before := int64(0)
			for _, m := range members {
				if m.Score < float64(time.Now().UnixMilli()) {
					before += permitsIn(m.Member.(string))
				}
			}
			assert.Equal(t, taken, before, "charged before and used")
			s.Until(200 * time.Millisecond)
			s.CheckInUse(t, 2000, taken+50)
		})
	}
}

// What others change is noticed when the lease ends.
func TestLeaseBesideChangesOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 0)
		s.takeMore(t, 20)
		s.Until(time.Second)
		require.NoError(t, s.Other.SetRate(t.Context(), limitertest.Every(1, time.Minute)))
		before := s.Sent.Total()
		for range 10 {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
		}
		assert.Equal(t, before, s.Sent.Total())
		s.Until(3 * time.Second)
		assert.EqualValues(t, 1, limitertest.Available(t, s.Other), "nothing came back of what is no more")
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		limitertest.MustRefuse(t, s.RateLimiter, 1)
	})
}

// Whoever uses a lease at its last moment uses it before its end.
func TestLeaseLivesFromWhenItWasAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Second), 100*time.Millisecond)
		taken := s.takeMore(t, 4)
		for s.inUse(t) > taken {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.Hold(t, lua.Acquire, 1)
		asked := s.StartTryAcquire(t.Context(), 1, 0)
		s.Until(90 * time.Millisecond)
		letGo()
		assert.Equal(t, "true at 90ms", asked.Outcome())
		taken++
		before := s.Sent.Total()
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		taken++
		assert.Equal(t, before, s.Sent.Total(), "there is a lease")
		s.Until(100 * time.Millisecond)
		s.CheckInUse(t, 1000, taken)
	})
}

func TestLeaseThatComesTooLate(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]redistest.Action{
		"late answer": redistest.Pass.After(150 * time.Millisecond),
		"lost answer": redistest.DropAnswer.After(150 * time.Millisecond),
		"never run":   redistest.Cut.After(150 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseScene(t, limitertest.Every(1000, time.Second), 100*time.Millisecond)
				taken := s.takeMore(t, 4)
				for s.inUse(t) > taken {
					limitertest.MustAcquire(t, s.RateLimiter, 1)
					taken++
				}
				s.Proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, fault))
				limitertest.MustAcquire(t, s.RateLimiter, 1)
				taken++
				s.CheckInUse(t, 1000, taken)
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
					s := newLeaseScene(t, limitertest.Every(10_000, time.Minute), 0)
					s.Proxy.OnCommand(redistest.Nth(3, script.SHA, fault))
					taken := s.takeMore(t, 100)
					for range 3 {
						s.Until(s.Now() + 3*time.Second)
						s.CheckInUse(t, 10_000, taken)
						taken += s.takeMore(t, 10)
					}
					s.Until(s.Now() + 3*time.Second)
					s.CheckInUse(t, 10_000, taken)
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
			return s.plain.SetRate(ctx, limitertest.Every(1000, time.Minute))
		}, nil},
		"SetRate, KeepState": {func(ctx context.Context, s *leaseScene) error {
			return s.plain.SetRate(ctx, limitertest.Every(1000, time.Minute), rratelimiter.KeepState())
		}, func(taken int64) int64 { return taken }},
		"UpdateRate": {func(ctx context.Context, s *leaseScene) error {
			_, err := s.plain.UpdateRate(ctx, limitertest.Every(1000, time.Minute), rratelimiter.KeepState())
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
			return s.plain.Rename(ctx, limitertest.Besides(s.Name()))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 0)
				taken := s.takeMore(t, 20)
				require.NoError(t, tt.change(t.Context(), s))
				if tt.inUse != nil {
					s.CheckInUse(t, 1000, tt.inUse(taken))
				} else {
					assert.Zero(t, s.inUse(t))
				}
				before := s.Sent.Total()
				_, err := s.TryAcquire(t.Context(), 1, 0)
				if name == "Delete" || name == "Rename" {
					require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
				}
				assert.Greater(t, s.Sent.Total(), before, "the lease has ended")
				if name == "Rename" {
					renamed := s.Client.RateLimiter(limitertest.Besides(s.Name()))
					assert.Equal(t, 1000-taken, limitertest.Available(t, renamed), "the rest went back before")
				}
			})
		})
	}
}

// A lease that is on its way while the limiter is changed is none.
func TestLeaseThatIsOnItsWayWhileTheRateIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 0)
		taken := s.takeMore(t, 8)
		for s.inUse(t) > taken {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			taken++
		}
		letGo := s.Hold(t, lua.Acquire, 1)
		asked := s.StartTryAcquire(t.Context(), 1, 0)
		require.NoError(t, s.SetRate(t.Context(), limitertest.Every(5, time.Minute), rratelimiter.KeepState()))
		letGo()
		assert.Equal(t, "true at 0s", asked.Outcome())
		limitertest.MustRefuse(t, s.RateLimiter, 1)
		synctest.Wait()
		assert.Equal(t, taken+1, s.inUse(t), "its permits went back")
	})
}

// One that was taken while the limiter was being changed ends as well.
func TestLeaseThatIsTakenWhileTheRateIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 0)
		letGo := s.Hold(t, lua.SetRate, 1)
		set := s.Go(func() (bool, error) { return true, s.SetRate(t.Context(), limitertest.Every(5000, time.Minute)) })
		taken := s.takeMore(t, 20)
		letGo()
		assert.Equal(t, "true at 0s", set.Outcome())
		s.CheckInUse(t, 5000, taken)
		before := s.Sent.Total()
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		assert.Greater(t, s.Sent.Total(), before)
	})
}

func granted(permits int64, ok bool) int64 {
	if !ok {
		return 0
	}
	return permits
}
