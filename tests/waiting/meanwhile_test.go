package waiting_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A meanwhileScene is a limiter of which nothing is free, and whose refusals can be kept back.
type meanwhileScene struct {
	*limitertest.HeldScene

	reservation, other *rratelimiter.Reservation
	undo               func(context.Context) error
	land               func() // the last grant, which is on its way
	leave              func() // its caller, before it lands
}

func newMeanwhileScene(t *testing.T) *meanwhileScene {
	t.Helper()
	cfg := limitertest.Every(10, time.Hour)
	s := &meanwhileScene{HeldScene: limitertest.NewHeldSceneOf(t, cfg, &redistest.Options{ReadTimeout: time.Minute, PoolSize: 20})}
	s.RateLimiter = limitertest.ByDefault(s.Client, s.Name(), cfg)
	s.reservation, s.other = limitertest.Reserve(t, s.RateLimiter, 4), limitertest.Reserve(t, s.RateLimiter, 4)
	var err error
	_, s.undo, err = s.Client.Keyed("", cfg).TakeReturnable(t.Context(), s.Name(), 1)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan struct{})
	s.Proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, redistest.Pass.When(granted)))
	s.StartTryAcquire(ctx, 1, 0)
	s.land = sync.OnceFunc(func() { close(granted) })
	t.Cleanup(s.land)
	s.leave = func() {
		cancel()
		time.Sleep(ms)
		s.land()
	}
	return s
}

// frees are what frees permits by the same Client.
var frees = map[string]func(ctx context.Context, s *meanwhileScene) error{
	"SetRate": func(ctx context.Context, s *meanwhileScene) error { return s.SetRate(ctx, rratelimiter.PerSecond(20)) },
	"UpdateRate": func(ctx context.Context, s *meanwhileScene) error {
		return limitertest.Second(s.UpdateRate(ctx, rratelimiter.PerSecond(20)))
	},
	"Delete": func(ctx context.Context, s *meanwhileScene) error { return limitertest.Second(s.Delete(ctx)) },
	"Expire": func(ctx context.Context, s *meanwhileScene) error {
		return limitertest.Second(s.Expire(ctx, time.Millisecond))
	},
	"Reset": func(ctx context.Context, s *meanwhileScene) error { return s.Reset(ctx) },
	"Release": func(ctx context.Context, s *meanwhileScene) error {
		s.land() // otherwise it would wait
		return s.Release(ctx, 4)
	},
	"Rename": func(ctx context.Context, s *meanwhileScene) error {
		return limitertest.ReplaceBy(rratelimiter.PerSecond(20))(ctx, s.Client, s.RateLimiter)
	},
	"Settle": func(ctx context.Context, s *meanwhileScene) error { return s.reservation.Settle(ctx, 1) },
	"Cancel": func(ctx context.Context, s *meanwhileScene) error { return s.reservation.Cancel(ctx) },
	"undo":   func(ctx context.Context, s *meanwhileScene) error { return s.undo(ctx) },
	"a caller leaves a grant": func(_ context.Context, s *meanwhileScene) error {
		s.leave()
		return nil
	},
}

// A refusal may be older than permits that were freed while it was on its way: the caller who got it asks again at once.
func TestRefusal_OlderThanPermitsFreedMeanwhile(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]func(t *testing.T, s *meanwhileScene) (letGo func(), waiting *limitertest.Caller){
		"the first of a line": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			letGo := s.Hold(t, lua.Acquire, 1)
			return letGo, s.StartAcquire(t.Context(), 1)
		},
		"in line": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			first := s.StartAcquire(t.Context(), 1)
			s.Until(20 * ms)
			letGo := s.Hold(t, lua.Acquire, 1)
			s.StartAcquire(t.Context(), 3) // makes the line ask
			s.Until(40 * ms)
			return letGo, first
		},
		"several limiters": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			letGo := s.Hold(t, lua.AcquireAll, 1)
			other := limitertest.ByDefault(s.Client, limitertest.Besides(s.Name()), rratelimiter.PerHour(10))
			both := limitertest.Claims(1, s.RateLimiter, other)
			return letGo, s.Go(func() (bool, error) { return s.Client.TryAcquireAll(t.Context(), forever, both...) })
		},
	}, func(t *testing.T, start func(t *testing.T, s *meanwhileScene) (letGo func(), waiting *limitertest.Caller)) {
		limitertest.Bubbles(t, frees, func(t *testing.T, free func(context.Context, *meanwhileScene) error) {
			s := newMeanwhileScene(t)
			letGo, waiting := start(t, s)
			freeing := s.Go(func() (bool, error) { return true, free(context.WithoutCancel(t.Context()), s) })
			assert.Equal(t, "waits", waiting.Outcome())
			s.Until(60 * ms)
			letGo()
			s.Until(100 * ms)
			end, done := freeing.Ended()
			assert.True(t, done)
			assert.NoError(t, end.Err)
			end, done = waiting.Ended()
			assert.True(t, done && end.Ok, waiting.Outcome())
		})
	})
}
