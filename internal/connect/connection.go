package connect

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
)

// Kind is what a connection reaches.
type Kind int

// The kinds of connections.
const (
	Single   Kind = iota // one server
	Cluster              // all masters of a cluster
	Sentinel             // the master that Sentinels watch
	Ring                 // the shards of a redis.Ring
)

// Connection is what Open returns.
type Connection struct {
	// Client reaches any key, whatever the kind.
	Client redis.UniversalClient
	Kind   Kind

	about  about
	addrs  []address
	name   string // of the master that Sentinels watch
	master string // where it was when the connection was opened
}

func (s *settings) connection(kind Kind, client redis.UniversalClient) *Connection {
	about := s.about("")
	if len(s.addrs) == 1 {
		about.addr = s.addrs[0].addr
	}
	return &Connection{Client: client, Kind: kind, about: about, addrs: s.addrs}
}

// Close ends all connections.
func (c *Connection) Close() error { return c.Client.Close() }

// Description names the servers in a few words, without any password.
func (c *Connection) Description() string {
	addrs := c.addrs[0].addr
	if more := len(c.addrs) - 1; more > 0 {
		addrs += fmt.Sprintf(" and %d more", more)
	}
	switch c.Kind {
	case Cluster:
		return "the cluster of " + addrs
	case Sentinel:
		return fmt.Sprintf("the master %q at %s, watched by the Sentinels at %s", c.name, c.master, addrs)
	case Ring:
		return "the ring of " + addrs
	case Single:
	}
	return "the server at " + addrs
}

// ForEachMaster calls fn, at the same time, with each server that keys are
// written to, and waits for all. If it fails for some, the others are visited
// all the same; the error is a *MasterError, or a list of them that errors.As
// finds.
func (c *Connection) ForEachMaster(ctx context.Context, fn func(ctx context.Context, node nodes.Client) error) error {
	var (
		mu   sync.Mutex
		errs []error
	)
	visit := func(ctx context.Context, node nodes.Client) error {
		if err := fn(ctx, node); err != nil {
			addr := nodes.Addr(node)
			if c.Kind == Sentinel {
				addr = c.master // go-redis has a word of its own there
			}
			about := c.about
			about.addr = addr
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, &MasterError{Addr: addr, Err: about.Explain(err)})
		}
		return nil
	}
	switch err := nodes.ForEach(ctx, c.Client, visit); {
	case err != nil:
		return c.Explain(err)
	case len(errs) > 0:
		return joined(errs)
	}
	return nil
}

// MasterError is what one of several masters failed with.
type MasterError struct {
	Addr string
	Err  error
}

func (e *MasterError) Error() string { return e.Err.Error() }

// Unwrap returns the server's own error.
func (e *MasterError) Unwrap() error { return e.Err }

// OnNode calls fn with the server that has key. On a cluster that has moved the
// key meanwhile, it calls fn again with the server that has it then.
func (c *Connection) OnNode(ctx context.Context, key string, fn func(ctx context.Context, node nodes.Client) error) error {
	return nodes.On(ctx, c.Client, key, fn)
}

// Explain returns err in words that say what is wrong with the server, the way
// to it or this user's rights, and what to do; other errors as they are. It
// wraps err.
func (c *Connection) Explain(err error) error { return c.about.Explain(err) }
