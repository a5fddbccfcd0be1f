package grpclimit_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
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
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
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

// A stream takes its permits once, or with WithPerMessage for each message too. A handler gets a refusal again. Trailers tell of the
// last decision.
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
	stream, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{})
	require.NoError(t, err)
	require.NoError(t, limitertest.Second(stream.Recv()))
	require.ErrorIs(t, limitertest.Second(stream.Recv()), io.EOF)
	assert.Len(t, limiter.Asked(), 1, "if the client sends one message")
	assert.Equal(t, []string{"4", "3"}, figures(stream.Trailer()))
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
	granted := post()
	assert.Equal(t, []string{"0", "1", "0"}, []string{granted.Get("Grpc-Status"), granted.Get("Ratelimit-Limit"), granted.Get("Ratelimit-Remaining")})
	assert.Empty(t, granted.Get("Grpc-Retry-Pushback-Ms"))
	refused := post()
	assert.Equal(t, []string{"1", "0"}, []string{refused.Get("Ratelimit-Limit"), refused.Get("Ratelimit-Remaining")})
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

// hearing adds to errs what the error handler hears.
func hearing(errs *middlewaretest.Errors) grpclimit.Option {
	return grpclimit.WithErrorHandler(func(_ context.Context, _ grpclimit.Call, err error) { errs.Add(err) })
}

func unaryClient(limiter limit.Limiter, opts ...grpclimit.Option) grpc.DialOption {
	return grpc.WithUnaryInterceptor(grpclimit.New(limiter, opts...).UnaryClient())
}

func streamClient(limiter limit.Limiter, opts ...grpclimit.Option) grpc.DialOption {
	return grpc.WithStreamInterceptor(grpclimit.New(limiter, opts...).StreamClient())
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
			conn, service := serve(t, nil, streamClient(limiter, opts...))
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

// endedStream is a stream that ends at once.
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
			limits := grpclimit.New(limiter, hearing(&heard), grpclimit.WithFailure(limit.FailOpen()), c.opt)
			call := made(limits)
			assert.Equal(t, c.want, status.Code(call(t.Context(), func() error { return nil })), name)
			assert.Empty(t, limiter.Asked())
			assert.Equal(t, c.want == codes.Internal, len(heard.Take()) == 1, name)
		}
	}
}
