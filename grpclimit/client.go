package grpclimit

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// UnaryClient returns an interceptor, for
// grpc.WithChainUnaryInterceptor, that sends calls for which the limiter has permits.
// Others are not sent, and end as if the server had refused them; with [WithWait]
// they wait. A call that gRPC retries takes permits once.
func (i *Interceptors) UnaryClient() grpc.UnaryClientInterceptor {
	g := i.gate
	g.client.used.Store(true)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoker grpc.UnaryInvoker, callOpts ...grpc.CallOption,
	) error {
		if _, no := g.admit(ctx, Call{Method: method, Target: cc.Target(), Message: req, client: true}, nil); no != nil {
			return no.err()
		}
		return invoker(ctx, method, req, reply, cc, callOpts...)
	}
}

// StreamClient returns an interceptor, for
// grpc.WithChainStreamInterceptor, that opens streams for which the limiter has permits.
// Others end as with UnaryClient. [WithPerMessage] limits the messages
// that follow.
func (i *Interceptors) StreamClient() grpc.StreamClientInterceptor {
	g := i.gate
	g.client.used.Store(true)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
		streamer grpc.Streamer, callOpts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		call := Call{Method: method, Target: cc.Target(), client: true}
		if _, no := g.admit(ctx, call, nil); no != nil {
			return nil, no.err()
		}
		if !g.perMessage || !desc.ClientStreams {
			return streamer(ctx, desc, cc, method, callOpts...)
		}
		cancelable, cancel := context.WithCancel(ctx)
		stream, err := streamer(cancelable, desc, cc, method, callOpts...)
		if err != nil {
			cancel()
			return nil, err
		}
		return &clientStream{stream, g, call, ctx, cancel, desc.ServerStreams}, nil
	}
}

// clientStream takes permits for each message before it is sent. It cancels its context when
// gRPC says that a stream has ended, so callers need not do so.
type clientStream struct {
	grpc.ClientStream
	gate   *gate
	call   Call
	ctx    context.Context // the caller's; calling Context would end retries
	cancel context.CancelFunc
	many   bool // the server answers with a stream
}

func (s *clientStream) SendMsg(m any) error {
	call := s.call
	call.Message = m
	if _, no := s.gate.admit(s.ctx, call, nil); no != nil {
		s.cancel()
		return no.err()
	}
	err := s.ClientStream.SendMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.cancel()
	}
	return err
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil || !s.many {
		s.cancel()
	}
	return err
}

func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if err != nil {
		s.cancel()
	}
	return md, err
}
