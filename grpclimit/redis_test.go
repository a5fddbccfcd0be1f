package grpclimit_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
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

// No wait brings what a threshold of 0 refuses: a client is told none, and does
// not wait either.
func TestThresholdOfZero(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		limiter := slidinglog.New(rdb, slidinglog.Config{Limit: 1, Window: time.Minute, Thresholds: "config"})
		require.NoError(t, limiter.SetThreshold(t.Context(), "grpc:", 0))
		nobody := grpclimit.WithKey(text(""))
		conn, _ := serve(t, unary(limiter, nobody))
		retry, _ := refusalDetails(t, check(t.Context(), conn))
		assert.Nil(t, retry)
		conn, _ = serve(t, nil, unaryClient(limiter, nobody, grpclimit.WithWait()))
		start := time.Now()
		retry, _ = refusalDetails(t, check(t.Context(), conn))
		assert.Nil(t, retry)
		assert.Zero(t, time.Since(start))
	})
}

// A bucket has a second key, with "_time" behind the first: nobody chooses a name
// that leads to another's, with a hash tag or without.
func TestBucketsAreKeptApart(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		bucket := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 1, Refill: 1, Interval: time.Hour})
		for name, opts := range map[string][]grpclimit.Option{
			"plain":  {grpclimit.WithPrefix("plain:")},
			"tagged": {grpclimit.WithPrefix("tagged:"), grpclimit.WithHashTag()},
		} {
			interceptor := grpclimit.UnaryServerInterceptor(bucket, append(opts, grpclimit.WithKey(grpclimit.Metadata("user")))...)
			users := []string{"ann", "ann_time", "ann_time_time", "ann_time%", ""}
			for i := range 3 {
				for _, user := range users {
					err := call(metadata.NewIncomingContext(t.Context(), metadata.Pairs("user", user)), interceptor)
					if i == 0 {
						assert.Equal(t, errHandled, err, "%s: %q", name, user)
					} else {
						assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%s: %q", name, user)
					}
				}
			}
			assert.Len(t, rdb.Keys(t.Context(), name+":*").Val(), 2*len(users))
		}
		assert.EqualValues(t, 4, rdb.Exists(t.Context(), "plain:ann", "plain:ann_time%", "tagged:{ann_time}", "tagged:{%}").Val())
	})
}

func TestRedisThatIsDown(t *testing.T) {
	t.Parallel()
	rdb, redis := redistest.Mini(t)
	redis.SetError("MISCONF out of order")
	limiter := slidinglog.New(rdb, slidinglog.Config{Limit: 1, Window: time.Minute})
	conn, _ := serve(t, unary(limiter, quiet))
	assert.Equal(t, codes.Unavailable, status.Code(check(t.Context(), conn)))
	conn, _ = serve(t, unary(limiter, quiet, grpclimit.WithFallback(&budget{limit: 1, retryAfter: time.Second})))
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
