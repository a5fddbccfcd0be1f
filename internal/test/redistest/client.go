package redistest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"reflect"
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

// with sets the options of a go-redis client that opt has too; nil stands for its defaults.
func with[O any](opt *Options, o *O) *O {
	from, to := reflect.ValueOf(valueOf(opt)), reflect.ValueOf(o).Elem()
	for i := range from.NumField() {
		if field := to.FieldByName(from.Type().Field(i).Name); field.IsValid() {
			field.Set(from.Field(i))
		}
	}
	return o
}

// patientWith is with for real servers: timeouts that opt leaves open are longer than a machine may stall.
func patientWith[O any](opt *Options, o *O) *O {
	set := valueOf(opt)
	for _, d := range []*time.Duration{&set.DialTimeout, &set.ReadTimeout, &set.WriteTimeout} {
		*d = cmp.Or(*d, patience)
	}
	return with(&set, o)
}

// NilClient returns a nil *redis.Client.
func NilClient() Client { return (*redis.Client)(nil) }

// WrappedNilClient returns a client that embeds such a one.
func WrappedNilClient() Client { return struct{ *redis.Client }{} }

// NewClient returns a client of the server at addr, which need not be there. The caller closes it.
func NewClient(addr string, opt *Options) Client {
	return redis.NewClient(with(opt, &redis.Options{Addr: addr}))
}

// NewCluster returns a client that takes servers for a cluster with these slots. The caller closes it.
func NewCluster(slots []redis.ClusterSlot, opt *Options) Client {
	known := func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil }
	return redis.NewClusterClient(with(opt, &redis.ClusterOptions{ClusterSlots: known}))
}

// NewRing returns a client that shares keys out among the servers at these addresses, by name. The
// caller closes it.
func NewRing(addrs map[string]string, opt *Options) Client {
	return redis.NewRing(patientWith(opt, &redis.RingOptions{Addrs: addrs}))
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
