package grpclimit

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"reflect"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/rratelimiter/rratelimiter/internal/clientip"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
)

// KeyFunc returns one part of the key under which a call is counted: any text, which
// [WithKey] escapes, or "" if the call has no such thing. An error ends the call, whatever
// [WithFailure] says: with the error's status if it is one of gRPC's, with codes.Internal for a
// limit.ErrInvalidConfig, otherwise with codes.Unavailable.
type KeyFunc func(ctx context.Context, call Call) (string, error)

// Method counts by the full method. Don't use it on a server with an unknown service
// handler: its clients evade the limit by inventing methods.
func Method() KeyFunc {
	return func(_ context.Context, call Call) (string, error) { return call.Method, nil }
}

// remote is Peer on a server, Target in a client.
func remote(ctx context.Context, call Call) (string, error) {
	if call.client {
		return call.Target, nil
	}
	return Peer()(ctx, call)
}

// Target counts by the target that a client's connection was made for. It is "" on a server.
func Target() KeyFunc {
	return func(_ context.Context, call Call) (string, error) { return call.Target, nil }
}

// Peer counts by the IP address from which a server is called. IPv6 addresses with the same
// first 64 bits count as one, since hosts choose the rest freely; IPv4 addresses written as
// IPv6, those of NAT64 (64:ff9b::/96) and 6to4 (2002::/16) too, count as IPv4; ports and zones
// are ignored. On a Unix socket it is the socket's address. In a client, which knows no peer yet,
// it returns an error.
//
// Behind a proxy the peer is the proxy. In that case use [ClientIP].
func Peer() KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		addr, err := peerOf(ctx, call)
		if err != nil {
			return "", err
		}
		ip := address(addr)
		if !ip.IsValid() {
			return addr.String(), nil
		}
		return clientip.Address(ip, 64), nil
	}
}

// ClientIPConfig says how [ClientIP] finds a client's address. The zero value uses the
// connection's peer, which is right if clients connect directly.
type ClientIPConfig struct {
	// Trusted are the addresses of the proxies before this server. Metadata are read only if
	// a trusted peer sent them, and only the part that trusted proxies wrote. None: no metadata
	// are read.
	Trusted []netip.Prefix

	// TrustUnix trusts a peer on a Unix socket too, which has no address: a proxy on the same
	// machine. Set it only if no client may open the socket.
	TrustUnix bool

	// Header is the header, in gRPC the name in the metadata, in which the trusted proxies write
	// the address. Default: "X-Forwarded-For". That header and "Forwarded" (RFC 7239) are lists,
	// read from the right: trusted addresses are skipped, and the first other one is the
	// client's. The walk stops at an entry that is not an address; the client's address is then
	// the one before it. Any other header, such as "X-Real-IP", holds one address; if there are
	// none or several, the peer's is used.
	Header string

	// IPv6Bits is the length of the prefix of IPv6 addresses that count as one client, 1
	// to 128. Default: 64, since hosts choose the rest freely.
	IPv6Bits int
}

// ClientIP counts by the address of the client of a server, also behind proxies. IPv4 addresses
// written as IPv6, those of NAT64 (64:ff9b::/96) and 6to4 (2002::/16) too, count as IPv4; ports
// and zones are ignored. The part is empty if no address is known, as for a peer on a Unix socket
// that is not trusted. In a client, which knows no peer yet, it returns an error. A config that is
// not valid ends each call as bad options do.
//
// Where a prefix of the network's own (64:ff9b:1::/48 of RFC 8215 or another) holds the IPv4 address
// can't be known. If all IPv6 clients come through such a translator, set IPv6Bits to 128.
func ClientIP(cfg ClientIPConfig) KeyFunc {
	proxies, err := clientip.Proxies(cfg).Check()
	if err != nil {
		return badKey(err)
	}
	return func(ctx context.Context, call Call) (string, error) {
		addr, err := peerOf(ctx, call)
		if err != nil {
			return "", err
		}
		return proxies.Client(address(addr),
			func() bool { return addr.Network() == "unix" },
			func() []string { return metadata.ValueFromIncomingContext(ctx, proxies.Header) }), nil
	}
}

// badKey returns a key function that was not made properly, because of err. It is not inlined, so
// that it always returns the same function: see faultOf.
//
//go:noinline
func badKey(err error) KeyFunc {
	return func(context.Context, Call) (string, error) { return "", middleware.Fault(err) }
}

var badKeyFunc = reflect.ValueOf(badKey(nil)).Pointer()

// faultOf returns the error of a key function of badKey. It never calls a function of the
// application's.
func faultOf(key KeyFunc) error {
	if key == nil || reflect.ValueOf(key).Pointer() != badKeyFunc {
		return nil
	}
	_, err := key(context.Background(), Call{})
	return err
}

// peerOf returns the address from which a server is called.
func peerOf(ctx context.Context, call Call) (net.Addr, error) {
	p, ok := peer.FromContext(ctx)
	if call.client || !ok || p.Addr == nil {
		return nil, errors.New("the peer is not known")
	}
	return p.Addr, nil
}

// address returns the IP address, the zero Addr if there is none.
func address(addr net.Addr) netip.Addr {
	if a, ok := addr.(interface{ AddrPort() netip.AddrPort }); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	ip, _ := clientip.ParseAddr(addr.String())
	return ip
}

// Metadata counts by the first value under name in the metadata that a server received or a
// client sends. It does not check the value: something in front of the server must have checked
// it. For the address that a proxy writes there use [ClientIP]: the first value may be the client's
// own.
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
