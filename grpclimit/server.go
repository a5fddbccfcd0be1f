package grpclimit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/limit"
)

// UnaryServer returns an interceptor, for grpc.ChainUnaryInterceptor, that
// calls the handler only if the limiter has permits for the call.
func (i *Interceptors) UnaryServer() grpc.UnaryServerInterceptor {
	g := i.gate
	g.server.used.Store(true)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		handling, record := g.handled(ctx)
		decisions, end, no := g.admit(ctx, Call{Method: info.FullMethod, Message: req}, record)
		told := figures(decisions)
		if no != nil {
			told = metadata.Join(told, no.trailer())
		}
		if told != nil {
			// It fails only if the client is gone.
			defer func() { _ = grpc.SetTrailer(ctx, told) }()
		}
		if no != nil {
			return nil, no.err()
		}
		err := errPanic
		defer func() { ended(end, err) }()
		resp, err := handler(handling, req)
		return resp, err
	}
}

// StreamServer returns an interceptor, for grpc.ChainStreamInterceptor, that
// calls the handler only if the limiter has permits for the stream when it opens.
// [WithPerMessage] limits the messages that follow: if one is refused, Recv returns the
// refusal's status to the handler, then and each time after. The handler should return it.
func (i *Interceptors) StreamServer() grpc.StreamServerInterceptor {
	g := i.gate
	g.server.used.Store(true)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		call := Call{Method: info.FullMethod}
		ctx, record := g.handled(stream.Context())
		decisions, end, no := g.admit(stream.Context(), call, record)
		if no != nil {
			stream.SetTrailer(metadata.Join(figures(decisions), no.trailer()))
			return no.err()
		}
		stream = handledStream{stream, ctx}
		err := errPanic
		defer func() { ended(end, err) }()
		if !g.perMessage || !info.IsClientStream {
			defer func() { stream.SetTrailer(figures(decisions)) }()
			err = handler(srv, stream)
			return err
		}
		s := &serverStream{ServerStream: stream, gate: g, call: call, record: record}
		s.last.Store(&decisions)
		defer func() { stream.SetTrailer(figures(*s.last.Load())) }()
		err = handler(srv, s)
		return err
	}
}

// serverStream takes permits for each message that comes.
type serverStream struct {
	grpc.ServerStream
	gate    *gate
	call    Call
	record  *middleware.Record               // of the last message
	last    atomic.Pointer[[]limit.Decision] // with figures: trailers of one name add up, so they are set at the end
	refused error                            // once and for all
}

func (s *serverStream) RecvMsg(m any) error {
	if s.refused != nil {
		return s.refused
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	call := s.call
	call.Message, call.message = m, true
	decisions, _, no := s.gate.admit(s.Context(), call, s.record)
	if len(decisions) > 0 {
		s.last.Store(&decisions)
	}
	if no != nil {
		s.SetTrailer(no.trailer())
		s.refused = no.err()
	}
	return s.refused
}
