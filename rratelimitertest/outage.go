package rratelimitertest

import (
	"net"
	"sync"
	"syscall"
)

// Down makes the server unreachable: its connections are cut, and new ones fail. Its data stays. Each call
// of a limiter fails with rratelimiter.ErrUnavailable after a few attempts, which take about 0.1 s of the
// machine's time or the bubble's. A call that was under way may have run, so its error is
// rratelimiter.ErrUnknownOutcome too. If the limiter has WithFailure, its policy answers.
func (e *Env) Down() { e.link.set(true, false) }

// Hang makes the server silent: it accepts connections and answers nothing. Each call fails as with
// [Env.Down], after the time of WithCallTimeout, of the machine's or the bubble's time. Requests sent
// meanwhile never run.
func (e *Env) Hang() { e.link.set(false, true) }

// Up ends Down and Hang. Limiters with WithFailure ask the server again at their next probe, within a
// second of the machine's time or the bubble's.
func (e *Env) Up() { e.link.set(false, false) }

// link holds all connections of an Env to its server.
type link struct {
	mu         sync.Mutex
	changed    *sync.Cond
	down, hung bool
	conns      map[*linkConn]struct{}
}

func newLink() *link {
	l := &link{conns: map[*linkConn]struct{}{}}
	l.changed = sync.NewCond(&l.mu)
	return l
}

func (l *link) set(down, hung bool) {
	l.mu.Lock()
	l.down, l.hung = down, hung
	var cut []*linkConn
	for c := range l.conns {
		if down || c.stuck {
			cut = append(cut, c)
		}
	}
	l.changed.Broadcast()
	l.mu.Unlock()
	for _, c := range cut {
		_ = c.Close() // fails if the client closed it first
	}
}

// dial makes a connection, if the server is there.
func (l *link) dial(dial func() (net.Conn, error)) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, &net.OpError{Op: "dial", Net: "memory", Err: syscall.ECONNREFUSED}
	}
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	c := &linkConn{Conn: conn, link: l}
	l.conns[c] = struct{}{}
	return c, nil
}

// linkConn is the client's end of a connection.
type linkConn struct {
	net.Conn

	link   *link
	stuck  bool // something was sent while the server hung
	closed bool
}

// Write waits while the server hangs, and then sends nothing any more.
func (c *linkConn) Write(p []byte) (int, error) {
	c.link.mu.Lock()
	c.stuck = c.stuck || c.link.hung
	for c.link.hung && !c.closed {
		c.link.changed.Wait()
	}
	stuck := c.stuck
	c.link.mu.Unlock()
	if stuck {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *linkConn) Close() error {
	c.link.mu.Lock()
	c.closed = true
	delete(c.link.conns, c)
	c.link.changed.Broadcast()
	c.link.mu.Unlock()
	return c.Conn.Close()
}
