package concurrency_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

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
		{400 * time.Millisecond, "false at 650ms"},
		{749 * time.Millisecond, "false at 999ms"},
		{750*time.Millisecond - 1, "false at 999.999999ms"},
		{750 * time.Millisecond, "true at 1s"},
		{750*time.Millisecond + 1, "true at 1s"},
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
						s := limitertest.NewScene(t, limitertest.Every(2, time.Second))
						limitertest.MustAcquire(t, s.Other, 2)
						s.Until(250 * time.Millisecond)
						c := s.StartTryAcquire(context(t.Context()), 1, tt.timeout)
						s.Until(limitertest.Forever)
						assert.Equal(t, tt.want, c.Outcome())
						assert.LessOrEqual(t, s.Sent.Scripts(), 2, "it asks at first and when the server said")
					})
				})
			}
		})
	}
}

func TestTryAcquireWaitsForAllOfItsPermits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(3, time.Second))
		for range 3 {
			limitertest.MustAcquire(t, s.Other, 1)
			s.Until(s.Now() + 200*time.Millisecond)
		}
		two, three := s.StartTryAcquire(t.Context(), 2, 600*time.Millisecond), s.StartTryAcquire(t.Context(), 3, limitertest.Forever)
		s.Until(limitertest.Forever)
		assert.Equal(t, "true at 1.2s", two.Outcome())
		assert.Equal(t, "true at 2.2s", three.Outcome(), "all are free an interval after the two")
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
			return l.SetRate(t.Context(), limitertest.Every(5, time.Second))
		}, "true at 300ms"},
		"SetRate of another type": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), limitertest.PerClient(1, time.Second))
		}, "true at 300ms"},
		"SetRate with the state kept": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), limitertest.Every(3, time.Second), rratelimiter.KeepState())
		}, "true at 300ms"},
		"UpdateRate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), limitertest.Every(5, time.Second))
			return err
		}, "true at 300ms"},
		"a shorter interval": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), limitertest.Every(2, 500*time.Millisecond), rratelimiter.KeepState())
			return err
		}, "true at 500ms"},
		"a longer interval": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), limitertest.Every(2, 2*time.Second), rratelimiter.KeepState())
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
				s := limitertest.NewScene(t, limitertest.Every(2, time.Second))
				limitertest.MustAcquire(t, s.Other, 2)
				c := s.StartTryAcquire(t.Context(), 1, limitertest.Forever)
				s.Until(300 * time.Millisecond)
				another := s.Client.RateLimiter(s.Name())
				require.NoError(t, tt.wake(t, another))
				s.Until(limitertest.Forever)
				if tt.want == "" {
					c.RequireEnd(t, rratelimiter.ErrNotInitialized, 300*time.Millisecond)
					return
				}
				assert.Equal(t, tt.want, c.Outcome())
			})
		})
	}
}

func TestWaitersAreWokenByALimiterRenamedToTheirs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(2, time.Second))
		limitertest.MustAcquire(t, s.Other, 2)
		free := s.Client.RateLimiter(s.Name() + ":free")
		limitertest.MustTrySetRate(t, free, limitertest.Every(1, time.Second))
		c := s.StartAcquire(t.Context(), 1)
		s.Until(300 * time.Millisecond)
		require.NoError(t, free.Rename(t.Context(), s.Name()))
		s.Until(time.Minute)
		assert.Equal(t, "true at 300ms", c.Outcome())
	})
}

func TestWaitersWithADefaultOutliveADelete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(2, time.Hour), rratelimiter.WithDefault(limitertest.Every(3, time.Minute)))
		limitertest.MustAcquire(t, s.Other, 2)
		c := s.StartAcquire(t.Context(), 1)
		s.Until(300 * time.Millisecond)
		deleted, err := s.Delete(t.Context())
		require.NoError(t, err)
		assert.True(t, deleted)
		synctest.Wait()
		assert.Equal(t, "true at 300ms", c.Outcome())
		cfg, err := s.Config(t.Context())
		require.NoError(t, err)
		assert.Equal(t, limitertest.Every(3, time.Minute), cfg)
	})
}

func TestWhatAnotherClientDoesIsSeenWhenTheServerSaid(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(t *testing.T, l *rratelimiter.RateLimiter) error{
		"nothing": func(*testing.T, *rratelimiter.RateLimiter) error { return nil },
		"Release": func(t *testing.T, l *rratelimiter.RateLimiter) error { return l.Release(t.Context(), 2) },
		"SetRate": func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), limitertest.Every(9, time.Hour))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limitertest.NewScene(t, limitertest.Every(2, time.Second))
				limitertest.MustAcquire(t, s.Other, 2)
				c := s.StartAcquire(t.Context(), 1)
				s.Until(300 * time.Millisecond)
				require.NoError(t, free(t, s.Other))
				s.Until(time.Minute)
				assert.Equal(t, "true at 1s", c.Outcome())
			})
		})
	}
}

func TestAWaiterAsksAgainUntilItIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(1, time.Second))
		limitertest.MustAcquire(t, s.Other, 1)
		// The other Client is there first, three times over.
		rivals := []*limitertest.Caller{}
		for range 3 {
			rivals = append(rivals, s.Go(func() (bool, error) { return s.Other.TryAcquire(t.Context(), 1, limitertest.Forever) }))
		}
		served, gaveUp := s.StartAcquire(t.Context(), 1), s.StartTryAcquire(t.Context(), 1, 1700*time.Millisecond)
		s.Until(time.Minute)
		assert.Equal(t, "false at 1.7s", gaveUp.Outcome())
		var ends []time.Duration
		for _, c := range append(rivals, served) {
			end, _ := c.Ended()
			assert.True(t, end.Ok)
			ends = append(ends, end.At)
		}
		assert.ElementsMatch(t, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, ends)
		assert.LessOrEqual(t, s.Sent.Scripts(), 10)
	})
}

func TestWaitersWithDifferentDefaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, rratelimiter.Config{}, rratelimiter.WithDefault(limitertest.Every(2, time.Second)))
		first := s.StartTryAcquire(t.Context(), 2, limitertest.Forever)
		assert.Equal(t, "true at 0s", first.Outcome(), "its default is the limiter's rate")

		larger := s.Client.RateLimiter(s.Name(), rratelimiter.WithDefault(limitertest.Every(10, time.Second)))
		none := s.Client.RateLimiter(s.Name())
		var line []*limitertest.Caller
		for _, l := range []*rratelimiter.RateLimiter{larger, none, s.RateLimiter, larger} {
			line = append(line, s.Go(func() (bool, error) { return l.TryAcquire(t.Context(), 1, limitertest.Forever) }))
		}
		tooMany := s.Go(func() (bool, error) { return larger.TryAcquire(t.Context(), 3, limitertest.Forever) })
		s.Until(time.Minute)
		assert.Equal(t, "true at 1s", line[0].Outcome())
		assert.Equal(t, "true at 1s", line[1].Outcome())
		assert.Equal(t, "true at 2s", line[2].Outcome())
		assert.Equal(t, "true at 2s", line[3].Outcome())
		end, _ := tooMany.Ended()
		assert.ErrorIs(t, end.Err, rratelimiter.ErrPermitsExceedRate, "a default replaces no rate")
	})
}

func TestARateLoweredBelowWhatAWaiterWants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(10, time.Second))
		limitertest.MustAcquire(t, s.Other, 10)
		first := s.StartTryAcquire(t.Context(), 3, limitertest.Forever)
		tooMany := s.StartTryAcquire(t.Context(), 8, limitertest.Forever)
		second := s.StartTryAcquire(t.Context(), 3, limitertest.Forever)
		s.Until(300 * time.Millisecond)
		require.NoError(t, s.SetRate(t.Context(), limitertest.Every(5, time.Second), rratelimiter.KeepState()))
		s.Until(time.Minute)
		tooMany.RequireEnd(t, rratelimiter.ErrPermitsExceedRate, 300*time.Millisecond)
		assert.Equal(t, "true at 1s", first.Outcome())
		assert.Equal(t, "true at 2s", second.Outcome())
	})
}

func TestARateLoweredBelowWhatTheHeadWants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(10, time.Second))
		limitertest.MustAcquire(t, s.Other, 5)
		head := s.StartTryAcquire(t.Context(), 8, limitertest.Forever)
		behind := s.StartTryAcquire(t.Context(), 1, limitertest.Forever)
		s.Until(300 * time.Millisecond)
		require.NoError(t, s.SetRate(t.Context(), limitertest.Every(6, time.Second), rratelimiter.KeepState()))
		s.Until(time.Minute)
		head.RequireEnd(t, rratelimiter.ErrPermitsExceedRate, 300*time.Millisecond)
		assert.Equal(t, "true at 300ms", behind.Outcome())
	})
}

func TestAcquireWaitsWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(1, 24*time.Hour))
		limitertest.MustAcquire(t, s.Other, 1)
		a, b := s.StartAcquire(t.Context(), 1), s.StartAcquire(context.WithoutCancel(t.Context()), 1)
		s.Until(100 * time.Hour)
		assert.Equal(t, "true at 24h0m0s", a.Outcome())
		assert.Equal(t, "true at 48h0m0s", b.Outcome())
		assert.LessOrEqual(t, s.Sent.Scripts(), 6)
	})
}

func TestAcquireGrantsAtOnceWhatIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(10, time.Second))
		require.NoError(t, s.Acquire(t.Context(), 4))
		ok, err := s.TryAcquire(t.Context(), 6, time.Hour)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.Zero(t, s.Now())
		assert.Equal(t, 2, s.Sent.Scripts())
	})
}

func TestWaitersOfDifferentLimitersDoNotMeet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(1, time.Hour))
		limitertest.MustAcquire(t, s.Other, 1)
		waiting := s.StartAcquire(t.Context(), 1)
		free := s.Client.RateLimiter(s.Name()+":free", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)))
		assert.Equal(t, "true at 0s", s.Go(func() (bool, error) { return free.TryAcquire(t.Context(), 1, limitertest.Forever) }).Outcome())
		assert.Equal(t, "waits", waiting.Outcome())
		s.Until(2 * time.Hour)
		assert.Equal(t, "true at 1h0m0s", waiting.Outcome())
	})
}

// A mapper may give two names one limiter; its waiters still form one line.
func TestNamesOfOneLimiterShareTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithNameMapper(func(string) string { return "one" }))
		a, b := client.RateLimiter("a"), client.RateLimiter("b")
		limitertest.MustTrySetRate(t, a, limitertest.Every(1, time.Second))
		limitertest.MustAcquire(t, b, 1)
		s := &limitertest.Scene{RateLimiter: a, Client: client, Redis: rdb, Sent: limitertest.CountCommands(rdb), Start: time.Now()}
		var line []*limitertest.Caller
		for i := range 10 {
			s.RateLimiter = []*rratelimiter.RateLimiter{a, b}[i%2]
			l := s.RateLimiter
			line = append(line, s.Go(func() (bool, error) { return l.TryAcquire(t.Context(), 1, limitertest.Forever) }))
		}
		assert.Equal(t, 1, s.Sent.Scripts())
		s.Until(time.Minute)
		for i, c := range line {
			assert.Equal(t, fmt.Sprintf("true at %v", time.Duration(i+1)*time.Second), c.Outcome())
		}
	})
}

func TestWaitersOfAPerClientLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.PerClient(2, time.Second))
		limitertest.MustAcquire(t, s.RateLimiter, 2)
		limitertest.MustAcquire(t, s.Other, 2)
		s.Until(500 * time.Millisecond)
		limitertest.MustRefuse(t, s.Other, 1)
		c := s.StartTryAcquire(t.Context(), 2, limitertest.Forever)
		s.Until(time.Minute)
		assert.Equal(t, "true at 1s", c.Outcome())
	})
}

// Redis may lose the limiter while callers wait for it.
func TestWaitersAreToldWhenTheLimiterIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(1, time.Second))
		limitertest.MustAcquire(t, s.Other, 1)
		a, b := s.StartAcquire(t.Context(), 1), s.StartAcquire(t.Context(), 1)
		s.Until(500 * time.Millisecond)
		require.NoError(t, s.Redis.FlushAll(t.Context()).Err())
		s.Until(time.Minute)
		a.RequireEnd(t, rratelimiter.ErrNotInitialized, time.Second)
		b.RequireEnd(t, rratelimiter.ErrNotInitialized, time.Second)
	})
}
