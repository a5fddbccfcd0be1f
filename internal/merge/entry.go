package merge

import "encoding/binary"

// Members of layout D2 have a byte before the id, of which the client's begin alike, and the permits behind it.
const (
	clientEnd = 9
	highBytes = 4    // of the counter that ends the id
	kindBits  = 0xc0 // in the last of them: settled reservations and merged members have some
	length    = 21
)

// entry is the end of a member: four bytes of its id, four for its permits, and behind these the last byte of the slice's
// number, and the bits of the id that tell its kind.
type entry [10]byte

// entryOf returns the entry of a member with that many permits, and the bytes of its id that entries of a Log share.
func entryOf(member []byte, permits int64) (e entry, high [highBytes]byte) {
	copy(high[:], member[clientEnd:])
	copy(e[:], member[clientEnd+highBytes:])
	e.setPermits(permits)
	last := &high[highBytes-1]
	e[9] = *last & kindBits
	*last &^= kindBits
	return e, high
}

func (e *entry) setSlice(slice uint8)     { e[8] = slice }
func (e *entry) slice() uint8             { return e[8] }
func (e *entry) permits() int64           { return int64(binary.LittleEndian.Uint32(e[4:])) }
func (e *entry) setPermits(permits int64) { binary.LittleEndian.PutUint32(e[4:], uint32(permits)) }

// append appends the member to words; like is one of the same client and Log.
func (e *entry) append(words, like []byte, high [highBytes]byte) []byte {
	high[highBytes-1] |= e[9]
	words = append(append(words, like[:clientEnd]...), high[:]...)
	return append(words, e[:8]...)
}
