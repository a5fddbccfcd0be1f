package memory_test

import (
	"context"
	"errors"
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
)

const ms = time.Millisecond

var rounds = flag.Uint64("rounds", 1, "how many seeds, from 0, random walks have, and by how many times as much tests of races repeat")

// A scene is a limitertest.HeldScene whose limiter has a memory.
type scene struct {
	*limitertest.HeldScene

	plain *rratelimiter.RateLimiter // a handle of the same Client that has none
}

// newScene must be called in a bubble. Two flights can be under way: one passes by what is held in the other.
func newScene(t *testing.T, cfg rratelimiter.Config, memory rratelimiter.LimiterOption) *scene {
	t.Helper()
	s := &scene{HeldScene: limitertest.NewHeldSceneOf(t, cfg, &redistest.Options{ReadTimeout: time.Minute, PoolSize: 4})}
	s.plain = s.RateLimiter
	s.RateLimiter = s.Client.RateLimiter(s.Name(), memory)
	return s
}

// newLeaseScene returns one that takes permits ahead, for so long.
func newLeaseScene(t *testing.T, cfg rratelimiter.Config, life time.Duration) *scene {
	t.Helper()
	return newScene(t, cfg, limitertest.Ahead(life))
}

// A leaseTest is a test of a scene of that rate, and of leases that live that long.
type leaseTest struct {
	cfg  rratelimiter.Config
	life time.Duration
	run  func(t *testing.T, s *scene)
}

// asks takes a permit and reports whether Redis was asked for it.
func (s *scene) asks(t *testing.T) bool {
	t.Helper()
	before := s.Sent.Total()
	limitertest.MustAcquire(t, s.RateLimiter, 1)
	return s.Sent.Total() > before
}

// take takes single permits until a lease has been found, and returns how many.
func (s *scene) take(t *testing.T) (taken int64) {
	t.Helper()
	for taken = 1; s.asks(t); taken++ {
		require.Less(t, taken, int64(50), "nothing is taken ahead")
	}
	return taken
}

// takeMore is take until the lease holds more than that many.
func (s *scene) takeMore(t *testing.T, permits int64) (taken int64) {
	t.Helper()
	for taken == 0 || s.inUse(t)-taken <= permits {
		taken += s.take(t)
		require.Less(t, taken, int64(100_000))
	}
	return taken
}

// drain is takeMore, and takes all that the lease holds.
func (s *scene) drain(t *testing.T, permits int64) (taken int64) {
	t.Helper()
	for taken = s.takeMore(t, permits); s.inUse(t) > taken; taken++ {
		limitertest.MustAcquire(t, s.RateLimiter, 1)
	}
	return taken
}

func (s *scene) inUse(t *testing.T) int64 {
	t.Helper()
	synctest.Wait()
	return limitertest.InUse(t, s.Mini, limitertest.KeysOf(s.RateLimiter).Permits)
}

func TestLeaseEndsAndGivesBack(t *testing.T) {
	t.Parallel()
	type row struct{ given, life time.Duration }
	limitertest.Bubbles(t, map[string]row{
		"by default":             {0, 50 * ms},
		"chosen":                 {200 * ms, 200 * ms},
		"half the interval most": {900 * ms, 500 * ms},
	}, func(t *testing.T, row row) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Second), row.given)
		taken := s.takeMore(t, 10)
		s.Until(row.life - 1)
		assert.Greater(t, s.inUse(t), taken, "the lease lives")
		s.Until(row.life)
		s.CheckInUse(t, 1000, taken)
		assert.True(t, s.asks(t))
		s.Until(time.Second)
		assert.EqualValues(t, 999, limitertest.Available(t, s.Other), "what was used is in use for an interval")
	})
}

// Callers that come when a lease ends are not served from it, whether its timer has run or not.
func TestLeaseIsOverAtItsEnd(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	limitertest.Bubbles(t, limitertest.Seeds(2**rounds), func(t *testing.T, _ uint64) {
		s := newLeaseScene(t, limitertest.Every(2000, time.Second), 0)
		taken := s.takeMore(t, 60)
		limitertest.Together(50, func(int) {
			time.Sleep(50*time.Millisecond - s.Now())
			assert.NoError(t, limitertest.Granted(s.TryAcquire(t.Context(), 1, 0)))
		})
		synctest.Wait()
		members := limitertest.Must(s.Mini.ZRangeWithScores(t.Context(), limitertest.KeysOf(s.RateLimiter).Permits, 0, -1).Result())(t)
		before := int64(0)
		for _, m := range members {
			if m.Score < float64(time.Now().UnixMilli()) {
				before += limitertest.PermitsIn(t, m.Member.(string))
			}
		}
		assert.Equal(t, taken, before, "charged before and used")
		s.Until(200 * time.Millisecond)
		s.CheckInUse(t, 2000, taken+50)
	})
}

var leaseTests = map[string]leaseTest{
	// What others change is noticed when the lease ends.
	"lease beside changes of others": {limitertest.Every(1000, time.Minute), 0, func(t *testing.T, s *scene) {
		s.takeMore(t, 20)
		s.Until(time.Second)
		require.NoError(t, s.Other.SetRate(t.Context(), limitertest.Every(1, time.Minute)))
		for range 10 {
			assert.False(t, s.asks(t))
		}
		s.Until(3 * time.Second)
		assert.EqualValues(t, 1, limitertest.Available(t, s.Other), "nothing came back of what is no more")
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		limitertest.MustRefuse(t, s.RateLimiter, 1)
	}},
	// A lease's life begins when it was asked for: its last permit is used before its end.
	"lease lives from when it was asked for": {limitertest.Every(1000, time.Second), 100 * ms, func(t *testing.T, s *scene) {
		taken := s.drain(t, 4)
		letGo := s.Hold(t, lua.Acquire, 1)
		asked := s.StartTryAcquire(t.Context(), 1, 0)
		s.Until(90 * ms)
		letGo()
		assert.Equal(t, "true at 90ms", asked.Outcome())
		assert.False(t, s.asks(t), "there is a lease")
		s.Until(100 * ms)
		s.CheckInUse(t, 1000, taken+2)
	}},
	// A lease that is on its way while the limiter is changed is none.
	"lease that is on its way while the rate is set": {limitertest.Every(1000, time.Minute), 0, func(t *testing.T, s *scene) {
		taken := s.drain(t, 8)
		letGo := s.Hold(t, lua.Acquire, 1)
		asked := s.StartTryAcquire(t.Context(), 1, 0)
		require.NoError(t, s.SetRate(t.Context(), limitertest.Every(5, time.Minute), rratelimiter.KeepState()))
		letGo()
		assert.Equal(t, "true at 0s", asked.Outcome())
		limitertest.MustRefuse(t, s.RateLimiter, 1)
		synctest.Wait()
		assert.Equal(t, taken+1, s.inUse(t), "its permits went back")
	}},
	// One that was taken while the limiter was being changed ends as well.
	"lease that is taken while the rate is set": {limitertest.Every(1000, time.Minute), 0, func(t *testing.T, s *scene) {
		letGo := s.Hold(t, lua.SetRate, 1)
		set := s.Go(func() (bool, error) { return true, s.SetRate(t.Context(), limitertest.Every(5000, time.Minute)) })
		taken := s.takeMore(t, 20)
		letGo()
		assert.Equal(t, "true at 0s", set.Outcome())
		s.CheckInUse(t, 5000, taken)
		assert.True(t, s.asks(t))
	}},
	// Other callers may bring a new lease while a Release waits for its turn.
	"Release meets a later lease": {limitertest.Every(10_000, time.Minute), 0, func(t *testing.T, s *scene) {
		taken := s.takeMore(t, 100)
		letGo := s.Hold(t, lua.GiveBack, 1)
		released := s.Go(func() (bool, error) { return true, s.plain.Release(t.Context(), 50) })
		require.Equal(t, "waits", released.Outcome())
		for range 50 {
			taken++
			if !s.asks(t) {
				break
			}
		}
		letGo()
		synctest.Wait()
		s.Until(s.Now() + 4*time.Second)
		s.CheckInUse(t, 10_000, taken-50)
	}},
	"lease of larger requests": {limitertest.Every(1000, time.Minute), 0, func(t *testing.T, s *scene) {
		taken := s.takeMore(t, 50)
		free := 1000 - taken
		limitertest.MustAcquire(t, s.RateLimiter, free-10)
		assert.LessOrEqual(t, s.inUse(t), taken+free-10+1, "hardly anything is taken ahead of the rest")
		limitertest.MustRefuse(t, s.RateLimiter, 11)
		limitertest.MustAcquire(t, s.RateLimiter, 10)
		assert.Zero(t, limitertest.Available(t, s.Other), "none is kept that was not used")
	}},
	// A caller that is refused for lack of permits that a lease holds gets them at once.
	"lease goes back for the line": {limitertest.Every(1000, time.Minute), 10 * time.Second, func(t *testing.T, s *scene) {
		taken := s.takeMore(t, 20)
		s.Until(time.Second)
		waits := s.Go(func() (bool, error) { return true, s.plain.Acquire(t.Context(), 1000-taken) })
		assert.Equal(t, "true at 1s", waits.Outcome())
		s.CheckInUse(t, 1000, 1000)
	}},
	// Those that came while a lease was on its way are served from it, in order.
	"lease serves those that gathered": {limitertest.Every(10_000, time.Minute), 0, func(t *testing.T, s *scene) {
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
		limitertest.CheckOutcome(t, "true at 0s", callers...)
		assert.Equal(t, before, s.Sent.Total(), "one call was enough for all")
	}},
	"lease of callers that went away": {limitertest.Every(10_000, time.Minute), 0, func(t *testing.T, s *scene) {
		taken := s.drain(t, 100)
		letGo := s.Hold(t, lua.Acquire, 1)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) { return s.TryAcquire(ctx, 1, 0) })
		leave()
		letGo()
		s.Proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Cut))
		assert.Equal(t, taken, s.inUse(t), "what was taken ahead has gone back with the caller's")
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		require.ErrorIs(t, limitertest.Second(s.TryAcquire(limitertest.EndedContext(t), 1, 0)), context.Canceled, "also if a lease has permits")
		require.ErrorIs(t, s.Acquire(limitertest.EndedContext(t), 1), context.Canceled)
		require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 0, 0)), rratelimiter.ErrInvalidPermits)
		s.Until(3*time.Second + 100*ms)
		s.CheckInUse(t, 10_000, taken+1)
	}},
	// Close gives back the permits taken ahead. The bubble checks that no goroutine is left.
	"Close gives leases back": {limitertest.Every(10_000, time.Hour), 0, func(t *testing.T, s *scene) {
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
	"Close with a lease on its way": {limitertest.Every(10_000, time.Hour), 0, func(t *testing.T, s *scene) {
		taken := s.drain(t, 100)
		letGo := s.Hold(t, lua.Acquire, 1)
		asked := s.StartTryAcquire(t.Context(), 1, 0)
		closed := s.Close(t.Context())
		letGo()
		limitertest.CheckOutcome(t, "true at 0s", asked, closed)
		s.CheckInUse(t, 10_000, taken+1)
	}},
	"a lease keeps the limiter alive": {rratelimiter.Config{Rate: 1000, Interval: time.Second, KeepAlive: 2 * time.Second}, 0, func(t *testing.T, s *scene) {
		for range 500 {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			time.Sleep(10 * ms)
		}
		time.Sleep(1900 * ms)
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		time.Sleep(2100 * ms)
		assert.False(t, limitertest.Must(s.Exists(t.Context()))(t))
	}},
	// A change waits for the rests of leases to go back, and no longer if one is on its way, whose permits go back after them.
	"lease on its way to a server that hangs delays no change": {limitertest.Every(100_000, time.Hour), time.Minute, func(t *testing.T, s *scene) {
		onItsWay := s.RateLimiter
		taken := s.drain(t, 10)
		s.RateLimiter = s.Client.RateLimiter(s.Name(), limitertest.Ahead(time.Minute))
		for s.inUse(t) <= taken { // until a lease has permits left
			taken += s.take(t)
		}

		held := make(chan struct{})
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			switch {
			case c.Contains(lua.Acquire.SHA):
				return redistest.Pass.When(held)
			case c.Contains(lua.GiveBack.SHA):
				return redistest.Swallow
			}
			return redistest.Pass
		})
		s.Go(func() (bool, error) { return onItsWay.TryAcquire(t.Context(), 1, 0) })
		start := s.Now()
		changed := s.Go(func() (bool, error) { return false, s.SetRate(t.Context(), limitertest.Every(5, time.Hour)) })
		s.Until(start + 500*ms)
		close(held)
		s.Until(start + time.Minute)
		end, _ := changed.Ended()
		require.ErrorIs(t, end.Err, rratelimiter.ErrUnavailable)
		assert.LessOrEqual(t, end.At-start, script.DefaultTimeout)
	}},
}

func TestLeases(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, leaseTests, func(t *testing.T, test leaseTest) { test.run(t, newLeaseScene(t, test.cfg, test.life)) })
}

func TestLeaseThatComesTooLate(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]redistest.Action{
		"late answer": redistest.Pass.After(150 * ms),
		"lost answer": redistest.DropAnswer.After(150 * ms),
		"never run":   redistest.Cut.After(150 * ms),
	}, func(t *testing.T, fault redistest.Action) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Second), 100*ms)
		taken := s.drain(t, 4)
		s.Proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, fault))
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		s.CheckInUse(t, 1000, taken+1)
	})
}

// The answer is lost of the call that takes a lease, or of the one that gives its rest back.
func TestLeaseWithLostAnswers(t *testing.T) {
	t.Parallel()
	faults := map[string]redistest.Action{"lost": redistest.DropAnswer, "cut": redistest.Cut, "twice": redistest.Duplicate}
	limitertest.Each(t, map[string]*lua.Script{"acquire": lua.Acquire, "give back": lua.GiveBack}, func(t *testing.T, script *lua.Script) {
		limitertest.Bubbles(t, faults, func(t *testing.T, fault redistest.Action) {
			s := newLeaseScene(t, limitertest.Every(10_000, time.Minute), 0)
			s.Proxy.OnCommand(redistest.Nth(2, script.SHA, fault))
			taken := s.takeMore(t, 100)
			for range 3 {
				s.Until(s.Now() + 3*time.Second + 100*ms)
				s.CheckInUse(t, 10_000, taken)
				taken += s.takeMore(t, 10)
			}
			s.Until(s.Now() + 3*time.Second + 100*ms)
			s.CheckInUse(t, 10_000, taken)
		})
	})
}

func TestLeaseIsEndedByChangesOfItsClient(t *testing.T) {
	t.Parallel()
	type row struct {
		change limitertest.Change
		keeps  bool  // the used permits are still in use; otherwise the value is missing
		less   int64 // of them no longer in use
		gone   bool  // the limiter is
		to     bool  // another name
	}
	kept := limitertest.Every(1000, time.Minute)
	rows := map[string]row{
		"Release":            {change: limitertest.Release(2), keeps: true, less: 2},
		"SetRate":            {change: limitertest.SetRate(kept)},
		"SetRate, KeepState": {change: limitertest.SetRate(kept, rratelimiter.KeepState()), keeps: true},
		"UpdateRate":         {change: limitertest.UpdateRate(kept, rratelimiter.KeepState()), keeps: true},
		"Delete":             {change: limitertest.Delete, gone: true},
		"Expire":             {change: limitertest.Expire(time.Hour), keeps: true},
		"Rename":             {change: limitertest.Rename, gone: true, to: true},
	}
	limitertest.Bubbles(t, rows, func(t *testing.T, row row) {
		s := newLeaseScene(t, kept, 0)
		taken := s.takeMore(t, 20)
		require.NoError(t, row.change(t.Context(), s.Client, s.plain))
		if row.keeps {
			s.CheckInUse(t, 1000, taken-row.less)
		} else {
			assert.Zero(t, s.inUse(t))
		}
		before := s.Sent.Total()
		_, err := s.TryAcquire(t.Context(), 1, 0)
		assert.Equal(t, row.gone, errors.Is(err, rratelimiter.ErrNotInitialized), err)
		assert.Greater(t, s.Sent.Total(), before, "the lease has ended")
		if row.to {
			renamed := s.Client.RateLimiter(limitertest.Besides(s.Name()))
			assert.Equal(t, 1000-taken, limitertest.Available(t, renamed), "the rest went back before")
		}
	})
}

// A lease is charged in Redis before its Client knows of it, and its rest goes back later: neither is
// use. Nothing comes back here, so Remaining is what callers have left.
func TestTake_RemainingNeverRisesBesideLeases(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]func(context.Context, *keyedScene) (bool, error){
		"Take": func(ctx context.Context, s *keyedScene) (bool, error) {
			d, err := s.keyed.Take(ctx, "ann", 1)
			return d.Granted, err
		},
		"TryAcquire": func(ctx context.Context, s *keyedScene) (bool, error) { return s.TryAcquire(ctx, 1, 0) },
	}, func(t *testing.T, other func(context.Context, *keyedScene) (bool, error)) {
		s := newKeyedScene(t, limitertest.Every(10_000, time.Minute), 20, limitertest.Ahead(2*time.Second))
		taken := int64(0)
		take := func() {
			t.Helper()
			taken++
			require.Equal(t, 10_000-taken, limittest.Take(t, s.keyed, "ann", 1).Remaining)
		}
		for round := range 10 {
			for range 50 {
				take()
			}
			letGo := s.Hold(t, lua.Acquire, 1)
			call := func() *limitertest.Caller { return s.Go(func() (bool, error) { return other(t.Context(), s) }) }
			first := call()
			for first.Outcome() != "waits" { // it was served from a lease
				taken++
				first = call()
			}
			take()
			take()
			letGo()
			limitertest.CheckOutcome(t, "true at "+s.Now().String(), first)
			taken++
			take()
			if round%3 == 2 {
				s.Until(s.Now() + 3*time.Second) // the lease ends
			}
		}
	})
}
