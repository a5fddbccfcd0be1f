// Package netpipe connects go-redis to a server in the same process, so that all of it
// can be in a bubble of testing/synctest.
package netpipe

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// NewClient returns a client fit for a bubble, by the options except what they say of
// dialling, and what closes it.
func NewClient(o redis.Options, dial func() (net.Conn, error)) (client *redis.Client, end func() error) {
	var d dialer
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return d.dial(dial) }
	o.Addr = "memory"
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// A retry would sleep on a clock that stands still once the test has
	// returned.
	o.DialerRetries = 1
	if o.PoolSize == 0 {
		// A caller that waits for a connection takes a timer out of a pool that all bubbles
		// share, which is fatal. With enough connections no one waits.
		o.PoolSize = 1024
	}
	if o.ReadBufferSize == 0 {
		o.ReadBufferSize = 4096
	}
	if o.WriteBufferSize == 0 {
		o.WriteBufferSize = 4096
	}
	rdb := redis.NewClient(&o)
	return rdb, func() error {
		d.close()
		if err := rdb.Close(); !errors.Is(err, redis.ErrClosed) {
			return err
		}
		return nil
	}
}

// dialer refuses to dial once closed: a late dial of the client's pool
// would restart miniredis after its Close.
type dialer struct {
	mu     sync.Mutex
	closed bool
}

func (d *dialer) dial(dial func() (net.Conn, error)) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, net.ErrClosed
	}
	return dial()
}

func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}
