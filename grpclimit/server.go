package grpclimit

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rratelimiter/rratelimiter/limit"
)

// UnaryServerInterceptor returns an interceptor, for grpc.ChainUnaryInterceptor,
// that lets calls through to their handlers for which limiter has permits.
func UnaryServerInterceptor(limiter limit.Limiter, opts ...Option) grpc.UnaryServerInterceptor {
	g := newGate(limiter, false, opts)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if no := g.admit(ctx, Call{Method: info.FullMethod, Message: req}); no != nil {
			// It fails only where there is no client to tell.
			_ = grpc.SetTrailer(ctx, no.trailer())
			return nil, no.err()
		}
		return handler(ctx, req)
	}
}

// StreamServerInterceptor returns an interceptor, for
// grpc.ChainStreamInterceptor, that lets streams through to their handlers for
// which limiter has permits as they open; see [WithPerMessage] for the messages
// that follow. A handler gets the status of a message that is refused from Recv,
// then and each time after, and should return it.
func StreamServerInterceptor(limiter limit.Limiter, opts ...Option) grpc.StreamServerInterceptor {
	g := newGate(limiter, false, opts)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		call := Call{Method: info.FullMethod}
		if no := g.admit(stream.Context(), call); no != nil {
			stream.SetTrailer(no.trailer())
			return no.err()
		}
		if g.perMessage && info.IsClientStream {
			stream = &serverStream{ServerStream: stream, gate: g, call: call}
		}
		return handler(srv, stream)
	}
}

// serverStream takes permits for each message that comes.
type serverStream struct {
	grpc.ServerStream
	gate    *gate
	call    Call
	refused error // once and for all
}

func (s *serverStream) RecvMsg(m any) error {
	if s.refused != nil {
		return s.refused
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	call := s.call
	call.Message = m
	if no := s.gate.admit(s.Context(), call); no != nil {
		s.SetTrailer(no.trailer())
		s.refused = no.err()
	}
	return s.refused
}
