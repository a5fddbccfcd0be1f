package chaos_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// What servers a round can be on.
const (
	single   = "single"
	cluster  = "cluster"
	sentinel = "sentinel"
)

// roundConnection is the name of connections that must be gone when a round is over.
const roundConnection = "chaos-round"

// An arena is servers that rounds use one after another.
type arena interface {
	// addrs are where the servers are that Clients talk to.
	addrs() []string
	// route is how they are reached.
	route() route
	// client returns a client of the options, closed when t ends.
	client(t testing.TB, opt redis.UniversalOptions) redis.UniversalClient
	// masters are the servers that take writes at the moment.
	masters(t testing.TB) []*redistest.Server
	// calm waits until all servers are in order. It tells how many were made masters
	// without a fault that did so.
	calm(t testing.TB) (surprises int)
}

// persistent are the settings of servers that lose nothing they have answered.
var persistent = []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"}

// clustered are those of a cluster's nodes: only faults have one take another's place.
// Node timeouts can then be short, and votes about the same slots follow each other soon.
var clustered = []string{"--cluster-replica-no-failover", "yes"}

// downAfter is when Sentinels take a master for dead: longer than a fault has it hang.
const downAfter = 1500 * time.Millisecond

func startArena(t *testing.T, name string) arena {
	t.Helper()
	switch name {
	case single:
		return &singleArena{server: redistest.StartStepped(t, persistent...)}
	case cluster:
		a := &clusterArena{Cluster: redistest.StartCluster(t, 3, 1, slices.Concat(persistent, clustered)...)}
		for _, s := range a.Nodes() {
			require.NoError(t, s.Client(t, nil).ConfigSet(t.Context(), "cluster-node-timeout", "1500").Err())
		}
		a.known = a.masterAddrs(t)
		return a
	case sentinel:
		s := redistest.StartSentinel(t, 2, downAfter, persistent...)
		return &sentinelArena{Sentinel: s, known: s.Master(t), all: append(s.Replicas(t), s.Master(t))}
	}
	t.Fatalf("there is no arena %q", name)
	return nil
}

// singleArena is one server whose clock can be set.
type singleArena struct {
	server *redistest.Server
	ahead  time.Duration
}

func (a *singleArena) addrs() []string { return []string{a.server.Addr()} }

func (a *singleArena) route() route { return route{Servers: single, Addrs: a.addrs()} }

func (a *singleArena) client(t testing.TB, opt redis.UniversalOptions) redis.UniversalClient {
	return a.server.Client(t, opt.Simple())
}

func (a *singleArena) masters(testing.TB) []*redistest.Server { return []*redistest.Server{a.server} }

func (a *singleArena) calm(testing.TB) int { return 0 }

func (a *singleArena) set(t testing.TB, ahead time.Duration) {
	a.server.SetAhead(t, ahead)
	a.ahead = ahead
}

// clusterArena is three masters with a replica each.
type clusterArena struct {
	*redistest.Cluster

	known []string // the masters' addresses, as faults have left them
}

func (a *clusterArena) addrs() []string { return a.Addrs() }

func (a *clusterArena) route() route { return route{Servers: cluster, Addrs: a.addrs()} }

func (a *clusterArena) client(t testing.TB, opt redis.UniversalOptions) redis.UniversalClient {
	return a.Client(t, opt.Cluster())
}

func (a *clusterArena) masters(t testing.TB) []*redistest.Server {
	return slices.DeleteFunc(a.Nodes(), func(s *redistest.Server) bool { return !s.IsMaster(t) })
}

func (a *clusterArena) masterAddrs(t testing.TB) []string { return addrsOf(a.masters(t)) }

func addrsOf(all []*redistest.Server) (addrs []string) {
	for _, s := range all {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

func (a *clusterArena) calm(t testing.TB) (surprises int) {
	a.AwaitOrder(t)
	masters := a.masterAddrs(t)
	for _, addr := range masters {
		if !slices.Contains(a.known, addr) {
			surprises++
		}
	}
	a.known = masters
	return surprises
}

// sentinelArena is a master and replicas behind Sentinels.
type sentinelArena struct {
	*redistest.Sentinel

	known *redistest.Server // the master, as faults have left it
	all   []*redistest.Server
}

func (a *sentinelArena) addrs() []string { return addrsOf(a.all) }

func (a *sentinelArena) route() route {
	master, addrs := a.Watch()
	return route{Servers: sentinel, Addrs: addrs, Master: master}
}

func (a *sentinelArena) client(t testing.TB, opt redis.UniversalOptions) redis.UniversalClient {
	return a.Client(t, opt.Failover())
}

func (a *sentinelArena) masters(t testing.TB) []*redistest.Server {
	return []*redistest.Server{a.Master(t)}
}

func (a *sentinelArena) calm(t testing.TB) (surprises int) {
	master := a.AwaitOrder(t)
	if master != a.known {
		surprises = 1
	}
	a.known = master
	return surprises
}

// fragile fails as a panic: what is done to servers may fail by their own nature, as where
// the nodes of a cluster never agree again.
type fragile struct{ testing.TB }

// brokenServers is what a fragile test panics with.
type brokenServers string

func (f fragile) Errorf(format string, args ...any) {
	panic(brokenServers(fmt.Sprintf(format, args...)))
}

func (f fragile) Fatalf(format string, args ...any) {
	panic(brokenServers(fmt.Sprintf(format, args...)))
}

func (f fragile) Fatal(args ...any) { panic(brokenServers(fmt.Sprint(args...))) }

// onServers does something to servers, and tells whether they are still in order. Where
// not, nothing of the round is checked, and the next one gets new ones.
func (r *round) onServers(do func()) bool {
	defer func() {
		switch why := recover().(type) {
		case nil:
		case brokenServers:
			r.t.Logf("servers to be replaced: %.300s", why)
			r.broken.Store(true)
		default:
			panic(why)
		}
	}()
	if !r.broken.Load() {
		do()
	}
	return !r.broken.Load()
}
