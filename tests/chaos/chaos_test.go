package chaos_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

var (
	minutes   = flag.Float64("minutes", 0, "how long rounds go on; 0 for a few rounds")
	chaosSeed = flag.Uint64("seed", 0, "seed of the rounds; 0 draws one")
	onlyRound = flag.Int("round", 0, "the number of the only round to make, from 1")
	onlyArena = flag.String("arena", "", "the only servers to use: "+strings.Join(arenas, ", "))
)

// All members of Clients are merged that may be, but those of limiters that are exact.
func TestMain(m *testing.M) {
	merge.Everything()
	os.Exit(m.Run())
}

var arenas = []string{single, cluster, sentinel}

// A run without a flag for more makes fewRounds, and up to mostRounds if they merged nothing:
// on a busy machine a round may grant too little for that.
const fewRounds, mostRounds = 2, 12

func TestChaos(t *testing.T) { //nolint:paralleltest // it counts goroutines
	redistest.SkipShort(t, "real redis-servers")
	logging.Disable()
	t.Cleanup(closeJVMs)
	seed, started := askedSeed(), map[string]*arena{}
	for number := range askedRounds {
		p := askedPlan(t, seed, number)
		if started[p.servers] == nil {
			started[p.servers] = startArena(t, p.servers)
		}
		a := started[p.servers]
		before := runtime.NumGoroutine()
		t.Run(fmt.Sprintf("round %d", number), func(t *testing.T) {
			r := p.run(t, a)
			r.record()
			r.report()
			if r.broken.Load() {
				delete(started, p.servers)
			}
		})
		checkGoroutines(t, p, before)
		if t.Failed() {
			break
		}
	}
	t.Logf("-seed %d: %d members stand for others", seed, merge.Merges.Load())
	assert.True(t, *onlyRound > 0 || merge.Merges.Load() > 0, "nothing was merged")
}

func askedSeed() uint64 { return cmp.Or(*chaosSeed, rand.Uint64()) }

func askedArenas() []string {
	if *onlyArena != "" {
		return []string{*onlyArena}
	}
	return arenas
}

// askedRounds yields the numbers of rounds: a few, and more until the time is over, and until
// members were merged, but then no more than most.
func askedRounds(yield func(int) bool) {
	if *onlyRound > 0 {
		yield(*onlyRound)
		return
	}
	until := time.Now().Add(time.Duration(*minutes * float64(time.Minute)))
	for n := 1; n <= fewRounds || time.Now().Before(until) || n <= mostRounds && merge.Merges.Load() == 0; n++ {
		if !yield(n) {
			return
		}
	}
}

// askedPlan is a round's plan, without Redisson if this machine lacks it.
func askedPlan(t *testing.T, seed uint64, number int) *plan {
	t.Helper()
	p := newPlan(seed, number, askedArenas())
	p.drawRedisson(redissons())
	if !prepareRedisson(t, p) {
		*redissonFlag = ""
		p = newPlan(seed, number, askedArenas())
	}
	return p
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// What servers a round can be on.
const (
	single   = "single"
	cluster  = "cluster"
	sentinel = "sentinel"
)

// roundConnection is the name of connections that must be gone when a round is over.
const roundConnection = "chaos-round"

// An arena is servers that rounds use one after another.
type arena struct {
	single   *redistest.Server // whose clock can be set
	ahead    time.Duration
	cluster  *redistest.Cluster
	sentinel *redistest.Sentinel

	all    []*redistest.Server
	route  route                                                 // how they are reached
	client func(testing.TB, *redistest.Options) redistest.Client // closed when the test ends
	known  []*redistest.Server                                   // the masters, as faults have left them
}

// masters are the servers that take writes at the moment.
func (a *arena) masters(t testing.TB) []*redistest.Server {
	switch {
	case a.cluster != nil:
		return slices.DeleteFunc(a.cluster.Nodes(), func(s *redistest.Server) bool { return !s.IsMaster(t) })
	case a.sentinel != nil:
		return []*redistest.Server{a.sentinel.Master(t)}
	}
	return a.all
}

// calm waits until all servers are in order. It tells how many were made masters
// without a fault that did so.
func (a *arena) calm(t testing.TB) (surprises int) {
	switch {
	case a.cluster != nil:
		a.cluster.AwaitOrder(t)
	case a.sentinel != nil:
		a.sentinel.AwaitOrder(t)
	}
	masters := a.masters(t)
	for _, s := range masters {
		if !slices.Contains(a.known, s) {
			surprises++
		}
	}
	a.known = masters
	return surprises
}

// set sets the clock.
func (a *arena) set(t testing.TB, ahead time.Duration) {
	a.single.SetAhead(t, ahead)
	a.ahead = ahead
}

// persistent are the settings of servers that lose nothing they have answered.
var persistent = []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"}

// downAfter is when Sentinels take a master for dead: longer than a fault has it hang.
const downAfter = 1500 * time.Millisecond

func startArena(t *testing.T, name string) *arena {
	t.Helper()
	a := &arena{}
	switch name {
	case single:
		a.single = redistest.StartStepped(t, persistent...)
		a.all, a.client = []*redistest.Server{a.single}, a.single.Client
	case cluster:
		a.cluster = redistest.StartCluster(t, 3, 1, persistent...)
		a.all, a.client = a.cluster.Nodes(), a.cluster.Client
		// Votes about the same slots follow each other soon.
		for _, s := range a.all {
			require.NoError(t, s.Client(t, nil).ConfigSet(t.Context(), "cluster-node-timeout", "1500").Err())
		}
	case sentinel:
		a.sentinel = redistest.StartSentinel(t, 2, downAfter, persistent...)
		a.all, a.client = append(a.sentinel.Replicas(t), a.sentinel.Master(t)), a.sentinel.Client
	default:
		t.Fatalf("there is no arena %q", name)
	}
	a.known = a.masters(t)
	a.route.Servers, a.route.Addrs = name, a.addrs()
	if a.sentinel != nil {
		a.route.Master, a.route.Addrs = a.sentinel.Watch()
	}
	return a
}

func (a *arena) addrs() (addrs []string) {
	for _, s := range a.all {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// fragile fails as a panic: what is done to servers may fail through no fault of ours, for
// example if the nodes of a cluster never agree again.
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

// onServers does something to servers, and reports whether they are still in order. If not,
// nothing of the round is checked, and the next one gets new ones.
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
