package codec_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
)

func TestGoldenBytes(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "[Layout(0) B C D1 D2 D Layout(6)]", fmt.Sprint([...]codec.Layout{0, codec.LayoutB, 2, 3, 4, codec.LayoutD, 6}))
	for _, c := range []struct {
		name    string
		layout  codec.Layout
		id      string
		permits uint32
		hex     string
	}{
		// Written down from the format table.
		{"B", codec.LayoutB, "\x11\x22\x33\x44", 7, "11223344" + "07000000"},
		{"C", codec.LayoutC, "\x01\x02\x03\x04\x05\x06\x07\x08", 7,
			"0800000000000000" + "0102030405060708" + "07000000"},
		{"D1", codec.LayoutD1, "\x01\x02\x03\x04\x05\x06\x07\x08", 1 << 16,
			"08" + "0102030405060708" + "00000100"},
		{"D2", codec.LayoutD2, "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f", 0x01020304,
			"10" + "000102030405060708090a0b0c0d0e0f" + "04030201"},
		{"D of 20 bytes", codec.LayoutD, "\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 1,
			"0f" + "080000000000000000000000000000" + "01000000"},

		// Answers of Redis 7.0.15 to struct.pack.
		{"fI of 1.5, 3", codec.LayoutB, "\x00\x00\xc0\x3f", 3, "0000c03f03000000"},
		{"Lc0I of bytes, 66051", codec.LayoutC, "\x01\x02\x03\x04\x05\x06\x07\xff", 66051,
			"080000000000000001020304050607ff03020100"},
		{"Bc0I of 16 letters, 4294967295", codec.LayoutD2, "abcdefghijklmnop", 1<<32 - 1,
			"106162636465666768696a6b6c6d6e6f70ffffffff"},
		{"Bc0I of nothing, 1", codec.LayoutD, "", 1, "0001000000"},

		// Would be layout D with an id of 3.
		{"B that looks like D", codec.LayoutB, "\x03xyz", 1, "0378797a01000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			packed, err := codec.Append([]byte("before"), c.layout, []byte(c.id), c.permits)
			require.NoError(t, err)
			require.Equal(t, c.hex, hex.EncodeToString(bytes.TrimPrefix(packed, []byte("before"))))
			member, err := codec.Parse(strings.TrimPrefix(string(packed), "before"))
			require.NoError(t, err)
			assert.Equal(t, codec.Member{Layout: c.layout, ID: []byte(c.id), Permits: c.permits}, member)
		})
	}
}

func TestParseRefusesUnknownLayouts(t *testing.T) {
	t.Parallel()
	for _, member := range []string{
		"", "1", "\x00\x00\x00\x00", "hello, world",
		"\x09\x00\x00\x00\x00\x00\x00\x00abcdefgh\x01\x00\x00\x00", // C with another length
		"\x08abcdefgh\x01\x00\x00",                                 // D1 cut short
		"\x10abcdefghijklmnop\x01\x00\x00\x00\x00",                 // D2 and a byte more
	} {
		got, err := codec.Parse(member)
		require.ErrorIs(t, err, codec.ErrUnknownLayout, "%q", member)
		assert.Zero(t, got)
	}
}

func TestAppend_RefusesAmbiguousMembers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		layout codec.Layout
		idLen  int
		want   error
	}{
		{0, 16, codec.ErrUnknownLayout},
		{codec.LayoutD + 1, 16, codec.ErrUnknownLayout},
		{codec.LayoutB, 8, codec.ErrInvalidID},
		{codec.LayoutC, 16, codec.ErrInvalidID},
		{codec.LayoutD1, 16, codec.ErrInvalidID},
		{codec.LayoutD2, 8, codec.ErrInvalidID},
		{codec.LayoutD, 3, codec.ErrInvalidID},
		{codec.LayoutD, 8, codec.ErrInvalidID},
		{codec.LayoutD, 16, codec.ErrInvalidID},
		{codec.LayoutD, 256, codec.ErrInvalidID},
	} {
		got, err := codec.Append([]byte("before"), c.layout, make([]byte, c.idLen), 1)
		require.ErrorIs(t, err, c.want, "%v, id of %d bytes", c.layout, c.idLen)
		assert.Equal(t, "before", string(got), "%v, id of %d bytes", c.layout, c.idLen)
	}
}

func FuzzParse(f *testing.F) {
	for _, member := range []string{"", "\x00\x00\xc0?\x03\x00\x00\x00", "\x08abcdefgh\x03\x00\x00\x00", "\x05hello\x00\x01\x00\x00"} {
		f.Add(member)
	}
	f.Fuzz(func(t *testing.T, packed string) {
		member, err := codec.Parse(packed)
		if err != nil {
			if !errors.Is(err, codec.ErrUnknownLayout) {
				t.Errorf("%q: %v", packed, err)
			}
			return
		}
		again, err := codec.Append(nil, member.Layout, member.ID, member.Permits)
		if err != nil || packed != string(again) {
			t.Errorf("%q became %q, %v", packed, again, err)
		}
	})
}

func FuzzAppend(f *testing.F) {
	f.Add(uint8(codec.LayoutB), []byte("abcd"), uint32(1))
	f.Add(uint8(codec.LayoutC), []byte("abcdefgh"), uint32(1<<32-1))
	f.Add(uint8(codec.LayoutD2), []byte("abcdefghijklmnop"), uint32(0))
	f.Add(uint8(codec.LayoutD), []byte("an id that is longer"), uint32(5))
	f.Fuzz(func(t *testing.T, layout uint8, id []byte, permits uint32) {
		packed, err := codec.Append(nil, codec.Layout(layout), id, permits)
		if err != nil {
			if len(packed) > 0 || !errors.Is(err, codec.ErrUnknownLayout) && !errors.Is(err, codec.ErrInvalidID) {
				t.Errorf("layout %d, id %q: %q, %v", layout, id, packed, err)
			}
			return
		}
		m, err := codec.Parse(string(packed))
		if err != nil || m.Layout != codec.Layout(layout) || !bytes.Equal(m.ID, id) || m.Permits != permits {
			t.Errorf("layout %d, id %q, %d permits became %v, %v", layout, id, permits, m, err)
		}
	})
}

func ExampleAppend() {
	member, err := codec.Append(nil, codec.LayoutD2, []byte("abcdefghijklmnop"), 3)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%q\n", member)
	// Output: "\x10abcdefghijklmnop\x03\x00\x00\x00"
}

func ExampleParse() {
	member, err := codec.Parse("\x08abcdefgh\x03\x00\x00\x00")
	if err != nil {
		panic(err)
	}
	fmt.Printf("layout %v, id %x, %d permits\n", member.Layout, member.ID, member.Permits)
	// Output: layout D1, id 6162636465666768, 3 permits
}
