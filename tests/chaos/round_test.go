package chaos_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A round is some seconds in which everything happens at once.
type round struct {
	plan

	t       *testing.T
	tb      testing.TB // for what is done to servers
	broken  atomic.Bool
	arena   arena
	admin   redis.UniversalClient // straight to the servers
	workers []*worker
	began   time.Time
	over    context.Context // ends when the faults and calls are to
	end     func()          // has them end
	pulse   pulse

	mu         sync.Mutex
	calls      []call
	events     []event
	javaIDs    map[string]bool          // those that are RedissonClients
	ids        map[string]bool          // those of all Clients there were
	dead       map[string]time.Duration // Clients whose process was killed: see died
	violations []violation
	orders     []order
	figures    figures // of programs with Redisson, or those that are measured beside them
}

// A violation is something that must not be.
type violation struct {
	check   string
	limiter string // "": all
	client  string // whose permits they are, where each has its own; "": all
	text    string
	at      time.Duration // when it was noticed
}

// run makes the round happen and checks it.
func (p *plan) run(t *testing.T, a arena) *round {
	t.Helper()
	r := &round{plan: *p, t: t, tb: fragile{t}, arena: a, ids: map[string]bool{}, javaIDs: map[string]bool{}, dead: map[string]time.Duration{}}
	r.admin = a.client(t, redis.UniversalOptions{})
	r.setUp()
	r.over, r.end = context.WithCancel(t.Context())
	defer r.end()
	r.began = time.Now()
	for _, plan := range r.clients {
		r.workers = append(r.workers, newWorker(r, plan))
	}
	for _, w := range r.workers {
		w.blow()
	}
	var working, beside sync.WaitGroup
	beside.Go(func() { r.pulse.beat(r.over.Done()) })
	beside.Go(func() { r.happen(false) })
	beside.Go(func() { r.watch() })
	for _, w := range r.workers {
		working.Go(func() { w.crew.work(r.over) })
	}
	time.AfterFunc(p.length, r.end)
	r.happen(true)
	<-r.over.Done()
	r.calmDown(&working, &beside)
	if !r.broken.Load() && !r.told() {
		r.check()
		if r.beside || r.redisson != "" {
			r.figures = r.sumUp(func(c *call) bool { return c.Redisson == r.redisson })
		}
	}
	r.leave()
	return r
}

// setUp gives a rate to the limiters whose handles bring none.
func (r *round) setUp() {
	client := rratelimiter.New(r.admin)
	for _, l := range r.limiters {
		if (l.kind == overall || l.kind == perClient) && !l.byDefault {
			_, err := client.RateLimiter(l.name).TrySetRate(r.t.Context(), l.config)
			require.NoError(r.t, err)
		}
	}
	require.NoError(r.t, client.Close(r.t.Context()))
}

func (r *round) tell(c call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Ends > 0 && c.Answer == gone {
		r.events = append(r.events, event{start: c.Start, end: c.End, kind: contextEnded, text: c.Client})
	}
	r.calls = append(r.calls, c)
}

// begin makes the round a journal; calls under way need no note here.
func (r *round) begin(*call) (end func(call)) { return r.tell }

func (r *round) born(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[id] = true
}

func (r *round) bornJava(id string) {
	r.born(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.javaIDs[id] = true
}

func (r *round) violate(check, limiter, format string, args ...any) {
	r.note(violation{check: check, limiter: limiter, text: fmt.Sprintf(format, args...), at: r.now()})
}

// violatePool is violate of a limiter, in the hands of one Client where each has permits
// of its own.
func (r *round) violatePool(p *pool, check, format string, args ...any) {
	r.note(violation{check, p.name, p.id, fmt.Sprintf("%v: ", p) + fmt.Sprintf(format, args...), r.now()})
}

func (r *round) note(v violation) {
	r.mu.Lock()
	r.violations = append(r.violations, v)
	r.mu.Unlock()
	if r.told() {
		r.end()
	}
}

// told tells whether the round has shown what it is for: a fault of ours.
func (r *round) told() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hook != nil && len(r.violations) > 0
}

// calmDown ends all faults and waits for all calls, then closes the Clients. What they
// still give back is given back then.
func (r *round) calmDown(working, beside *sync.WaitGroup) {
	for _, w := range r.workers {
		w.clear()
	}
	beside.Wait()
	r.onServers(r.inOrder)
	answered := make(chan struct{})
	go func() {
		working.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(rest):
		stacks := make([]byte, 1<<20)
		r.t.Fatalf("%s\ncalls are not answered:\n%s", r.repeat(), stacks[:runtime.Stack(stacks, true)])
	}
	for _, w := range r.workers {
		for _, proxy := range w.proxies {
			proxy.Settle(r.t)
		}
		r.replace(w)
		if err := w.crew.leave(); err != nil {
			r.violate("closed", "", "%s: %v", w.name, err)
		}
	}
}

// leave closes what is the round's and sees that nothing of it stays.
func (r *round) leave() {
	if r.broken.Load() {
		r.violations = nil
		return
	}
	r.checkConnections()
	r.onServers(func() { // a Sentinel may change its mind even now
		for _, s := range r.arena.masters(r.tb) {
			require.NoError(r.tb, s.Client(r.tb, nil).FlushAll(r.t.Context()).Err())
		}
	})
	if clock, ok := r.arena.(*singleArena); ok {
		clock.set(r.t, 0)
	}
}

// repeat is the command that makes the round happen again.
func (r *round) repeat() string {
	test := "TestChaos"
	if r.beside {
		test = "TestBesideRedisson -minutes 1"
	}
	command := fmt.Sprintf("go test -v ./tests/chaos -run %s -seed %d -round %d", test, r.seed, r.number)
	if *onlyArena != "" {
		command += " -arena " + *onlyArena // another choice of servers is another draw
	}
	return fmt.Sprintf("%s -redisson=%s%s", command, strings.Join(r.releases, ","), r.reduced)
}

// record adds what happened to the tables of results, if it was checked.
func (r *round) record() {
	if r.broken.Load() {
		return
	}
	redistest.Record(r.t, "chaos-rounds", r.seed, r.number, r.servers, r.mood, len(r.calls), len(r.events), len(r.violations))
	all := summary{}
	for _, e := range r.events {
		all.count("chaos-faults", e.kind)
	}
	for i := range r.calls {
		c := &r.calls[i]
		all.count("chaos-calls", fmt.Sprintf("%s\t%s\t%s", r.limiter(c.Limiters[0]).kind, c.name(), c.Answer))
	}
	for table, whats := range all {
		for _, what := range sorted(whats) {
			redistest.Record(r.t, table, r.seed, r.number, r.servers, what, whats[what])
		}
	}
	for _, o := range r.orders {
		redistest.Record(r.t, "chaos-orders", r.seed, r.number, r.servers, r.mood, o.kind, o.calls, o.ordered, o.found())
	}
	r.recordRedisson()
}

// limiter returns the limiter of that name, or nil.
func (r *round) limiter(name string) *limiter {
	for _, l := range r.limiters {
		if l.name == name {
			return l
		}
	}
	return nil
}

func TestARoundIsRecordedByItsServers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("RRL_RESULTS", dir)
	r := &round{plan: *newPlan(7, 3, []string{cluster}), t: t, tb: fragile{t}}
	r.calls = []call{{Op: opTake, Limiters: []string{r.limiters[0].name}, Answer: granted}}
	r.events = []event{{kind: "slot moved"}, {kind: "slot moved"}}
	r.orders = []order{{kind: overall, result: porcupine.Ok, calls: 9, ordered: 9}}
	r.record()
	for table, want := range map[string]string{
		"chaos-rounds": "7\t3\tcluster\t" + string(r.mood) + "\t1\t2\t0\n",
		"chaos-faults": "7\t3\tcluster\tslot moved\t2\n",
		"chaos-orders": "7\t3\tcluster\t" + string(r.mood) + "\toverall\t9\t9\twhole\n",
		"chaos-calls":  "7\t3\tcluster\t" + string(r.limiters[0].kind) + "\tTake\tgranted\t1\n",
	} {
		text, err := os.ReadFile(filepath.Join(dir, table+".tsv"))
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
}
