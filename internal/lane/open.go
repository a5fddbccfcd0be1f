package lane

import (
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Open returns the Lanes to rdb for a limiter of keys, and its options for a Rule. The error is about
// the client or the options.
func Open(rdb script.Redis, opts []limit.Option) (*Lanes, limit.Options, error) {
	err := script.CheckClient(rdb)
	o := limit.Options{CallTimeout: script.DefaultTimeout}
	for _, opt := range opts {
		if opt != nil {
			err = errors.Join(err, opt(&o))
		}
	}
	return New(script.NewConn(rdb, o.CallTimeout), observe.New(o.Observer, o.Logger)), o, err
}
