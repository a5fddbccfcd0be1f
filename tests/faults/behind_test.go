package faults_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
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
)

// behindScene is a HeldScene with what calls behind a Release need.
type behindScene struct {
	*limitertest.HeldScene

	reservation *rratelimiter.Reservation
	undo        func(context.Context) error
}

func newBehindScene(t *testing.T, connections int) behindScene {
	t.Helper()
	opt := &redistest.Options{ReadTimeout: time.Minute, PoolSize: connections}
	s := behindScene{HeldScene: limitertest.NewHeldSceneOf(t, limitertest.Hourly(10_000), opt)}
	s.reservation = limitertest.Reserve(t, s.RateLimiter, 4)
	var err error
	_, s.undo, err = s.Client.Keyed("", limitertest.Hourly(10_000)).TakeReturnable(t.Context(), s.Name(), 1)
	require.NoError(t, err)
	return s
}

var callsBehind = map[string]func(ctx context.Context, s behindScene) error{
	"Settle":     func(ctx context.Context, s behindScene) error { return s.reservation.Settle(ctx, 9) },
	"Cancel":     func(ctx context.Context, s behindScene) error { return s.reservation.Cancel(ctx) },
	"Release":    func(ctx context.Context, s behindScene) error { return s.Release(ctx, 1) },
	"Take":       func(ctx context.Context, s behindScene) error { return limitertest.Second(s.Take(ctx, 1)) },
	"TryAcquire": func(ctx context.Context, s behindScene) error { return limitertest.Second(s.TryAcquire(ctx, 1, 0)) },
	"Acquire":    func(ctx context.Context, s behindScene) error { return s.Acquire(ctx, 1) },
	"Reserve":    func(ctx context.Context, s behindScene) error { return limitertest.Second(s.Reserve(ctx, 1, 0)) },
	"TryAcquireAll": func(ctx context.Context, s behindScene) error {
		other := limitertest.ByDefault(s.Client, "{"+s.Name()+"}:other", limitertest.Hourly(10))
		return limitertest.Second(s.Client.TryAcquireAll(ctx, 0, other.Claim(1), s.Claim(1)))
	},
	"Peek":    func(ctx context.Context, s behindScene) error { return limitertest.Second(s.Peek(ctx, 1)) },
	"SetRate": func(ctx context.Context, s behindScene) error { return s.SetRate(ctx, limitertest.Hourly(10)) },
	"undo":    func(ctx context.Context, s behindScene) error { return s.undo(ctx) },
	"Migrate": func(ctx context.Context, s behindScene) error {
		return limitertest.Second(s.Migrate(ctx))
	},
}

// A call's time runs from when its caller came, also while it waits for a Release of a server that hangs.
func TestRelease_HungDoesNotExtendCallsBehindIt(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, callsBehind, func(t *testing.T, call func(context.Context, behindScene) error) {
		s := newBehindScene(t, 20)
		s.Proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Swallow })
		var wg sync.WaitGroup
		wg.Go(func() { assert.ErrorIs(t, s.Release(t.Context(), 1), rratelimiter.ErrUnknownOutcome) })
		time.Sleep(script.DefaultTimeout * 8 / 10)
		start := time.Now()
		require.ErrorIs(t, call(t.Context(), s), rratelimiter.ErrUnavailable)
		assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout+time.Millisecond)
		wg.Wait()
	})
}

// So it does behind a change of another limiter if there are connections for one flight only.
func TestSetRate_HungDoesNotExtendCallsBehindIt(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, callsBehind, func(t *testing.T, call func(context.Context, behindScene) error) {
		s := newBehindScene(t, 3)
		s.Proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Swallow })
		var wg sync.WaitGroup
		wg.Go(func() {
			other := s.Client.RateLimiter(limitertest.Besides(s.Name()))
			assert.ErrorIs(t, other.SetRate(t.Context(), limitertest.Hourly(1)), rratelimiter.ErrUnknownOutcome)
		})
		synctest.Wait()
		start := time.Now()
		require.ErrorIs(t, call(context.WithoutCancel(t.Context()), s), rratelimiter.ErrUnavailable)
		assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout+time.Millisecond)
		wg.Wait()
	})
}

// So it does behind a Release of many calls, each of which is answered in time.
func TestRelease_OfManyCallsDoesNotExtendCallsBehindIt(t *testing.T) {
	t.Parallel()
	const rows = 1200
	limitertest.Bubbles(t, callsBehind, func(t *testing.T, call func(context.Context, behindScene) error) {
		s := newBehindScene(t, 20)
		keys := limitertest.KeysOf(s.RateLimiter)
		limitertest.AddGrants(t, s.Mini, keys.Permits, 0, rows, 1)
		require.NoError(t, s.Mini.DecrBy(t.Context(), keys.Value, rows).Err())
		s.Redis.AddHook(limitertest.BeforeScript(lua.Release, func() { time.Sleep(script.DefaultTimeout / 2) }))
		var wg sync.WaitGroup
		wg.Go(func() {
			start := time.Now()
			assert.NoError(t, s.Release(t.Context(), rows))
			if !strings.HasSuffix(t.Name(), "/SetRate") { // which leaves nothing to release
				assert.Greater(t, time.Since(start), 2*script.DefaultTimeout)
			}
		})
		synctest.Wait()
		start := time.Now()
		if err := call(t.Context(), s); err != nil {
			require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		}
		assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout+time.Millisecond)
		wg.Wait()
	})
}

// A repeat searches among the members that others made since, in as many steps as that takes. What is lost
// of it meanwhile goes on where it was; the whole call ends within twice its time, whatever is lost.
func TestRepeat_SearchForFirstAttemptEnds(t *testing.T) {
	t.Parallel()
	const rows = 3000
	for name, call := range map[string]func(ctx context.Context, s *limitertest.HeldScene) error{
		"TryAcquire": func(ctx context.Context, s *limitertest.HeldScene) error {
			return limitertest.Second(s.TryAcquire(ctx, 3, 0))
		},
		"Take":     func(ctx context.Context, s *limitertest.HeldScene) error { return limitertest.Second(s.Take(ctx, 3)) },
		"TakeUpTo": func(ctx context.Context, s *limitertest.HeldScene) error { return third(s.TakeUpTo(ctx, 3)) },
		"Reserve": func(ctx context.Context, s *limitertest.HeldScene) error {
			return limitertest.Second(s.Reserve(ctx, 3, 0))
		},
		"TryAcquireAll": func(ctx context.Context, s *limitertest.HeldScene) error {
			other := s.Client.RateLimiter("{"+s.Name()+"}:other", rratelimiter.WithDefault(limitertest.Hourly(10)))
			return limitertest.Second(s.Client.TryAcquireAll(ctx, 0, other.Claim(3), s.Claim(3)))
		},
	} {
		for lost, want := range map[int]error{3: nil, 1: rratelimiter.ErrUnknownOutcome} { // one in so many
			t.Run(fmt.Sprintf("%s, one of %d lost", name, lost), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := limitertest.NewHeldScene(t, limitertest.Hourly(1_000_000))
					keys := limitertest.KeysOf(s.RateLimiter)
					more := func() {
						limitertest.AddGrants(t, s.Mini, keys.Permits, 0, 100, 1)
						require.NoError(t, s.Mini.DecrBy(t.Context(), keys.Value, 100).Err())
					}
					limitertest.MustAcquire(t, s.Other, 1)
					limitertest.AddGrants(t, s.Mini, keys.Permits, 0, rows, 1)
					require.NoError(t, s.Mini.DecrBy(t.Context(), keys.Value, rows).Err())
					calls := 0
					s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
						if c.Name() != "evalsha" {
							return redistest.Pass
						}
						more() // others go on
						switch calls++; {
						case calls == 1:
							return redistest.Cut // so that nothing is found
						case calls%lost == 0:
							return redistest.DropAnswer
						}
						return redistest.Pass
					})
					start := time.Now()
					require.ErrorIs(t, call(t.Context(), s), want)
					assert.LessOrEqual(t, time.Since(start), 2*script.DefaultTimeout)
					assert.LessOrEqual(t, calls, 2*rows/256, "calls")
				})
			})
		}
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }
