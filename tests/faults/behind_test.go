package faults_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A call's time runs from when its caller came, also while it waits for a Release of a server that hangs.
func TestRelease_HungDoesNotExtendCallsBehindIt(t *testing.T) {
	t.Parallel()
	type held struct {
		*limitertest.HeldScene

		reservation *rratelimiter.Reservation
		undo        func(context.Context) error
	}
	for name, call := range map[string]func(ctx context.Context, s held) error{
		"Settle":     func(ctx context.Context, s held) error { return s.reservation.Settle(ctx, 9) },
		"Cancel":     func(ctx context.Context, s held) error { return s.reservation.Cancel(ctx) },
		"Release":    func(ctx context.Context, s held) error { return s.Release(ctx, 1) },
		"Take":       func(ctx context.Context, s held) error { return limitertest.Second(s.Take(ctx, 1)) },
		"TryAcquire": func(ctx context.Context, s held) error { return limitertest.Second(s.TryAcquire(ctx, 1, 0)) },
		"Acquire":    func(ctx context.Context, s held) error { return s.Acquire(ctx, 1) },
		"Reserve":    func(ctx context.Context, s held) error { return limitertest.Second(s.Reserve(ctx, 1, 0)) },
		"TryAcquireAll": func(ctx context.Context, s held) error {
			return limitertest.Second(s.Client.TryAcquireAll(ctx, 0, s.Claim(1)))
		},
		"Peek":    func(ctx context.Context, s held) error { return limitertest.Second(s.Peek(ctx, 1)) },
		"SetRate": func(ctx context.Context, s held) error { return s.SetRate(ctx, limitertest.Hourly(10)) },
		"undo":    func(ctx context.Context, s held) error { return s.undo(ctx) },
		"Migrate": func(ctx context.Context, s held) error { return limitertest.Second(s.Client.Migrate(ctx, s.Name())) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := held{HeldScene: limitertest.NewHeldSceneOf(t, limitertest.Hourly(10), &redistest.Options{ReadTimeout: time.Minute})}
				s.reservation = limitertest.Reserve(t, s.RateLimiter, 4)
				var err error
				_, s.undo, err = s.Client.Keyed("", limitertest.Hourly(10)).TakeReturnable(t.Context(), s.Name(), 1)
				require.NoError(t, err)
				s.Proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Swallow })
				var wg sync.WaitGroup
				wg.Go(func() { assert.ErrorIs(t, s.Release(t.Context(), 1), rratelimiter.ErrUnknownOutcome) })
				time.Sleep(script.DefaultTimeout * 8 / 10)
				start := time.Now()
				require.ErrorIs(t, call(t.Context(), s), rratelimiter.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout+time.Millisecond)
				wg.Wait()
			})
		})
	}
}

// A repeat searches among the members that others made since, in as many steps as that takes. What is lost
// of it meanwhile goes on where it was; the whole call ends within twice its time, whatever is lost.
func TestRepeat_SearchForFirstAttemptEnds(t *testing.T) {
	t.Parallel()
	const rows = 4000
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
						limitertest.AddGrants(t, s.Mini, keys.Permits, 0, 200, 1)
						require.NoError(t, s.Mini.DecrBy(t.Context(), keys.Value, 200).Err())
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
