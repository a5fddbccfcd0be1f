package concurrency_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// endingScene is a HeldScene with what the calls below need.
type endingScene struct {
	*limitertest.HeldScene

	both        []rratelimiter.Claim
	reservation *rratelimiter.Reservation
	undo        func(context.Context) error
}

func newEndingScene(t *testing.T) endingScene {
	t.Helper()
	cfg := limitertest.Every(10, time.Hour)
	s := endingScene{HeldScene: limitertest.NewHeldScene(t, cfg)}
	s.both = limitertest.Claims(1, limitertest.ByDefault(s.Client, "{a}1", cfg), limitertest.ByDefault(s.Client, "{a}2", cfg))
	s.reservation = limitertest.Reserve(t, s.RateLimiter, 4)
	var err error
	_, s.undo, err = s.Client.Keyed("", cfg).TakeReturnable(t.Context(), s.Name(), 1)
	require.NoError(t, err)
	return s
}

// An endingCall is a call whose context ends, and whether its outcome is then unknown: if it was sent, and if
// it waits behind others.
type endingCall struct {
	sent, behind bool
	do           func(ctx context.Context, s endingScene) error
}

var endingCalls = map[string]endingCall{
	"TryAcquireAll": {do: func(ctx context.Context, s endingScene) error {
		return limitertest.Second(s.Client.TryAcquireAll(ctx, forever, s.both...))
	}},
	"TakeAll": {do: func(ctx context.Context, s endingScene) error {
		return limitertest.Second(s.Client.TakeAll(ctx, s.both...))
	}},
	"ReserveAll": {do: func(ctx context.Context, s endingScene) error {
		return limitertest.Second(s.Client.ReserveAll(ctx, 0, s.both...))
	}},
	"Migrate": {sent: true, do: func(ctx context.Context, s endingScene) error {
		return limitertest.Second(s.Migrate(ctx))
	}},
	// They go on without their caller.
	"Settle": {sent: true, behind: true, do: func(ctx context.Context, s endingScene) error { return s.reservation.Settle(ctx, 9) }},
	"Cancel": {sent: true, behind: true, do: func(ctx context.Context, s endingScene) error { return s.reservation.Cancel(ctx) }},
	"undo":   {sent: true, behind: true, do: func(ctx context.Context, s endingScene) error { return s.undo(ctx) }},
}

// A caller's deadline is a net.Error, and yet no outage: no policy may answer in its place.
func TestContext_EndIsNoOutage(t *testing.T) {
	t.Parallel()
	calls := maps.Clone(endingCalls)
	for name, call := range limitertest.Operations {
		unknown := !limitertest.Reads[name] && !limitertest.Acquires[name]
		calls[name] = endingCall{sent: unknown, do: func(ctx context.Context, s endingScene) error { return call(ctx, s.RateLimiter) }}
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Bubbles(t, map[string]bool{"sent": true, "behind others": false}, func(t *testing.T, sent bool) {
				s := newEndingScene(t)
				held := make(chan struct{})
				s.Proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
				if !sent {
					other := limitertest.ByDefault(s.Client, "other", limitertest.Every(10, time.Hour))
					s.Go(func() (bool, error) { return other.TryAcquire(t.Context(), 1, 0) })
				}
				ctx, cancel := context.WithTimeout(t.Context(), 300*ms)
				defer cancel()
				c := s.Go(func() (bool, error) { return false, call.do(ctx, s) })
				s.Until(300 * ms)
				c.RequireEnd(t, context.DeadlineExceeded, 300*ms)
				end, _ := c.Ended()
				require.NotErrorIs(t, end.Err, rratelimiter.ErrUnavailable)
				unknown := call.behind
				if sent {
					unknown = call.sent
				}
				assert.Equal(t, unknown, errors.Is(end.Err, rratelimiter.ErrUnknownOutcome), end.Err)
				close(held)
				require.NoError(t, s.Client.Close(t.Context()))
			})
		})
	}
}

// While a server hangs and go-redis waits on, requests whose callers have gone hold up no Close.
func TestClose_DoesNotWaitForCallersThatHaveGone(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]int{"pool of 2": 2, "pool of 20": 20}, func(t *testing.T, pool int) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: pool})
		back := make(chan struct{})
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, _ func() error) error {
			<-back
			return errors.New("the server has gone")
		}))
		defer synctest.Wait()
		defer close(back)
		c := rratelimiter.New(rdb)
		cfg := limitertest.Every(10, time.Hour)
		both := limitertest.Claims(1, limitertest.ByDefault(c, "{a}1", cfg), limitertest.ByDefault(c, "{a}2", cfg))
		for range 20 {
			limitertest.Together(100, func(int) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := c.TakeAll(ctx, both...)
				assert.Error(t, err)
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		assert.NoError(t, c.Close(ctx))
	})
}
