package grpclimit

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
)

// KeyFunc tells one part of the key that a call is counted under. What it returns
// may be anything: [WithKey] says how it is written. It is "" where the call has
// no such thing. An error ends the call: by the error's status where it is one
// of gRPC's, else by codes.Unavailable, whatever [WithFailure] says.
type KeyFunc func(ctx context.Context, call Call) (string, error)

// Method counts by the full method. A server with an unknown service handler
// should not count by it: its clients go round the limit by inventing more.
func Method() KeyFunc {
	return func(_ context.Context, call Call) (string, error) { return call.Method, nil }
}

// Target counts by what a client's connection was made for. It is "" on a server.
func Target() KeyFunc {
	return func(_ context.Context, call Call) (string, error) { return call.Target, nil }
}

// Peer counts by the IP address that a server is called from. IPv6 addresses of
// which the first 64 bits are the same count as one, since hosts choose the rest
// as they like; IPv4 addresses written as IPv6 are IPv4; ports and zones don't
// count. On a Unix socket it is the address of that. A client knows no peer yet:
// for it this is an error.
//
// Behind a proxy the peer is the proxy. Count by [Metadata] then, of a name that
// the proxy overwrites.
func Peer() KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if call.client || !ok || p.Addr == nil {
			return "", errors.New("the peer is not known")
		}
		return host(p.Addr), nil
	}
}

func host(addr net.Addr) string {
	var ip netip.Addr
	if a, ok := addr.(interface{ AddrPort() netip.AddrPort }); ok {
		ip = a.AddrPort().Addr()
	} else if a, err := netip.ParseAddrPort(addr.String()); err == nil {
		ip = a.Addr()
	} else {
		return addr.String()
	}
	return keypart.Address(ip, 64)
}

// Metadata counts by the first value under name in what a server received, or in
// what a client sends. Nothing proves that the client speaks the truth: before
// it there should be something that has checked it.
func Metadata(name string) KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		var values []string
		if call.client {
			md, _ := metadata.FromOutgoingContext(ctx)
			values = md.Get(name)
		} else {
			values = metadata.ValueFromIncomingContext(ctx, name)
		}
		if len(values) == 0 {
			return "", nil
		}
		return values[0], nil
	}
}

// parts returns what follows the prefix in the key that a call is counted under.
func (s *settings) parts(ctx context.Context, call Call) (string, error) {
	return keypart.Join(s.keys, s.Tagged, func(part KeyFunc) (string, error) { return part(ctx, call) })
}
