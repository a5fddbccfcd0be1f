package grpclimit_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

const pushbackTrailer = "grpc-retry-pushback-ms"

func unary(limiter limit.Limiter, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(grpclimit.New(limiter, opts...).UnaryServer())}
}

func streams(limiter limit.Limiter, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StreamInterceptor(grpclimit.New(limiter, opts...).StreamServer())}
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
		made := interceptors[name](grpclimit.New(limiter, byMethod, grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) (int64, error) {
			seen = call
			return 7, nil
		})))
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

func TestStreamServerTakesPerMessage(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(5, time.Second)
	conn, service := serve(t, streams(limiter, grpclimit.WithPerMessage(),
		grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) (int64, error) {
			if message, ok := call.Message.(*testpb.StreamingOutputCallRequest); ok {
				return int64(len(message.GetPayload().GetBody())), nil
			}
			return 2, nil // the opening
		})))
	_, say := duplex(t, conn)
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

func TestStreamServerTakesOnceAStream(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(4, 0)
	conn, _ := serve(t, streams(limiter))
	_, say := duplex(t, conn)
	require.NoError(t, say(1))
	require.NoError(t, say(1))
	assert.Len(t, limiter.Asked(), 1)

	conn, _ = serve(t, streams(limiter, grpclimit.WithPerMessage()))
	stream, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	assert.Len(t, limiter.Asked(), 2, "if the client sends one message")
	assert.Equal(t, []string{"4", "2"}, figures(stream.Trailer()))
}

func figures(trailer metadata.MD) []string {
	return append(append([]string(nil), trailer.Get(grpclimit.TrailerLimit)...), trailer.Get(grpclimit.TrailerRemaining)...)
}

// The order tells which interceptor is in front.
func TestTrailersOfAChain(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t, []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		grpclimit.New(middlewaretest.Budget(9, time.Second)).UnaryServer(),
		grpclimit.New(middlewaretest.Budget(1, time.Second)).UnaryServer())})
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
		stream, say := duplex(t, conn)
		var err error
		for i := 0; i < test.messages && err == nil; i++ {
			err = say(0)
		}
		_ = stream.CloseSend()
		for err == nil {
			_, err = stream.Recv()
		}
		require.Error(t, <-service.ended)
		assert.Equal(t, test.want, figures(stream.Trailer()))
	}
	stream, _ := duplex(t, conn)
	require.Error(t, limitertest.Second(stream.Recv()))
	assert.Equal(t, []string{"5", "0"}, figures(stream.Trailer()), "refused as it opens")
	assert.Equal(t, []string{"1000"}, stream.Trailer().Get(pushbackTrailer))
}

// listen starts a server of health checks, and returns its address.
func listen(t *testing.T, network, address string, opts []grpc.ServerOption) string {
	t.Helper()
	server := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-done)
	})
	return listener.Addr().String()
}

// A proxy on the same machine, over a Unix socket.
func TestClientIP_ReadsTheMetadataOfATrustedSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // t.TempDir is too long for a socket's name
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	limiter, byAddress := middlewaretest.Grants(), grpclimit.ClientIP(grpclimit.ClientIPConfig{TrustUnix: true})
	socket := listen(t, "unix", filepath.Join(dir, "s"), unary(limiter, grpclimit.WithKey(byAddress)))
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	require.NoError(t, check(metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "203.0.113.9, 192.0.2.1"), conn))
	assert.Equal(t, "grpc:192.0.2.1", limiter.Key())
}

// What a refusal is on the wire, read by net/http's HTTP/2.
func TestRefusalOnTheWire(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(1, 2500*time.Millisecond)
	address := listen(t, "tcp", "127.0.0.1:0", unary(limiter))
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	post := func() http.Header {
		const method = "/grpc.health.v1.Health/Check"
		emptyMessage := bytes.NewReader(make([]byte, 5))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+method, emptyMessage)
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("TE", "trailers")
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		if resp.Header.Get("Grpc-Status") != "" {
			return resp.Header // there was nothing but trailers
		}
		return resp.Trailer
	}
	assert.Equal(t, "0", post().Get("Grpc-Status"))
	refused := post()
	assert.Equal(t, "8", refused.Get("Grpc-Status"))
	assert.Equal(t, "rate limit exceeded, retry after 2.5s", refused.Get("Grpc-Message"))
	assert.Equal(t, "2500", refused.Get("Grpc-Retry-Pushback-Ms"))

	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(refused.Get("Grpc-Status-Details-Bin"), "="))
	require.NoError(t, err)
	var st statuspb.Status
	require.NoError(t, proto.Unmarshal(raw, &st))
	require.NotEmpty(t, st.Details)
	assert.Equal(t, "type.googleapis.com/google.rpc.RetryInfo", st.Details[0].TypeUrl)
	var retry errdetails.RetryInfo
	require.NoError(t, proto.Unmarshal(st.Details[0].Value, &retry))
	assert.EqualValues(t, 2, retry.RetryDelay.Seconds)
	assert.EqualValues(t, 500_000_000, retry.RetryDelay.Nanos)
	assert.Equal(t, "grpc:/grpc.health.v1.Health/Check:127.0.0.1", limiter.Key())
}

// keyOf returns the key for which a call takes its permits.
func keyOf(ctx context.Context, t *testing.T, opts ...grpclimit.Option) string {
	t.Helper()
	limiter := middlewaretest.Grants()
	require.NoError(t, interceptors["unary server"](grpclimit.New(limiter, opts...))(ctx, func() error { return nil }))
	return limiter.Key()
}

// hearing adds to errs what the error handler hears.
func hearing(errs *middlewaretest.Errors) grpclimit.Option {
	return grpclimit.WithErrorHandler(func(_ context.Context, _ grpclimit.Call, err error) { errs.Add(err) })
}

// namedAddr is an address of which there is only the text.
type namedAddr string

func (namedAddr) Network() string  { return "tcp" }
func (a namedAddr) String() string { return string(a) }

func TestPeer(t *testing.T) {
	t.Parallel()
	for address, want := range map[net.Addr]string{
		&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1234}:            "192.0.2.7",
		&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.7"), Port: 1}:      "192.0.2.7",
		&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6"), Port: 1}:  "2001%3Adb8%3A1%3A2%3A%3A/64",
		&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2::1"), Port: 1}:       "2001%3Adb8%3A1%3A2%3A%3A/64",
		&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 1, Zone: "eth0"}: "fe80%3A%3A/64",
		&net.TCPAddr{IP: net.ParseIP("64:ff9b::192.0.2.7"), Port: 1}:    "192.0.2.7",
		&net.TCPAddr{IP: net.ParseIP("2002:c000:207::1"), Port: 1}:      "192.0.2.7",
		&net.TCPAddr{IP: net.ParseIP("::1")}:                            "%3A%3A/64",
		namedAddr("192.0.2.7:1234"):                                     "192.0.2.7",
		namedAddr("[2001:db8:1:2::1]:1"):                                "2001%3Adb8%3A1%3A2%3A%3A/64",
		namedAddr("pipe"):                                               "pipe",
		&net.UnixAddr{Net: "unix", Name: "/run/orders.sock"}:            "/run/orders.sock",
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: address})
		assert.Equal(t, "grpc:/test/Call:"+want, keyOf(ctx, t), "%v", address)
	}
	for name := range interceptors { // a client has no peer yet
		made := interceptors[name](grpclimit.New(middlewaretest.Grants(), quiet, grpclimit.WithKey(grpclimit.Peer())))
		err := made(t.Context(), func() error { return nil })
		assert.Equal(t, codes.Unavailable, status.Code(err), name)
	}
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", "ann", "x-user", "bob", "key-bin", "\x00\xff"))
	assert.Equal(t, "grpc:ann:%00%FF:", keyOf(ctx, t,
		grpclimit.WithKey(grpclimit.Metadata("X-User"), grpclimit.Metadata("key-bin"), grpclimit.Metadata("none"))))
}

func unaryClient(limiter limit.Limiter, opts ...grpclimit.Option) grpc.DialOption {
	return grpc.WithUnaryInterceptor(grpclimit.New(limiter, opts...).UnaryClient())
}

func streamClient(limiter limit.Limiter, opts ...grpclimit.Option) grpc.DialOption {
	return grpc.WithStreamInterceptor(grpclimit.New(limiter, opts...).StreamClient())
}

// everySecond grants one permit a second.
func everySecond() limit.Limiter {
	var next time.Time
	return &middlewaretest.Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
		if wait := time.Until(next); wait > 0 {
			return limit.Decision{Limit: 1, RetryAfter: wait}, nil
		}
		next = time.Now().Add(time.Second)
		return limit.Decision{Granted: true, Limit: 1}, nil
	}}
}

func TestStreamClientPerMessage(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(3, time.Second)
	conn, service := serve(t, nil, streamClient(limiter, grpclimit.WithPerMessage()))
	stream, say := duplex(t, conn)
	require.NoError(t, say(0))
	require.NoError(t, say(0))
	assert.Equal(t, time.Second, retryDelay(t, stream.Send(&testpb.StreamingOutputCallRequest{})))
	assert.Equal(t, codes.Canceled, status.Code(<-service.ended), "the stream is over")
	_, err := stream.Recv()
	assert.Equal(t, codes.Canceled, status.Code(err))
}

func TestStreamClientWaitsPerMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, service := serve(t, nil, streamClient(everySecond(), grpclimit.WithPerMessage(), grpclimit.WithWait()))
		start := time.Now()
		stream, say := duplex(t, conn)
		for range 3 {
			require.NoError(t, say(0))
		}
		assert.Equal(t, 3*time.Second, time.Since(start))
		require.NoError(t, stream.CloseSend())
		require.ErrorIs(t, limitertest.Second(stream.Recv()), io.EOF)
		require.ErrorIs(t, <-service.ended, io.EOF)
	})
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
	for name, end := range map[string]func(t *testing.T, stream grpc.ClientStream){ // nil: it does not open
		"not open": nil,
		"by the server": func(t *testing.T, stream grpc.ClientStream) {
			require.NoError(t, stream.CloseSend())
			require.ErrorIs(t, stream.RecvMsg(nil), io.EOF)
		},
		"by a refusal": func(t *testing.T, stream grpc.ClientStream) {
			require.Equal(t, codes.ResourceExhausted, status.Code(stream.SendMsg("too much")))
		},
		"by sending": func(t *testing.T, stream grpc.ClientStream) {
			require.ErrorIs(t, stream.SendMsg(nil), io.ErrUnexpectedEOF)
		},
		"by an error": func(t *testing.T, stream grpc.ClientStream) {
			require.NoError(t, stream.CloseSend())
			require.Error(t, limitertest.Second(stream.Header()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
			if end == nil {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			} else {
				require.NoError(t, err)
				require.NoError(t, given())
				end(t, stream)
			}
			assert.Error(t, given())
		})
	}
}

// endedStream is a stream that ends at once.
type endedStream struct{ grpc.ClientStream }

func (endedStream) CloseSend() error             { return nil }
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
			limits := grpclimit.New(limiter, hearing(&heard), grpclimit.WithFailure(limit.FailOpen()), c.opt)
			call := made(limits)
			assert.Equal(t, c.want, status.Code(call(t.Context(), func() error { return nil })), name)
			assert.Empty(t, limiter.Asked())
			assert.Equal(t, c.want == codes.Internal, len(heard.Take()) == 1, name)
		}
	}
}
