package chain

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

type element struct {
	number int
	place  Link[*element]
}

func newElement(number int) *element {
	e := &element{number: number}
	e.place.Element = e
	return e
}

// numbers returns the numbers in the list, and checks the ways through it.
func numbers(t assert.TestingT, l *List[*element]) []int {
	var forth, back []int
	for place := l.First(); place != nil; place = place.Next() {
		assert.True(t, place.Waits())
		forth = append(forth, place.Element.number)
	}
	for place := l.Last(); place != nil; place = place.prev {
		back = append(back, place.Element.number)
	}
	assert.Equal(t, len(forth), l.Len())
	slices.Reverse(back)
	assert.Equal(t, forth, back)
	return forth
}

func TestListIsInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var l List[*element]
		var want []int
		all := map[int]*element{}
		for i := range rapid.IntRange(0, 30).Draw(t, "steps") {
			if number := rapid.IntRange(-1, i).Draw(t, "leaves"); number >= 0 && all[number] != nil {
				all[number].place.Leave()
				assert.False(t, all[number].place.Waits())
				want = slices.DeleteFunc(want, func(n int) bool { return n == number })
			}
			if rapid.Bool().Draw(t, "again") && i > 0 && all[i-1] != nil && !all[i-1].place.Waits() {
				l.Push(&all[i-1].place)
				want = append(want, i-1)
			}
			all[i] = newElement(i)
			l.Push(&all[i].place)
			want = append(want, i)
			assert.Equal(t, want, numbers(t, &l))
		}
	})
}

// One that leaves looks at its neighbours alone: the others could as well be
// gone.
func TestLeaveLooksAtNeighboursAlone(t *testing.T) {
	t.Parallel()
	const size = 9
	for leaves := range size {
		var l List[*element]
		all := make([]*element, size)
		for i := range all {
			all[i] = newElement(i)
			l.Push(&all[i].place)
		}
		for i, e := range all {
			if i < leaves-1 || i > leaves+1 {
				e.place.prev, e.place.next, e.place.list = nil, nil, nil
			}
		}
		all[leaves].place.Leave()
		assert.Equal(t, size-1, l.Len())
		if leaves > 0 && leaves < size-1 {
			assert.Same(t, &all[leaves+1].place, all[leaves-1].place.next)
			assert.Same(t, &all[leaves-1].place, all[leaves+1].place.prev)
		}
		assert.Equal(t, leaves == 0, l.First() == &all[1].place)
		assert.Equal(t, leaves == size-1, l.Last() == &all[size-2].place)
	}
}
