package concurrency_test

import (
	"context"
	"errors"
	"slices"
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

// A caller's deadline is a net.Error, and yet no outage: no policy may answer in its place.
func TestContext_EndIsNoOutage(t *testing.T) {
	t.Parallel()
	all := []string{"TryAcquireAll", "TakeAll", "ReserveAll"}
	settling := []string{"Settle", "Cancel", "undo", "Renew"} // they go on without their caller
	for name, open := range limitertest.Calls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Bubbles(t, map[string]bool{"sent": true, "behind others": false}, func(t *testing.T, sent bool) {
				s := limitertest.NewHeldScene(t, limitertest.Every(10, time.Hour))
				call := open(t, s.Client, s.RateLimiter)
				held := make(chan struct{})
				s.Proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
				if !sent {
					other := limitertest.ByDefault(s.Client, "other", limitertest.Every(10, time.Hour))
					s.Go(func() (bool, error) { return other.TryAcquire(t.Context(), 1, 0) })
				}
				ctx, cancel := context.WithTimeout(t.Context(), 300*ms)
				defer cancel()
				c := s.Go(func() (bool, error) { return false, call(ctx) })
				s.Until(300 * ms)
				c.RequireEnd(t, context.DeadlineExceeded, 300*ms)
				end, _ := c.Ended()
				require.NotErrorIs(t, end.Err, rratelimiter.ErrUnavailable)
				unknown := slices.Contains(settling, name)
				if sent {
					unknown = !limitertest.Reads[name] && !limitertest.Acquires[name] && !slices.Contains(all, name)
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
