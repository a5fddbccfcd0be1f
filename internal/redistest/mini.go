package redistest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Mini returns a client of a new miniredis, and the miniredis. They talk
// through memory, so inside a testing/synctest bubble time.Sleep moves the
// server's TIME and its TTLs; elsewhere both follow the wall clock, or
// SetTime. Both are closed when t ends, and leave no goroutine. The
// test is skipped where RRL_ENGINE leaves miniredis out.
func Mini(t testing.TB) (*redis.Client, *miniredis.Miniredis) {
	t.Helper()
	if engine() != everyEngine {
		t.Skip(onMiniredis)
	}
	return newMini(t)
}

func newMini(t testing.TB) (*redis.Client, *miniredis.Miniredis) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	return MiniClient(t, m, nil), m
}

// MiniClient returns one more client of m. What of opt has to do with dialling
// is replaced; nil stands for the defaults.
func MiniClient(t testing.TB, m *miniredis.Miniredis, opt *redis.Options) *redis.Client {
	t.Helper()
	return memoryClient(t, opt, func() (net.Conn, error) {
		conn, err := m.Dial()
		if err != nil {
			return nil, err
		}
		return newBufferedConn(conn), nil
	})
}

// memoryClient returns a client fit for a synctest bubble.
func memoryClient(t testing.TB, opt *redis.Options, dial func() (net.Conn, error)) *redis.Client {
	t.Helper()
	o := valueOf(opt)
	var d memoryDialer
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return d.dial(dial) }
	o.Addr = "memory"
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// A retry would sleep on a clock that stands still once the test has
	// returned.
	o.DialerRetries = 1
	if o.PoolSize == 0 {
		// A caller who waits for a connection takes a timer out of a pool that
		// all bubbles share, which is fatal. With enough connections nobody
		// waits.
		o.PoolSize = 1024
	}
	if o.ReadBufferSize == 0 {
		o.ReadBufferSize = 4096
	}
	if o.WriteBufferSize == 0 {
		o.WriteBufferSize = 4096
	}
	rdb := redis.NewClient(&o)
	t.Cleanup(func() {
		d.close()
		if err := rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("closing the client: %v", err)
		}
	})
	return rdb
}

// memoryDialer refuses to dial once closed: a late dial of the client's pool
// would start miniredis anew after its Close.
type memoryDialer struct {
	mu     sync.Mutex
	closed bool
}

func (d *memoryDialer) dial(dial func() (net.Conn, error)) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, net.ErrClosed
	}
	return dial()
}

func (d *memoryDialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// bufferedConn is the client's end of a net.Pipe, with room for what the
// server has not read yet, as a socket has it. Without it a long pipeline locks
// up: the client writes requests and the server answers, and neither reads.
type bufferedConn struct {
	net.Conn

	mu     sync.Mutex
	wake   *sync.Cond
	buf    []byte
	broken bool // the peer has gone; as with a socket, it is reading that tells
	closed bool
}

func newBufferedConn(conn net.Conn) *bufferedConn {
	c := &bufferedConn{Conn: conn}
	c.wake = sync.NewCond(&c.mu)
	go c.pump()
	return c
}

func (c *bufferedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	if !c.broken {
		c.buf = append(c.buf, p...)
		c.wake.Signal()
	}
	return len(p), nil
}

// SetReadDeadline does not fail where the peer has gone, nor does it with a
// socket: reading tells.
func (c *bufferedConn) SetReadDeadline(t time.Time) error {
	if err := c.Conn.SetReadDeadline(t); !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

// SetWriteDeadline is like SetReadDeadline.
func (c *bufferedConn) SetWriteDeadline(t time.Time) error {
	if err := c.Conn.SetWriteDeadline(t); !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

func (c *bufferedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.wake.Signal()
	c.mu.Unlock()
	return c.Conn.Close()
}

func (c *bufferedConn) pump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.buf) == 0 && !c.closed {
			c.wake.Wait()
		}
		if c.closed {
			return
		}
		p := c.buf
		c.buf = nil
		c.mu.Unlock()
		_, err := c.Conn.Write(p)
		c.mu.Lock()
		if err != nil {
			c.broken = true
			return
		}
	}
}
