package ask

import "github.com/rratelimiter/rratelimiter/limit"

// fault says why a key function was not made properly. It is a limit.ErrInvalidConfig whose text does
// not say so: the list of bad options that it becomes part of does.
type fault struct{ error }

// Is reports whether target is limit.ErrInvalidConfig.
func (fault) Is(target error) bool { return target == limit.ErrInvalidConfig }

// Fault makes err the reason why a key function was not made properly.
func Fault(err error) error { return fault{err} }
