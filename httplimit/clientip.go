package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/limit"
)

// ClientIPConfig says how [ClientIP] finds a client's address. The zero value uses the
// connection's peer, which is right if clients connect directly.
type ClientIPConfig struct {
	// Trusted are the addresses of the proxies before this server. A header is read only if
	// a trusted peer sent it, and only the part that trusted proxies wrote. None: no header
	// is read.
	Trusted []netip.Prefix

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

// ClientIP counts by the address of the client. IPv4 addresses written as IPv6 count as IPv4;
// ports and zones are ignored. The part is empty if the peer has no IP address, as on a Unix
// socket.
func ClientIP(cfg ClientIPConfig) KeyFunc {
	f, err := newIPFinder(cfg)
	if err != nil {
		return badKey(err)
	}
	return func(r *http.Request) (string, error) { return f.text(f.find(r)), nil }
}

type ipFinder struct {
	trusted []netip.Prefix
	header  string // canonical
	bits    int
}

func newIPFinder(cfg ClientIPConfig) (*ipFinder, error) {
	f := &ipFinder{header: "X-Forwarded-For", bits: 64}
	for _, p := range cfg.Trusted {
		if !p.IsValid() {
			return nil, fmt.Errorf("%w: ClientIP: a trusted prefix is not valid", limit.ErrInvalidConfig)
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		f.trusted = append(f.trusted, p)
	}
	if cfg.Header != "" {
		f.header = textproto.CanonicalMIMEHeaderKey(cfg.Header)
	}
	if cfg.IPv6Bits != 0 {
		f.bits = cfg.IPv6Bits
	}
	if f.bits < 1 || f.bits > 128 {
		return nil, fmt.Errorf("%w: ClientIP: IPv6Bits is %d, which is not between 1 and 128", limit.ErrInvalidConfig, f.bits)
	}
	return f, nil
}

// find returns the client's address, the zero Addr if there is none.
func (f *ipFinder) find(r *http.Request) netip.Addr {
	peer, ok := parseAddr(r.RemoteAddr)
	if !ok || !f.trusts(peer) {
		return peer
	}
	lines := r.Header[f.header]
	switch f.header {
	case "X-Forwarded-For":
		return f.walk(peer, lines, lastOfList, parseAddr)
	case "Forwarded":
		return f.walk(peer, lines, lastForwarded, parseForwarded)
	}
	if len(lines) == 1 {
		if addr, ok := parseAddr(strings.Trim(lines[0], " \t")); ok {
			return addr
		}
	}
	return peer
}

// walk goes through the entries of all lines from the last to the first, as long as the
// address reached is trusted, and returns the address at which it ends.
func (f *ipFinder) walk(peer netip.Addr, lines []string, last func(string) int, parse func(string) (netip.Addr, bool)) netip.Addr {
	at := peer
	for _, rest := range slices.Backward(lines) {
		for more := true; more; {
			comma := last(rest)
			addr, ok := parse(strings.Trim(rest[comma+1:], " \t"))
			if !ok {
				return at
			}
			if at = addr; !f.trusts(at) {
				return at
			}
			if more = comma >= 0; more {
				rest = rest[:comma]
			}
		}
	}
	return at
}

func (f *ipFinder) trusts(addr netip.Addr) bool {
	for _, p := range f.trusted {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

func (f *ipFinder) text(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return keypart.Address(addr, f.bits)
}

// parseAddr reads an address, which may have a port or stand in brackets.
func parseAddr(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	if in, ok := strings.CutPrefix(s, "["); ok {
		if s, ok = strings.CutSuffix(in, "]"); !ok || !strings.Contains(s, ":") {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(s)
	return addr.Unmap().WithZone(""), err == nil
}

// lastOfList returns the index of the last comma of a list, -1 without one.
func lastOfList(s string) int { return strings.LastIndexByte(s, ',') }

// lastForwarded is lastOfList for a list with quoted strings. It reads from the right,
// so that a quote which a client left open does not swallow what proxies wrote after it.
func lastForwarded(s string) int {
	quoted := false
	for i := len(s) - 1; i >= 0; i-- {
		switch s[i] {
		case '"':
			quoted = !quoted
		case ',':
			if !quoted {
				return i
			}
		}
	}
	return -1
}

// parseForwarded reads the address of the "for" parameter of one element.
// "unknown" and obfuscated names are not addresses.
func parseForwarded(element string) (netip.Addr, bool) {
	for pair := range strings.SplitSeq(element, ";") {
		name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
		if !strings.EqualFold(name, "for") {
			continue
		}
		if in, ok := strings.CutPrefix(value, `"`); ok {
			if value, ok = strings.CutSuffix(in, `"`); !ok {
				return netip.Addr{}, false
			}
		}
		return parseAddr(value)
	}
	return netip.Addr{}, false
}
