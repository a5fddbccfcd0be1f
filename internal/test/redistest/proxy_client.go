package redistest

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	lookAgain = 5 * time.Millisecond // at whether an answer is kept back
	patience  = time.Minute          // with a machine that is busy
)

// FairClient is [Proxy.Client] with a ReadTimeout that ends the wait only for an answer
// that the proxy keeps back: one that a busy machine delays is waited for, up to a
// minute. It does not go with a [MiniProxy].
func (p *Proxy) FairClient(t testing.TB, opt *redis.Options) *redis.Client {
	t.Helper()
	o := valueOf(opt)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &fairConn{Conn: conn, proxy: p}, nil
	}
	return client(t, p.addr, &o)
}

// A fairConn is a client's connection to a proxy.
type fairConn struct {
	net.Conn

	proxy *Proxy
	until atomic.Int64 // the deadline of reads in Unix nanoseconds; 0: none
}

// SyscallConn lets go-redis look whether the connection is closed.
func (c *fairConn) SyscallConn() (syscall.RawConn, error) {
	raw, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return raw.SyscallConn()
}

func (c *fairConn) SetDeadline(at time.Time) error {
	return errors.Join(c.SetReadDeadline(at), c.SetWriteDeadline(at))
}

func (c *fairConn) SetReadDeadline(at time.Time) error {
	c.until.Store(0)
	if !at.IsZero() {
		c.until.Store(at.UnixNano())
	}
	return c.Conn.SetReadDeadline(at)
}

func (c *fairConn) Read(b []byte) (int, error) {
	until := c.until.Load()
	for {
		n, err := c.Conn.Read(b)
		over := time.Duration(time.Now().UnixNano() - until)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.until.Load() != until ||
			over > patience || c.proxy.keepsBack(c.LocalAddr()) {
			return n, err
		}
		if err := c.Conn.SetReadDeadline(time.Now().Add(lookAgain)); err != nil {
			return 0, err
		}
	}
}

// keepsBack reports whether a client's connection waits for what an action keeps back.
func (p *Proxy) keepsBack(of net.Addr) bool {
	p.mu.Lock()
	c := p.clients[of.String()]
	p.mu.Unlock()
	return c != nil && c.keepsBack()
}
