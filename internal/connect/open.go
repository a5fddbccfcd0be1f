package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Modes that a server's HELLO tells.
const (
	modeAlone    = "standalone"
	modeCluster  = "cluster"
	modeSentinel = "sentinel"
)

// Open reaches the servers that o names. What it returns has answered once.
func (o *Options) Open(ctx context.Context) (*Connection, error) {
	s, err := o.settings()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout(), errTimeout)
	defer cancel()
	switch {
	case o.SentinelMaster != "":
		return s.openSentinel(ctx, o.SentinelMaster)
	case o.Ring:
		return s.openRing(ctx)
	}
	return s.openServers(ctx)
}

var errTimeout = errors.New("no answer in time")

// openServers opens a connection to a server or a cluster.
func (s *settings) openServers(ctx context.Context) (*Connection, error) {
	first, mode, err := s.firstMode(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case mode == modeSentinel:
		return nil, fmt.Errorf("%s is a Sentinel: name the master that it watches by --sentinel-master NAME", first.addr)
	case mode == modeCluster:
		if s.client.DB != 0 {
			return nil, fmt.Errorf("%s is a node of a cluster, which has no database %d, only 0", first.addr, s.client.DB)
		}
		return s.connection(Cluster, redis.NewClusterClient(s.universal().Cluster())), nil
	case len(s.addrs) > 1:
		return nil, fmt.Errorf("%s is no node of a cluster: for a Ring of several servers there is --ring, for Sentinels --sentinel-master NAME",
			first.addr)
	}
	c := s.connection(Single, redis.NewClient(s.client))
	c.about.replica = s.replica
	return c, nil
}

// firstMode returns the mode of the first server that answers.
func (s *settings) firstMode(ctx context.Context) (address, string, error) {
	var errs []error
	for i, a := range s.addrs {
		// An address that swallows what it is sent leaves some time to the others.
		deadline, _ := ctx.Deadline()
		one, cancel := context.WithTimeoutCause(ctx, time.Until(deadline)/time.Duration(len(s.addrs)-i), errTimeout)
		mode, err := s.modeOf(one, a)
		cancel()
		if err == nil {
			return a, mode, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errTimeout) {
			return a, "", ctx.Err()
		}
	}
	return address{}, "", joined(errs)
}

// modeOf asks a server for its mode.
func (s *settings) modeOf(ctx context.Context, a address) (string, error) {
	o := *s.client
	// A node of a cluster refuses SELECT before it can say what it is.
	o.Network, o.Addr, o.DB, o.PoolSize, o.MaxRetries = a.network, a.addr, 0, 1, -1
	rdb := redis.NewClient(&o)
	mode, role, err := hello(ctx, rdb)
	s.replica = role == "replica" || role == "slave"
	return mode, s.about(a.addr).Explain(err)
}

// hello returns mode and role of a server, and closes rdb.
func hello(ctx context.Context, rdb *redis.Client) (mode, role string, err error) {
	protocol := rdb.Options().Protocol
	fields, err := within(ctx, func() (map[string]string, error) {
		defer func() { _ = rdb.Close() }()
		// Any user may say HELLO, unlike CLUSTER or INFO.
		answer, err := rdb.Do(ctx, "HELLO", protocol).Result()
		return pairs(answer), err
	})
	var said redis.Error
	if errors.As(err, &said) && !isLogin(err) && !isBusy(err) {
		// Proxies don't know HELLO: they act as one server.
		return modeAlone, "", nil
	}
	return fields["mode"], fields["role"], err
}

// within returns what f does, or why ctx ended, whichever is first.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	var none T
	select {
	case r := <-done:
		if r.err != nil && ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// pairs reads a map, or the same in a row.
func pairs(answer any) map[string]string {
	fields := map[string]string{}
	switch answer := answer.(type) {
	case map[any]any:
		for name, value := range answer {
			fields[fmt.Sprint(name)] = fmt.Sprint(value)
		}
	case []any:
		for i := 0; i+1 < len(answer); i += 2 {
			fields[fmt.Sprint(answer[i])] = fmt.Sprint(answer[i+1])
		}
	}
	return fields
}

// openSentinel opens a connection to the master that Sentinels watch.
func (s *settings) openSentinel(ctx context.Context, master string) (*Connection, error) {
	o := s.universal().Failover()
	o.MasterName, o.SentinelUsername, o.SentinelPassword = master, s.sentinelUser, s.sentinelPassword
	addr, err := s.masterAddr(ctx, o)
	if err != nil {
		return nil, err
	}
	if _, err := s.modeOf(ctx, address{network: "tcp", addr: addr}); err != nil {
		return nil, fmt.Errorf("the master %q: %w", master, err)
	}
	c := s.connection(Sentinel, redis.NewFailoverClient(o))
	c.master, c.name = addr, master
	return c, nil
}

// masterAddr asks the Sentinels, one after the other, for the master's address.
// go-redis' own errors don't tell what went wrong.
func (s *settings) masterAddr(ctx context.Context, o *redis.FailoverOptions) (string, error) {
	var errs []error
	for i, a := range s.addrs {
		deadline, _ := ctx.Deadline()
		one, cancel := context.WithTimeoutCause(ctx, time.Until(deadline)/time.Duration(len(s.addrs)-i+1), errTimeout)
		addr, err := s.askSentinel(one, a, o)
		cancel()
		if err == nil {
			return addr, nil
		}
		errs = append(errs, err)
	}
	return "", joined(errs)
}

func (s *settings) askSentinel(ctx context.Context, a address, o *redis.FailoverOptions) (string, error) {
	rdb := redis.NewSentinelClient(&redis.Options{
		Network: a.network, Addr: a.addr, Username: o.SentinelUsername, Password: o.SentinelPassword,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		DialerRetries: 1, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 1, Dialer: o.Dialer,
	})
	addr, err := within(ctx, func() ([]string, error) {
		defer func() { _ = rdb.Close() }()
		return rdb.GetMasterAddrByName(ctx, o.MasterName).Result()
	})
	switch {
	case errors.Is(err, redis.Nil):
		return "", fmt.Errorf("the Sentinel %s knows no master called %q", a.addr, o.MasterName)
	case err != nil && strings.Contains(err.Error(), "unknown command"):
		return "", fmt.Errorf("%s is no Sentinel", a.addr)
	case err != nil:
		about := s.about(a.addr)
		about.user, about.sentinel = o.SentinelUsername, true
		return "", about.Explain(err)
	case len(addr) != 2:
		return "", fmt.Errorf("the Sentinel %s gave no address for %q: %q", a.addr, o.MasterName, addr)
	}
	return net.JoinHostPort(addr[0], addr[1]), nil
}

// openRing opens a connection to all shards of a ring.
func (s *settings) openRing(ctx context.Context) (*Connection, error) {
	o := s.ring()
	for _, a := range s.addrs {
		mode, err := s.modeOf(ctx, a)
		switch {
		case err != nil:
			return nil, fmt.Errorf("shard %s: %w", a.name, err)
		case mode != modeAlone:
			return nil, fmt.Errorf("shard %s: %s runs in %s mode, not alone: leave out --ring", a.name, a.addr, mode)
		}
		o.Addrs[a.name] = a.addr
	}
	return s.connection(Ring, redis.NewRing(o)), nil
}

// joined is several errors on one line.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return &lines{errs}
}

type lines struct{ errs []error }

func (l *lines) Error() string {
	var texts []string
	for _, err := range l.errs {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

func (l *lines) Unwrap() []error { return l.errs }
