package redistest

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

const settleTimeout = 10 * time.Second

// Counts is what has gone through a [Proxy].
type Counts struct {
	Conns     int // connections made by clients
	Requests  int // requests read from clients
	Forwarded int // requests sent to the server, duplicates included
	Answered  int // answers read from the server, duplicates included
	Delivered int // answers written to clients; messages to subscribers are not counted
}

// A Proxy stands between clients and a server and does to each command what
// the function given to OnCommand says. It passes everything on until then.
type Proxy struct {
	addr string
	dial func() (net.Conn, error) // to the server

	hook struct {
		sync.Mutex
		f func(Command) Action
	}

	mu       sync.Mutex
	settled  *sync.Cond // inFlight is 0, or the wait is over
	counts   Counts
	inFlight int // requests taken and neither answered nor given up
	conns    map[net.Conn]struct{}
	closed   bool
	done     chan struct{}
	wg       sync.WaitGroup
}

// StartProxy starts a proxy on a free port of the loopback interface, in front
// of the server at addr. It ends when t does.
func StartProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(func() (net.Conn, error) { return net.Dial("tcp", addr) })
	p.addr = l.Addr().String()
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.serve(conn)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.close()
	})
	return p
}

// MiniProxy starts a proxy in front of m that works through memory, and so
// within a testing/synctest bubble. Only the clients of [Proxy.Client] reach
// it. It ends when t does.
func MiniProxy(t testing.TB, m *miniredis.Miniredis) *Proxy {
	t.Helper()
	p := newProxy(func() (net.Conn, error) {
		conn, err := m.Dial()
		if err != nil {
			return nil, err
		}
		return newBufferedConn(conn), nil
	})
	t.Cleanup(p.close)
	return p
}

func newProxy(dial func() (net.Conn, error)) *Proxy {
	p := &Proxy{dial: dial, conns: map[net.Conn]struct{}{}, done: make(chan struct{})}
	p.settled = sync.NewCond(&p.mu)
	return p
}

// Addr returns the address that the proxy listens on, 127.0.0.1:port. A
// MiniProxy has none.
func (p *Proxy) Addr() string { return p.addr }

// Client returns a client that goes through the proxy, closed when t ends. What
// of opt has to do with dialling is replaced; nil stands for the defaults.
func (p *Proxy) Client(t testing.TB, opt *redis.Options) *redis.Client {
	t.Helper()
	if p.addr != "" {
		return client(t, p.addr, opt)
	}
	return memoryClient(t, opt, func() (net.Conn, error) {
		conn, peer := net.Pipe()
		p.serve(peer)
		return newBufferedConn(conn), nil
	})
}

// OnCommand has f decide on each command from now on, the client's own greeting
// (HELLO and the like) included; nil passes everything. f is called for one
// command at a time, in the order in which they come in. It must not call
// OnCommand.
func (p *Proxy) OnCommand(f func(Command) Action) {
	p.hook.Lock()
	defer p.hook.Unlock()
	p.hook.f = f
}

// Counts returns what has gone through so far.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Settle waits until the server has answered every request that the proxy
// took, the late and the duplicate ones too, and nothing is held back. It fails
// the test if that takes 10 s.
func (p *Proxy) Settle(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.settled.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.inFlight > 0 {
		if ctx.Err() != nil {
			t.Fatalf("the proxy has %d requests without an answer after %v", p.inFlight, settleTimeout)
		}
		p.settled.Wait()
	}
}

func (p *Proxy) count(f func(*Counts)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.counts)
}

func (p *Proxy) addInFlight(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight += n; p.inFlight == 0 {
		p.settled.Broadcast()
	}
}

func (p *Proxy) decide(c Command) Action {
	p.hook.Lock()
	defer p.hook.Unlock()
	if p.hook.f == nil {
		return Pass
	}
	return p.hook.f(c)
}

// hold waits as the action asks, or until the proxy ends.
func (p *Proxy) hold(a Action) {
	if a.after > 0 {
		timer := time.NewTimer(a.after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.done:
		}
	}
	if a.when != nil {
		select {
		case <-a.when:
		case <-p.done:
		}
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	close(p.done)
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) serve(down net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = down.Close()
		return
	}
	p.conns[down] = struct{}{}
	p.wg.Go(func() {
		defer p.drop(down)
		up, err := p.dial()
		if err != nil {
			return
		}
		defer p.drop(up)
		if !p.keep(up) {
			return
		}
		c := &proxyConn{proxy: p, down: down, up: up}
		c.changed = sync.NewCond(&c.mu)
		p.count(func(n *Counts) { n.Conns++; c.id = n.Conns })
		var answers sync.WaitGroup
		answers.Go(c.answers)
		c.requests()
		_ = up.Close()
		answers.Wait()
	})
}

// keep has close end conn, and reports false if that has been called.
func (p *Proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) drop(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// A proxyConn is one client's connection through the proxy.
type proxyConn struct {
	proxy    *Proxy
	id       int
	down, up net.Conn

	mu      sync.Mutex
	changed *sync.Cond
	waiting []Action // of the requests forwarded and not yet answered
	ended   bool     // the server's side has closed
	silent  bool     // nothing more is delivered
}

// requests forwards what the client sends until it closes its side or an
// action closes it, and returns when all that is answered.
func (c *proxyConn) requests() {
	r := bufio.NewReader(c.down)
	for {
		raw, args, err := readCommand(r)
		if err != nil {
			c.waitAnswers()
			return
		}
		if len(args) == 0 {
			continue // nothing to answer
		}
		c.proxy.count(func(n *Counts) { n.Requests++ })
		a := c.proxy.decide(Command{Conn: c.id, Args: args})
		if a.verb == cut {
			c.waitAnswers()
			c.proxy.hold(a)
			c.hangUp()
			return
		}
		if !c.forward(raw, a) {
			return
		}
		if a.verb == dropAnswer {
			c.waitAnswers()
			c.hangUp()
			return
		}
	}
}

// forward sends a request to the server and reports whether that worked.
func (c *proxyConn) forward(raw []byte, a Action) bool {
	actions := []Action{a}
	switch a.verb {
	case late:
		// Counted while it is held, so that Settle waits for it.
		c.proxy.addInFlight(1)
		c.proxy.hold(a)
		defer c.proxy.addInFlight(-1)
		select {
		case <-c.proxy.done:
			return false
		default:
		}
		actions = []Action{Pass}
	case duplicate:
		raw = append(raw, raw...)
		a.verb = pass
		actions = []Action{a, {verb: discard}}
	}
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return false
	}
	c.waiting = append(c.waiting, actions...)
	c.proxy.addInFlight(len(actions))
	c.mu.Unlock()
	c.proxy.count(func(n *Counts) { n.Forwarded += len(actions) })
	_, err := c.up.Write(raw)
	return err == nil
}

func (c *proxyConn) waitAnswers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) > 0 && !c.ended {
		c.changed.Wait()
	}
}

// hangUp closes the client's connection such that it can still read the
// answers delivered before: a close with requests unread would reset it.
func (c *proxyConn) hangUp() {
	if tcp, ok := c.down.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
		_, _ = io.Copy(io.Discard, tcp)
	}
}

// answers delivers what the server sends, each answer as the action of its
// request says.
func (c *proxyConn) answers() {
	defer c.end()
	r := bufio.NewReader(c.up)
	for {
		raw, push, err := readAnswer(r)
		if err != nil {
			return
		}
		a, answer := c.first(push)
		if !answer {
			c.deliver(raw)
			continue
		}
		c.proxy.count(func(n *Counts) { n.Answered++ })
		switch a.verb {
		case pass:
			c.proxy.hold(a)
			// Counted first: the client may look as soon as it has the answer.
			c.proxy.count(func(n *Counts) { n.Delivered++ })
			if !c.deliver(raw) {
				c.proxy.count(func(n *Counts) { n.Delivered-- })
			}
		case dropAnswer:
			c.proxy.hold(a)
			c.hush()
		case swallow:
			c.hush()
		}
		c.mu.Lock()
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		c.changed.Broadcast()
		c.proxy.addInFlight(-1)
	}
}

// first returns the action of the request that the server answers, if it is
// one: a subscriber gets messages that nobody asked for.
func (c *proxyConn) first(push bool) (a Action, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if push || len(c.waiting) == 0 {
		return Action{}, false
	}
	return c.waiting[0], true
}

func (c *proxyConn) deliver(raw []byte) bool {
	c.mu.Lock()
	silent := c.silent
	c.mu.Unlock()
	if silent {
		return false
	}
	if _, err := c.down.Write(raw); err != nil {
		c.hush()
		return false
	}
	return true
}

func (c *proxyConn) hush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = true
}

// end gives up what is still unanswered: the server has closed the connection.
func (c *proxyConn) end() {
	_ = c.down.Close()
	c.mu.Lock()
	lost := len(c.waiting)
	c.waiting = nil
	c.ended = true
	c.mu.Unlock()
	c.changed.Broadcast()
	c.proxy.addInFlight(-lost)
}
