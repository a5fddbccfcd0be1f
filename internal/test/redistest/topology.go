package redistest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
)

// A Topology is what servers there are behind [CurrentClient], and how it reaches them. The environment variable RRL_TOPOLOGY names it.
type Topology string

// The topologies. Single, also if none is named, is a server alone.
const (
	Single     Topology = "single"
	RESP2      Topology = "resp2"    // Single, by the older protocol
	TLS        Topology = "tls"      // a server alone that speaks only TLS
	ACL        Topology = "acl"      // Single, as a user with the least rights that do
	TLSWithACL Topology = "tls-acl"  // the two at once
	Sentinels  Topology = "sentinel" // a failover client
	Clustered  Topology = "cluster"  // a cluster of three masters and three replicas
	RingOfMany Topology = "ring"     // three servers that a redis.Ring shares keys out among
)

var topologies = []Topology{Single, RESP2, TLS, ACL, TLSWithACL, Sentinels, Clustered, RingOfMany}

// CurrentTopology returns the one that RRL_TOPOLOGY names.
func CurrentTopology(t testing.TB) Topology {
	t.Helper()
	name := Topology(os.Getenv("RRL_TOPOLOGY"))
	if name == "" {
		return Single
	}
	if !slices.Contains(topologies, name) {
		t.Fatalf("RRL_TOPOLOGY is %q and should be one of %v", name, topologies)
	}
	return name
}

// The servers of each topology are shared by all tests of a binary, and go with it: see supervise.
var (
	sharedTLS      = sync.OnceValues(func() (*Server, error) { return startTLS(Default, nil) })
	sharedSentinel = sync.OnceValues(func() (*Sentinel, error) { return startSentinel(1, 30*time.Second, nil) })
	sharedCluster  = sync.OnceValues(func() (*Cluster, error) { return startCluster(3, 1, nil) })
	sharedRing     = sync.OnceValues(func() (*Ring, error) { return startRing(3, nil) })
)

// CurrentClient returns a client of the topology that RRL_TOPOLOGY names, of servers that all tests of this binary share; the
// same holds as for [Redis]. With an ACL, the limiters that are given this client act as the user who may do least (they use
// Process and Pipeline), while the test's own look-ups by the other methods are not restricted.
func CurrentClient(t testing.TB) Client {
	t.Helper()
	rdb := topologyClient(t)
	t.Cleanup(func() { removeKeys(t, rdb) })
	return rdb
}

func topologyClient(t testing.TB) Client {
	t.Helper()
	SkipShort(t, "a real redis-server")
	switch CurrentTopology(t) {
	case RESP2:
		return sharedBy(t, shared).Client(t, &Options{Protocol: 2})
	case TLS:
		return sharedBy(t, sharedTLS).Client(t, nil)
	case ACL:
		return withLeastRights(t, sharedBy(t, shared))
	case TLSWithACL:
		return withLeastRights(t, sharedBy(t, sharedTLS))
	case Sentinels:
		return sharedBy(t, sharedSentinel).Client(t, nil)
	case Clustered:
		return sharedBy(t, sharedCluster).Client(t, nil)
	case RingOfMany:
		return sharedBy(t, sharedRing).Client(t, nil)
	}
	return sharedBy(t, shared).Client(t, nil)
}

// A Route is how a client in another language gets to the servers of [CurrentClient].
type Route struct {
	Servers string   // single, sentinel or cluster
	Master  string   // the name that Sentinels have for it
	Addrs   []string // of the server, the Sentinels or the nodes
}

// CurrentRoute returns that of the topology that RRL_TOPOLOGY names, without TLS or a Ring.
func CurrentRoute(t testing.TB) Route {
	t.Helper()
	switch topology := CurrentTopology(t); topology {
	case Single, RESP2, ACL:
		return Route{Servers: "single", Addrs: []string{sharedBy(t, shared).Addr()}}
	case Sentinels:
		master, addrs := sharedBy(t, sharedSentinel).Watch()
		return Route{"sentinel", master, addrs}
	case Clustered:
		return Route{Servers: "cluster", Addrs: sharedBy(t, sharedCluster).Addrs()}
	default:
		t.Fatalf("no route for topology %s", topology)
		return Route{}
	}
}

func sharedBy[S any](t testing.TB, start func() (S, error)) S {
	t.Helper()
	s, err := start()
	if errors.Is(err, errNoTLS) {
		SkipOrFail(t, err.Error())
	}
	check(t, err)
	return s
}

func withLeastRights(t testing.TB, server *Server) *limitedClient {
	t.Helper()
	prefix := namePrefix(t)
	limited := AddUser(t, server, nil, LeastCommands, KeysWithPrefix(prefix))
	return &limitedClient{Client: server.Client(t, nil), limited: limited}
}

// limitedClient lets the limiters under test act as one user, and the test as another.
type limitedClient struct {
	Client

	limited Client
}

func (c *limitedClient) Process(ctx context.Context, cmd redis.Cmder) error {
	return c.limited.Process(ctx, cmd)
}

func (c *limitedClient) Pipeline() redis.Pipeliner { return c.limited.Pipeline() }

func (c *limitedClient) AddHook(hook redis.Hook) {
	c.Client.AddHook(hook)
	c.limited.AddHook(hook)
}

// Everywhere runs test twice, as subtests: on a miniredis of its own ("miniredis"; not if RRL_ENGINE leaves that out) and on
// [CurrentClient]'s servers, named after their topology, on which it must keep to names that start with [Name]'s.
func Everywhere(t *testing.T, test func(t *testing.T, rdb Client)) {
	t.Helper()
	onBoth(t, string(CurrentTopology(t)), CurrentClient, test)
}

// Keys returns the keys that match a pattern, of all servers behind rdb.
func Keys(t testing.TB, rdb Client, pattern string) []string {
	t.Helper()
	var all List[[]string]
	must(t, forEachMaster(t.Context(), rdb, func(ctx context.Context, node nodes.Client) error {
		found, err := scan(ctx, node, pattern)
		all.Add(found)
		return err
	}))
	keys := slices.Concat(all.All()...)
	slices.Sort(keys)
	return slices.Compact(keys)
}

func scan(ctx context.Context, node nodes.Client, pattern string) (keys []string, err error) {
	it := node.Scan(ctx, 0, pattern, 10_000).Iterator()
	for it.Next(ctx) {
		keys = append(keys, it.Val())
	}
	return keys, it.Err()
}

// A Value is all that Redis holds under a key, without its time to live.
type Value struct {
	Type    string
	Text    string            // of a string
	Fields  map[string]string // of a hash
	Members []redis.Z         // of a sorted set
	Values  []string          // of a list or set, sorted
}

// Read returns what Redis holds under a key.
func Read(t testing.TB, rdb Client, key string) Value {
	t.Helper()
	ctx := t.Context()
	kind, err := rdb.Type(ctx, key).Result()
	must(t, err)
	v := Value{Type: kind}
	switch kind {
	case "none":
	case "string":
		v.Text, err = rdb.Get(ctx, key).Result()
	case "hash":
		v.Fields, err = rdb.HGetAll(ctx, key).Result()
	case "zset":
		v.Members, err = rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
	case "list":
		v.Values, err = rdb.LRange(ctx, key, 0, -1).Result()
	case "set":
		v.Values, err = rdb.SMembers(ctx, key).Result()
		slices.Sort(v.Values)
	default:
		t.Fatalf("key %q is of type %s", key, kind)
	}
	must(t, err)
	return v
}

// removeKeys removes what the test that ends has left on shared servers: each key there is in the way of those who look for theirs.
func removeKeys(t testing.TB, rdb Client) {
	err := forEachMaster(context.Background(), rdb, func(ctx context.Context, node nodes.Client) error {
		keys, err := scan(ctx, node, "*"+namePrefix(t)+"[:/]*")
		if err != nil || len(keys) == 0 {
			return err
		}
		_, err = node.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, key := range keys {
				pipe.Unlink(ctx, key)
			}
			return nil
		})
		return err
	})
	if err != nil && !errors.Is(err, redis.ErrClosed) {
		t.Errorf("removing the test's keys: %v", err)
	}
}

func forEachMaster(ctx context.Context, rdb Client, f func(context.Context, nodes.Client) error) error {
	if limited, is := rdb.(*limitedClient); is {
		rdb = limited.Client
	}
	return nodes.ForEach(ctx, rdb, f)
}

// A Ring is a number of servers that know nothing of each other, for a redis.Ring to share keys out among.
type Ring struct {
	// Servers are the shards.
	Servers []*Server
}

// StartRing starts a ring of n servers for this test alone, as [StartRedis] starts one.
func StartRing(t testing.TB, n int, args ...string) *Ring {
	t.Helper()
	return own(t, func() (*Ring, error) { return startRing(n, args) })
}

func (r *Ring) kill() { killAll(r.Servers) }

func startRing(n int, args []string) (*Ring, error) {
	servers, err := startAll(n, func() (*Server, error) { return start(Default, spec{args: args}) })
	return &Ring{Servers: servers}, err
}

// Client returns a client of the ring, closed when t ends. The addresses in opt are replaced; nil stands for the defaults,
// except that no shard is given up for being slow, which would send its keys to another.
func (r *Ring) Client(t testing.TB, opt *Options) Client {
	t.Helper()
	o := patientWith(opt, &redis.RingOptions{Addrs: map[string]string{}})
	if opt == nil {
		o.HeartbeatFrequency = time.Hour
		o.HeartbeatFn = func(context.Context, *redis.Client) bool { return true }
	}
	for i, s := range r.Servers {
		o.Addrs["shard"+strconv.Itoa(i)] = s.addr
	}
	return closeAfter(t, redis.NewRing(o))
}
