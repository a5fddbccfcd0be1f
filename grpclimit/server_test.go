package grpclimit_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

const pushbackTrailer = "grpc-retry-pushback-ms"

func unary(limiter limit.Limiter, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter, opts...))}
}

func streams(limiter limit.Limiter, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StreamInterceptor(grpclimit.StreamServerInterceptor(limiter, opts...))}
}

// byMethod is the key of calls that no connection brings.
var byMethod = grpclimit.WithKey(grpclimit.Method())

func TestUnaryServer(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(2, 1500*time.Millisecond+1)
	conn, _ := serve(t, unary(limiter))
	var trailer metadata.MD
	for _, left := range []string{"1", "0"} {
		require.NoError(t, check(t.Context(), conn, grpc.Trailer(&trailer)))
		assert.Empty(t, trailer.Get(pushbackTrailer))
		assert.Equal(t, []string{"2", left}, figures(trailer))
	}

	err := check(t.Context(), conn, grpc.Trailer(&trailer))
	assert.Equal(t, 1500*time.Millisecond+1, retryDelay(t, err))
	assert.Equal(t, []string{"1501"}, trailer.Get(pushbackTrailer), "rounded up")
	assert.Equal(t, []string{"2", "0"}, figures(trailer))
	_, quota := refusalDetails(t, err)
	require.Len(t, quota.Violations, 1)
	assert.Equal(t, "/grpc.health.v1.Health/Check:bufconn", quota.Violations[0].Subject)
	assert.EqualValues(t, 2, quota.Violations[0].QuotaValue)
	assert.Equal(t, "grpc:/grpc.health.v1.Health/Check:bufconn", limiter.Key())
}

// What a call costs may depend on all there is to know of it.
func TestCost(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]grpclimit.Call{
		"unary server":  {Method: method, Message: "request"},
		"stream server": {Method: method},
		"unary client":  {Method: method, Target: "passthrough:///test", Message: "request"},
		"stream client": {Method: method, Target: "passthrough:///test"},
	} {
		var seen grpclimit.Call
		limiter := middlewaretest.Grants()
		made := interceptors[name](limiter, byMethod, grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) int64 {
			seen = call
			return 7
		}))
		require.NoError(t, made(t.Context(), func() error { return nil }))
		assert.EqualValues(t, 7, limiter.Asked()[0].N)
		assert.Equal(t, want, grpclimit.Call{Method: seen.Method, Target: seen.Target, Message: seen.Message}, name)
	}
}

// Clients that gRPC has retry by their service config come back when it helps.
func TestServerTellsRetryingClientsWhen(t *testing.T) {
	t.Parallel()
	const config = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.001s",
		"maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		limiter := &middlewaretest.Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
			wait := time.Minute - time.Since(start)
			return limit.Decision{Granted: wait <= 0, Limit: 1, RetryAfter: wait}, nil
		}}
		conn, _ := serve(t, unary(limiter), grpc.WithDefaultServiceConfig(config))
		require.NoError(t, check(t.Context(), conn))
		assert.Equal(t, time.Minute, time.Since(start))
		assert.Len(t, limiter.Asked(), 2)
	})
	t.Run("never", func(t *testing.T) {
		t.Parallel()
		limiter := middlewaretest.Budget(0, 0)
		conn, _ := serve(t, unary(limiter), grpc.WithDefaultServiceConfig(config))
		require.Error(t, check(t.Context(), conn))
		assert.Len(t, limiter.Asked(), 1)
	})
}

func TestStreamServerTakesOnceAStream(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(1, time.Second)
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
	assert.Len(t, limiter.Asked(), 2)
}

func TestStreamServerTakesPerMessage(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(5, time.Second)
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
	var costs []int64
	for _, asked := range limiter.Asked() {
		costs = append(costs, asked.N)
	}
	assert.Equal(t, []int64{2, 2, 1, 1}, costs)
}

func TestStreamServerTakesOnceWhereTheClientSendsOneMessage(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(4, 0)
	conn, _ := serve(t, streams(limiter, grpclimit.WithPerMessage()))
	stream, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	assert.Len(t, limiter.Asked(), 1)
	assert.Equal(t, []string{"4", "3"}, figures(stream.Trailer()))
}
