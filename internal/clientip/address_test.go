package clientip_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/clientip"
)

func FuzzAddress(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, uint8(64), "")
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xc0\x00\x02\x01"), uint8(64), "eth0")
	f.Add([]byte("\x20\x01\x0d\xb8aaaabbbbcccc"), uint8(48), "eth0")
	f.Add([]byte("\x20\x01\x0d\xb8aaaabbbbcccc"), uint8(128), "")
	f.Add([]byte("\x00\x64\xff\x9b\x00\x00\x00\x00\x00\x00\x00\x00\xc0\x00\x02\x01"), uint8(64), "")
	f.Add([]byte("\x20\x02\xc0\x00\x02\x01aaaabbbbcc"), uint8(64), "eth0")
	f.Fuzz(func(t *testing.T, address []byte, bits uint8, zone string) {
		ip, ok := netip.AddrFromSlice(address)
		if bits = bits%128 + 1; !ok {
			return
		}
		got := clientip.Address(ip.WithZone(zone), int(bits))
		want := ip.Unmap()
		switch raw := want.As16(); {
		case netip.MustParsePrefix("64:ff9b::/96").Contains(want):
			want = netip.AddrFrom4([4]byte(raw[12:]))
		case netip.MustParsePrefix("2002::/16").Contains(want):
			want = netip.AddrFrom4([4]byte(raw[2:6]))
		}
		if want.Is6() {
			want = netip.PrefixFrom(want, int(bits)).Masked().Addr()
		}
		text, length, cut := strings.Cut(got, "/")
		if back, err := netip.ParseAddr(text); err != nil || back != want || cut && length != fmt.Sprint(bits) {
			t.Errorf("%v of %d bits is %q", ip, bits, got)
		}
	})
}
