package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rratelimiter/rratelimiter/grpclimit"
)

// testServer has gRPC's own test service for streams, and the health service.
type testServer struct {
	testpb.UnimplementedTestServiceServer
	ended chan error // of each FullDuplexCall
}

// FullDuplexCall answers each message by one, and tries once more after an
// error.
func (s *testServer) FullDuplexCall(stream testpb.TestService_FullDuplexCallServer) error {
	for {
		_, err := stream.Recv()
		if err != nil {
			_, again := stream.Recv()
			s.ended <- again
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

func (s *testServer) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest,
	stream testpb.TestService_StreamingOutputCallServer,
) error {
	return stream.Send(&testpb.StreamingOutputCallResponse{})
}

// serve starts a server in memory and returns a connection to it. Both work in
// a synctest bubble, and end with t.
func serve(t testing.TB, serverOpts []grpc.ServerOption, dialOpts ...grpc.DialOption) (*grpc.ClientConn, *testServer) {
	t.Helper()
	service := &testServer{ended: make(chan error, 1)}
	server := grpc.NewServer(serverOpts...)
	testpb.RegisterTestServiceServer(server, service)
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener := bufconn.Listen(1 << 16)
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-done)
	})
	conn, err := grpc.NewClient("passthrough:///memory", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}),
	}, dialOpts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return conn, service
}

func check(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, opts...)
	return err
}

// quiet keeps failures that a test expects out of its output.
var quiet = grpclimit.WithErrorHandler(func(context.Context, grpclimit.Call, error) {})

// retryDelay returns the delay of err's RetryInfo. It fails t if err is no
// refusal, or has none.
func retryDelay(t testing.TB, err error) time.Duration {
	t.Helper()
	retry, quota := refusalDetails(t, err)
	require.NotNil(t, retry, "RetryInfo")
	require.NotNil(t, quota, "QuotaFailure")
	require.NoError(t, retry.RetryDelay.CheckValid())
	return retry.RetryDelay.AsDuration()
}

func refusalDetails(t testing.TB, err error) (retry *errdetails.RetryInfo, quota *errdetails.QuotaFailure) {
	t.Helper()
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	for _, detail := range status.Convert(err).Details() {
		switch d := detail.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.QuotaFailure:
			quota = d
		case *errdetails.ErrorInfo:
			assert.Equal(t, grpclimit.ErrorDomain, d.Domain)
		default:
			require.Fail(t, "unknown detail", "%v", detail)
		}
	}
	return retry, quota
}
