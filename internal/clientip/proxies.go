// Package clientip finds the address of the client of a request, behind the proxies that are trusted.
package clientip

import (
	"errors"
	"fmt"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
)

// Proxies says which peers are believed about the address of a client: see the ClientIPConfig of
// HTTP and gRPC middleware, whose fields these are.
type Proxies struct {
	Trusted   []netip.Prefix
	TrustUnix bool
	Header    string
	IPv6Bits  int
}

// Check returns p with its defaults filled in. The error says what is wrong with it.
func (p Proxies) Check() (Proxies, error) {
	p.Trusted = slices.Clone(p.Trusted)
	for i, t := range p.Trusted {
		if !t.IsValid() {
			return p, errors.New("ClientIP: a trusted prefix is not valid")
		}
		if t.Addr().Is4In6() && t.Bits() >= 96 {
			p.Trusted[i] = netip.PrefixFrom(t.Addr().Unmap(), t.Bits()-96)
		}
	}
	if p.Header == "" {
		p.Header = "X-Forwarded-For"
	}
	p.Header = textproto.CanonicalMIMEHeaderKey(p.Header)
	if p.IPv6Bits == 0 {
		p.IPv6Bits = 64
	}
	if p.IPv6Bits < 1 || p.IPv6Bits > 128 {
		return p, fmt.Errorf("ClientIP: IPv6Bits is %d, which is not between 1 and 128", p.IPv6Bits)
	}
	return p, nil
}

// Client returns the part of a key for the client of a request: "" if it has no known IP address. peer
// is the zero Addr for a peer without one, and unix reports whether it came through a Unix socket.
// values are those of p.Header in the request, and are read only if the peer is trusted.
func (p Proxies) Client(peer netip.Addr, unix func() bool, values func() []string) string {
	addr := peer
	if p.trusts(peer) || !peer.IsValid() && p.TrustUnix && unix() {
		addr = p.find(peer, values())
	}
	if !addr.IsValid() {
		return ""
	}
	return Address(addr, p.IPv6Bits)
}

// find returns the address that trusted proxies wrote, the peer's if there is none.
func (p Proxies) find(peer netip.Addr, values []string) netip.Addr {
	switch p.Header {
	case "X-Forwarded-For":
		return p.walk(peer, values, lastOfList, ParseAddr)
	case "Forwarded":
		return p.walk(peer, values, lastForwarded, parseForwarded)
	}
	if len(values) == 1 {
		if addr, ok := ParseAddr(strings.Trim(values[0], " \t")); ok {
			return addr
		}
	}
	return peer
}

// walk goes through the entries of all lines from the last to the first, as long as the
// address reached is trusted, and returns the address at which it ends.
func (p Proxies) walk(peer netip.Addr, lines []string, last func(string) int, parse func(string) (netip.Addr, bool)) netip.Addr {
	at := peer
	for _, rest := range slices.Backward(lines) {
		for more := true; more; {
			comma := last(rest)
			addr, ok := parse(strings.Trim(rest[comma+1:], " \t"))
			if !ok {
				return at
			}
			if at = addr; !p.trusts(at) {
				return at
			}
			if more = comma >= 0; more {
				rest = rest[:comma]
			}
		}
	}
	return at
}

func (p Proxies) trusts(addr netip.Addr) bool {
	for _, t := range p.Trusted {
		if t.Contains(addr) {
			return true
		}
	}
	return false
}

// ParseAddr reads an address, which may have a port or stand in brackets.
func ParseAddr(s string) (netip.Addr, bool) {
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
		return ParseAddr(value)
	}
	return netip.Addr{}, false
}
