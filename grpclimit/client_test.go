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
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func unaryClient(limiter limit.Limiter, opts ...grpclimit.Option) grpc.DialOption {
	return grpc.WithUnaryInterceptor(grpclimit.UnaryClientInterceptor(limiter, opts...))
}

func streamClient(limiter limit.Limiter, opts ...grpclimit.Option) grpc.DialOption {
	return grpc.WithStreamInterceptor(grpclimit.StreamClientInterceptor(limiter, opts...))
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

func TestWithWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, _ := serve(t, nil, unaryClient(everySecond(), grpclimit.WithWait()))
		start := time.Now()
		for range 3 {
			require.NoError(t, check(t.Context(), conn))
		}
		assert.Equal(t, 2*time.Second, time.Since(start))

		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 999*time.Millisecond)
		defer cancel()
		assert.Equal(t, time.Second, retryDelay(t, check(ctx, conn)), "no time left to wait")
		assert.Zero(t, time.Since(start))

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		assert.Equal(t, codes.Canceled, status.Code(check(ctx, conn)))
		assert.Equal(t, 500*time.Millisecond, time.Since(start))
	})
}

func TestWithWaitRefusesWhereWaitingDoesNotHelp(t *testing.T) {
	t.Parallel()
	for name, limiter := range map[string]limit.Limiter{
		"a limit of 0": middlewaretest.Budget(0, time.Minute),
		"no time":      middlewaretest.Says(limit.Decision{Limit: 1}, nil),
		"too costly":   middlewaretest.Says(limit.Decision{}, limit.ErrPermitsExceedRate),
	} {
		synctest.Test(t, func(t *testing.T) {
			conn, _ := serve(t, nil, unaryClient(limiter, grpclimit.WithWait()))
			start := time.Now()
			retry, _ := refusalDetails(t, check(t.Context(), conn))
			assert.Nil(t, retry, name)
			assert.Zero(t, time.Since(start), name)
		})
	}
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
		_, err := stream.Recv()
		require.ErrorIs(t, err, io.EOF)
		require.ErrorIs(t, <-service.ended, io.EOF)
	})
}

// A client that would wait does not, and one that waits is one decision.
func TestShadowOfAClientThatWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts    []grpclimit.Option
		waits   time.Duration
		outcome limit.Outcome
	}{
		"in shadow":  {[]grpclimit.Option{grpclimit.WithShadow()}, 0, limit.Refused},
		"in earnest": {nil, 3 * time.Second, limit.Granted},
	} {
		synctest.Test(t, func(t *testing.T) {
			told := &limitertest.Recorder{}
			opts := append([]grpclimit.Option{grpclimit.WithWait(), grpclimit.WithObserver(told)}, c.opts...)
			start := time.Now()
			limiter := &middlewaretest.Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
				return limit.Decision{Granted: time.Since(start) >= 3*time.Second, Limit: 1, RetryAfter: time.Second}, nil
			}}
			conn, _ := serve(t, nil, unaryClient(limiter, opts...))
			require.NoError(t, check(t.Context(), conn))
			assert.Equal(t, c.waits, time.Since(start), name)
			decisions := told.Decisions()
			require.Len(t, decisions, 1)
			assert.Equal(t, c.outcome, decisions[0].Outcome)
			assert.Equal(t, c.waits, decisions[0].Waited)
		})
	}
}

// A stream that has ended, or does not open, leaves nothing behind in the caller's context.
func TestStreamClientFreesItsContext(t *testing.T) {
	t.Parallel()
	cost := grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) int64 {
		if call.Message == "too much" {
			return 2
		}
		return 1
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
			_, err := stream.Header()
			require.Error(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var given func() error
			interceptor := grpclimit.StreamClientInterceptor(middlewaretest.Budget(2, 0), grpclimit.WithPerMessage(), cost)
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
