// Package codec packs and parses the members of a limiter's set of permits in
// use, in the layout of every Redisson release that keeps such a set.
//
// A member is what one grant wrote: a random id that makes it unlike all others, and the number of permits granted.
// Its score in the sorted set, the time of the grant in milliseconds, is not part of it. All numbers are little
// endian:
//
//	layout  releases        bytes
//	B       3.13.3-3.16.3   8     id (a float of 4), permits (4)
//	C       3.16.4-3.16.8   20    length 8 (8), id (8), permits (4)
//	D1      3.17.0-3.20.1   13    length 8 (1), id (8), permits (4)
//	D2      from 3.21.0     21    length 16 (1), id (16), permits (4)
//
// Layouts D1 and D2 are one format, and its readers take an id of any length up to 255; [LayoutD] stands for the
// other lengths. Releases before 3.13.3 keep no set.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Errors to test for with [errors.Is].
var (
	// ErrUnknownLayout: no release of Redisson writes such a member.
	ErrUnknownLayout = errors.New("codec: unknown layout")

	// ErrInvalidID: the layout cannot hold an id of this length.
	ErrInvalidID = errors.New("codec: invalid id length")
)

// Layout is the way in which a member is packed. The zero value is no layout.
type Layout uint8

// The layouts, in the order of the releases that brought them.
const (
	LayoutB  Layout = iota + 1 // id of 4 bytes
	LayoutC                    // id of 8 bytes
	LayoutD1                   // id of 8 bytes
	LayoutD2                   // id of 16 bytes
	LayoutD                    // the format of D1 and D2, id of another length
)

// lenPermits is the length of the number that ends a member.
const lenPermits = 4

// formats are what stands before the id in each layout, and how long the id is.
var formats = [...]struct {
	name, head string
	idLen      int
}{
	LayoutB:  {"B", "", 4},
	LayoutC:  {"C", "\x08\x00\x00\x00\x00\x00\x00\x00", 8},
	LayoutD1: {"D1", "\x08", 8},
	LayoutD2: {"D2", "\x10", 16},
	LayoutD:  {name: "D"}, // the head is the id's length
}

// String returns the layout's short name, such as "D2".
func (l Layout) String() string {
	if l < LayoutB || l > LayoutD {
		return fmt.Sprintf("Layout(%d)", uint8(l))
	}
	return formats[l].name
}

// Member is one entry of a limiter's set.
type Member struct {
	// Layout says how the member is packed.
	Layout Layout

	// ID makes the member unlike all others: 4 bytes of a float in layout B, 8 random bytes in
	// C and D1, 16 in D2, any other number except 3 in D.
	ID []byte

	// Permits is how many permits the grant took.
	Permits uint32
}

// Append appends the packed member to dst and returns the extended slice. With an error, which
// wraps [ErrUnknownLayout] or [ErrInvalidID], it returns dst unchanged.
func Append(dst []byte, layout Layout, id []byte, permits uint32) ([]byte, error) {
	if layout < LayoutB || layout > LayoutD {
		return dst, fmt.Errorf("%w: %v", ErrUnknownLayout, layout)
	}
	n := len(id)
	fits := n == formats[layout].idLen
	if layout == LayoutD { // with an id of 3, the member would read as one of layout B
		fits = n <= 255 && n != 3 && n != formats[LayoutD1].idLen && n != formats[LayoutD2].idLen
	}
	if !fits {
		return dst, fmt.Errorf("%w: %d bytes in layout %v", ErrInvalidID, n, layout)
	}
	if layout == LayoutD {
		dst = append(dst, byte(n))
	}
	dst = append(append(dst, formats[layout].head...), id...)
	return binary.LittleEndian.AppendUint32(dst, permits), nil
}

// Parse reads a member as Redis holds it. Its length shows the layout: 8 bytes are always B. The error wraps
// [ErrUnknownLayout]. What Parse accepts, [Append] packs into the same bytes again.
func Parse(member string) (Member, error) {
	n := len(member) - lenPermits
	for layout := LayoutB; layout <= LayoutD && n > 0; layout++ {
		head, idLen := formats[layout].head, formats[layout].idLen
		if layout == LayoutD {
			head, idLen = member[:1], int(member[0])
		}
		if n == len(head)+idLen && strings.HasPrefix(member, head) {
			permits := binary.LittleEndian.Uint32([]byte(member[n:]))
			return Member{Layout: layout, ID: []byte(member[len(head):n]), Permits: permits}, nil
		}
	}
	return Member{}, fmt.Errorf("%w: %d bytes", ErrUnknownLayout, len(member))
}
