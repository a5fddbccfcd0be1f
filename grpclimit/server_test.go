package grpclimit_test

import (
	"context"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

const pushbackTrailer = "grpc-retry-pushback-ms"

func unary(limiter limit.Limiter, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter, opts...))}
}

func streams(limiter limit.Limiter, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StreamInterceptor(grpclimit.StreamServerInterceptor(limiter, opts...))}
}

func TestUnaryServer(t *testing.T) {
	t.Parallel()
	limiter := &budget{limit: 2, retryAfter: 1500*time.Millisecond + 1}
	conn, _ := serve(t, unary(limiter))
	var trailer metadata.MD
	for range 2 {
		require.NoError(t, check(t.Context(), conn, grpc.Trailer(&trailer)))
		assert.Empty(t, trailer.Get(pushbackTrailer))
	}

	err := check(t.Context(), conn, grpc.Trailer(&trailer))
	assert.Equal(t, 1500*time.Millisecond+1, retryDelay(t, err))
	assert.Equal(t, []string{"1501"}, trailer.Get(pushbackTrailer), "rounded up")
	_, quota := refusalDetails(t, err)
	require.Len(t, quota.Violations, 1)
	assert.Equal(t, "/grpc.health.v1.Health/Check:bufconn", quota.Violations[0].Subject)
	assert.EqualValues(t, 2, quota.Violations[0].QuotaValue)
	assert.Equal(t, "grpc:/grpc.health.v1.Health/Check:bufconn", limiter.asked()[0])
}

func TestServerTellsNoTimeThatDoesNotHelp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		decision limit.Decision
		err      error
		pushback string
		delay    time.Duration
	}{
		"a limit of 0":        {pushback: "-1"},
		"beyond any number":   {err: limit.ErrInvalidPermits, pushback: "-1"},
		"more than the limit": {err: limit.ErrPermitsExceedRate, pushback: "-1"},
		"beyond the trailer": {
			decision: limit.Decision{Limit: 1, RetryAfter: (math.MaxInt32 + 1) * time.Millisecond},
			pushback: "-1", delay: (math.MaxInt32 + 1) * time.Millisecond,
		},
		"a moment": {decision: limit.Decision{Limit: 1, RetryAfter: 1}, pushback: "1", delay: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, _ := serve(t, unary(limiterFunc(func(context.Context, string, int64) (limit.Decision, error) {
				return test.decision, test.err
			}), grpclimit.WithErrorHandler(func(_ context.Context, _ grpclimit.Call, err error) {
				assert.NoError(t, err, "a refusal is no failure")
			})))
			var trailer metadata.MD
			err := check(t.Context(), conn, grpc.Trailer(&trailer))
			retry, quota := refusalDetails(t, err)
			assert.NotNil(t, quota)
			assert.Equal(t, []string{test.pushback}, trailer.Get(pushbackTrailer))
			assert.Equal(t, test.delay > 0, retry != nil)
			assert.Equal(t, test.delay, retry.GetRetryDelay().AsDuration())
		})
	}
}

// Clients that gRPC has retry by their service config come back when it helps.
func TestServerTellsRetryingClientsWhen(t *testing.T) {
	t.Parallel()
	const config = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.001s",
		"maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`
	synctest.Test(t, func(t *testing.T) {
		start, asked := time.Now(), 0
		limiter := limiterFunc(func(context.Context, string, int64) (limit.Decision, error) {
			asked++
			wait := time.Minute - time.Since(start)
			return limit.Decision{Granted: wait <= 0, Limit: 1, RetryAfter: wait}, nil
		})
		conn, _ := serve(t, unary(limiter), grpc.WithDefaultServiceConfig(config))
		require.NoError(t, check(t.Context(), conn))
		assert.Equal(t, time.Minute, time.Since(start))
		assert.Equal(t, 2, asked)
	})
	t.Run("never", func(t *testing.T) {
		t.Parallel()
		limiter := &budget{}
		conn, _ := serve(t, unary(limiter), grpc.WithDefaultServiceConfig(config))
		require.Error(t, check(t.Context(), conn))
		assert.Len(t, limiter.asked(), 1)
	})
}

func TestStreamServerTakesOnceAStream(t *testing.T) {
	t.Parallel()
	limiter := &budget{limit: 1, retryAfter: time.Second}
	conn, _ := serve(t, streams(limiter))
	client := healthpb.NewHealthClient(conn)
	watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)

	watch, err = client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	assert.Equal(t, time.Second, retryDelay(t, err))
	assert.Equal(t, []string{"1000"}, watch.Trailer().Get(pushbackTrailer))
	assert.Len(t, limiter.asked(), 2)
}

func TestStreamServerTakesPerMessage(t *testing.T) {
	t.Parallel()
	limiter := &budget{limit: 5, retryAfter: time.Second}
	conn, service := serve(t, streams(limiter, grpclimit.WithPerMessage(),
		grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) int64 {
			if message, ok := call.Message.(*testpb.StreamingOutputCallRequest); ok {
				return int64(len(message.GetPayload().GetBody()))
			}
			return 2 // the opening
		})))
	stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
	require.NoError(t, err)
	say := func(size int) error {
		require.NoError(t, stream.Send(&testpb.StreamingOutputCallRequest{
			Payload: &testpb.Payload{Body: make([]byte, size)},
		}))
		_, err := stream.Recv()
		return err
	}
	require.NoError(t, say(2))
	require.NoError(t, say(0))
	require.NoError(t, say(1))
	refused := say(1)
	assert.Equal(t, time.Second, retryDelay(t, refused))
	assert.Equal(t, status.Convert(refused).Proto().String(), status.Convert(<-service.ended).Proto().String(),
		"the handler gets it again")
	assert.Equal(t, []int64{2, 2, 1, 1}, limiter.costs)
}

func TestStreamServerTakesOnceWhereTheClientSendsOneMessage(t *testing.T) {
	t.Parallel()
	limiter := &budget{limit: 10}
	conn, _ := serve(t, streams(limiter, grpclimit.WithPerMessage()))
	stream, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	assert.Len(t, limiter.asked(), 1)
}

func TestServerAnswersACallerThatWentAway(t *testing.T) {
	t.Parallel()
	interceptor := grpclimit.UnaryServerInterceptor(slow, byMethod,
		grpclimit.WithFailure(limit.FailOpen()), grpclimit.WithTimeout(0),
		grpclimit.WithErrorHandler(func(_ context.Context, _ grpclimit.Call, err error) {
			assert.NoError(t, err, "a caller that went away is no failure")
		}))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.Equal(t, codes.DeadlineExceeded, status.Code(call(ctx, interceptor)))

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		assert.Equal(t, codes.Canceled, status.Code(call(ctx, interceptor)))
	})
}
