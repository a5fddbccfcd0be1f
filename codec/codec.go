// Package codec packs and parses the members of a limiter's set of permits in
// use, in the layout of every Redisson release that keeps such a set.
//
// A member is what one grant wrote: a random id that makes it unlike all
// others, and the number of permits granted. Its score in the sorted set, the
// time of the grant in milliseconds, is not part of it. All numbers are little
// endian:
//
//	layout  releases        bytes
//	B       3.13.3-3.16.3   8     id (a float of 4), permits (4)
//	C       3.16.4-3.16.8   20    length 8 (8), id (8), permits (4)
//	D1      3.17.0-3.20.1   13    length 8 (1), id (8), permits (4)
//	D2      from 3.21.0     21    length 16 (1), id (16), permits (4)
//
// Layouts D1 and D2 are one format, and its readers take an id of any length
// up to 255; [LayoutD] stands for the other lengths. Releases before
// 3.13.3 keep no set.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// String returns the layout's short name, such as "D2".
func (l Layout) String() string {
	if l < LayoutB || l > LayoutD {
		return fmt.Sprintf("Layout(%d)", uint8(l))
	}
	return [...]string{LayoutB: "B", LayoutC: "C", LayoutD1: "D1", LayoutD2: "D2", LayoutD: "D"}[l]
}

const (
	lenB       = 4 + 4
	lenC       = 8 + 8 + 4
	overheadD  = 1 + 4
	idLenB     = 4
	idLenC     = 8
	idLenD1    = 8
	idLenD2    = 16
	maxIDLenD  = 255
	idLenLikeB = lenB - overheadD // in layout D, it would read as layout B
)

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
	if !layout.holds(len(id)) {
		return dst, fmt.Errorf("%w: %d bytes in layout %v", ErrInvalidID, len(id), layout)
	}
	switch layout {
	case LayoutB:
	case LayoutC:
		dst = binary.LittleEndian.AppendUint64(dst, idLenC)
	default:
		dst = append(dst, byte(len(id)))
	}
	dst = append(dst, id...)
	return binary.LittleEndian.AppendUint32(dst, permits), nil
}

// holds reports whether an id of n bytes belongs in the layout.
func (l Layout) holds(n int) bool {
	switch l {
	case LayoutB:
		return n == idLenB
	case LayoutC:
		return n == idLenC
	case LayoutD1:
		return n == idLenD1
	case LayoutD2:
		return n == idLenD2
	}
	return n <= maxIDLenD && n != idLenD1 && n != idLenD2 && n != idLenLikeB
}

// Parse reads a member as Redis holds it. Its length shows the layout: 8 bytes
// are always B. The error wraps [ErrUnknownLayout]. What Parse accepts,
// [Append] packs into the same bytes again.
func Parse(member string) (Member, error) {
	n := len(member)
	switch {
	case n == lenB:
		return parsed(LayoutB, member[:idLenB], member), nil
	case n == lenC && member[:8] == "\x08\x00\x00\x00\x00\x00\x00\x00":
		return parsed(LayoutC, member[8:8+idLenC], member), nil
	case n >= overheadD && int(member[0])+overheadD == n:
		id := member[1 : n-4]
		switch len(id) {
		case idLenD1:
			return parsed(LayoutD1, id, member), nil
		case idLenD2:
			return parsed(LayoutD2, id, member), nil
		}
		return parsed(LayoutD, id, member), nil
	}
	return Member{}, fmt.Errorf("%w: %d bytes", ErrUnknownLayout, n)
}

// parsed returns the member whose permits are its last four bytes.
func parsed(layout Layout, id, member string) Member {
	permits := binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))
	return Member{Layout: layout, ID: []byte(id), Permits: permits}
}
