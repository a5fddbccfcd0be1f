package httplimit

import (
	"net"
	"net/http"
	"net/netip"

	"github.com/rratelimiter/rratelimiter/internal/clientip"
)

// ClientIPConfig says how [ClientIP] finds a client's address. The zero value uses the
// connection's peer, which is right if clients connect directly.
type ClientIPConfig struct {
	// Trusted are the addresses of the proxies before this server. A header is read only if
	// a trusted peer sent it, and only the part that trusted proxies wrote. None: no header
	// is read.
	Trusted []netip.Prefix

	// TrustUnix trusts a peer on a Unix socket too, which has no address: a proxy on the same
	// machine. Set it only if no client may open the socket. It needs a request of a
	// net/http.Server, which says how the request came.
	TrustUnix bool

	// Header is the header in which the trusted proxies write the address. Default:
	// "X-Forwarded-For". That header and "Forwarded" (RFC 7239) are lists, read from the right:
	// trusted addresses are skipped, and the first other one is the client's. The walk stops at
	// an entry that is not an address; the client's address is then the one before it. Any
	// other header, such as "X-Real-IP", holds one address; if there are none or several, the
	// peer's is used.
	Header string

	// IPv6Bits is the length of the prefix of IPv6 addresses that count as one client, 1
	// to 128. Default: 64, since hosts choose the rest freely.
	IPv6Bits int
}

// ClientIP counts by the address of the client. IPv4 addresses written as IPv6 count as IPv4, those of NAT64
// (64:ff9b::/96) and 6to4 (2002::/16) too; ports and zones are ignored. The part is empty if no address is
// known, as for a peer on a Unix socket that is not trusted.
//
// Where a prefix of the network's own (64:ff9b:1::/48 of RFC 8215 or another) holds the IPv4 address
// can't be known. If all IPv6 clients come through such a translator, set IPv6Bits to 128.
func ClientIP(cfg ClientIPConfig) KeyFunc {
	proxies, err := clientip.Proxies(cfg).Check()
	if err != nil {
		return badKey(err)
	}
	return func(r *http.Request) (string, error) {
		peer, _ := clientip.ParseAddr(r.RemoteAddr)
		return proxies.Client(peer, func() bool { return onUnixSocket(r) }, func() []string { return r.Header[proxies.Header] }), nil
	}
}

// onUnixSocket reports whether a request came through a Unix socket. The peer's address does not say
// so: middleware may write a header's text there.
func onUnixSocket(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr.Network() == "unix"
}
