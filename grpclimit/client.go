package grpclimit

import (
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
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
		_, end, no := g.admit(ctx, Call{Method: method, Target: cc.Target(), Message: req, client: true}, nil)
		if no != nil {
			return no.err()
		}
		err := errPanic
		defer func() { ended(end, err) }()
		err = invoker(ctx, method, req, reply, cc, callOpts...)
		return err
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
		_, end, no := g.admit(ctx, call, nil)
		if no != nil {
			return nil, no.err()
		}
		perMessage := g.perMessage && desc.ClientStreams
		if !perMessage && end == nil {
			return streamer(ctx, desc, cc, method, callOpts...)
		}
		s := &clientStream{gate: g, call: call, ctx: ctx, perMessage: perMessage, many: desc.ServerStreams, end: end}
		err := errPanic
		defer func() {
			if err != nil {
				s.over(err)
			}
		}()
		var cancelable context.Context
		cancelable, s.cancel = context.WithCancel(ctx)
		s.leave = context.AfterFunc(ctx, func() { s.ended(ctx.Err()) })
		closes := grpc.OnFinish(func(err error) { // each attempt of an interceptor that retries finishes
			if cc.GetState() == connectivity.Shutdown {
				s.over(err)
			}
		})
		if s.ClientStream, err = streamer(cancelable, desc, cc, method, append(slices.Clip(callOpts), closes)...); err != nil {
			return nil, err
		}
		return s, nil
	}
}

// clientStream is a stream whose end is to be known, or that takes permits for each message before it is sent. It cancels
// its context when gRPC says that a stream has ended, so callers need not do so.
type clientStream struct {
	grpc.ClientStream
	gate       *gate
	call       Call
	ctx        context.Context // the caller's; calling Context would end retries
	cancel     context.CancelFunc
	perMessage bool
	many       bool        // the server answers with a stream
	end        func(error) // the call; may be nil
	leave      func() bool // ends the watch on ctx
}

// over ends the call by err.
func (s *clientStream) over(err error) {
	s.leave()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	s.ended(err)
}

func (s *clientStream) ended(err error) {
	s.cancel()
	ended(s.end, err)
}

func (s *clientStream) SendMsg(m any) error {
	if s.perMessage {
		call := s.call
		call.Message, call.message = m, true
		if _, _, no := s.gate.admit(s.ctx, call, nil); no != nil {
			s.over(no.err())
			return no.err()
		}
	}
	err := s.ClientStream.SendMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.over(err)
	}
	return err
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil || !s.many {
		s.over(err)
	}
	return err
}

func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if err != nil {
		s.over(err)
	}
	return md, err
}
