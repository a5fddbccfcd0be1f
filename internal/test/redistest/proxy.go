package redistest

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/netpipe"
)

const (
	settleTimeout = time.Minute
	patience      = time.Minute // with a machine that is busy
)

// A Proxy stands between clients and a server and does to each command what
// the function given to OnCommand says. It passes everything on until then.
type Proxy struct {
	addr string
	dial func() (net.Conn, error) // to the server

	hook struct {
		sync.Mutex
		f func(Command) Action
	}

	requests atomic.Int64
	relayed  atomic.Int64 // connections

	mu       sync.Mutex
	settled  *sync.Cond // inFlight is 0, or the wait is over
	inFlight int        // requests taken and neither answered nor given up
	conns    map[net.Conn]struct{}
	closed   bool
	done     chan struct{}
	wg       sync.WaitGroup
}

// StartProxy starts a proxy on a free port of the loopback interface, in front of the server at addr. It ends when t does.
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

// MiniProxy starts a proxy in front of m that works through memory, and so within a testing/synctest bubble. Only the clients
// of [Proxy.Client] reach it. It ends when t does.
func MiniProxy(t testing.TB, m *miniredis.Miniredis) *Proxy {
	t.Helper()
	p := newProxy(dialMini(m))
	t.Cleanup(p.close)
	return p
}

// ProxyTo is MiniProxy in front of the server that a client of a bubble talks to.
func ProxyTo(t testing.TB, rdb Client) *Proxy {
	t.Helper()
	client, ok := rdb.(*redis.Client)
	if !ok {
		t.Fatalf("%T is no client of a bubble", rdb)
	}
	p := newProxy(func() (net.Conn, error) { return client.Options().Dialer(context.Background(), "", "") })
	t.Cleanup(p.close)
	return p
}

func newProxy(dial func() (net.Conn, error)) *Proxy {
	p := &Proxy{dial: dial, conns: map[net.Conn]struct{}{}, done: make(chan struct{})}
	p.settled = sync.NewCond(&p.mu)
	return p
}

// Addr returns the address that the proxy listens on, 127.0.0.1:port. A MiniProxy has none.
func (p *Proxy) Addr() string { return p.addr }

// Client returns a client that goes through the proxy, closed when t ends. The options of opt
// that concern dialling are replaced; nil stands for the defaults.
func (p *Proxy) Client(t testing.TB, opt *Options) Client {
	t.Helper()
	if p.addr != "" {
		return closeAfter(t, redis.NewClient(patientWith(opt, &redis.Options{Addr: p.addr})))
	}
	return memoryClient(t, opt, func() (net.Conn, error) {
		conn, peer := net.Pipe()
		p.serve(peer)
		return netpipe.Buffer(conn), nil
	})
}

// OnCommand lets f decide about each command from now on, the client's own greeting (HELLO and the like) included; nil passes
// everything. f is called for one command at a time, in the order in which they come in. It must not call OnCommand.
func (p *Proxy) OnCommand(f func(Command) Action) {
	p.hook.Lock()
	defer p.hook.Unlock()
	p.hook.f = f
}

// HangUp closes all connections, whatever is on its way. New ones can be made.
func (p *Proxy) HangUp() { p.locked(p.closeConns) }

func (p *Proxy) closeConns() {
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *Proxy) locked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// Requests returns how many requests clients have sent.
func (p *Proxy) Requests() int { return int(p.requests.Load()) }

// Settle waits until the server has answered every request that the proxy took, the late and the duplicate ones too, and
// nothing is held back. It fails the test if that takes a minute. The function given to OnCommand may call it, so that earlier
// requests have run: on a slow machine one is repeated before it has.
func (p *Proxy) Settle(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { p.locked(p.settled.Broadcast) })
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

func (p *Proxy) addInFlight(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight += n; p.inFlight == 0 {
		p.settled.Broadcast()
	}
}

// decide counts the request among those in flight, but not yet while the function decides, which may Settle.
func (p *Proxy) decide(c Command) Action {
	p.hook.Lock()
	defer p.hook.Unlock()
	defer p.addInFlight(1)
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
	p.locked(func() {
		p.closed = true
		close(p.done)
		p.closeConns()
	})
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
	p.wg.Go(func() { p.relay(down) })
}

func (p *Proxy) relay(down net.Conn) {
	defer p.drop(down)
	up, err := p.dial()
	if err != nil {
		return
	}
	defer p.drop(up)
	if !p.keep(up) {
		return
	}
	c := &proxyConn{proxy: p, id: int(p.relayed.Add(1)), down: down, up: up}
	c.changed = sync.NewCond(&c.mu)
	var answers sync.WaitGroup
	answers.Go(c.answers)
	c.requests()
	_ = up.Close()
	c.change(func() { c.ended = true }) // which ends the wait for a request
	answers.Wait()
}

// keep lets close end conn, and reports false if that has been called.
func (p *Proxy) keep(conn net.Conn) (open bool) {
	p.locked(func() {
		if open = !p.closed; open {
			p.conns[conn] = struct{}{}
		}
	})
	return open
}

func (p *Proxy) drop(conn net.Conn) {
	_ = conn.Close()
	p.locked(func() { delete(p.conns, conn) })
}

// A Command is a request as a client sent it.
type Command struct {
	Conn int      // counts the proxy's connections, from 1
	Args []string // the command's name and its arguments
}

// Name returns the command's name in lower case.
func (c Command) Name() string { return strings.ToLower(c.Args[0]) }

// Contains reports whether the command, its arguments parted by single spaces, holds text. Case does not matter.
func (c Command) Contains(text string) bool {
	return strings.Contains(strings.ToLower(strings.Join(c.Args, " ")), strings.ToLower(text))
}

type verb int

const (
	pass verb = iota
	dropAnswer
	swallow
	cut
	late
	duplicate
	discard
)

// An Action is what a [Proxy] does with a command. The zero value is [Pass].
type Action struct {
	verb  verb
	after time.Duration
	when  <-chan struct{}
	last  bool // of two answers the second is delivered
	sent  []string
}

// Instead is Pass, but forwards another command.
func Instead(args ...string) Action { return Action{sent: args} }

var (
	// Pass forwards the request and delivers the answer. Held back (After,
	// When), it is the answer that waits, and those behind it on its connection.
	Pass = Action{verb: pass}
	// DropAnswer forwards the request and, instead of delivering the answer, closes the connection: the server has run the
	// command and the client can't know. Nothing that the client sent behind it is forwarded. Held back, the close waits.
	DropAnswer = Action{verb: dropAnswer}
	// Swallow forwards the request and leaves the client without an answer on an open connection. No later answer gets through
	// on that connection either, though later requests do.
	Swallow = Action{verb: swallow}
	// Cut closes the connection without forwarding the request or anything behind it, once
	// all requests before it are answered. Held back, the close waits.
	Cut = Action{verb: cut}
	// Late is for When and After: the request itself is held back, and those behind it on its connection. It is forwarded even
	// if the client has given up by then: a late copy. Not held back it is Pass.
	Late = Action{verb: late}
	// Duplicate forwards the request twice, one right behind the other, and delivers the first answer. Held back, that answer waits.
	Duplicate = Action{verb: duplicate}
	// DuplicateLast is Duplicate, but delivers the second answer.
	DuplicateLast = Action{verb: duplicate, last: true}
)

// After returns the action held back for d.
func (a Action) After(d time.Duration) Action {
	a.after = d
	return a
}

// When returns the action held back until ch is closed.
func (a Action) When(ch <-chan struct{}) Action {
	a.when = ch
	return a
}

// Nth returns a function for [Proxy.OnCommand] that applies a to the n-th command, counted
// from 1, that contains text (see [Command.Contains]), and Pass to all others.
func Nth(n int, text string, a Action) func(Command) Action {
	seen := 0
	return func(c Command) Action {
		if !c.Contains(text) {
			return Pass
		}
		if seen++; seen == n {
			return a
		}
		return Pass
	}
}
