// Package door lets this module find what is behind values that applications have: a field or method that they see would
// be none of theirs.
package door

// Door is embedded by the type of such a value, under an alias that is not exported.
type Door[T any] struct {
	owner  any
	behind T
}

// New returns the Door that the owner embeds.
func New[T any](owner any, behind T) Door[T] { return Door[T]{owner, behind} }

func (d Door[T]) door() (owner any, behind T) { return d.owner, d.behind }

// Behind returns what is behind a value, the zero T if it has no such Door, and whether the Door is its own: a value that
// embeds one of this module is another, whose methods may do more.
func Behind[T any](value any) (behind T, own bool) {
	d, has := value.(interface{ door() (any, T) })
	if !has {
		return behind, false
	}
	owner, behind := d.door()
	return behind, owner == value
}
