// Package fuzztest makes choices of the bytes that a fuzz target gets.
package fuzztest

// edges are numbers at which counting goes wrong.
var edges = []uint64{0, 1, 2, 3, 7, 8, 16, 20, 127, 128, 255, 256, 1<<16 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<53 - 1, 1 << 53, 1 << 63, 1<<64 - 1}

// Draw makes choices of a fuzz target's bytes, so that each of them means something
// and the engine can change them one by one. Behind the end all choices are 0.
type Draw struct{ rest []byte }

// NewDraw returns the choices that data stands for.
func NewDraw(data []byte) *Draw { return &Draw{data} }

// N returns a number from 0 to n-1; n is at most 256.
func (d *Draw) N(n int) int {
	if len(d.rest) == 0 {
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return int(b) % n
}

// Int returns any number, small ones and those at edges more often.
func (d *Draw) Int() int64 {
	n := uint64(0)
	switch kind := d.N(4); kind {
	case 0:
		n = uint64(d.N(16))
	case 1:
		n = edges[d.N(len(edges))]
	default:
		for range d.N(9) {
			n = n<<8 | uint64(d.N(256))
		}
	}
	if d.N(4) == 3 {
		n = -n
	}
	return int64(n)
}

// Text returns up to most bytes.
func (d *Draw) Text(most int) string {
	n := min(d.N(most+1), len(d.rest))
	text := string(d.rest[:n])
	d.rest = d.rest[n:]
	return text
}

// One returns one of the choices.
func One[T any](d *Draw, choices ...T) T { return choices[d.N(len(choices))] }
