package grpclimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func figures(trailer metadata.MD) []string {
	return append(append([]string(nil), trailer.Get(grpclimit.TrailerLimit)...), trailer.Get(grpclimit.TrailerRemaining)...)
}

// Who is in front of whom can be told by the order.
func TestTrailersOfAChain(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t, []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		grpclimit.UnaryServerInterceptor(middlewaretest.Budget(9, time.Second)),
		grpclimit.UnaryServerInterceptor(middlewaretest.Budget(1, time.Second)))})
	for _, want := range [][]string{{"1", "9", "0", "8"}, {"1", "9", "0", "7"}} {
		var trailer metadata.MD
		_ = check(t.Context(), conn, grpc.Trailer(&trailer))
		assert.Equal(t, want, figures(trailer))
	}
}

func TestTrailersOfStreams(t *testing.T) {
	t.Parallel()
	conn, service := serve(t, streams(middlewaretest.Budget(5, time.Second), grpclimit.WithPerMessage()))
	for _, test := range []struct {
		messages int
		want     []string
	}{{0, []string{"5", "4"}}, {2, []string{"5", "1"}}, {1, []string{"5", "0"}}} {
		stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
		require.NoError(t, err)
		for range test.messages {
			require.NoError(t, stream.Send(&testpb.StreamingOutputCallRequest{}))
			if _, err := stream.Recv(); err != nil {
				break
			}
		}
		_ = stream.CloseSend()
		for err == nil {
			_, err = stream.Recv()
		}
		require.Error(t, <-service.ended)
		assert.Equal(t, test.want, figures(stream.Trailer()))
	}
	stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Error(t, err)
	assert.Equal(t, []string{"5", "0"}, figures(stream.Trailer()), "refused as it opens")
	assert.Equal(t, []string{"1000"}, stream.Trailer().Get(pushbackTrailer))
}

func TestErrorInfo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limiter  limit.Limiter
		reason   string
		metadata map[string]string
	}{
		"exceeded": {middlewaretest.Budget(0, 1500*time.Millisecond), grpclimit.ReasonExceeded, map[string]string{
			"limiter": "calls", "limit": "0", "remaining": "0",
		}},
		"soon": {
			middlewaretest.Says(limit.Decision{Limit: 5, Remaining: 2, RetryAfter: 1500 * time.Millisecond}, nil),
			grpclimit.ReasonExceeded, map[string]string{"limiter": "calls", "limit": "5", "remaining": "2", "retryAfter": "1.5s"},
		},
		"too costly": {
			middlewaretest.Says(limit.Decision{Limit: 7}, limit.ErrPermitsExceedRate),
			grpclimit.ReasonTooCostly, map[string]string{"limiter": "calls", "limit": "7"},
		},
		"unknown": {middlewaretest.Says(limit.Decision{}, limit.ErrInvalidPermits), grpclimit.ReasonTooCostly, map[string]string{"limiter": "calls"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, _ := serve(t, unary(test.limiter, grpclimit.WithName("calls"), grpclimit.WithKey(grpclimit.Metadata("x-tenant"))))
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "acme & sons")
			_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			_, quota := refusalDetails(t, err)
			assert.Equal(t, "acme%20&%20sons", quota.Violations[0].Subject)
			var info *errdetails.ErrorInfo
			for _, detail := range status.Convert(err).Details() {
				if d, ok := detail.(*errdetails.ErrorInfo); ok {
					info = d
				}
			}
			require.NotNil(t, info)
			assert.Equal(t, test.reason, info.Reason)
			assert.Equal(t, grpclimit.ErrorDomain, info.Domain)
			assert.Equal(t, test.metadata, info.Metadata)
		})
	}
}
