package netpipe

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// bufferedConn is the client's end of a net.Pipe, with room for what the
// server has not read yet, as a socket has it. Without it a long pipeline locks
// up: the client writes requests and the server answers, and neither reads.
type bufferedConn struct {
	net.Conn

	mu     sync.Mutex
	wake   *sync.Cond
	buf    []byte
	broken bool // the peer has gone; as with a socket, reads report it
	closed bool
}

// Buffer returns the client's end of a net.Pipe with room for what the server has
// not read yet.
func Buffer(conn net.Conn) net.Conn {
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

// SetReadDeadline does not fail if the peer has gone, nor does it with a
// socket: reading tells.
func (c *bufferedConn) SetReadDeadline(t time.Time) error {
	if err := c.Conn.SetReadDeadline(t); !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

// SetWriteDeadline does nothing. Write does not wait, and what it left must reach a server
// that was slow to read it: the connection would be dead, and nothing would say so.
func (c *bufferedConn) SetWriteDeadline(time.Time) error { return nil }

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
