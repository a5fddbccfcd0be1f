package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
)

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

// requests forwards what the client sends until it closes its side or an action closes it, and returns when all that is answered.
func (c *proxyConn) requests() {
	r := bufio.NewReader(c.down)
	for {
		raw, args, err := readValue(r, nil, nil)
		if err != nil {
			c.waitAnswers()
			return
		}
		if len(args) == 0 {
			continue // nothing to answer
		}
		c.proxy.requests.Add(1)
		a := c.proxy.decide(Command{c.id, args})
		if a.sent != nil {
			raw = fmt.Appendf(nil, "*%d\r\n", len(a.sent))
			for _, arg := range a.sent {
				raw = fmt.Appendf(raw, "$%d\r\n%s\r\n", len(arg), arg)
			}
		}
		if a.verb == cut {
			c.proxy.addInFlight(-1)
			c.waitAnswers()
			c.proxy.hold(a)
			c.hangUp()
			return
		}
		sent := c.forward(raw, a)
		c.proxy.addInFlight(-1)
		if !sent {
			return
		}
		if a.verb == dropAnswer {
			c.waitAnswers()
			c.hangUp()
			return
		}
	}
}

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
		if a.last {
			slices.Reverse(actions)
		}
	}
	open := false
	c.change(func() {
		if open = !c.ended; open {
			c.waiting = append(c.waiting, actions...)
			c.proxy.addInFlight(len(actions))
		}
	})
	if !open {
		return false
	}
	_, err := c.up.Write(raw)
	return err == nil
}

// change calls f with the lock, and has those look again who wait.
func (c *proxyConn) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.changed.Broadcast()
}

func (c *proxyConn) waitAnswers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) > 0 && !c.ended {
		c.changed.Wait()
	}
}

// hangUp closes the client's connection so that it can still read what was delivered: closed with requests unread it is reset.
func (c *proxyConn) hangUp() {
	if tcp, ok := c.down.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
		_, _ = io.Copy(io.Discard, tcp)
	}
}

// answers delivers what the server sends, each answer as the action of its request says.
func (c *proxyConn) answers() {
	defer c.end()
	r := bufio.NewReader(c.up)
	for {
		c.awaitAsked()
		raw, push, err := readAnswer(r)
		if err != nil {
			return
		}
		a, answer := c.first(push)
		if !answer {
			c.deliver(raw)
			continue
		}
		switch a.verb {
		case pass:
			c.proxy.hold(a)
			c.deliver(raw)
		case dropAnswer:
			c.proxy.hold(a)
			c.hush()
		case swallow:
			c.hush()
		}
		c.change(func() { c.waiting = c.waiting[1:] })
		c.proxy.addInFlight(-1)
	}
}

// awaitAsked waits until an answer is to come, if the server is asked through memory: waiting for a socket stops a bubble's clock.
func (c *proxyConn) awaitAsked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.proxy.addr == "" && len(c.waiting) == 0 && !c.ended {
		c.changed.Wait()
	}
}

// first returns the action of the request that the server answers, if it is one: a server may push messages that no one asked for.
func (c *proxyConn) first(push bool) (a Action, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if push || len(c.waiting) == 0 {
		return Action{}, false
	}
	return c.waiting[0], true
}

func (c *proxyConn) deliver(raw []byte) {
	c.mu.Lock()
	silent := c.silent
	c.mu.Unlock()
	if silent {
		return
	}
	if _, err := c.down.Write(raw); err != nil {
		c.hush()
	}
}

func (c *proxyConn) hush() { c.change(func() { c.silent = true }) }

// end gives up unanswered commands: the server has closed the connection.
func (c *proxyConn) end() {
	_ = c.down.Close()
	c.change(func() {
		c.proxy.addInFlight(-len(c.waiting))
		c.waiting, c.ended = nil, true
	})
}

// readAnswer reads one answer, with the attributes in front of it. A push message answers no request.
func readAnswer(r *bufio.Reader) (raw []byte, push bool, err error) {
	for {
		kind, err := r.Peek(1)
		if err != nil {
			return nil, false, err
		}
		attributes := kind[0] == '|'
		push = kind[0] == '>'
		if raw, _, err = readValue(r, raw, nil); err != nil {
			return nil, false, err
		}
		if !attributes {
			return raw, push, nil
		}
	}
}

// readValue appends the next RESP2 or RESP3 value to buf, and the strings that it is made of to args: those of a
// command are its name and its arguments, also of one that is a line of words.
func readValue(r *bufio.Reader, buf []byte, args []string) ([]byte, []string, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, nil, err
	}
	buf = append(buf, line...)
	n, err := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch line[0] {
	default:
		return buf, append(args, strings.Fields(string(line))...), nil
	case '$', '=', '!':
		if err != nil || n < 0 {
			return buf, args, err
		}
		start := len(buf)
		buf = append(buf, make([]byte, n+len("\r\n"))...)
		_, err := io.ReadFull(r, buf[start:])
		return buf, append(args, string(buf[start:start+n])), err
	case '%', '|':
		n *= 2
	case '*', '~', '>':
	}
	for i := 0; i < n && err == nil; i++ {
		buf, args, err = readValue(r, buf, args)
	}
	return buf, args, err
}
