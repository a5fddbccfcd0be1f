package grpclimit_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// What a refusal tells is the moment at which the call passes, not one before.
func TestRetryInfoOfALimiterInRedis(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, redis := redistest.Mini(t)
		limiter := slidinglog.New(rdb, slidinglog.Config{Limit: 3, Window: time.Minute})
		conn, _ := serve(t, unary(limiter))
		for range 3 {
			require.NoError(t, check(t.Context(), conn))
			time.Sleep(10 * time.Second)
		}
		wait := retryDelay(t, check(t.Context(), conn))
		time.Sleep(wait - time.Millisecond)
		assert.Equal(t, time.Millisecond, retryDelay(t, check(t.Context(), conn)))
		time.Sleep(time.Millisecond)
		require.NoError(t, check(t.Context(), conn))
		assert.Equal(t, []string{"grpc:/grpc.health.v1.Health/Check:bufconn"}, redis.Keys())
	})
}

func TestManyCallersOfALimiterInRedis(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	limiter := slidinglog.New(rdb, slidinglog.Config{Limit: 50, Window: time.Hour})
	conn, _ := serve(t, unary(limiter))
	var granted, refused atomic.Int64
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			for range 10 {
				switch err := check(t.Context(), conn); status.Code(err) {
				case codes.OK:
					granted.Add(1)
				case codes.ResourceExhausted:
					refused.Add(1)
				default:
					assert.NoError(t, err)
				}
			}
		})
	}
	callers.Wait()
	assert.EqualValues(t, 50, granted.Load())
	assert.EqualValues(t, 150, refused.Load())
}

func TestRedisThatIsDown(t *testing.T) {
	t.Parallel()
	rdb, redis := redistest.Mini(t)
	redis.SetError("MISCONF out of order")
	limiter := slidinglog.New(rdb, slidinglog.Config{Limit: 1, Window: time.Minute})
	conn, _ := serve(t, unary(limiter, quiet))
	assert.Equal(t, codes.Unavailable, status.Code(check(t.Context(), conn)))
	conn, _ = serve(t, unary(limiter, quiet, grpclimit.WithFailure(grpclimit.Fallback(&budget{limit: 1, retryAfter: time.Second}))))
	require.NoError(t, check(t.Context(), conn))
	assert.Equal(t, time.Second, retryDelay(t, check(t.Context(), conn)))
}

func TestRedisThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, redis := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, redis)
		proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Swallow))
		limiter := slidinglog.New(proxy.Client(t, nil), slidinglog.Config{Limit: 1, Window: time.Minute})
		conn, _ := serve(t, unary(limiter, quiet))
		start := time.Now()
		assert.Equal(t, codes.Unavailable, status.Code(check(t.Context(), conn)))
		assert.Equal(t, grpclimit.DefaultTimeout, time.Since(start))
		time.Sleep(time.Minute) // for the limiter to give up as well
	})
}
