package clientip

import "net/netip"

// The IPv6 addresses of clients that have an IPv4 address: a translator's (RFC 6052), and of 6to4 (RFC 3056).
var nat64, sixToFour = netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2002::/16")

// Address writes an IP address as the part that its clients are counted by: this many bits of
// an IPv6 address are kept, as hosts choose the rest. One that is made of an IPv4 address counts as that.
func Address(ip netip.Addr, bits int) string {
	ip = ip.Unmap().WithZone("")
	switch raw := ip.As16(); {
	case nat64.Contains(ip):
		ip = netip.AddrFrom4([4]byte(raw[12:]))
	case sixToFour.Contains(ip):
		ip = netip.AddrFrom4([4]byte(raw[2:6]))
	}
	if !ip.Is6() || bits == ip.BitLen() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, bits).Masked().String()
}
