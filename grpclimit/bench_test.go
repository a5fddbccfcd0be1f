package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

// free is a limiter that costs nothing.
type free struct{}

func (free) Take(context.Context, string, int64) (limit.Decision, error) {
	return limit.Decision{Granted: true, Limit: 1}, nil
}

// What the interceptor adds to a call, beyond the limiter.
func BenchmarkUnaryServer(b *testing.B) {
	interceptor := grpclimit.UnaryServerInterceptor(free{})
	info := &grpc.UnaryServerInfo{FullMethod: "/grpc.health.v1.Health/Check"}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	ctx := peer.NewContext(b.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1234}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := interceptor(ctx, nil, info, handler); err != nil {
			b.Fatal(err)
		}
	}
}
