package lane

import (
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Open returns the Lanes to rdb for a limiter of keys, with what its options say.
// The error is of the client or the options.
func Open(rdb script.Redis, opts []limit.Option) (*Lanes, error) {
	err := script.CheckClient(rdb)
	o := limit.Options{CallTimeout: script.DefaultTimeout}
	for _, opt := range opts {
		if opt != nil {
			err = errors.Join(err, opt(&o))
		}
	}
	lanes := New(script.NewConn(rdb, o.CallTimeout), observe.New(o.Observer, o.Logger))
	lanes.name = o.Name
	return lanes, err
}
