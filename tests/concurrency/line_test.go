package concurrency_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

func TestALargeRequestIsServedAheadOfLaterSmallOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(10, time.Second))
		for i := range 10 {
			s.Until(time.Duration(i) * 50 * time.Millisecond)
			limitertest.MustAcquire(t, s.Other, 1)
		}
		s.Until(500 * time.Millisecond)
		large := s.StartTryAcquire(t.Context(), 5, limitertest.Forever)
		var small []*limitertest.Caller
		for i := range 5 {
			s.Until(500*time.Millisecond + time.Duration(i+1)*time.Millisecond)
			small = append(small, s.StartTryAcquire(t.Context(), 1, limitertest.Forever))
		}
		s.Until(time.Minute)
		assert.Equal(t, "true at 1.2s", large.Outcome())
		for i, c := range small {
			assert.Equal(t, fmt.Sprintf("true at %v", 1250*time.Millisecond+time.Duration(i)*50*time.Millisecond), c.Outcome())
		}
	})
}

// The head asks for what can't be had while the other Client goes on; those
// behind it wait for it one interval, counted from when the head began, and no
// longer.
func TestWhatCannotBeServedHoldsNobodyUpLongerThanAnInterval(t *testing.T) {
	t.Parallel()

	t.Run("behind it from the start", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewScene(t, limitertest.Every(10, time.Second))
			stop := s.KeepInUse(t, 1)
			s.Until(50 * time.Millisecond)
			head := s.StartTryAcquire(t.Context(), 10, limitertest.Forever)
			s.Until(100 * time.Millisecond)
			a, b := s.StartTryAcquire(t.Context(), 2, limitertest.Forever), s.StartTryAcquire(t.Context(), 3, 960*time.Millisecond)
			s.Until(1500 * time.Millisecond)
			assert.Equal(t, "true at 1.05s", a.Outcome())
			assert.Equal(t, "true at 1.05s", b.Outcome())

			// From now on new ones are tried at once.
			c := s.StartTryAcquire(t.Context(), 1, limitertest.Forever)
			assert.Equal(t, "true at 1.5s", c.Outcome())
			assert.Equal(t, "waits", head.Outcome())

			s.Until(2 * time.Second)
			stop()
			s.Until(time.Minute)
			assert.Equal(t, "true at 2.8s", head.Outcome(), "the head is first in line still")
			assert.LessOrEqual(t, s.Sent.Scripts(), 12)
		})
	})

	// The head was alone when the server told it a moment beyond its interval.
	t.Run("behind it only later", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewScene(t, limitertest.Every(10, time.Second))
			limitertest.MustAcquire(t, s.Other, 5)
			s.Until(100 * time.Millisecond)
			head := s.StartTryAcquire(t.Context(), 10, limitertest.Forever)
			s.Until(600 * time.Millisecond)
			limitertest.MustAcquire(t, s.Other, 4)
			s.Until(1050 * time.Millisecond)
			assert.Equal(t, "waits", head.Outcome(), "it was told 1.6s")
			behind := s.StartTryAcquire(t.Context(), 1, 300*time.Millisecond)
			s.Until(time.Minute)
			assert.Equal(t, "true at 1.1s", behind.Outcome(), "6 are free, and the head began at 0.1s")
		})
	})

	// One batch has one configuration.
	t.Run("with another default", func(t *testing.T) {
		t.Parallel()
		for name, opts := range map[string][]rratelimiter.LimiterOption{
			"none":  nil,
			"other": {rratelimiter.WithDefault(limitertest.Every(20, time.Second))},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := limitertest.NewScene(t, limitertest.Every(10, time.Second), rratelimiter.WithDefault(limitertest.Every(30, time.Second)))
					defer s.KeepInUse(t, 1)()
					s.Until(50 * time.Millisecond)
					head := s.StartTryAcquire(t.Context(), 10, 5*time.Second)
					behind := s.Client.RateLimiter(s.Name(), opts...)
					s.Until(100 * time.Millisecond)
					a := s.Go(func() (bool, error) { return behind.TryAcquire(t.Context(), 1, 3*time.Second) })
					s.Until(1500 * time.Millisecond)
					b := s.Go(func() (bool, error) { return behind.TryAcquire(t.Context(), 1, 0) })
					s.Until(10 * time.Second)
					assert.Equal(t, "false at 5.05s", head.Outcome())
					assert.Equal(t, "true at 1.05s", a.Outcome())
					assert.Equal(t, "true at 1.5s", b.Outcome(), "one try overtakes")
				})
			})
		}
	})

	// One batch is for no more permits than a member holds.
	t.Run("with permits beyond a batch", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			const billion = 1_000_000_000
			s := limitertest.NewScene(t, limitertest.Every(6*billion, time.Second))
			defer s.KeepInUse(t, 2*billion+1)()
			s.Until(50 * time.Millisecond)
			head := s.StartTryAcquire(t.Context(), 4*billion, 5*time.Second)
			s.Until(100 * time.Millisecond)
			behind := s.StartTryAcquire(t.Context(), billion, 3*time.Second)
			try := s.StartTryAcquire(t.Context(), billion/2, 0)
			s.Until(10 * time.Second)
			assert.Equal(t, "false at 5.05s", head.Outcome())
			assert.Equal(t, "true at 1.05s", behind.Outcome())
			assert.Equal(t, "true at 100ms", try.Outcome())
		})
	})

	t.Run("where many others can't be served either", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewScene(t, limitertest.Every(1000, time.Second))
			defer s.KeepInUse(t, 499)()
			s.Until(50 * time.Millisecond)
			for i := range 300 {
				s.Go(func() (bool, error) { return s.TryAcquire(t.Context(), int64(502+i%2), 5*time.Second) })
			}
			s.Until(100 * time.Millisecond)
			behind := s.StartTryAcquire(t.Context(), 1, 3*time.Second)
			s.Until(10 * time.Second)
			assert.Equal(t, "true at 1.05s", behind.Outcome())
		})
	})
}

func TestEqualOnesAreServedInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(2, time.Second))
		limitertest.MustAcquire(t, s.Other, 2)
		var line []*limitertest.Caller
		for i := range 40 {
			s.Until(time.Duration(i) * 25 * time.Millisecond)
			line = append(line, s.StartTryAcquire(t.Context(), 1, limitertest.Forever))
		}
		s.Until(time.Hour)
		for i, c := range line {
			assert.Equal(t, fmt.Sprintf("true at %v", time.Duration(i/2+1)*time.Second), c.Outcome(), "number %d in line", i)
		}
	})
}

func TestAThousandWaitersAskAsOne(t *testing.T) {
	t.Parallel()
	for name, arrive := range map[string]func(s *limitertest.Scene, call func()){
		"at once": func(_ *limitertest.Scene, call func()) {
			for range 1000 {
				go call()
			}
		},
		"one by one": func(s *limitertest.Scene, call func()) {
			for i := range 1000 {
				go call()
				if i%10 == 0 {
					s.Until(s.Now() + time.Millisecond)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limitertest.NewScene(t, limitertest.Every(100, time.Second))
				limitertest.MustAcquire(t, s.Other, 100)
				s.Until(500 * time.Millisecond)
				handles := []*rratelimiter.RateLimiter{s.RateLimiter, s.Client.RateLimiter(s.Name()), s.Client.RateLimiter(s.Name())}
				results := make(chan time.Duration, 1000)
				next := make(chan int, 1000)
				for i := range 1000 {
					next <- i
				}
				arrive(s, func() {
					if assert.NoError(t, handles[<-next%len(handles)].Acquire(t.Context(), 1)) {
						results <- s.Now()
					}
				})
				s.Until(900 * time.Millisecond)
				assert.LessOrEqual(t, s.Sent.Scripts(), 4, "the first flights have asked for all")

				s.Until(9999 * time.Millisecond)
				assert.Len(t, results, 900)
				s.Until(10 * time.Second)
				assert.Len(t, results, 1000, "as fast as the rate allows")
				assert.LessOrEqual(t, s.Sent.Scripts(), 30, "a few calls for each interval")
			})
		})
	}
}

// A line that is overdue was refused what its newest members want as well, so
// they need not ask.
func TestArrivingWaitersDoNotAskWhatWasRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(10, time.Second))
		defer s.KeepInUse(t, 4)()
		s.Until(50 * time.Millisecond)
		s.StartTryAcquire(t.Context(), 8, 5*time.Second)
		s.StartTryAcquire(t.Context(), 7, 5*time.Second)
		s.Until(1200 * time.Millisecond)
		before := s.Sent.Scripts()
		for range 100 {
			s.StartTryAcquire(t.Context(), 7, 500*time.Millisecond)
		}
		assert.Equal(t, before, s.Sent.Scripts())
		assert.Equal(t, "true at 1.2s", s.StartTryAcquire(t.Context(), 2, limitertest.Forever).Outcome(), "less is worth a call")
		s.Until(10 * time.Second)
	})
}

func TestTheNextIsServedWhenTheHeadGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(2, time.Minute))
		limitertest.MustAcquire(t, s.Other, 1)
		head := s.StartTryAcquire(t.Context(), 2, 300*time.Millisecond)
		second := s.StartTryAcquire(t.Context(), 2, 400*time.Millisecond)
		third := s.StartTryAcquire(t.Context(), 1, limitertest.Forever)
		s.Until(time.Second)
		assert.Equal(t, "false at 300ms", head.Outcome())
		assert.Equal(t, "false at 400ms", second.Outcome())
		assert.Equal(t, "true at 400ms", third.Outcome())
	})
}

func TestOneInTheMiddleGivesUpAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(2, time.Second))
		limitertest.MustAcquire(t, s.Other, 2)
		head := s.StartTryAcquire(t.Context(), 1, limitertest.Forever)
		middle := s.StartTryAcquire(t.Context(), 1, 600*time.Millisecond)
		last := s.StartTryAcquire(t.Context(), 1, limitertest.Forever)
		s.Until(time.Minute)
		assert.Equal(t, "true at 1s", head.Outcome())
		assert.Equal(t, "false at 600ms", middle.Outcome())
		assert.Equal(t, "true at 1s", last.Outcome())
		assert.LessOrEqual(t, s.Sent.Scripts(), 3)
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
				s := limitertest.NewScene(t, limitertest.Every(3, time.Second))
				limitertest.MustAcquire(t, s.Other, 3)
				var line []*limitertest.Caller
				for range 4 {
					line = append(line, s.StartTryAcquire(t.Context(), 1, time.Second))
				}
				s.Until(time.Minute)
				assert.Equal(t, "true at 1s", line[0].Outcome())
				assert.Equal(t, "true at 1s", line[1].Outcome())
				assert.Equal(t, "true at 1s", line[2].Outcome())
				assert.Equal(t, "false at 1s", line[3].Outcome())
			})
		})
	}
}

func TestOneTryOvertakesTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(5, time.Second))
		limitertest.MustAcquire(t, s.Other, 2)
		head := s.StartTryAcquire(t.Context(), 4, limitertest.Forever)
		behind := s.StartTryAcquire(t.Context(), 1, limitertest.Forever)

		s.Until(100 * time.Millisecond)
		assert.Equal(t, "true at 100ms", s.StartTryAcquire(t.Context(), 1, 0).Outcome())
		assert.Equal(t, "true at 100ms", s.StartTryAcquire(t.Context(), 1, -time.Second).Outcome())
		d, err := s.Take(t.Context(), 1)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		assert.Zero(t, d.Remaining)
		assert.Equal(t, "false at 100ms", s.StartTryAcquire(t.Context(), 1, 0).Outcome())
		d, err = s.Take(t.Context(), 1)
		require.NoError(t, err)
		assert.False(t, d.Granted)
		assert.Equal(t, 900*time.Millisecond, d.RetryAfter)
		assert.Equal(t, 100*time.Millisecond, s.Now(), "none of them waited")
		assert.Equal(t, "waits", head.Outcome())

		s.Until(time.Minute)
		assert.Equal(t, "true at 1.1s", head.Outcome())
		assert.Equal(t, "true at 1s", behind.Outcome(), "the head had its interval")
	})
}
