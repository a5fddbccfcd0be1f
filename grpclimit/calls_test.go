package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthserver "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// limitTo returns a limiter of so many permits a minute. The clock of its Redis stands still: figures are the same each time.
func limitTo(n int64) (limiter limit.Limiter, stop func()) {
	rdb, stop := limittest.ConnectExample()
	client := rratelimiter.New(rdb)
	return slidinglog.New(client, slidinglog.Config{Limit: n, Window: time.Minute}), stop
}

func start(server []grpc.ServerOption, client ...grpc.DialOption) (health healthpb.HealthClient, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s := grpc.NewServer(server...)
	healthpb.RegisterHealthServer(s, healthserver.NewServer())
	go func() { _ = s.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), append(client, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		panic(err)
	}
	return healthpb.NewHealthClient(conn), func() { _ = conn.Close(); s.Stop() }
}

// A server, and a client that reads when to come back.
func Example() {
	limiter, stop := limitTo(2)
	defer stop()
	limits := grpclimit.New(limiter)
	client, stopServer := start([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(limits.UnaryServer()), grpc.ChainStreamInterceptor(limits.StreamServer()),
	})
	defer stopServer()
	for range 3 {
		answer, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		if err == nil {
			fmt.Println(answer.GetStatus())
			continue
		}
		fmt.Println(status.Code(err))
		for _, detail := range status.Convert(err).Details() {
			if retry, ok := detail.(*errdetails.RetryInfo); ok {
				fmt.Println("come back in", retry.GetRetryDelay().AsDuration())
			}
		}
	}
	// Output:
	// SERVING
	// SERVING
	// ResourceExhausted
	// come back in 1m0s
}

// A limit for each tenant, named by a proxy before the server. Checks of health are free.
func ExampleWithKey() {
	limiter, stop := limitTo(1)
	defer stop()
	client, stopServer := start([]grpc.ServerOption{grpc.ChainUnaryInterceptor(
		grpclimit.New(limiter,
			grpclimit.WithPrefix("tenants:"),
			grpclimit.WithKey(grpclimit.Metadata("x-tenant")),
			grpclimit.WithSkip(func(_ context.Context, call grpclimit.Call) bool {
				return call.Method == healthpb.Health_Check_FullMethodName
			}),
		).UnaryServer())})
	defer stopServer()
	for _, tenant := range []string{"acme", "acme", "umbrella"} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "x-tenant", tenant)
		_, checked := client.Check(ctx, &healthpb.HealthCheckRequest{})
		_, listed := client.List(ctx, &healthpb.HealthListRequest{})
		fmt.Println(tenant, status.Code(checked), status.Code(listed))
	}
	// Output:
	// acme OK OK
	// acme OK ResourceExhausted
	// umbrella OK OK
}

// A client that keeps to what it may send, together with all others that use the same Redis.
func ExampleInterceptors_UnaryClient() {
	limiter, stop := limitTo(1)
	defer stop()
	client, stopServer := start(nil, grpc.WithChainUnaryInterceptor(
		grpclimit.New(limiter, grpclimit.WithPrefix("partner:"), grpclimit.WithWait()).UnaryClient()))
	defer stopServer()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 2 {
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// rpc error: code = ResourceExhausted desc = rate limit exceeded, retry after 1m0s
}

const pushbackTrailer = "grpc-retry-pushback-ms"

func streams(limiter limit.Limiter, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StreamInterceptor(grpclimit.New(limiter, opts...).StreamServer())}
}

// A call's cost may depend on everything known about it.
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
		cost := func(_ context.Context, call grpclimit.Call) (int64, error) {
			seen = call
			return 7, nil
		}
		made := interceptors[name](grpclimit.New(limiter, grpclimit.WithKey(grpclimit.Method()), grpclimit.WithCost(cost)))
		require.NoError(t, made(t.Context(), func() error { return nil }))
		assert.EqualValues(t, 7, limiter.Asked()[0].N)
		assert.Equal(t, want, grpclimit.Call{Method: seen.Method, Target: seen.Target, Message: seen.Message}, name)
	}
}

// Clients that retry because of their service config come back when it helps.
func TestUnaryServer_TellsClientsWhenToRetry(t *testing.T) {
	t.Parallel()
	const config = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.001s",
		"maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		limiter := &middlewaretest.Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
			wait := time.Minute - time.Since(start)
			return limit.Decision{Granted: wait <= 0, Limit: 1, RetryAfter: wait}, nil
		}}
		server := []grpc.ServerOption{grpc.UnaryInterceptor(grpclimit.New(limiter).UnaryServer())}
		conn, _ := serve(t, server, grpc.WithDefaultServiceConfig(config))
		require.NoError(t, check(t.Context(), conn))
		assert.Equal(t, time.Minute, time.Since(start))
		assert.Len(t, limiter.Asked(), 2)
	})
}

// A stream takes its permits once, or with WithPerMessage for each message too. Trailers tell of the last decision.
func TestStreamServer(t *testing.T) {
	t.Parallel()
	bySize := grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) (int64, error) {
		if message, ok := call.Message.(*testpb.StreamingOutputCallRequest); ok {
			return int64(len(message.GetPayload().GetBody())), nil
		}
		return 2, nil // the opening
	})
	for name, c := range map[string]struct {
		opens   bool
		opts    []grpclimit.Option
		sizes   []int // of messages
		refused bool  // the last of them, or the opening
		asked   []int64
		figures []string
	}{
		"once":          {true, nil, []int{1, 1}, false, []int64{1}, []string{"5", "4"}},
		"no message":    {true, []grpclimit.Option{grpclimit.WithPerMessage()}, nil, false, []int64{1}, []string{"5", "4"}},
		"two messages":  {true, []grpclimit.Option{grpclimit.WithPerMessage()}, []int{0, 0}, false, []int64{1, 1, 1}, []string{"5", "2"}},
		"by their size": {true, []grpclimit.Option{grpclimit.WithPerMessage(), bySize}, []int{2, 0, 1, 1}, true, []int64{2, 2, 1, 1}, []string{"5", "0"}},
		"not open":      {false, []grpclimit.Option{grpclimit.WithPerMessage()}, nil, true, []int64{1}, []string{"5", "0"}},
	} {
		limiter := middlewaretest.Budget(5, time.Second)
		if !c.opens {
			limiter = middlewaretest.Says(limit.Decision{Limit: 5, RetryAfter: time.Second}, nil)
		}
		conn, service := serve(t, streams(limiter, c.opts...))
		stream, say := duplex(t, conn)
		var err error
		for i, size := range c.sizes {
			err = say(size)
			assert.Equal(t, c.refused && i == len(c.sizes)-1, err != nil, name)
		}
		if err == nil {
			require.NoError(t, stream.CloseSend())
			_, err = stream.Recv()
		}
		if again := io.EOF; c.opens {
			if c.refused {
				again = err
			}
			assert.Equal(t, status.Convert(again).Proto().String(), status.Convert(<-service.ended).Proto().String(), name)
		}
		if c.refused {
			assert.Equal(t, time.Second, retryDelay(t, err))
			assert.Equal(t, []string{"1000"}, stream.Trailer().Get(pushbackTrailer))
		}
		assert.Equal(t, c.asked, limiter.Costs(), name)
		assert.Equal(t, c.figures, figures(stream.Trailer()), name)
	}
	limiter := middlewaretest.Budget(4, 0)
	conn, _ := serve(t, streams(limiter, grpclimit.WithPerMessage()))
	stream := limitertest.Must(testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{}))(t)
	require.NoError(t, limitertest.Second(stream.Recv()))
	require.ErrorIs(t, limitertest.Second(stream.Recv()), io.EOF)
	assert.Len(t, limiter.Asked(), 1, "if the client sends one message")
	assert.Equal(t, []string{"4", "3"}, figures(stream.Trailer()))
}

func figures(trailer metadata.MD) []string {
	return append(append([]string(nil), trailer.Get(grpclimit.TrailerLimit)...), trailer.Get(grpclimit.TrailerRemaining)...)
}

// A client's stream takes permits for each message, waits for them if it may, and ends if they are refused.
func TestStreamClientPerMessage(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			limiter, opts := limit.Limiter(middlewaretest.Budget(3, time.Second)), []grpclimit.Option{grpclimit.WithPerMessage()}
			if waits {
				limiter, opts = httplimit.Local(1, time.Second), append(opts, grpclimit.WithWait())
			}
			conn, service := serve(t, nil, grpc.WithStreamInterceptor(grpclimit.New(limiter, opts...).StreamClient()))
			start := time.Now()
			stream, say := duplex(t, conn)
			require.NoError(t, say(0))
			require.NoError(t, say(0))
			if waits {
				require.NoError(t, say(0))
				assert.Equal(t, 3*time.Second, time.Since(start))
				require.NoError(t, stream.CloseSend())
				require.ErrorIs(t, limitertest.Second(stream.Recv()), io.EOF)
				require.ErrorIs(t, <-service.ended, io.EOF)
				return
			}
			assert.Equal(t, time.Second, retryDelay(t, stream.Send(&testpb.StreamingOutputCallRequest{})))
			assert.Equal(t, codes.Canceled, status.Code(<-service.ended), "the stream is over")
			assert.Equal(t, codes.Canceled, status.Code(limitertest.Second(stream.Recv())))
		})
	}
}

// A stream that has ended, or does not open, leaves nothing behind in the caller's context.
func TestStreamClientFreesItsContext(t *testing.T) {
	t.Parallel()
	cost := grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) (int64, error) {
		if call.Message == "too much" {
			return 2, nil
		}
		return 1, nil
	})
	type ending = func(stream grpc.ClientStream) error
	limitertest.Each(t, map[string]ending{
		"not open":      nil,
		"by the server": func(stream grpc.ClientStream) error { return stream.RecvMsg(nil) },
		"by a refusal":  func(stream grpc.ClientStream) error { return stream.SendMsg("too much") },
		"by sending":    func(stream grpc.ClientStream) error { return stream.SendMsg(nil) },
		"by an error":   func(stream grpc.ClientStream) error { return limitertest.Second(stream.Header()) },
	}, func(t *testing.T, end ending) {
		var given func() error
		interceptor := grpclimit.New(middlewaretest.Budget(2, 0), grpclimit.WithPerMessage(), cost).StreamClient()
		stream, err := interceptor(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, idle, method,
			func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
				given = ctx.Err
				if end == nil {
					return nil, io.ErrUnexpectedEOF
				}
				return endedStream{}, nil
			})
		if end != nil {
			require.NoError(t, err)
			require.NoError(t, given())
			err = end(stream)
		}
		require.Error(t, err)
		assert.Error(t, given())
	})
}

type endedStream struct{ grpc.ClientStream }

func (endedStream) RecvMsg(any) error            { return io.EOF }
func (endedStream) SendMsg(any) error            { return io.ErrUnexpectedEOF }
func (endedStream) Header() (metadata.MD, error) { return nil, io.ErrUnexpectedEOF }

// With WithPerMessage, Settle settles the last message. One that is refused leaves the one before it to be settled.
func TestSettleOfMessages(t *testing.T) {
	t.Parallel()
	var all [3]*middlewaretest.Reserver // of the opening and two messages
	for i := range all {
		all[i] = &middlewaretest.Reserver{Fake: middlewaretest.Grants()}
	}
	limiter := &struct{ limit.Reserver }{all[0]}
	intercept := grpclimit.New(grpclimit.Policy{Limiter: limiter, Settle: true},
		grpclimit.WithPerMessage(), grpclimit.WithKey(text("", nil))).StreamServer()
	err := intercept(nil, serverStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: method, IsClientStream: true},
		func(_ any, stream grpc.ServerStream) error {
			require.NoError(t, grpclimit.Settle(stream.Context(), 1))
			for _, next := range all[1:] {
				limiter.Reserver = next
				require.NoError(t, stream.RecvMsg(nil))
			}
			limiter.Reserver = &middlewaretest.Reserver{Fake: middlewaretest.Says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)}
			require.Error(t, stream.RecvMsg(nil))
			assert.Len(t, grpclimit.Decisions(stream.Context()), 1)
			require.NoError(t, grpclimit.Settle(stream.Context(), 2))
			return grpclimit.Settle(stream.Context(), 3)
		})
	require.ErrorIs(t, err, limit.ErrSettled)
	assert.Equal(t, [][]int64{{1}, nil, {2}}, [][]int64{all[0].Settled, all[1].Settled, all[2].Settled})
}

// A cost or a key that can't be found out ends the call with the status of the error, if it has one.
func TestFunctionsThatFail_StatusOfTheError(t *testing.T) {
	t.Parallel()
	fails := func(err error) grpclimit.Option {
		return grpclimit.WithCost(func(context.Context, grpclimit.Call) (int64, error) { return 1, err })
	}
	for _, c := range []struct {
		opt  grpclimit.Option
		want codes.Code
	}{
		{fails(errors.New("no such model")), codes.InvalidArgument},
		{fails(status.Error(codes.NotFound, "no such model")), codes.NotFound},
		{fails(fmt.Errorf("%w: cost", limit.ErrInvalidConfig)), codes.Internal},
		{grpclimit.WithKey(text("", status.Error(codes.Unauthenticated, "who are you?"))), codes.Unauthenticated},
	} {
		for name, made := range interceptors {
			var heard middlewaretest.Errors
			limiter := middlewaretest.Grants()
			hearing := grpclimit.WithErrorHandler(func(_ context.Context, _ grpclimit.Call, err error) { heard.Add(err) })
			limits := grpclimit.New(limiter, hearing, grpclimit.WithFailure(limit.FailOpen()), c.opt)
			call := made(limits)
			assert.Equal(t, c.want, status.Code(call(t.Context(), func() error { return nil })), name)
			assert.Empty(t, limiter.Asked())
			assert.Equal(t, c.want == codes.Internal, len(heard.Take()) == 1, name)
		}
	}
}

type namedAddr string

func (namedAddr) Network() string  { return "tcp" }
func (a namedAddr) String() string { return string(a) }

// The rules of ClientIP are those of package httplimit, whose tests and fuzzing have more of them, and those of addresses of
// package clientip. A config that is not valid, of a key function that another calls, passes no call.
func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 80} }
	behind := grpclimit.ClientIPConfig{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	behindSocket := behind
	behindSocket.TrustUnix = true
	proxy, socket := tcp("10.0.0.1"), &net.UnixAddr{Net: "unix", Name: "/run/orders.sock"}
	const xff = "x-forwarded-for"
	peerOnly, ip, ofSocket := grpclimit.Peer(), grpclimit.ClientIP(behind), grpclimit.ClientIP(behindSocket)
	for name, c := range map[string]struct {
		key  grpclimit.KeyFunc
		peer net.Addr
		sent []string
		want string
	}{
		"IPv4":           {peerOnly, tcp("192.0.2.7"), nil, "192.0.2.7"},
		"IPv6":           {peerOnly, tcp("2001:db8:1:2:3:4:5:6"), nil, "2001%3Adb8%3A1%3A2%3A%3A/64"},
		"text":           {peerOnly, namedAddr("192.0.2.7:1234"), nil, "192.0.2.7"},
		"no address":     {peerOnly, namedAddr("pipe"), nil, "pipe"},
		"path of socket": {peerOnly, socket, nil, "/run/orders.sock"},

		"client's own":   {ip, proxy, []string{xff, "1.1.1.1", xff, "192.0.2.9, 10.0.0.2"}, "192.0.2.9"},
		"socket":         {ip, socket, []string{xff, "192.0.2.9"}, ""},
		"trusted socket": {ofSocket, socket, []string{xff, "203.0.113.9, 192.0.2.9"}, "192.0.2.9"},
		"no socket":      {ofSocket, namedAddr("pipe"), []string{xff, "192.0.2.9"}, ""},

		"the first":  {grpclimit.Metadata("X-User"), proxy, []string{"x-user", "ann", "x-user", "bob"}, "ann"},
		"binary":     {grpclimit.Metadata("key-bin"), proxy, []string{"key-bin", "\x00\xff"}, "%00%FF"},
		"not in it":  {grpclimit.Metadata("none"), proxy, []string{"x-user", "ann"}, ""},
		"the method": {grpclimit.Method(), proxy, nil, method},
	} {
		ctx := metadata.NewIncomingContext(peer.NewContext(t.Context(), &peer.Peer{Addr: c.peer}), metadata.Pairs(c.sent...))
		limiter := middlewaretest.Grants()
		require.NoError(t, interceptors["unary server"](grpclimit.New(limiter, grpclimit.WithKey(c.key)))(ctx, func() error { return nil }))
		assert.Equal(t, "grpc:"+c.want, limiter.Key(), name)
	}
	bad := grpclimit.ClientIP(grpclimit.ClientIPConfig{IPv6Bits: 129})
	within := func(ctx context.Context, call grpclimit.Call) (string, error) { return bad(ctx, call) }
	for kind, made := range interceptors {
		ctx := t.Context()
		if strings.HasSuffix(kind, "client") { // it has no peer yet, though the call that it is part of may
			ctx = peer.NewContext(ctx, &peer.Peer{Addr: proxy})
		}
		for _, c := range []struct {
			key  grpclimit.KeyFunc
			want codes.Code
		}{{peerOnly, codes.Unavailable}, {ip, codes.Unavailable}, {within, codes.Internal}} {
			err := made(grpclimit.New(middlewaretest.Grants(), quiet, grpclimit.WithKey(c.key)))(ctx, func() error { return nil })
			assert.Equal(t, c.want, status.Code(err), kind)
		}
	}
}

// places are what limits how many calls are under way, and charges each by its code.
type places struct{ inFlight, outcome *middlewaretest.Reserver }

func newPlaces() places {
	many := func() *middlewaretest.Reserver {
		return &middlewaretest.Reserver{Fake: middlewaretest.Grants(), Many: true}
	}
	return places{many(), many()}
}

func (p places) limits(opts ...grpclimit.Option) *grpclimit.Interceptors {
	return grpclimit.New(grpclimit.Policy{Name: "places", Limiter: p.inFlight, InFlight: true}, append(opts,
		grpclimit.WithKey(text("all", nil)),
		grpclimit.WithPolicy(grpclimit.Policy{
			Name: "outcome", Limiter: p.outcome,
			Charge: func(_ context.Context, _ grpclimit.Call, code codes.Code) int64 { return int64(code) },
		}))...)
}

func (p places) busy() int { return len(p.inFlight.Asked()) - len(p.inFlight.Settled) }

// ended checks that no call is under way, and by which codes those that were have been charged.
func (p places) ended(t *testing.T, what string, want ...codes.Code) {
	t.Helper()
	var got []codes.Code
	for _, code := range p.outcome.Settled {
		got = append(got, codes.Code(code))
	}
	assert.Zero(t, p.busy(), what)
	assert.Equal(t, want, got, what)
}

// A call of a server is in flight until its handler has returned, and charged by the code that the client gets.
func TestPolicyInFlight_CallsOfAServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"OK": {nil, codes.OK}, "status": {status.Error(codes.NotFound, "no"), codes.NotFound}, "error": {errors.New("oops"), codes.Unknown},
		"context": {context.Canceled, codes.Canceled}, "deadline": {context.DeadlineExceeded, codes.DeadlineExceeded}, "panic": {nil, codes.Internal},
	} {
		for kind, intercept := range interceptors {
			p := newPlaces()
			call := func() error {
				return intercept(p.limits())(grpc.NewContextWithServerTransportStream(t.Context(), &transport{}), func() error {
					assert.Equal(t, 1, p.busy(), kind)
					if name == "panic" {
						panic("oops")
					}
					return c.err
				})
			}
			if name == "panic" {
				assert.PanicsWithValue(t, "oops", func() { _ = call() }, kind)
			} else {
				require.ErrorIs(t, call(), c.err)
			}
			if kind != "stream client" || name != "OK" { // that is open
				p.ended(t, kind+", "+name, c.want)
			}
		}
	}
}

// A stream is in flight until it has ended, however it does, on both sides. Its messages take nothing.
func TestPolicyInFlight_Streams(t *testing.T) {
	t.Parallel()
	type streaming = testpb.TestService_FullDuplexCallClient
	for name, c := range map[string]struct {
		end  func(t *testing.T, stream streaming, leave func(), conn *grpc.ClientConn)
		want codes.Code
	}{
		"ends": {func(t *testing.T, stream streaming, _ func(), _ *grpc.ClientConn) {
			require.NoError(t, stream.CloseSend())
			require.ErrorIs(t, limitertest.Second(stream.Recv()), io.EOF)
		}, codes.OK},
		"is left":              {func(_ *testing.T, _ streaming, leave func(), _ *grpc.ClientConn) { leave() }, codes.Canceled},
		"loses its connection": {func(t *testing.T, _ streaming, _ func(), conn *grpc.ClientConn) { require.NoError(t, conn.Close()) }, codes.Canceled},
	} {
		for _, opts := range [][]grpclimit.Option{nil, {grpclimit.WithPerMessage()}} {
			synctest.Test(t, func(t *testing.T) {
				there, here := newPlaces(), newPlaces()
				conn, service := serve(t, []grpc.ServerOption{grpc.StreamInterceptor(there.limits(opts...).StreamServer())},
					grpc.WithStreamInterceptor(here.limits(opts...).StreamClient()))
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				stream := limitertest.Must(testpb.NewTestServiceClient(conn).FullDuplexCall(ctx))(t)
				for range 3 {
					require.NoError(t, stream.Send(&testpb.StreamingOutputCallRequest{}))
					require.NoError(t, limitertest.Second(stream.Recv()))
					assert.Equal(t, []int{1, 1}, []int{there.busy(), here.busy()}, name)
				}
				c.end(t, stream, leave, conn)
				require.Error(t, <-service.ended)
				synctest.Wait()
				there.ended(t, name, c.want)
				here.ended(t, name, c.want)
			})
		}
	}

	// A stream of one answer has ended with that.
	synctest.Test(t, func(t *testing.T) {
		here := newPlaces()
		conn, _ := serve(t, nil, grpc.WithStreamInterceptor(here.limits().StreamClient()))
		stream := limitertest.Must(testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{}))(t)
		require.NoError(t, limitertest.Second(stream.Recv()))
		assert.Equal(t, 1, here.busy())
		require.ErrorIs(t, limitertest.Second(stream.Recv()), io.EOF)
		here.ended(t, "one answer", codes.OK)
		failing := limitertest.Must(testpb.NewTestServiceClient(conn).StreamingInputCall(t.Context()))(t)
		assert.Equal(t, codes.Unimplemented, status.Code(limitertest.Second(failing.CloseAndRecv())))
		here.ended(t, "fails", codes.OK, codes.Unimplemented)
	})
}
