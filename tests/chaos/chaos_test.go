package chaos_test

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
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
			if len(r.violations) > 0 {
				t.Error(r.text())
			}
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

// calm waits until all servers are in order. It tells how many were made masters without a fault that did so.
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

var redissonFlag = flag.String("redisson", "4.7.0,3.27.2",
	"releases of Redisson, with commas between, whose programs take part in some rounds of longer runs; none where empty")

const (
	redissonWorkers = 2                // programs with Redisson that a round has, if any
	javaPatience    = 10 * time.Second // after which a call of Redisson's is given up
)

func redissons() []string {
	if *redissonFlag == "" || *minutes == 0 && *onlyRound == 0 {
		return nil
	}
	return strings.Split(*redissonFlag, ",")
}

// drawRedisson has programs with Redisson, of one of the releases, take part in some
// rounds, and use some of the limiters. A server's clock that is set is not theirs.
func (p *plan) drawRedisson(releases []string) {
	p.releases = releases
	draw := p.draw("redisson")
	if len(releases) == 0 || p.mood == stepping || draw.IntN(3) > 0 {
		return
	}
	release := releases[draw.IntN(len(releases))]
	for _, l := range p.limiters {
		p.shareWith(draw, l, release)
	}
	if !slices.ContainsFunc(p.limiters, func(l *limiter) bool { return l.redisson != "" }) {
		return
	}
	p.redisson = release
	for i := range redissonWorkers {
		p.clients = append(p.clients, clientPlan{
			name: fmt.Sprintf("j%d", i+1), redisson: release, callTimeout: time.Duration(600+draw.IntN(900)) * time.Millisecond,
			callers: 2 + draw.IntN(3), pause: 5 * time.Millisecond,
		})
	}
}

func (p *plan) shareWith(draw *rand.Rand, l *limiter, release string) {
	if !model.ReleaseOf(release).SumsUp {
		l.lease = 0 // which takes members of many requests
	}
	if (l.kind != overall && l.kind != perClient) || l.config.KeepAlive > 0 || draw.IntN(3) == 0 {
		return
	}
	l.redisson, l.byDefault = release, false
}

// jvms has a JVM of each release, for all rounds: they take seconds to start.
var jvms = map[string]*javadriver.Process{}

func closeJVMs() {
	for _, jvm := range jvms {
		jvm.Close()
	}
	clear(jvms)
}

// prepareRedisson starts what the round takes of Java. It reports whether there is what that
// takes on this machine: where not, rounds go on without.
func prepareRedisson(t *testing.T, p *plan) bool {
	t.Helper()
	if !slices.ContainsFunc(p.clients, func(c clientPlan) bool { return c.redisson != "" }) {
		return true
	}
	if jvms[p.redisson] != nil {
		return true
	}
	jvm, err := javadriver.StartRedisson("../../compat_test/java", p.redisson)
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		if os.Getenv("RRL_NO_SKIP") == "1" {
			t.Fatalf("%s (RRL_NO_SKIP=1 forbids to go on without)", missing.Why)
		}
		t.Logf("rounds without Redisson: %s", missing.Why)
		return false
	}
	require.NoError(t, err)
	jvms[p.redisson] = jvm
	return true
}

// javaCrew is callers of a RedissonClient. A call begins here when it is sent to the JVM, and ends with its answer.
type javaCrew struct {
	clientPlan
	party

	r        *round
	jvm      *javadriver.Process
	its      string // the JVM's name for the RedissonClient
	halfOpen bool   // one before was not made, which leaves connections to its JVM
}

func newJavaCrew(r *round, plan clientPlan, to route) *javaCrew {
	w := &javaCrew{clientPlan: plan, r: r, jvm: jvms[plan.redisson], its: fmt.Sprintf("%s-%d", plan.name, r.number)}
	w.held, w.party.callTimeout = map[string]int64{}, plan.callTimeout
	var instead []string
	for _, addr := range sorted(to.Instead) {
		instead = append(instead, addr, to.Instead[addr])
	}
	ctx, cancel := context.WithTimeout(context.Background(), rest)
	defer cancel()
	open := func() (err error) {
		w.id, err = javadriver.Call[string](ctx, w.jvm, "openOn", w.its, to.Servers, to.Master, strings.Join(to.Addrs, ","),
			strings.Join(instead, ","), (plan.callTimeout / 3).Milliseconds(), roundConnection)
		return err
	}
	err := open()
	for err != nil && ctx.Err() == nil { // no fault is on yet, but it waits for connections no longer than for answers
		w.halfOpen, err = true, open()
	}
	require.NoError(r.t, err, "%s: %s", w.name, w.jvm.Stderr())
	r.born(w.id, true)
	return w
}

func (w *javaCrew) work(ctx context.Context) { w.eachCaller(ctx, w.r, w.call) }
func (w *javaCrew) current() string          { return w.id }

// replace leaves the RedissonClient: what Redisson does as it is closed is not of interest here.
func (*javaCrew) replace() (old string, err error) { return "", nil }
func (*javaCrew) kill() (left string)              { return "" }

// leave shuts the RedissonClient down. If that does not end, its connections stay as long as the JVM.
func (w *javaCrew) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), javaPatience)
	defer cancel()
	if _, err := javadriver.Call[string](ctx, w.jvm, "close", w.its); err != nil || w.halfOpen {
		w.jvm.Kill()
		delete(jvms, w.redisson)
	}
	return nil
}

// call makes one call; a Release only if there is something to release.
func (w *javaCrew) call(draw *rand.Rand) {
	shared := slices.DeleteFunc(slices.Clone(w.r.limiters), func(l *limiter) bool { return l.redisson == "" })
	l := shared[draw.IntN(len(shared))]
	c, ok := w.drawCall(draw, []op.Op{try, try, try, wait, available}[draw.IntN(5)], l)
	if !ok {
		return
	}
	c.Redisson = w.redisson
	ends := c.Ends
	if ends == 0 {
		ends = c.Bound + javaPatience // it leaves some without an answer for good
	}
	ctx, cancel := context.WithTimeout(context.Background(), ends)
	defer cancel()
	c.Start = w.r.now()
	what := strings.ToLower(string(c.Name[:1])) + string(c.Name[1:])
	said, err := javadriver.Call[any](ctx, w.jvm, what, append([]any{w.its, l.name}, javaArguments(&c)...)...)
	c.End = w.r.now()
	c.Answer = javaAnswer(&c, said, err)
	w.note(&c)
	w.r.tell(c)
}

func javaArguments(c *call) []any {
	switch {
	case c.Name == op.Available:
		return nil
	case c.Timeout > 0:
		return []any{c.Permits, c.Timeout.Milliseconds()}
	}
	return []any{c.Permits}
}

// javaAnswer classifies what Redisson's call returned. What it throws as it gives up tells nothing about what has been done.
func javaAnswer(c *call, said any, err error) op.Answer {
	thrown, threw := errors.AsType[*javadriver.ThrownError](err)
	message := ""
	if threw {
		// Behind that it quotes the script, which has all messages in it.
		message, _, _ = strings.Cut(thrown.Message, "command: (")
	}
	a := op.Answer{Outcome: op.Unknown, OK: said == true || !c.takes(), Err: err}
	switch {
	case err == nil:
		a.Outcome = op.Done
	case errors.Is(err, context.DeadlineExceeded) && c.Ends > 0:
		a.Outcome = op.Gone
	case errors.Is(err, context.DeadlineExceeded):
	case !threw:
		a.Outcome = op.Killed
	case strings.Contains(message, "not exceed defined rate"):
		a.Outcome = op.Exceeds
	case strings.Contains(message, "is not initialized"):
		a.Outcome = op.Missing
	}
	return a
}
