package outage

import (
	"context"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Keyed is a limiter of keys of this module, as middleware asks it.
type Keyed interface {
	// Policy returns its own.
	Policy() Policy
	// Asker returns what to ask about a key.
	Asker(key string) Asker
	// Settler returns what settles a grant, for which Reserve was asked.
	Settler(key string, q Ask, a Answer) func(ctx context.Context, actual int64) error
	// Begins notes what the keys of middleware begin with.
	Begins(prefix string)
}

// OfModule is embedded by limiters of keys of this module, for middleware to find their Keyed: a method that
// applications see would be none of theirs.
type OfModule struct {
	limiter limit.Limiter
	keyed   Keyed
}

// NewOfModule returns what that limiter embeds.
func NewOfModule(limiter limit.Limiter, keyed Keyed) OfModule { return OfModule{limiter, keyed} }

func (o OfModule) ofModule() OfModule { return o }

// KeyedOf returns the Keyed of a limiter of this module, nil for any other limiter. One that embeds a limiter
// of this module is another: its methods may do more.
func KeyedOf(limiter limit.Limiter) Keyed {
	if l, ok := limiter.(interface{ ofModule() OfModule }); ok && l.ofModule().limiter == limiter {
		return l.ofModule().keyed
	}
	return nil
}
