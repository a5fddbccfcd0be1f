package ask

import "github.com/rratelimiter/rratelimiter/limit"

// Begins tells a limiter of keys how those begin that middleware asks it about. Package
// rratelimiter sets it.
var Begins = func(limiter limit.Limiter, prefix string) {}

// Begin tells a limiter how its keys begin. The brace of a hash tag ends a prefix.
func (o *Options) Begin(limiter limit.Limiter, prefix string) {
	if o.Tagged {
		prefix += "{"
	}
	Begins(limiter, prefix)
}
