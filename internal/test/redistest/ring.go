package redistest

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Ring is a number of servers that know nothing of each other, for a
// redis.Ring to share keys out among.
type Ring struct {
	// Servers are the shards.
	Servers []*Server
}

// StartRing starts a ring of n servers for this test alone, as [StartRedis]
// starts one.
func StartRing(t testing.TB, n int, args ...string) *Ring {
	t.Helper()
	skipOwn(t)
	r, err := startRing(n, args)
	t.Cleanup(func() { killAll(r.Servers) })
	check(t, err)
	return r
}

func startRing(n int, args []string) (*Ring, error) {
	servers, err := startAll(n, func(int) (*Server, error) { return start(Default, spec{args: args}) })
	return &Ring{Servers: servers}, err
}

// Client returns a client of the ring, closed when t ends. The addresses in opt
// are replaced; nil stands for the defaults, save that no shard is given up for
// being slow, which would send its keys to another.
func (r *Ring) Client(t testing.TB, opt *redis.RingOptions) *redis.Ring {
	t.Helper()
	o := redis.RingOptions{
		HeartbeatFrequency: time.Hour,
		HeartbeatFn:        func(context.Context, *redis.Client) bool { return true },
	}
	if opt != nil {
		o = *opt
	}
	o.Addrs = map[string]string{}
	for i, s := range r.Servers {
		o.Addrs["shard"+strconv.Itoa(i)] = s.addr
	}
	rdb := redis.NewRing(&o)
	closeAfter(t, rdb)
	return rdb
}
