package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// testServer has gRPC's own test service for streams, and the health service.
type testServer struct {
	testpb.UnimplementedTestServiceServer
	ended chan error // of each FullDuplexCall
}

// FullDuplexCall answers each message by one, and tries once more after an error.
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
	listener, service, done := bufconn.Listen(1<<16), &testServer{ended: make(chan error, 1)}, make(chan error)
	server := grpc.NewServer(serverOpts...)
	testpb.RegisterTestServiceServer(server, service)
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-done)
	})
	conn, err := grpc.NewClient("passthrough:///memory", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}, dialOpts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if conn.GetState() != connectivity.Shutdown { // by the test
			assert.NoError(t, conn.Close())
		}
	})
	return conn, service
}

// duplex opens a stream in which say sends a message with that many bytes, and awaits the
// answer.
func duplex(t testing.TB, conn *grpc.ClientConn) (stream testpb.TestService_FullDuplexCallClient, say func(size int) error) {
	t.Helper()
	stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
	require.NoError(t, err)
	return stream, func(size int) error {
		err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, size)}})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
}

func check(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
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

const method = "/test/Call"

// idle never connects. Clients have its target.
var idle, _ = grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()))

// A call is one of method by an interceptor.
type call func(ctx context.Context, handler func() error) error

// interceptors make each kind of interceptor, for calls that no connection brings.
var interceptors = map[string]func(*grpclimit.Interceptors) call{
	"unary server": func(limits *grpclimit.Interceptors) call {
		intercept := limits.UnaryServer()
		return func(ctx context.Context, handler func() error) error {
			_, err := intercept(ctx, "request", &grpc.UnaryServerInfo{FullMethod: method},
				func(ctx context.Context, _ any) (any, error) {
					middlewaretest.Handle(ctx)
					return nil, handler()
				})
			return err
		}
	},
	"stream server": func(limits *grpclimit.Interceptors) call {
		intercept := limits.StreamServer()
		return func(ctx context.Context, handler func() error) error {
			return intercept(nil, serverStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method},
				func(_ any, stream grpc.ServerStream) error {
					middlewaretest.Handle(stream.Context())
					return handler()
				})
		}
	},
	"unary client": func(limits *grpclimit.Interceptors) call {
		intercept := limits.UnaryClient()
		return func(ctx context.Context, handler func() error) error {
			return intercept(ctx, method, "request", nil, idle,
				func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return handler() })
		}
	},
	"stream client": func(limits *grpclimit.Interceptors) call {
		intercept := limits.StreamClient()
		return func(ctx context.Context, handler func() error) error {
			_, err := intercept(ctx, &grpc.StreamDesc{}, idle, method,
				func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
					return nil, handler()
				})
			return err
		}
	},
}

// serverStream is a stream of empty messages.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context       { return s.ctx }
func (s serverStream) RecvMsg(any) error              { return nil }
func (s serverStream) SetTrailer(trailer metadata.MD) { _ = grpc.SetTrailer(s.ctx, trailer) }

// transport keeps the trailers of a call.
type transport struct {
	grpc.ServerTransportStream
	trailer metadata.MD
}

func (s *transport) SetTrailer(trailer metadata.MD) error {
	s.trailer = metadata.Join(s.trailer, trailer)
	return nil
}

//nolint:paralleltest // Run replaces slog's default logger
func TestMiddleware(t *testing.T) {
	for name, intercept := range interceptors {
		kind := middlewaretest.Kind[grpclimit.Option, grpclimit.KeyFunc]{
			Name:   "grpclimit",
			Prefix: "grpc:",
			Exact:  1,
			Late:   middlewaretest.Overdue,
			Policy: policyOf,
			Text:   text,
			User:   grpclimit.Metadata("user"),

			WithCost: func(n int64, err error) grpclimit.Option {
				return grpclimit.WithCost(func(context.Context, grpclimit.Call) (int64, error) { return n, err })
			},
			WithErrorHandler: func(hook func(error)) grpclimit.Option {
				return grpclimit.WithErrorHandler(func(_ context.Context, call grpclimit.Call, err error) {
					assert.Equal(t, method, call.Method)
					hook(err)
				})
			},
			WithSkip: func(skip bool) grpclimit.Option {
				return grpclimit.WithSkip(func(_ context.Context, call grpclimit.Call) bool { return skip && call.Method == method })
			},
			WithFailure:  grpclimit.WithFailure,
			WithFallback: grpclimit.WithFallback,
			WithHashTag:  grpclimit.WithHashTag,
			WithKey:      grpclimit.WithKey,
			WithObserver: grpclimit.WithObserver,
			WithPrefix:   grpclimit.WithPrefix,
			WithShadow:   grpclimit.WithShadow,
			WithTimeout:  grpclimit.WithTimeout,
			Bad: map[string][]grpclimit.Option{
				"cost": {grpclimit.WithCost(nil)},
				"skip": {grpclimit.WithSkip(nil)},
				"hook": {grpclimit.WithErrorHandler(nil)},
				"bits": {grpclimit.WithKey(grpclimit.Method(), grpclimit.ClientIP(grpclimit.ClientIPConfig{IPv6Bits: 129}))},

				"policy name":    {grpclimit.WithPolicy(grpclimit.Policy{Limiter: middlewaretest.Grants()})},
				"policy limiter": {grpclimit.WithPolicy(grpclimit.Policy{Name: "a"})},
				"twice":          {grpclimit.WithPolicy(grpclimit.Policy{Name: "default", Limiter: middlewaretest.Grants()})},
				"policy key":     {grpclimit.WithPolicy(grpclimit.Policy{Name: "a", Limiter: middlewaretest.Grants(), Key: []grpclimit.KeyFunc{nil}})},
				"policy prefix":  {grpclimit.WithPolicy(grpclimit.Policy{Name: "a", Limiter: middlewaretest.Grants(), Prefix: "grpc:x:"})},
			},
		}
		server := name == "unary server" || name == "stream server"
		kind.Figures = server
		kind.Parts = method + ":passthrough%3A///test"
		if server {
			kind.Parts = method + ":192.0.2.7"
			kind.Bad["waiting"] = []grpclimit.Option{grpclimit.WithWait()}
			kind.Settle = grpclimit.Settle
		} else {
			kind.WithWait = grpclimit.WithWait
			kind.Bad["settling"] = []grpclimit.Option{
				grpclimit.WithPolicy(grpclimit.Policy{Name: "hour", Limiter: middlewaretest.Grants(), Settle: true}),
			}
		}
		kind.Check = func(l limit.Limiter, opts ...grpclimit.Option) error {
			limits := grpclimit.New(l, opts...)
			intercept(limits)
			return limits.Err()
		}
		kind.Wrap = func(t testing.TB, l limit.Limiter, opts ...grpclimit.Option) middlewaretest.Handler {
			made := intercept(grpclimit.New(l, opts...))
			return func(ctx context.Context, user string) middlewaretest.Answer {
				return makeCall(ctx, t, made, user, server)
			}
		}
		t.Run(name, kind.Run)
	}
}

// makeCall makes a call of a user.
func makeCall(ctx context.Context, t testing.TB, made call, user string, server bool) middlewaretest.Answer {
	received, sent := metadata.Pairs("user", user), metadata.Pairs("user", "eve")
	if !server {
		received, sent = sent, received
	}
	ctx = metadata.NewOutgoingContext(metadata.NewIncomingContext(ctx, received), sent)
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1234}})
	stream := &transport{}
	if server {
		ctx = grpc.NewContextWithServerTransportStream(ctx, stream)
	}
	handled := false
	err := made(ctx, func() error {
		handled = true
		return nil
	})
	assert.Equal(t, err == nil, handled)
	return answer(t, err, stream.trailer, server)
}

var verdicts = map[codes.Code]middlewaretest.Verdict{
	codes.OK:                middlewaretest.Passed,
	codes.InvalidArgument:   middlewaretest.Rejected,
	codes.ResourceExhausted: middlewaretest.Refused,
	codes.Unavailable:       middlewaretest.Unavailable,
	codes.Internal:          middlewaretest.Misconfigured,
	codes.DeadlineExceeded:  middlewaretest.Overdue,
	codes.Canceled:          middlewaretest.Gone,
}

// answer reads what a caller sees.
func answer(t testing.TB, err error, trailer metadata.MD, server bool) middlewaretest.Answer {
	t.Helper()
	st := status.Convert(err)
	got := middlewaretest.Answer{Verdict: verdicts[st.Code()], Text: fmt.Sprint(st.Message(), st.Details(), trailer)}
	for _, figure := range figures(trailer) {
		n, err := strconv.ParseInt(figure, 10, 64)
		assert.NoError(t, err)
		got.Figures = append(got.Figures, n)
	}
	var pushback []string
	if got.Verdict == middlewaretest.Refused {
		retry, quota := refusalDetails(t, err)
		assert.NotNil(t, quota)
		pushback = []string{"-1"}
		if retry != nil {
			got.RetryAfter = retry.RetryDelay.AsDuration()
			assert.Positive(t, got.RetryAfter)
			if ms := (got.RetryAfter + time.Millisecond - 1) / time.Millisecond; ms <= math.MaxInt32 {
				pushback = []string{strconv.FormatInt(int64(ms), 10)}
			}
		}
	} else {
		assert.Empty(t, st.Details())
	}
	if server {
		assert.Equal(t, pushback, trailer.Get(pushbackTrailer))
	}
	return got
}

func policyOf(p middlewaretest.Policy) limit.Limiter {
	policy := grpclimit.Policy{Limiter: p.Limiter, Settle: p.Settle, Shadow: p.Shadow, InFlight: p.InFlight, Hold: p.Hold}
	if p.Plan != nil {
		policy.Plan = func(ctx context.Context, call grpclimit.Call) limit.Limiter {
			user, _ := grpclimit.Metadata("user")(ctx, call)
			return p.Plan(user)
		}
	}
	return policy
}

func text(part string, err error) grpclimit.KeyFunc {
	return func(context.Context, grpclimit.Call) (string, error) { return part, err }
}
