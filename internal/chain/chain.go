// Package chain holds lists that an element leaves at once, however long they
// are and wherever it stands.
package chain

// List is the elements that wait, in order. The zero value is an empty one.
type List[T any] struct {
	first, last *Link[T]
	size        int
}

// Link is an element's place in a list, of which it is in one at most. It is part
// of the element, so that to join a list costs no memory.
type Link[T any] struct {
	Element T

	list       *List[T] // nil while it is in none
	prev, next *Link[T]
}

// Len returns the number of elements.
func (l *List[T]) Len() int { return l.size }

// First returns the first link, nil where there is none.
func (l *List[T]) First() *Link[T] { return l.first }

// Last returns the last link, nil where there is none.
func (l *List[T]) Last() *Link[T] { return l.last }

// Next returns the link behind, nil at the end and outside of a list.
func (k *Link[T]) Next() *Link[T] { return k.next }

// Waits tells whether the link is in a list.
func (k *Link[T]) Waits() bool { return k.list != nil }

// Push puts a link that is in no list at the end.
func (l *List[T]) Push(k *Link[T]) {
	k.list, k.prev = l, l.last
	if l.last == nil {
		l.first = k
	} else {
		l.last.next = k
	}
	l.last = k
	l.size++
}

// Leave takes the link out of its list, if it is in one.
func (k *Link[T]) Leave() {
	l := k.list
	if l == nil {
		return
	}
	if k.prev == nil {
		l.first = k.next
	} else {
		k.prev.next = k.next
	}
	if k.next == nil {
		l.last = k.prev
	} else {
		k.next.prev = k.prev
	}
	k.list, k.prev, k.next = nil, nil, nil
	l.size--
}
