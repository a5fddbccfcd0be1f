package envoylimit

import (
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"
)

// A reservation's id is a version and what was reserved at each counter: a hash of the counter's name, the length of what
// follows, and by what any program settles it.

const idVersion = 1

// id returns what names all that a call has reserved; "" if that is nothing.
func (c *call) id() string {
	b := []byte{idVersion}
	for _, q := range c.questions {
		if q.reserved != nil && len(q.reserved) < 256 {
			b = binary.BigEndian.AppendUint32(b, hashOf(q.key))
			b = append(append(b, byte(len(q.reserved))), q.reserved...)
		}
	}
	if len(b) == 1 {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// named returns what an id has reserved at a counter; nil if that is nothing.
func named(id, key string) []byte {
	b, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(b) == 0 || b[0] != idVersion {
		return nil
	}
	for b = b[1:]; len(b) > 5; {
		of, n := binary.BigEndian.Uint32(b), int(b[4])
		if b = b[5:]; n > len(b) {
			return nil
		}
		if of == hashOf(key) {
			return b[:n]
		}
		b = b[n:]
	}
	return nil
}

func hashOf(key string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	return h.Sum32()
}
