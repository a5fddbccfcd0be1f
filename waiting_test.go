package rratelimiter_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
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

const ms = time.Millisecond

// forever is a patience that no test's bubble lasts.
const forever = 1000 * time.Hour

// A scene is a limiter in a bubble, with a clock that starts at 0. The limiter
// is one Client's; other is a handle of another Client on the same limiter.
type scene struct {
	*rratelimiter.RateLimiter

	client *rratelimiter.Client
	other  *rratelimiter.RateLimiter
	rdb    *redis.Client
	sent   *counter // what limiter's Client sent
	start  time.Time
}

// newScene must be called in a bubble.
func newScene(t *testing.T, cfg rratelimiter.Config, opts ...rratelimiter.LimiterOption) *scene {
	t.Helper()
	rdb, m := redistest.Mini(t)
	name := redistest.Name(t)
	otherClient := newClient(t, redistest.MiniClient(t, m, nil))
	s := &scene{rdb: rdb, other: otherClient.RateLimiter(name)}
	s.client = newClient(t, rdb)
	s.RateLimiter = s.client.RateLimiter(name, opts...)
	if cfg != (rratelimiter.Config{}) {
		mustTrySetRate(t, s.other, cfg)
	}
	require.NoError(t, rdb.ScriptLoad(t.Context(), lua.Acquire.Source).Err())
	s.sent = countCommands(rdb)
	s.start = time.Now()
	return s
}

// now is the time since the scene's start.
func (s *scene) now() time.Duration { return time.Since(s.start) }

// until sleeps until the scene's clock shows at.
func (s *scene) until(at time.Duration) {
	time.Sleep(at - s.now())
	synctest.Wait()
}

// A caller is a call that runs beside the test.
type caller struct {
	mu   sync.Mutex
	end  ending
	done bool
}

// An ending is what a call returned, and when by the scene's clock.
type ending struct {
	ok  bool
	err error
	at  time.Duration
}

// outcome is how the call ended, and when.
func (c *caller) outcome() string {
	end, done := c.ended()
	if !done {
		return "waits"
	}
	if end.err != nil {
		return fmt.Sprintf("%v at %v", end.err, end.at)
	}
	return fmt.Sprintf("%v at %v", end.ok, end.at)
}

func (c *caller) ended() (ending, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end, c.done
}

// call runs f beside the test and returns when it waits or is done.
func (s *scene) call(f func() (bool, error)) *caller {
	c := &caller{}
	go func() {
		ok, err := f()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.end, c.done = ending{ok, err, s.now()}, true
	}()
	synctest.Wait()
	return c
}

// requireEnd checks that the call failed, with target, at that time.
func (c *caller) requireEnd(t *testing.T, target error, at time.Duration) {
	t.Helper()
	end, done := c.ended()
	require.True(t, done, "the call waits")
	require.ErrorIs(t, end.err, target)
	assert.False(t, end.ok)
	assert.Equal(t, at, end.at)
}

// tryAcquire is TryAcquire beside the test.
func (s *scene) tryAcquire(ctx context.Context, permits int64, timeout time.Duration) *caller {
	return s.call(func() (bool, error) { return s.TryAcquire(ctx, permits, timeout) })
}

// acquire is Acquire beside the test.
func (s *scene) acquire(ctx context.Context, permits int64) *caller {
	return s.call(func() (bool, error) {
		err := s.Acquire(ctx, permits)
		return err == nil, err
	})
}

func TestTryAcquireWaitsUpToItsTimeout(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		timeout time.Duration
		want    string
	}{
		{math.MinInt64, "false at 250ms"},
		{-1, "false at 250ms"},
		{0, "false at 250ms"},
		{1, "false at 250.000001ms"},
		{400 * ms, "false at 650ms"},
		{749 * ms, "false at 999ms"},
		{750*ms - 1, "false at 999.999999ms"},
		{750 * ms, "true at 1s"},
		{750*ms + 1, "true at 1s"},
		{5 * time.Second, "true at 1s"},
		{math.MaxInt64, "true at 1s"},
	} {
		t.Run(tt.timeout.String(), func(t *testing.T) {
			t.Parallel()
			for name, context := range map[string]func(context.Context) context.Context{
				"cancellable":     func(ctx context.Context) context.Context { return ctx },
				"not cancellable": context.WithoutCancel,
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						s := newScene(t, every(2, time.Second))
						mustAcquire(t, s.other, 2)
						s.until(250 * ms)
						c := s.tryAcquire(context(t.Context()), 1, tt.timeout)
						s.until(forever)
						assert.Equal(t, tt.want, c.outcome())
						assert.LessOrEqual(t, s.sent.scripts(), 2, "it asks at first and when the server said")
					})
				})
			}
		})
	}
}

func TestTryAcquireWaitsForAllOfItsPermits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(3, time.Second))
		for range 3 {
			mustAcquire(t, s.other, 1)
			s.until(s.now() + 200*ms)
		}
		two, three := s.tryAcquire(t.Context(), 2, 600*ms), s.tryAcquire(t.Context(), 3, forever)
		s.until(forever)
		assert.Equal(t, "true at 1.2s", two.outcome())
		assert.Equal(t, "true at 2.2s", three.outcome(), "all are free an interval after the two")
	})
}

func TestWaitersAreWokenByTheirOwnClient(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wake func(t *testing.T, l *rratelimiter.RateLimiter) error
		want string // "": the limiter is gone at once
	}{
		"Release": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.Release(t.Context(), 1)
		}, "true at 300ms"},
		"SetRate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), every(5, time.Second))
		}, "true at 300ms"},
		"SetRate of another type": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), perClient(1, time.Second))
		}, "true at 300ms"},
		"SetRate with the state kept": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), every(3, time.Second), rratelimiter.KeepState())
		}, "true at 300ms"},
		"UpdateRate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), every(5, time.Second))
			return err
		}, "true at 300ms"},
		"a shorter interval": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), every(2, 500*ms), rratelimiter.KeepState())
			return err
		}, "true at 500ms"},
		"a longer interval": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), every(2, 2*time.Second), rratelimiter.KeepState())
			return err
		}, "true at 2s"},
		"Delete": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.Delete(t.Context())
			return err
		}, ""},
		"Rename away": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.Rename(t.Context(), l.Name()+":new")
		}, ""},
		"ExpireAt a moment that has passed": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.ExpireAt(t.Context(), time.Now().Add(-time.Hour))
			return err
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, every(2, time.Second))
				mustAcquire(t, s.other, 2)
				c := s.tryAcquire(t.Context(), 1, forever)
				s.until(300 * ms)
				another := s.client.RateLimiter(s.Name())
				require.NoError(t, tt.wake(t, another))
				s.until(forever)
				if tt.want == "" {
					c.requireEnd(t, rratelimiter.ErrNotInitialized, 300*ms)
					return
				}
				assert.Equal(t, tt.want, c.outcome())
			})
		})
	}
}

func TestWaitersAreWokenByALimiterRenamedToTheirs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(2, time.Second))
		mustAcquire(t, s.other, 2)
		free := s.client.RateLimiter(s.Name() + ":free")
		mustTrySetRate(t, free, every(1, time.Second))
		c := s.acquire(t.Context(), 1)
		s.until(300 * ms)
		require.NoError(t, free.Rename(t.Context(), s.Name()))
		s.until(time.Minute)
		assert.Equal(t, "true at 300ms", c.outcome())
	})
}

func TestWaitersWithADefaultOutliveADelete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(2, time.Hour), rratelimiter.WithDefault(every(3, time.Minute)))
		mustAcquire(t, s.other, 2)
		c := s.acquire(t.Context(), 1)
		s.until(300 * ms)
		deleted, err := s.Delete(t.Context())
		require.NoError(t, err)
		assert.True(t, deleted)
		synctest.Wait()
		assert.Equal(t, "true at 300ms", c.outcome())
		cfg, err := s.Config(t.Context())
		require.NoError(t, err)
		assert.Equal(t, every(3, time.Minute), cfg)
	})
}

func TestWhatAnotherClientDoesIsSeenWhenTheServerSaid(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(t *testing.T, l *rratelimiter.RateLimiter) error{
		"nothing": func(*testing.T, *rratelimiter.RateLimiter) error { return nil },
		"Release": func(t *testing.T, l *rratelimiter.RateLimiter) error { return l.Release(t.Context(), 2) },
		"SetRate": func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), every(9, time.Hour))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, every(2, time.Second))
				mustAcquire(t, s.other, 2)
				c := s.acquire(t.Context(), 1)
				s.until(300 * ms)
				require.NoError(t, free(t, s.other))
				s.until(time.Minute)
				assert.Equal(t, "true at 1s", c.outcome())
			})
		})
	}
}

func TestAWaiterAsksAgainUntilItIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(1, time.Second))
		mustAcquire(t, s.other, 1)
		// The other Client is there first, three times over.
		rivals := []*caller{}
		for range 3 {
			rivals = append(rivals, s.call(func() (bool, error) { return s.other.TryAcquire(t.Context(), 1, forever) }))
		}
		served, gaveUp := s.acquire(t.Context(), 1), s.tryAcquire(t.Context(), 1, 1700*ms)
		s.until(time.Minute)
		assert.Equal(t, "false at 1.7s", gaveUp.outcome())
		var ends []time.Duration
		for _, c := range append(rivals, served) {
			end, _ := c.ended()
			assert.True(t, end.ok)
			ends = append(ends, end.at)
		}
		assert.ElementsMatch(t, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, ends)
		assert.LessOrEqual(t, s.sent.scripts(), 10)
	})
}

func TestALargeRequestIsServedAheadOfLaterSmallOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(10, time.Second))
		for i := range 10 {
			s.until(time.Duration(i) * 50 * ms)
			mustAcquire(t, s.other, 1)
		}
		s.until(500 * ms)
		large := s.tryAcquire(t.Context(), 5, forever)
		var small []*caller
		for i := range 5 {
			s.until(500*ms + time.Duration(i+1)*ms)
			small = append(small, s.tryAcquire(t.Context(), 1, forever))
		}
		s.until(time.Minute)
		assert.Equal(t, "true at 1.2s", large.outcome())
		for i, c := range small {
			assert.Equal(t, fmt.Sprintf("true at %v", 1250*ms+time.Duration(i)*50*ms), c.outcome())
		}
	})
}

// keepInUse has the other Client keep permits in use without end: it takes them
// anew, each time before the ones before come back. It starts at the scene's 0,
// and its permits then come back at 1s, 1.9s, 2.8s ...
func (s *scene) keepInUse(t *testing.T, permits int64) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	mustAcquire(t, s.other, permits)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(900 * ms):
			}
			ok, err := s.other.TryAcquire(context.WithoutCancel(t.Context()), permits, 0)
			assert.NoError(t, err)
			assert.True(t, ok)
		}
	}()
	return func() { close(done) }
}

// The head asks for what can't be had while the other Client goes on; those
// behind it wait for it one interval, counted from when the head began, and no
// longer.
func TestWhatCannotBeServedHoldsNobodyUpLongerThanAnInterval(t *testing.T) {
	t.Parallel()

	t.Run("behind it from the start", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, every(10, time.Second))
			stop := s.keepInUse(t, 1)
			s.until(50 * ms)
			head := s.tryAcquire(t.Context(), 10, forever)
			s.until(100 * ms)
			a, b := s.tryAcquire(t.Context(), 2, forever), s.tryAcquire(t.Context(), 3, 960*ms)
			s.until(1500 * ms)
			assert.Equal(t, "true at 1.05s", a.outcome())
			assert.Equal(t, "true at 1.05s", b.outcome())

			// From now on new ones are tried at once.
			c := s.tryAcquire(t.Context(), 1, forever)
			assert.Equal(t, "true at 1.5s", c.outcome())
			assert.Equal(t, "waits", head.outcome())

			s.until(2 * time.Second)
			stop()
			s.until(time.Minute)
			assert.Equal(t, "true at 2.8s", head.outcome(), "the head is first in line still")
			assert.LessOrEqual(t, s.sent.scripts(), 12)
		})
	})

	// The head was alone when the server told it a moment beyond its interval.
	t.Run("behind it only later", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, every(10, time.Second))
			mustAcquire(t, s.other, 5)
			s.until(100 * ms)
			head := s.tryAcquire(t.Context(), 10, forever)
			s.until(600 * ms)
			mustAcquire(t, s.other, 4)
			s.until(1050 * ms)
			assert.Equal(t, "waits", head.outcome(), "it was told 1.6s")
			behind := s.tryAcquire(t.Context(), 1, 300*ms)
			s.until(time.Minute)
			assert.Equal(t, "true at 1.1s", behind.outcome(), "6 are free, and the head began at 0.1s")
		})
	})

	// One batch has one configuration.
	t.Run("with another default", func(t *testing.T) {
		t.Parallel()
		for name, opts := range map[string][]rratelimiter.LimiterOption{
			"none":  nil,
			"other": {rratelimiter.WithDefault(every(20, time.Second))},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newScene(t, every(10, time.Second), rratelimiter.WithDefault(every(30, time.Second)))
					defer s.keepInUse(t, 1)()
					s.until(50 * ms)
					head := s.tryAcquire(t.Context(), 10, 5*time.Second)
					behind := s.client.RateLimiter(s.Name(), opts...)
					s.until(100 * ms)
					a := s.call(func() (bool, error) { return behind.TryAcquire(t.Context(), 1, 3*time.Second) })
					s.until(1500 * ms)
					b := s.call(func() (bool, error) { return behind.TryAcquire(t.Context(), 1, 0) })
					s.until(10 * time.Second)
					assert.Equal(t, "false at 5.05s", head.outcome())
					assert.Equal(t, "true at 1.05s", a.outcome())
					assert.Equal(t, "true at 1.5s", b.outcome(), "one try overtakes")
				})
			})
		}
	})

	// One batch is for no more permits than a member holds.
	t.Run("with permits beyond a batch", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			const billion = 1_000_000_000
			s := newScene(t, every(6*billion, time.Second))
			defer s.keepInUse(t, 2*billion+1)()
			s.until(50 * ms)
			head := s.tryAcquire(t.Context(), 4*billion, 5*time.Second)
			s.until(100 * ms)
			behind := s.tryAcquire(t.Context(), billion, 3*time.Second)
			try := s.tryAcquire(t.Context(), billion/2, 0)
			s.until(10 * time.Second)
			assert.Equal(t, "false at 5.05s", head.outcome())
			assert.Equal(t, "true at 1.05s", behind.outcome())
			assert.Equal(t, "true at 100ms", try.outcome())
		})
	})

	t.Run("where many others can't be served either", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, every(1000, time.Second))
			defer s.keepInUse(t, 499)()
			s.until(50 * ms)
			for i := range 300 {
				s.call(func() (bool, error) { return s.TryAcquire(t.Context(), int64(502+i%2), 5*time.Second) })
			}
			s.until(100 * ms)
			behind := s.tryAcquire(t.Context(), 1, 3*time.Second)
			s.until(10 * time.Second)
			assert.Equal(t, "true at 1.05s", behind.outcome())
		})
	})
}

func TestEqualOnesAreServedInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(2, time.Second))
		mustAcquire(t, s.other, 2)
		var line []*caller
		for i := range 40 {
			s.until(time.Duration(i) * 25 * ms)
			line = append(line, s.tryAcquire(t.Context(), 1, forever))
		}
		s.until(time.Hour)
		for i, c := range line {
			assert.Equal(t, fmt.Sprintf("true at %v", time.Duration(i/2+1)*time.Second), c.outcome(), "number %d in line", i)
		}
	})
}

func TestAThousandWaitersAskAsOne(t *testing.T) {
	t.Parallel()
	for name, arrive := range map[string]func(s *scene, call func()){
		"at once": func(_ *scene, call func()) {
			for range 1000 {
				go call()
			}
		},
		"one by one": func(s *scene, call func()) {
			for i := range 1000 {
				go call()
				if i%10 == 0 {
					s.until(s.now() + ms)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, every(100, time.Second))
				mustAcquire(t, s.other, 100)
				s.until(500 * ms)
				handles := []*rratelimiter.RateLimiter{s.RateLimiter, s.client.RateLimiter(s.Name()), s.client.RateLimiter(s.Name())}
				results := make(chan time.Duration, 1000)
				next := make(chan int, 1000)
				for i := range 1000 {
					next <- i
				}
				arrive(s, func() {
					if assert.NoError(t, handles[<-next%len(handles)].Acquire(t.Context(), 1)) {
						results <- s.now()
					}
				})
				s.until(900 * ms)
				assert.LessOrEqual(t, s.sent.scripts(), 4, "the first flights have asked for all")

				s.until(9999 * ms)
				assert.Len(t, results, 900)
				s.until(10 * time.Second)
				assert.Len(t, results, 1000, "as fast as the rate allows")
				assert.LessOrEqual(t, s.sent.scripts(), 30, "a few calls for each interval")
			})
		})
	}
}

// A line that is overdue was refused what its newest members want as well, so
// they need not ask.
func TestArrivingWaitersDoNotAskWhatWasRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(10, time.Second))
		defer s.keepInUse(t, 4)()
		s.until(50 * ms)
		s.tryAcquire(t.Context(), 8, 5*time.Second)
		s.tryAcquire(t.Context(), 7, 5*time.Second)
		s.until(1200 * ms)
		before := s.sent.scripts()
		for range 100 {
			s.tryAcquire(t.Context(), 7, 500*ms)
		}
		assert.Equal(t, before, s.sent.scripts())
		assert.Equal(t, "true at 1.2s", s.tryAcquire(t.Context(), 2, forever).outcome(), "less is worth a call")
		s.until(10 * time.Second)
	})
}

func TestTheNextIsServedWhenTheHeadGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(2, time.Minute))
		mustAcquire(t, s.other, 1)
		head := s.tryAcquire(t.Context(), 2, 300*ms)
		second := s.tryAcquire(t.Context(), 2, 400*ms)
		third := s.tryAcquire(t.Context(), 1, forever)
		s.until(time.Second)
		assert.Equal(t, "false at 300ms", head.outcome())
		assert.Equal(t, "false at 400ms", second.outcome())
		assert.Equal(t, "true at 400ms", third.outcome())
	})
}

func TestOneInTheMiddleGivesUpAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(2, time.Second))
		mustAcquire(t, s.other, 2)
		head := s.tryAcquire(t.Context(), 1, forever)
		middle := s.tryAcquire(t.Context(), 1, 600*ms)
		last := s.tryAcquire(t.Context(), 1, forever)
		s.until(time.Minute)
		assert.Equal(t, "true at 1s", head.outcome())
		assert.Equal(t, "false at 600ms", middle.outcome())
		assert.Equal(t, "true at 1s", last.outcome())
		assert.LessOrEqual(t, s.sent.scripts(), 3)
	})
}

// A permit that comes back at the moment at which patience ends is in time, for
// everybody in line whom it serves.
func TestPermitsAtTheEndOfPatienceAreInTime(t *testing.T) {
	t.Parallel()
	for round := range 10 { // several timers end at once, in any order
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, every(3, time.Second))
				mustAcquire(t, s.other, 3)
				var line []*caller
				for range 4 {
					line = append(line, s.tryAcquire(t.Context(), 1, time.Second))
				}
				s.until(time.Minute)
				assert.Equal(t, "true at 1s", line[0].outcome())
				assert.Equal(t, "true at 1s", line[1].outcome())
				assert.Equal(t, "true at 1s", line[2].outcome())
				assert.Equal(t, "false at 1s", line[3].outcome())
			})
		})
	}
}

func TestOneTryOvertakesTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(5, time.Second))
		mustAcquire(t, s.other, 2)
		head := s.tryAcquire(t.Context(), 4, forever)
		behind := s.tryAcquire(t.Context(), 1, forever)

		s.until(100 * ms)
		assert.Equal(t, "true at 100ms", s.tryAcquire(t.Context(), 1, 0).outcome())
		assert.Equal(t, "true at 100ms", s.tryAcquire(t.Context(), 1, -time.Second).outcome())
		d, err := s.Take(t.Context(), 1)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		assert.Zero(t, d.Remaining)
		assert.Equal(t, "false at 100ms", s.tryAcquire(t.Context(), 1, 0).outcome())
		d, err = s.Take(t.Context(), 1)
		require.NoError(t, err)
		assert.False(t, d.Granted)
		assert.Equal(t, 900*ms, d.RetryAfter)
		assert.Equal(t, 100*ms, s.now(), "none of them waited")
		assert.Equal(t, "waits", head.outcome())

		s.until(time.Minute)
		assert.Equal(t, "true at 1.1s", head.outcome())
		assert.Equal(t, "true at 1s", behind.outcome(), "the head had its interval")
	})
}

func TestWaitersWithDifferentDefaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, rratelimiter.Config{}, rratelimiter.WithDefault(every(2, time.Second)))
		first := s.tryAcquire(t.Context(), 2, forever)
		assert.Equal(t, "true at 0s", first.outcome(), "its default is the limiter's rate")

		larger := s.client.RateLimiter(s.Name(), rratelimiter.WithDefault(every(10, time.Second)))
		none := s.client.RateLimiter(s.Name())
		var line []*caller
		for _, l := range []*rratelimiter.RateLimiter{larger, none, s.RateLimiter, larger} {
			line = append(line, s.call(func() (bool, error) { return l.TryAcquire(t.Context(), 1, forever) }))
		}
		tooMany := s.call(func() (bool, error) { return larger.TryAcquire(t.Context(), 3, forever) })
		s.until(time.Minute)
		assert.Equal(t, "true at 1s", line[0].outcome())
		assert.Equal(t, "true at 1s", line[1].outcome())
		assert.Equal(t, "true at 2s", line[2].outcome())
		assert.Equal(t, "true at 2s", line[3].outcome())
		end, _ := tooMany.ended()
		assert.ErrorIs(t, end.err, rratelimiter.ErrPermitsExceedRate, "a default replaces no rate")
	})
}

func TestARateLoweredBelowWhatAWaiterWants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(10, time.Second))
		mustAcquire(t, s.other, 10)
		first := s.tryAcquire(t.Context(), 3, forever)
		tooMany := s.tryAcquire(t.Context(), 8, forever)
		second := s.tryAcquire(t.Context(), 3, forever)
		s.until(300 * ms)
		require.NoError(t, s.SetRate(t.Context(), every(5, time.Second), rratelimiter.KeepState()))
		s.until(time.Minute)
		tooMany.requireEnd(t, rratelimiter.ErrPermitsExceedRate, 300*ms)
		assert.Equal(t, "true at 1s", first.outcome())
		assert.Equal(t, "true at 2s", second.outcome())
	})
}

func TestARateLoweredBelowWhatTheHeadWants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(10, time.Second))
		mustAcquire(t, s.other, 5)
		head := s.tryAcquire(t.Context(), 8, forever)
		behind := s.tryAcquire(t.Context(), 1, forever)
		s.until(300 * ms)
		require.NoError(t, s.SetRate(t.Context(), every(6, time.Second), rratelimiter.KeepState()))
		s.until(time.Minute)
		head.requireEnd(t, rratelimiter.ErrPermitsExceedRate, 300*ms)
		assert.Equal(t, "true at 300ms", behind.outcome())
	})
}

func TestAcquireWaitsWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(1, 24*time.Hour))
		mustAcquire(t, s.other, 1)
		a, b := s.acquire(t.Context(), 1), s.acquire(context.WithoutCancel(t.Context()), 1)
		s.until(100 * time.Hour)
		assert.Equal(t, "true at 24h0m0s", a.outcome())
		assert.Equal(t, "true at 48h0m0s", b.outcome())
		assert.LessOrEqual(t, s.sent.scripts(), 6)
	})
}

func TestAcquireGrantsAtOnceWhatIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(10, time.Second))
		require.NoError(t, s.Acquire(t.Context(), 4))
		ok, err := s.TryAcquire(t.Context(), 6, time.Hour)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.Zero(t, s.now())
		assert.Equal(t, 2, s.sent.scripts())
	})
}

func TestWaitersOfDifferentLimitersDoNotMeet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(1, time.Hour))
		mustAcquire(t, s.other, 1)
		waiting := s.acquire(t.Context(), 1)
		free := s.client.RateLimiter(s.Name()+":free", rratelimiter.WithDefault(every(1, time.Hour)))
		assert.Equal(t, "true at 0s", s.call(func() (bool, error) { return free.TryAcquire(t.Context(), 1, forever) }).outcome())
		assert.Equal(t, "waits", waiting.outcome())
		s.until(2 * time.Hour)
		assert.Equal(t, "true at 1h0m0s", waiting.outcome())
	})
}

// A mapper may give two names one limiter; its waiters still form one line.
func TestNamesOfOneLimiterShareTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := newClient(t, rdb, rratelimiter.WithNameMapper(func(string) string { return "one" }))
		a, b := client.RateLimiter("a"), client.RateLimiter("b")
		mustTrySetRate(t, a, every(1, time.Second))
		mustAcquire(t, b, 1)
		s := &scene{RateLimiter: a, client: client, rdb: rdb, sent: countCommands(rdb), start: time.Now()}
		var line []*caller
		for i := range 10 {
			s.RateLimiter = []*rratelimiter.RateLimiter{a, b}[i%2]
			l := s.RateLimiter
			line = append(line, s.call(func() (bool, error) { return l.TryAcquire(t.Context(), 1, forever) }))
		}
		assert.Equal(t, 1, s.sent.scripts())
		s.until(time.Minute)
		for i, c := range line {
			assert.Equal(t, fmt.Sprintf("true at %v", time.Duration(i+1)*time.Second), c.outcome())
		}
	})
}

func TestWaitersOfAPerClientLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, perClient(2, time.Second))
		mustAcquire(t, s.RateLimiter, 2)
		mustAcquire(t, s.other, 2)
		s.until(500 * ms)
		mustRefuse(t, s.other, 1)
		c := s.tryAcquire(t.Context(), 2, forever)
		s.until(time.Minute)
		assert.Equal(t, "true at 1s", c.outcome())
	})
}

// Redis may lose the limiter while callers wait for it.
func TestWaitersAreToldWhenTheLimiterIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(1, time.Second))
		mustAcquire(t, s.other, 1)
		a, b := s.acquire(t.Context(), 1), s.acquire(t.Context(), 1)
		s.until(500 * ms)
		require.NoError(t, s.rdb.FlushAll(t.Context()).Err())
		s.until(time.Minute)
		a.requireEnd(t, rratelimiter.ErrNotInitialized, time.Second)
		b.requireEnd(t, rratelimiter.ErrNotInitialized, time.Second)
	})
}
