package rratelimitertest

import (
	"net"
	"sync"
	"syscall"
)

// Down has the server be away: its connections are cut, and no new ones are had. What it
// keeps stays. Each call of a limiter fails with rratelimiter.ErrUnavailable after a
// few attempts, which take some 0.1 s of the machine's time, or of the bubble's; one
// that was under way may have run, so that it is rratelimiter.ErrUnknownOutcome too.
// Where the limiter has a policy for that, WithFailure, the policy answers.
func (e *Env) Down() { e.link.set(true, false) }

// Hang has the server be silent: connections are had, and nothing is answered. Each call
// fails as by [Env.Down], after the time that WithCallTimeout says, of the machine's
// or of the bubble's. What was asked meanwhile never happens.
func (e *Env) Hang() { e.link.set(false, true) }

// Up ends Down and Hang. Limiters with a policy ask the server again when they next look
// for it: within a second, for which the test moves the time.
func (e *Env) Up() { e.link.set(false, false) }

// link is all connections of an Env to its server.
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
		_ = c.Close() // it fails where the client was first
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
