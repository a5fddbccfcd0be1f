package concurrency_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestTryAcquireAllWaitsUpToItsTimeout(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		timeout time.Duration
		want    string
	}{
		{math.MinInt64, "false at 250ms"},
		{0, "false at 250ms"},
		{1, "false at 250.000001ms"},
		{749 * time.Millisecond, "false at 999ms"},
		{1750*time.Millisecond - 1, "false at 1.999999999s"},
		{1750 * time.Millisecond, "true at 2s"},
		{5 * time.Second, "true at 2s"},
		{math.MaxInt64, "true at 2s"},
	} {
		for name, context := range map[string]func(context.Context) context.Context{
			"cancellable":     func(ctx context.Context) context.Context { return ctx },
			"not cancellable": context.WithoutCancel,
		} {
			t.Run(tt.timeout.String()+", "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					// The first could grant at 1s, the second at 2s, the third at once.
					s, f := limitertest.NewFamilyScene(t, limitertest.Every(2, time.Second), limitertest.Every(1, 2*time.Second), limitertest.Every(9, time.Hour))
					require.True(t, f.SeenBy(s.Rival).Try(t, 1))
					limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[0].Name()), 1)
					s.Until(250 * time.Millisecond)
					if name == "cancellable" {
						slices.Reverse(f.Limiters)
					}
					c := s.TryAll(context(t.Context()), f, 1, tt.timeout)
					s.Until(limitertest.Forever)
					assert.Equal(t, tt.want, c.Outcome())
					assert.LessOrEqual(t, s.Sent.Scripts(), 2, "it asks at first, and when both can grant")
				})
			})
		}
	}
}

// The wait is the time until enough members have run out, whenever it is asked
// for.
func TestTryAcquireAllWaitsForEnoughMembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(3, time.Second), limitertest.Every(9, time.Hour))
		for range 3 {
			limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[0].Name()), 1)
			s.Until(s.Now() + 200*time.Millisecond)
		}
		assert.False(t, f.Try(t, 1))
		two, three := s.TryAll(t.Context(), f, 2, 600*time.Millisecond), s.TryAll(t.Context(), f, 3, limitertest.Forever)
		s.Until(limitertest.Forever)
		assert.Equal(t, "true at 1.2s", two.Outcome())
		assert.Equal(t, "true at 2.2s", three.Outcome())
	})
}

func TestThoseThatWaitForAllAreWoken(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wake func(t *testing.T, l *rratelimiter.RateLimiter) error
		want string // "": the limiter is gone at once
	}{
		"SetRate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), limitertest.Every(5, time.Second))
		}, "true at 300ms"},
		"UpdateRate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), limitertest.Every(3, time.Second), rratelimiter.KeepState())
			return err
		}, "true at 300ms"},
		"a longer interval": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), limitertest.Every(2, 2*time.Second), rratelimiter.KeepState())
			return err
		}, "true at 2s"},
		"Delete": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.Delete(t.Context())
			return err
		}, ""},
	} {
		for place := range 2 {
			t.Run(fmt.Sprint(name, place), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s, f := limitertest.NewFamilyScene(t, limitertest.Every(2, time.Second), limitertest.Every(2, time.Second))
					limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[place].Name()), 2)
					c := s.TryAll(t.Context(), f, 1, limitertest.Forever)
					s.Until(300 * time.Millisecond)
					require.NoError(t, tt.wake(t, s.Client.RateLimiter(f.Limiters[place].Name())))
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
}

func TestAContextThatEndsWhileItWaitsForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(2, time.Second), limitertest.Every(1, time.Hour))
		require.True(t, f.SeenBy(s.Rival).Try(t, 1))
		ended, cancel := context.WithCancel(t.Context())
		waits := s.TryAll(ended, f, 1, limitertest.Forever)
		s.Until(300 * time.Millisecond)
		cancel()
		synctest.Wait()
		waits.RequireEnd(t, context.Canceled, 300*time.Millisecond)
		before := s.Sent.Total()
		_, err := s.Client.TryAcquireAll(ended, 1, 0, f.Limiters...)
		require.ErrorIs(t, err, context.Canceled)
		s.Until(limitertest.Forever)
		assert.Equal(t, before, s.Sent.Total())
		s.CheckAll(t, f, []int64{2, 1}, []int64{1, 1})
	})
}

// What is granted to a caller that has gone goes back to every limiter, and
// serves those that wait for any of them.
func TestAContextThatEndsWhileAllAreAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(3, time.Hour), limitertest.Every(9, time.Hour), limitertest.Every(5, time.Hour))
		require.NoError(t, s.Mini.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		letGo := s.Hold(t, lua.AcquireAll, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		gone := s.TryAll(ctx, f, 3, limitertest.Forever)
		s.CheckAll(t, f, []int64{3, 9, 5}, []int64{3, 3, 3})
		one := s.Go(func() (bool, error) { return f.Limiters[0].TryAcquire(t.Context(), 1, limitertest.Forever) })
		other := &limitertest.Family{Client: f.Client, Limiters: f.Limiters[:2]}
		both := s.TryAll(t.Context(), other, 2, limitertest.Forever)
		s.Until(500 * time.Millisecond)
		gone.RequireEnd(t, context.DeadlineExceeded, 200*time.Millisecond)
		letGo()
		assert.Equal(t, "true at 500ms", one.Outcome())
		assert.Equal(t, "true at 500ms", both.Outcome())
		s.CheckAll(t, f, []int64{3, 9, 5}, []int64{3, 2, 0})
	})
}

func TestCloseEndsTheWaitForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(1, time.Second), limitertest.Every(1, time.Hour))
		require.True(t, f.SeenBy(s.Rival).Try(t, 1))
		waiting := []*limitertest.Caller{s.TryAll(t.Context(), f, 1, limitertest.Forever), s.TryAll(context.WithoutCancel(t.Context()), f, 1, limitertest.Forever)}
		s.Until(300 * time.Millisecond)
		before := s.Sent.Total()
		require.NoError(t, s.Client.Close(t.Context()))
		synctest.Wait()
		for _, c := range waiting {
			c.RequireEnd(t, rratelimiter.ErrClosed, 300*time.Millisecond)
		}
		_, err := s.Client.TryAcquireAll(t.Context(), 1, 0, f.Limiters...)
		require.ErrorIs(t, err, rratelimiter.ErrClosed)
		s.Until(limitertest.Forever)
		assert.Equal(t, before, s.Sent.Total())
	})
}

func TestCloseWaitsForWhatAllAreAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(5, time.Hour), limitertest.Every(9, time.Hour))
		require.NoError(t, s.Mini.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		held := make(chan struct{})
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Contains(lua.AcquireAll.SHA) {
				return redistest.Pass.When(held)
			}
			return redistest.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		kept := s.TryAll(t.Context(), f, 2, 0)
		gone := s.TryAll(ctx, f, 1, 0)
		refused := s.TryAll(t.Context(), f, 4, limitertest.Forever)
		s.Until(100 * time.Millisecond)
		closed := s.Close(t.Context())
		cancel()
		s.Until(200 * time.Millisecond)
		assert.Equal(t, "waits", closed.Outcome())
		close(held)
		synctest.Wait()
		assert.Equal(t, "true at 200ms", kept.Outcome())
		gone.RequireEnd(t, context.Canceled, 100*time.Millisecond)
		refused.RequireEnd(t, rratelimiter.ErrClosed, 200*time.Millisecond)
		assert.Equal(t, "true at 200ms", closed.Outcome())
		s.CheckAll(t, f, []int64{5, 9}, []int64{2, 2})
	})
}
