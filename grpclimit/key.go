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

// KeyFunc returns one part of the key under which a call is counted: any text, which
// [WithKey] escapes, or "" if the call has no such thing. An error ends the call, whatever
// [WithFailure] says: with the error's status if it is one of gRPC's, otherwise with
// codes.Unavailable.
type KeyFunc func(ctx context.Context, call Call) (string, error)

// Method counts by the full method. Don't use it on a server with an unknown service
// handler: its clients evade the limit by inventing methods.
func Method() KeyFunc {
	return func(_ context.Context, call Call) (string, error) { return call.Method, nil }
}

// Target counts by the target that a client's connection was made for. It is "" on a server.
func Target() KeyFunc {
	return func(_ context.Context, call Call) (string, error) { return call.Target, nil }
}

// Peer counts by the IP address from which a server is called. IPv6 addresses with the same
// first 64 bits count as one, since hosts choose the rest freely; IPv4 addresses written as
// IPv6 count as IPv4; ports and zones are ignored. On a Unix socket it is the socket's address.
// In a client, which knows no peer yet, it returns an error.
//
// Behind a proxy the peer is the proxy. In that case count by a [Metadata] name that the
// proxy overwrites.
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

// Metadata counts by the first value under name in the metadata that a server received or a
// client sends. It does not check the value: something in front of the server must have checked
// it.
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

// parts returns what follows the prefix in a call's key.
func (s *settings) parts(ctx context.Context, call Call) (string, error) {
	return keypart.Join(s.keys, s.Tagged, func(part KeyFunc) (string, error) { return part(ctx, call) })
}
