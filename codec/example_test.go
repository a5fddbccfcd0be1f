package codec_test

import (
	"fmt"

	"github.com/rratelimiter/rratelimiter/codec"
)

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
