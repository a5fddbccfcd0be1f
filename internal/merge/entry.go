package merge

import "encoding/binary"

// Members of layout D2 have a byte before the id, of which the client's begin alike, and the permits behind it.
const (
	clientEnd  = 9
	highBytes  = 4 // of the counter that ends the id; settled reservations have a bit in the last of them
	settledBit = 0x80
	length     = 21
)

// entry is the end of a member: four bytes of its id, four for its permits, and behind these the last seven bits of the
// slice's number, and whether the id is a settled reservation's.
type entry [9]byte

// entryOf returns the entry of a member with that many permits, and the bytes of its id that entries of a Log share.
func entryOf(member []byte, permits int64) (e entry, high [highBytes]byte) {
	copy(high[:], member[clientEnd:])
	copy(e[:], member[clientEnd+highBytes:])
	e.setPermits(permits)
	last := &high[highBytes-1]
	e[8] = *last & settledBit
	*last &^= settledBit
	return e, high
}

func (e *entry) setSlice(slice uint8)     { e[8] = e[8]&settledBit | slice&^settledBit }
func (e *entry) slice() uint8             { return e[8] &^ settledBit }
func (e *entry) permits() int64           { return int64(binary.LittleEndian.Uint32(e[4:])) }
func (e *entry) setPermits(permits int64) { binary.LittleEndian.PutUint32(e[4:], uint32(permits)) }

// append appends the member to words; like is one of the same client and Log.
func (e *entry) append(words, like []byte, high [highBytes]byte) []byte {
	high[highBytes-1] |= e[8] & settledBit
	words = append(append(words, like[:clientEnd]...), high[:]...)
	return append(words, e[:8]...)
}
