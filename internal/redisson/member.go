package redisson

import (
	"crypto/rand"
	"encoding/binary"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/rratelimiter/rratelimiter/codec"
)

// Every call for permits has an identity that no other has: the ids of the members that it writes. Ids are as long as
// the layout has room for, and end in a number, which distinguishes the requests of a call:
//
//	layout  id
//	D2      8 bytes of the client's, 8 of a counter
//	D1      4 bytes of the client's, 4 of a counter
//	C       1 byte of a counter, the permits, 3 bytes of the counter
//	B       4 bytes of a counter, so that no float of Redisson's is the same
//
// Counters of the short ids begin anywhere. In layout C the permits stand where
// Redissons that read layout D look for them.

// Identities draws the ids of one client's members.
type Identities struct {
	layout codec.Layout
	origin [8]byte       // how the ids begin, if they have room for it
	calls  atomic.Uint64 // the counter in the ids
}

// NewIdentities returns the Identities for members of a layout.
func NewIdentities(layout codec.Layout) *Identities {
	i := &Identities{layout: layout}
	_, _ = rand.Read(i.origin[:]) // never fails
	if layout != codec.LayoutD2 {
		i.calls.Store(uint64(mathrand.Uint32()))
	}
	return i
}

// Skip leaves out a random number of ids, if one turned out to be another client's too.
func (i *Identities) Skip() { i.calls.Add(mathrand.Uint64N(1 << 24)) }

// Next appends to dst the first of n members for a new call, with no permits on it yet.
func (i *Identities) Next(dst []byte, n int) []byte { return i.NextIn(dst, i.layout, n) }

// NextIn is Next in a layout that need not be the client's own.
func (i *Identities) NextIn(dst []byte, layout codec.Layout, n int) []byte {
	bits := 24 // of the counter, in the id's last three bytes, the lowest first
	if layout == codec.LayoutB {
		bits = 22 // which make a float below 2, as none of Redisson's is
	}
	var first uint64
	for {
		last := i.calls.Add(uint64(n))
		first = last - uint64(n) + 1
		if first>>bits == last>>bits {
			break
		}
	}
	low, high := first&(1<<bits-1), first>>bits
	id := make([]byte, 0, 16)
	switch layout {
	case codec.LayoutB:
		id = append(id, byte(high))
	case codec.LayoutC:
		id = append(id, byte(high), 0, 0, 0, 0)
	case codec.LayoutD1:
		id = append(append(id, i.origin[:4]...), byte(high))
	default:
		id = append(append(id, i.origin[:]...), byte(high>>32), byte(high>>24), byte(high>>16), byte(high>>8), byte(high))
	}
	id = append(id, byte(low), byte(low>>8), byte(low>>16))
	member, err := codec.Append(dst, layout, id, 0)
	if err != nil {
		panic(err) // the layout holds an id of that length
	}
	return member
}

// Mark returns how the ids of the client's members begin; nothing if the layout has no room for it.
func (i *Identities) Mark() []byte {
	switch i.layout {
	case codec.LayoutB, codec.LayoutC:
		return nil
	case codec.LayoutD1:
		return i.origin[:4]
	}
	return i.origin[:]
}

// WithPermits returns a copy of a member that stands for that many permits.
func WithPermits(member []byte, permits int64) []byte {
	member = slices.Clone(member)
	SetPermits(member, permits)
	return member
}

// SetPermits sets how many permits a member stands for.
func SetPermits(member []byte, permits int64) {
	binary.LittleEndian.PutUint32(member[len(member)-4:], uint32(permits))
	if len(member) == 20 {
		copy(member[9:13], member[16:])
	}
}

// Settled returns a copy of a member of layout D2 with the id that a settled reservation has: see settle_reservation.lua.
func Settled(member []byte) []byte {
	member = slices.Clone(member)
	member[12] ^= 128
	return member
}

// ChargeOf returns a member of layout D2 for what is charged beyond a reservation's, the same in every program. Its id is no
// call's, and not that of the settled reservation.
func ChargeOf(member []byte) []byte {
	member = slices.Clone(member)
	member[12] ^= 64
	return member
}

// Merged gives a new member of layout D2 an id of those that stand for others, which no call's is nor becomes.
func Merged(member []byte) []byte {
	member = slices.Clone(member)
	member[12] ^= 192
	return member
}

// IsMerged reports whether a member stands for others that a Client has merged.
func IsMerged(m codec.Member) bool {
	_, ours := MarkOf(m)
	return ours && m.ID[11]&192 == 192
}

// Later returns a copy of a member with a number that is places above its own.
func Later(member []byte, places int) []byte {
	member = slices.Clone(member)
	number := member[len(member)-7 : len(member)-4]
	n := places + int(number[0]) + int(number[1])<<8 + int(number[2])<<16
	number[0], number[1], number[2] = byte(n), byte(n>>8), byte(n>>16)
	return member
}

// MarkOf returns what a member's id says about the client that wrote it: its mark, if one of ours did. Redisson's ids
// are random all over, and those of layout D2 that end in a count as ours do are one in sixteen million; of the
// shorter ones nothing distinguishes them from ours, so that these have a mark that may mean nothing. Layouts B and C
// have no room for one: it is nil.
func MarkOf(m codec.Member) (mark []byte, ours bool) {
	switch {
	case m.Layout == codec.LayoutD2 && m.ID[8]|m.ID[9]|m.ID[10] == 0: // fewer than 2^40 calls
		return m.ID[:8], true
	case m.Layout == codec.LayoutD1:
		return m.ID[:4], false
	}
	return nil, false
}
