package chaos_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A round is some seconds in which everything happens at once.
type round struct {
	plan

	t       *testing.T
	tb      testing.TB // for actions on servers
	broken  atomic.Bool
	arena   *arena
	admin   redistest.Client // straight to the servers
	workers []*worker
	began   time.Time
	over    context.Context // ends when the faults and calls must
	end     func()          // ends them
	pulse   pulse

	mu         sync.Mutex
	calls      []call
	events     []event
	ids        map[string]bool          // of all Clients there were; those of RedissonClients are true
	dead       map[string]time.Duration // Clients that were killed: see died
	violations []violation
}

type violation struct {
	check   string
	limiter string // "": all
	client  string // whose permits they are, if each has its own; "": all
	text    string
	at      time.Duration // when it was noticed
}

// A plan describes a round, all of it drawn from the seed and its number.
type plan struct {
	seed     uint64
	number   int
	releases []string // of Redisson that it may have
	servers  string   // which it is on
	redisson string   // the release of the programs that take part; empty if none do
	mood     mood
	length   time.Duration
	limiters []*limiter
	clients  []clientPlan
	weather  []*weather    // what becomes of single commands
	stormy   float64       // how many of them
	faults   []*fault      // of servers and clients
	pause    time.Duration // between faults, at most
	hook     redis.Hook    // of all clients: a fault of ours
}

func (p *plan) run(t *testing.T, a *arena) *round {
	t.Helper()
	r := &round{plan: *p, t: t, tb: fragile{t}, arena: a, ids: map[string]bool{}, dead: map[string]time.Duration{}}
	r.admin = a.client(t, &redistest.Options{ReadTimeout: 5 * time.Second}) // faults hang servers
	r.setUp(a.client(t, nil))
	r.over, r.end = context.WithCancel(t.Context())
	defer r.end()
	r.began = time.Now()
	for _, plan := range r.clients {
		r.workers = append(r.workers, newWorker(r, plan))
	}
	for _, w := range r.workers {
		w.blow()
	}
	answered := make(chan struct{})
	defer close(answered)
	go r.pulse.beat(answered) // for as long as calls wait, also after the round
	var working, beside sync.WaitGroup
	beside.Go(func() { r.happen(false) })
	beside.Go(func() { r.watch() })
	for _, w := range r.workers {
		working.Go(func() { w.crew.work(r.over) })
	}
	time.AfterFunc(p.length, r.end)
	r.happen(true)
	<-r.over.Done()
	r.calmDown(&working, &beside)
	if !r.broken.Load() && !r.shown() {
		r.check()
	}
	r.leave()
	return r
}

// setUp gives a rate to the limiters whose handles bring none.
func (r *round) setUp(rdb redistest.Client) {
	client := rratelimiter.New(rdb, rratelimiter.WithCallTimeout(time.Minute))
	for _, l := range r.limiters {
		if (l.kind == overall || l.kind == perClient) && !l.byDefault {
			limitertest.MustTrySetRate(r.t, client.RateLimiter(l.name), l.config)
		}
	}
	require.NoError(r.t, client.Close(r.t.Context()))
}

func (r *round) tell(c call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Ends > 0 && c.Outcome == op.Gone {
		r.events = append(r.events, event{start: c.Start, end: c.End, kind: contextEnded, text: c.Client})
	}
	r.calls = append(r.calls, c)
}

func (r *round) born(id string, java bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[id] = java
}

func (r *round) violate(check, limiter, format string, args ...any) {
	r.note(violation{check: check, limiter: limiter, text: fmt.Sprintf(format, args...), at: r.now()})
}

// violatePool is violate for a limiter, or one Client's part if each has permits of its own.
func (r *round) violatePool(p *pool, check, format string, args ...any) {
	r.note(violation{check, p.name, p.id, fmt.Sprintf("%v: ", p) + fmt.Sprintf(format, args...), r.now()})
}

func (r *round) note(v violation) {
	r.mu.Lock()
	r.violations = append(r.violations, v)
	r.mu.Unlock()
	if r.shown() {
		r.end()
	}
}

// shown reports whether the round has shown a fault of ours, which is its aim.
func (r *round) shown() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hook != nil && len(r.violations) > 0
}

// calmDown ends all faults and waits for all calls, then closes the Clients. What they still give back is given back then.
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
	if r.arena.single != nil {
		r.arena.set(r.t, 0)
	}
}

// repeat is the command that makes the round happen again.
func (r *round) repeat() string {
	command := fmt.Sprintf("go test -v ./tests/chaos -run TestChaos -seed %d -round %d", r.seed, r.number)
	if *onlyArena != "" {
		command += " -arena " + *onlyArena // another choice of servers is another draw
	}
	return fmt.Sprintf("%s -redisson=%s", command, strings.Join(r.releases, ","))
}

// record adds what happened to the tables of results, if it was checked.
func (r *round) record() {
	if r.broken.Load() {
		return
	}
	redistest.Record(r.t, "chaos-rounds", r.seed, r.number, r.servers, r.mood, len(r.calls), len(r.events), len(r.violations))
	r.t.Logf("%d calls, %d faults", len(r.calls), len(r.events))
	happened := map[[2]string]int{}
	for _, e := range r.events {
		happened[[2]string{"chaos-faults", e.kind}]++
	}
	for i := range r.calls {
		c := &r.calls[i]
		happened[[2]string{"chaos-calls", fmt.Sprintf("%s\t%s\t%s", r.limiter(c.Limiters[0]).kind, c.title(), c.result())}]++
	}
	for what, n := range happened {
		redistest.Record(r.t, what[0], r.seed, r.number, r.servers, what[1], n)
	}
}

func (r *round) limiter(name string) *limiter {
	for _, l := range r.limiters {
		if l.name == name {
			return l
		}
	}
	return nil
}

// mood is what a round's faults may do, and so how much can be checked.
type mood string

const (
	gentle   mood = "gentle"   // nothing is lost and little late: all is exact
	dropping mood = "dropping" // requests and answers get lost, and are repeated in time
	lossy    mood = "lossy"    // calls get lost, but no data
	losing   mood = "losing"   // data gets lost
	stepping mood = "stepping" // calls get lost, and the server's clock is set
)

// draw returns the draw of one part of a round.
func (p *plan) draw(of ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, p.number, of)
	return rand.New(rand.NewPCG(p.seed, h.Sum64()))
}

func newPlan(seed uint64, number int, arenas []string) *plan {
	p := &plan{seed: seed, number: number}
	draw := p.draw("plan")
	p.servers = arenas[draw.IntN(len(arenas))]
	moods := []mood{gentle, gentle, dropping, dropping, lossy, lossy, lossy, losing, losing}
	switch p.servers {
	case single:
		moods = append(moods, stepping, stepping)
	case cluster: // slots move in both, and servers change places
		moods = append(moods, lossy, lossy, losing, losing, losing, losing, losing)
	case sentinel: // masters are replaced in it alone
		moods = append(moods, slices.Repeat([]mood{losing}, 9)...)
	}
	p.mood = moods[draw.IntN(len(moods))]
	p.length = time.Duration(1500+draw.IntN(2000)) * time.Millisecond
	if p.servers == sentinel && p.mood == losing {
		p.length *= 2 // Sentinels take some seconds to replace a master
	}
	p.drawLimiters(draw)
	for i := range 2 + draw.IntN(3) {
		c := drawClient(draw, fmt.Sprintf("c%d", i+1))
		if p.mood == dropping {
			c.callTimeout += time.Second // for several attempts
		}
		c.mortal = draw.IntN(4) == 0
		p.clients = append(p.clients, c)
	}
	p.drawFaults(draw)
	return p
}

// allows reports whether a fault from that mood on may happen in this one.
func (m mood) allows(from mood) bool {
	worse := []mood{gentle, dropping, lossy}
	first, own := slices.Index(worse, from), slices.Index(worse, m)
	return m == from || first >= 0 && (own < 0 || own > first)
}

func drawClient(draw *rand.Rand, name string) clientPlan {
	kinds := sorted(redisOptions)
	return clientPlan{
		name: name, redis: kinds[draw.IntN(len(kinds))], callTimeout: time.Duration(300+draw.IntN(900)) * time.Millisecond,
		callers: 2 + draw.IntN(5), pause: time.Duration([]int{1, 5, 15}[draw.IntN(3)]) * time.Millisecond,
	}
}

// drawLimiters draws some limiters of several kinds. Braces keep the keys of each, and those of a family, in one slot.
func (p *plan) drawLimiters(draw *rand.Rand) {
	for i := range 3 + draw.IntN(3) {
		name := fmt.Sprintf("{r%d:%d}", p.number, i)
		switch draw.IntN(10) {
		case 0, 1, 2:
			p.limiters = append(p.limiters, drawRate(draw, name, overall))
		case 3:
			p.limiters = append(p.limiters, drawRate(draw, name, perClient))
		case 4, 5:
			p.limiters = append(p.limiters, drawFamily(draw, name)...)
		case 6:
			l := drawLimiter(draw, name+"keyed:a", keyed)
			l.prefix, l.config.KeepAlive, l.reserves = name+"keyed:", l.config.Interval, true
			if draw.IntN(2) == 0 {
				l.drawLease(draw)
				l.refusals = draw.IntN(2) == 0
			}
			p.limiters = append(p.limiters, l)
		case 7:
			p.limiters = append(p.limiters, drawLimiter(draw, name, window))
		case 8:
			l := drawLimiter(draw, name, log)
			if draw.IntN(2) == 0 {
				l.threshold = fmt.Sprintf("thresholds:{r%d}", p.number)
			}
			p.limiters = append(p.limiters, l)
		case 9:
			l := drawLimiter(draw, name, bucket)
			l.refill, l.borrow = 1+draw.Int64N(l.config.Rate), draw.Int64N(3)
			l.config.Interval = max(l.config.Interval, time.Second).Truncate(time.Second)
			p.limiters = append(p.limiters, l)
		}
	}
	for _, l := range p.limiters {
		// A lease goes on after another Client's Reset, of permits that are free again.
		l.resets, l.exact = draw.IntN(4) == 0 && l.lease == 0, draw.IntN(2) == 0
		l.overrides = draw.IntN(3) == 0
	}
}

func drawLimiter(draw *rand.Rand, name string, k kind) *limiter {
	l := &limiter{name: name, kind: k}
	l.config = rratelimiter.PerHour(5 + draw.Int64N(100))
	if draw.IntN(2) > 0 {
		l.config.Interval = time.Duration(300+draw.IntN(1200)) * time.Millisecond
		l.config.Rate = 3 + draw.Int64N(40)
	}
	return l
}

func (l *limiter) drawLease(draw *rand.Rand) {
	l.lease = l.config.Interval / 20
	if l.counted() {
		l.lease = time.Duration(50+draw.IntN(2000)) * time.Millisecond
	}
	l.config.Rate *= 40 // a lease is a small part of the free permits
}

func drawRate(draw *rand.Rand, name string, k kind) *limiter {
	l := drawLimiter(draw, name, k)
	if k == perClient {
		l.config.Type = rratelimiter.PerClient
	}
	l.byDefault = draw.IntN(2) == 0
	switch draw.IntN(8) {
	case 0, 1:
		l.drawLease(draw)
	case 2:
		l.refusals = true
	case 3, 4:
		l.reserves = true
	case 5:
		l.config.KeepAlive = l.config.Interval + time.Duration(draw.IntN(500))*time.Millisecond
	}
	return l
}

func drawFamily(draw *rand.Rand, name string) []*limiter {
	var all []*limiter
	var names []string
	for i := range 2 + draw.IntN(2) {
		l := drawLimiter(draw, fmt.Sprintf("%s%d", name, i), overall)
		l.byDefault = draw.IntN(2) == 0
		all, names = append(all, l), append(names, l.name)
	}
	for i, l := range all {
		l.family = slices.Concat([]string{l.name}, names[:i], names[i+1:])
	}
	return all
}

// drawFaults draws which faults there may be, of those that the mood and the servers allow.
func (p *plan) drawFaults(draw *rand.Rand) {
	for _, w := range weathers {
		if p.mood.allows(w.mood) && draw.IntN(2) == 0 {
			p.weather = append(p.weather, w)
		}
	}
	p.stormy = []float64{0.01, 0.03, 0.1}[draw.IntN(3)]
	for _, f := range faults {
		if f.allowed(p) && (draw.IntN(2) == 0 || f.mood == p.mood || slices.Contains(topologyFaults, f)) {
			p.faults = append(p.faults, f)
		}
	}
	p.pause = time.Duration(50+draw.IntN(400)) * time.Millisecond
}
