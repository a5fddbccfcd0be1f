package lane

import (
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/outage"
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
	observer := observe.New(o.Observer, o.Logger)
	lanes := New(script.NewConn(rdb, o.CallTimeout), observer)
	lanes.name, lanes.failure, lanes.shadow = o.Name, o.Failure, o.Shadow
	if o.Failure != nil {
		lanes.guard = outage.NewGuard(observer)
	}
	return lanes, err
}
