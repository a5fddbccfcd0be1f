package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
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

func (s *testServer) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, stream testpb.TestService_StreamingOutputCallServer) error {
	return stream.Send(&testpb.StreamingOutputCallResponse{})
}

// serve starts a server in memory and returns a connection to it. Both work in a synctest bubble, and end with t.
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

// duplex opens a stream in which say sends a message with that many bytes, and awaits the answer.
func duplex(t testing.TB, conn *grpc.ClientConn) (stream testpb.TestService_FullDuplexCallClient, say func(size int) error) {
	t.Helper()
	stream = limitertest.Must(testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context()))(t)
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

// retryDelay returns the delay of err's RetryInfo. It fails t if err is no refusal, or has none.
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

type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context       { return s.ctx }
func (s serverStream) RecvMsg(any) error              { return nil }
func (s serverStream) SetTrailer(trailer metadata.MD) { _ = grpc.SetTrailer(s.ctx, trailer) }

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

// All policies of a call show, in the order in which they were added: in trailers, and those that refuse in the status. The ErrorInfo is of
// the one that refuses for the longest time, or of one that the call costs too much. What others granted is given back.
func TestPolicies(t *testing.T) {
	t.Parallel()
	granted := middlewaretest.Says(limit.Decision{Granted: true, Limit: 10, Remaining: 9}, nil)
	minute := middlewaretest.Says(limit.Decision{Limit: 5, Remaining: 3, RetryAfter: time.Minute}, nil)
	day := middlewaretest.Says(limit.Decision{Limit: 1500, Remaining: 800, RetryAfter: 24 * time.Hour}, nil)
	costly := middlewaretest.Says(limit.Decision{Limit: 7}, limit.ErrPermitsExceedRate)
	unknown, zero := middlewaretest.Says(limit.Decision{}, limit.ErrInvalidPermits), middlewaretest.Says(limit.Decision{}, nil)
	down := middlewaretest.Says(limit.Decision{}, errors.New("connection refused"))
	for name, c := range map[string]struct {
		policies [3]limit.Limiter // after one that grants and can give that back
		opts     []grpclimit.Option
		want     codes.Code
		info     map[string]string
		violated []string
		figures  []string // the limits, and what remains
	}{
		"pass": {policies: [3]limit.Limiter{granted, granted, granted}, figures: []string{"10", "10", "10", "10", "9", "9", "9", "9"}},
		"refused": {
			policies: [3]limit.Limiter{minute, granted, day}, want: codes.ResourceExhausted, violated: []string{"5", "1500"},
			info:    map[string]string{"limiter": "d", "limit": "1500", "remaining": "800", "retryAfter": "86400s"},
			figures: []string{"10", "5", "10", "1500", "10", "3", "9", "800"},
		},
		"too costly": {
			policies: [3]limit.Limiter{minute, costly, day}, want: codes.ResourceExhausted, violated: []string{"7"},
			info: map[string]string{"limiter": "c", "limit": "7"}, figures: []string{"10", "5", "1500", "10", "3", "800"},
		},
		"of unknown limit": {
			policies: [3]limit.Limiter{minute, unknown, day}, want: codes.ResourceExhausted, violated: []string{"0"},
			info: map[string]string{"limiter": "c"}, figures: []string{"10", "5", "1500", "10", "3", "800"},
		},
		"never": {
			policies: [3]limit.Limiter{minute, granted, zero}, want: codes.ResourceExhausted, violated: []string{"5", "0"},
			info: map[string]string{"limiter": "d", "limit": "0", "remaining": "0"}, figures: []string{"10", "5", "10", "10", "3", "9"},
		},
		"closed": {policies: [3]limit.Limiter{granted, down, granted}, want: codes.Unavailable, figures: []string{"10", "10", "10", "10", "9", "9"}},
		"closed, refused": {
			policies: [3]limit.Limiter{granted, down, minute}, want: codes.ResourceExhausted, violated: []string{"5"},
			info:    map[string]string{"limiter": "d", "limit": "5", "remaining": "3", "retryAfter": "60s"},
			figures: []string{"10", "10", "5", "10", "9", "3"},
		},
		"shadow": {policies: [3]limit.Limiter{granted, minute, granted}, opts: []grpclimit.Option{grpclimit.WithShadow()}},
	} {
		for kind, made := range interceptors {
			first := &middlewaretest.Returner{Fake: middlewaretest.Grants()}
			opts := append([]grpclimit.Option{quiet, grpclimit.WithKey(text("a b", nil))}, c.opts...)
			for i, l := range c.policies {
				opts = append(opts, grpclimit.WithPolicy(grpclimit.Policy{Name: string(rune('b' + i)), Limiter: l}))
			}
			stream := &transport{}
			err := made(grpclimit.New(first, opts...))(grpc.NewContextWithServerTransportStream(t.Context(), stream), func() error { return nil })
			assert.Equal(t, c.want, status.Code(err), name+" "+kind)
			assert.Equal(t, c.want != codes.OK || name == "shadow", len(first.GivenBack()) == 1, name+" "+kind)
			assert.Equal(t, "grpc:default:a%20b", first.Key())
			if strings.HasSuffix(kind, "server") {
				assert.Equal(t, c.figures, figures(stream.trailer), name)
			}
			var violated []string
			for _, detail := range status.Convert(err).Details() {
				switch d := detail.(type) {
				case *errdetails.QuotaFailure:
					for _, v := range d.Violations {
						violated = append(violated, fmt.Sprint(v.QuotaValue))
						assert.Equal(t, "a%20b", v.Subject)
					}
				case *errdetails.ErrorInfo:
					assert.Equal(t, c.info, d.Metadata, name)
					assert.Equal(t, grpclimit.ErrorDomain, d.Domain)
					assert.Equal(t, map[bool]string{true: grpclimit.ReasonTooCostly, false: grpclimit.ReasonExceeded}[c.info["limiter"] == "c"], d.Reason)
				}
			}
			assert.Equal(t, c.violated, violated, name)
		}
	}
}

// Of a chain of interceptors, the innermost tells its figures first.
func TestTrailersOfAChain(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"unary server", "stream server"} {
		stream, key := &transport{}, grpclimit.WithKey(text("a", nil))
		outer, inner := grpclimit.New(middlewaretest.Budget(9, 0), key), grpclimit.New(middlewaretest.Budget(1, 0), key)
		ctx := grpc.NewContextWithServerTransportStream(t.Context(), stream)
		assert.NoError(t, interceptors[kind](outer)(ctx, func() error {
			return interceptors[kind](inner)(ctx, func() error { return nil })
		}))
		assert.Equal(t, []string{"1", "9", "0", "8"}, figures(stream.trailer), kind)
	}
}

// The key functions of a policy go nowhere else: the application may use a part of a slice.
func TestWithPolicy_KeyLeavesTheApplicationsSliceAlone(t *testing.T) {
	t.Parallel()
	all := []grpclimit.KeyFunc{text("first", nil), text("second", nil)}
	require.NoError(t, grpclimit.New(middlewaretest.Grants(), grpclimit.WithKey(all[:1]...), grpclimit.WithPolicy(grpclimit.Policy{
		Name: "other", Limiter: middlewaretest.Grants(), Key: []grpclimit.KeyFunc{text("other", nil)},
	})).Err())
	assert.Equal(t, "second", limitertest.Must(all[1](t.Context(), grpclimit.Call{}))(t))
}

// A Policy is no limiter, of whichever package it is: its fields would be passed over.
func TestNew_PolicyInPlaceOfALimiter(t *testing.T) {
	t.Parallel()
	ofHTTP, ofGRPC := httplimit.Policy{Limiter: middlewaretest.Grants()}, grpclimit.Policy{Limiter: middlewaretest.Grants()}
	for name, err := range map[string]error{
		"HTTP's for gRPC":         grpclimit.New(ofHTTP).Err(),
		"gRPC's for HTTP":         httplimit.New(ofGRPC).Err(),
		"a pointer to gRPC's own": grpclimit.New(&ofGRPC).Err(),
		"a fallback":              httplimit.New(middlewaretest.Grants(), httplimit.WithFallback(ofGRPC)).Err(),
	} {
		require.ErrorIs(t, err, limit.ErrInvalidConfig, name)
		require.ErrorContains(t, err, "a Policy takes the place of the limiter of its own package's New only", name)
	}
	require.NoError(t, grpclimit.New(ofGRPC).Err())
	require.NoError(t, httplimit.New(ofHTTP).Err())
}

// What only one side can do is no error of the other's interceptors.
func TestErr_OptionsOfOneSide(t *testing.T) {
	t.Parallel()
	all := grpclimit.WithKey(text("all", nil))
	settled := grpclimit.Policy{Limiter: &middlewaretest.Reserver{Fake: middlewaretest.Grants()}, Settle: true}
	for says, c := range map[string]struct {
		limits   *grpclimit.Interceptors
		can, not string
	}{
		"only handlers settle": {grpclimit.New(settled, quiet, all), "unary server", "stream client"},
		"only clients wait":    {grpclimit.New(middlewaretest.Grants(), quiet, all, grpclimit.WithWait()), "stream client", "unary server"},
	} {
		require.NoError(t, interceptors[c.can](c.limits)(t.Context(), func() error { return nil }))
		require.NoError(t, c.limits.Err())
		made := interceptors[c.not](c.limits)
		err := c.limits.Err()
		require.ErrorContains(t, err, says)
		require.ErrorIs(t, err, limit.ErrInvalidConfig)
		assert.Equal(t, codes.Internal, status.Code(made(t.Context(), func() error { return nil })))
		assert.NoError(t, interceptors[c.can](c.limits)(t.Context(), func() error { return nil }), "the other side goes on")
	}
}

// Unary calls and streams of a server share what is known of a limiter that fails.
func TestInterceptors_ShareOneBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := middlewaretest.Says(limit.Decision{}, limit.ErrUnavailable)
		limits := grpclimit.New(down, quiet, grpclimit.WithKey(text("all", nil)), grpclimit.WithFailure(limit.FailOpen()))
		unary, stream := interceptors["unary server"](limits), interceptors["stream server"](limits)
		for range 3 {
			require.NoError(t, unary(t.Context(), func() error { return nil }))
		}
		asked := len(down.Asked())
		require.NoError(t, stream(t.Context(), func() error { return nil }))
		assert.Len(t, down.Asked(), asked, "the stream's interceptor knows it")
	})
}

// A call that waits for a place beside another policy is sent as soon as one is free, and waits for that until its time is over.
func TestWithWait_PlacesBesideARate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		slow := grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			time.Sleep(200 * time.Millisecond)
			return handle(ctx, req)
		})
		conn, _ := serve(t, []grpc.ServerOption{slow}, grpc.WithUnaryInterceptor(grpclimit.New(httplimit.Local(100, time.Second),
			grpclimit.WithWait(), grpclimit.WithPolicy(grpclimit.Policy{
				Name: "places", Limiter: limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(1)), InFlight: true,
			})).UnaryClient()))
		start := time.Now()
		calls := limitertest.Go(func() { limitertest.Together(3, func(int) { assert.NoError(t, check(t.Context(), conn)) }) })
		synctest.Wait()
		ctx := limitertest.Within(t, 100*time.Millisecond)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(check(ctx, conn)))
		assert.Equal(t, 100*time.Millisecond, time.Since(start).Truncate(10*time.Millisecond))
		<-calls
		assert.Equal(t, 600*time.Millisecond, time.Since(start).Truncate(10*time.Millisecond))
	})
}
