package keypart_test

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
)

// What is written can be read again, and so is another for each part.
func FuzzEscape(f *testing.F) {
	for _, part := range []string{
		"", "ann", "a:b", "{x}", "100%", "%3A", "é ü", "\xff\xfe", "a\u202eb", "%sha256-", "\x00\r\n",
		strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat(":", 43), strings.Repeat("é:", 60),
	} {
		f.Add(part)
	}
	fuzztest.Run(f, func(t testing.TB, part string) {
		got := keypart.Escape(part)
		if len(got) > 128 || strings.ContainsAny(got, ":{} ") || !utf8.ValidString(got) ||
			strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is written as %q", part, got)
		}
		if _, hash, hashed := strings.Cut(got, "%sha256-"); hashed {
			if len(hash) != 64 || len(part) <= 128/3 {
				t.Errorf("%q is written as %q", part, got)
			}
			return
		}
		if back, err := url.PathUnescape(got); err != nil || back != part {
			t.Errorf("%q is written as %q, which is %q: %v", part, got, back, err)
		}
	})
}

// Parts stay apart, and a tag is one that servers heed.
func FuzzJoin(f *testing.F) {
	f.Add("ann", "/hello", true, "_time")
	f.Add("", "", false, ":lock")
	f.Add("a:b", "{c}", true, "")
	f.Add("%", "ann_time", false, "_time")
	fuzztest.Run(f, func(t testing.TB, one, other string, tagged bool, suffix string) {
		joined, err := keypart.Join([]string{one, other}, tagged, same)
		if err != nil {
			t.Error(err)
		}
		inner := joined
		if tagged {
			inner = strings.TrimSuffix(strings.TrimPrefix(joined, "{"), "}")
		}
		if a, b, _ := strings.Cut(inner, ":"); a != keypart.Escape(one) || b != keypart.Escape(other) || tagged != (inner != joined) {
			t.Errorf("%q and %q are %q", one, other, joined)
		}
		if alone, err := keypart.Join([]string{one}, true, same); err != nil || len(alone) < 3 {
			t.Errorf("%q alone is %q, %v", one, alone, err)
		}
		if guarded := keypart.Guard(joined, suffix); suffix != "" && suffix != "%" && strings.HasSuffix(guarded, suffix) && !strings.HasSuffix(suffix, "%") {
			t.Errorf("%q guarded from %q is %q", joined, suffix, guarded)
		}
	})
}

func FuzzAddress(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, uint8(64), "")
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xc0\x00\x02\x01"), uint8(64), "eth0")
	f.Add([]byte("\x20\x01\x0d\xb8aaaabbbbcccc"), uint8(48), "eth0")
	f.Add([]byte("\x20\x01\x0d\xb8aaaabbbbcccc"), uint8(128), "")
	fuzztest.Run(f, func(t testing.TB, address []byte, bits uint8, zone string) {
		ip, ok := netip.AddrFromSlice(address)
		if bits = bits%128 + 1; !ok {
			return
		}
		got := keypart.Address(ip.WithZone(zone), int(bits))
		back, err := netip.ParseAddr(strings.TrimSuffix(got, "/"+prefixText(bits, ip)))
		if err != nil {
			t.Errorf("%v of %d bits is %q", ip, bits, got)
			return
		}
		want := ip.Unmap()
		if want.Is6() {
			want = netip.PrefixFrom(want, int(bits)).Masked().Addr()
		}
		if back != want {
			t.Errorf("%v of %d bits is %q", ip, bits, got)
		}
	})
}

// prefixText is what stands behind the slash of an address of which not all bits count.
func prefixText(bits uint8, ip netip.Addr) string {
	_, text, _ := strings.Cut(netip.PrefixFrom(ip.Unmap().WithZone(""), int(bits)).String(), "/")
	return text
}
