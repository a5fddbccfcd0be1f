package redistest

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
)

// Client is what tests use of a go-redis client, of whatever kind. A package that names
// redis.UniversalClient, *redis.Client or the options of one, be it by what it calls, takes a second
// longer to compile: see script.Master.
type Client interface {
	nodes.Client
	AddHook(hook redis.Hook)
	PoolStats() *redis.PoolStats
	Wait(ctx context.Context, replicas int, timeout time.Duration) *redis.IntCmd
}

// Options are the options of a client that tests set, as redis.Options has them.
type Options struct {
	Username, Password string

	Protocol              int
	Dialer                func(ctx context.Context, network, addr string) (net.Conn, error)
	DialTimeout           time.Duration
	ReadTimeout           time.Duration
	WriteTimeout          time.Duration
	ContextTimeoutEnabled bool
	MaxRetries            int
	DialerRetries         int
	PoolSize              int
	MinIdleConns          int
	MaxConcurrentDials    int
	PipelinePoolSize      int

	// Of a cluster.
	ReadOnly, RouteRandomly bool

	// Of a ring.
	HeartbeatFrequency time.Duration
}

// universal returns the options as go-redis has them; nil stands for its defaults.
func universal(opt *Options) *redis.UniversalOptions {
	o := valueOf(opt)
	return &redis.UniversalOptions{
		Username: o.Username, Password: o.Password, Protocol: o.Protocol, Dialer: o.Dialer,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		ContextTimeoutEnabled: o.ContextTimeoutEnabled, MaxRetries: o.MaxRetries, DialerRetries: o.DialerRetries,
		PoolSize: o.PoolSize, MinIdleConns: o.MinIdleConns, MaxConcurrentDials: o.MaxConcurrentDials, PipelinePoolSize: o.PipelinePoolSize,
		ReadOnly: o.ReadOnly, RouteRandomly: o.RouteRandomly,
	}
}

// NilClient returns a nil *redis.Client.
func NilClient() Client { return (*redis.Client)(nil) }

// WrappedNilClient returns a client that embeds such a one.
func WrappedNilClient() Client { return struct{ *redis.Client }{} }

// NewClient returns a client of the server at addr, which need not be there. The caller closes it.
func NewClient(addr string, opt *Options) Client {
	o := universal(opt).Simple()
	o.Addr = addr
	return redis.NewClient(o)
}

// NewCluster returns a client that takes servers for a cluster with these slots. The caller closes it.
func NewCluster(slots []redis.ClusterSlot, opt *Options) Client {
	o := universal(opt).Cluster()
	o.Addrs, o.ClusterSlots = nil, func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil }
	return redis.NewClusterClient(o)
}

// NewRing returns a client that shares keys out among the servers at these addresses, by name. The
// caller closes it.
func NewRing(addrs map[string]string, opt *Options) Client {
	o := ringOptions(opt)
	o.Addrs, o.HeartbeatFrequency = addrs, valueOf(opt).HeartbeatFrequency
	patient(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
	return redis.NewRing(o)
}

// ringOptions returns the options of a ring, but for the addresses and the heartbeat.
func ringOptions(opt *Options) *redis.RingOptions {
	o := universal(opt)
	return &redis.RingOptions{
		Username: o.Username, Password: o.Password, Protocol: o.Protocol, Dialer: o.Dialer,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		ContextTimeoutEnabled: o.ContextTimeoutEnabled, MaxRetries: o.MaxRetries, DialerRetries: o.DialerRetries,
		PoolSize: o.PoolSize, PipelinePoolSize: o.PipelinePoolSize,
	}
}

// Username returns the name with which a client of one server or of a cluster logs in.
func Username(rdb Client) string {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return rdb.Options().Username
	case *redis.ClusterClient:
		return rdb.Options().Username
	}
	panic(fmt.Sprintf("redistest: Username of a %T", rdb))
}
