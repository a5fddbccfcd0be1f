package faults_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A cluster that is down costs a caller no more than the time of a call, what its client
// needs to learn of that included. Once the policy decides, nobody waits.
func TestAClusterIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:7000", "10.0.0.2:7000"}, PoolSize: 256,
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done() // no packet comes back
				return nil, ctx.Err()
			},
		})
		defer func() {
			assert.NoError(t, rdb.Close())
			time.Sleep(time.Minute)
		}()
		const callTime = 500 * time.Millisecond
		client := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(callTime))
		slowest := func(calls int, ask func() error) (slowest time.Duration) {
			for range calls {
				start := time.Now()
				assert.NoError(t, ask())
				slowest = max(slowest, time.Since(start))
				time.Sleep(10 * time.Millisecond)
			}
			return slowest
		}
		plain := client.RateLimiter("plain", rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
		assert.LessOrEqual(t, slowest(5, func() error {
			_, err := plain.TryAcquire(t.Context(), 1, 0)
			assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
			_, err = plain.Config(t.Context())
			assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
			return nil
		}), 2*callTime, "two calls")
		guarded := client.RateLimiter("guarded", rratelimiter.WithFailure(limit.FailOpen()))
		ask := func() error {
			_, err := guarded.TryAcquire(t.Context(), 1, 0)
			return err
		}
		assert.LessOrEqual(t, slowest(5, ask), callTime)
		assert.LessOrEqual(t, slowest(200, ask), 5*time.Millisecond, "a probe's begin at most")
	})
}
