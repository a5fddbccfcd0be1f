package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// clientPlan is how a worker's Clients reach the servers, and who uses them.
type clientPlan struct {
	name        string
	redis       string // one of redisOptions
	callTimeout time.Duration
	callers     int
	pause       time.Duration // a caller's, between calls, at most
	process     bool          // they are in a process of their own, which may be killed
	redisson    string        // the release of Redisson that it has instead, in a JVM of its own
}

// redisOptions are the go-redis configurations that Clients have.
var redisOptions = map[string]redis.UniversalOptions{
	"defaults":               {},
	"keeps deadlines":        {ContextTimeoutEnabled: true},
	"small pool":             {PoolSize: 2, PoolTimeout: 300 * time.Millisecond},
	"RESP2":                  {Protocol: 2, ReadTimeout: time.Second},
	"small, keeps deadlines": {PoolSize: 3, ContextTimeoutEnabled: true, ReadTimeout: 500 * time.Millisecond},
}

// A worker is one program: who makes its calls, and the proxies that all it sends goes
// through. The proxies, and what they do to it, are the round's own; who makes the calls
// may be elsewhere.
type worker struct {
	clientPlan

	r       *round
	proxies map[string]*redistest.Proxy // by the server's address
	crew    crew
}

// A crew is who makes a worker's calls: callers, and the Clients that they use, one
// after another.
type crew interface {
	// work makes calls until ctx ends and all are answered.
	work(ctx context.Context)
	// current is the id of the Client that callers use.
	current() string
	// replace closes the Client, once callers have another one.
	replace() (old string, err error)
	// leave closes the last Client and all connections. No call may be under way.
	leave() error
}

// A journal is the file in which a crew writes down what it does.
type journal interface {
	// born notes a Client before its first call.
	born(id string)
	// begin notes a call that is about to be made; call end with its answer.
	begin(c *call) (end func(c call))
}

func newWorker(r *round, plan clientPlan) *worker {
	w := &worker{clientPlan: plan, r: r, proxies: map[string]*redistest.Proxy{}}
	to := r.arena.route
	to.Instead = map[string]string{}
	for _, addr := range r.arena.addrs() {
		w.proxies[addr] = redistest.StartProxy(r.t, addr)
		to.Instead[addr] = w.proxies[addr].Addr()
	}
	switch {
	case plan.redisson != "":
		w.crew = newJavaCrew(r, plan, to)
	case plan.process && r.hook == nil:
		w.crew = newProcessCrew(r, plan, to)
	default:
		w.crew = newGoCrew(&r.plan, plan, "", to, r.began, r)
	}
	return w
}

// A route is how the servers are reached.
type route struct {
	Servers string            `json:"servers"`          // which arena
	Addrs   []string          `json:"addrs"`            // that a client gets: the Sentinels', if there are any
	Master  string            `json:"master,omitempty"` // the name that Sentinels have for the master
	Instead map[string]string `json:"instead"`          // where to go in place of a server's address
}

// connect returns a client of the options.
func (to route) connect(opt redis.UniversalOptions) redistest.Client {
	opt.Addrs, opt.MasterName = to.Addrs, to.Master
	opt.ClientName = roundConnection
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if proxy := to.Instead[addr]; proxy != "" {
			addr = proxy
		}
		dialer := net.Dialer{Timeout: 5 * time.Second}
		return dialer.DialContext(ctx, network, addr)
	}
	switch to.Servers {
	case cluster:
		return redis.NewClusterClient(opt.Cluster())
	case sentinel:
		return redis.NewFailoverClient(opt.Failover())
	}
	return redis.NewClient(opt.Simple())
}

// goCrew is one go-redis client, and a Client on it that may be closed and replaced.
type goCrew struct {
	clientPlan

	plan    *plan
	life    string // which of the worker's processes this is; empty in the test's own
	began   time.Time
	journal journal
	rdb     redistest.Client
	party   atomic.Pointer[party]
	births  int         // parties so far
	closing atomic.Bool // one of them is being closed
}

// A party is one Client and what its callers hold.
type party struct {
	id          string
	client      *rratelimiter.Client
	handles     map[string]*handle
	callTimeout time.Duration
	closing     *atomic.Bool
	inline      bool // a cancelled context may be noticed with the answer only

	mu       sync.Mutex
	held     map[string]int64
	reserved map[string][]reservation // by the limiter, not settled
	births   int                      // of reservations
}

// A reservation is one that callers hold.
type reservation struct {
	*rratelimiter.Reservation

	name    string // of it alone
	permits int64
}

// reserve keeps a reservation until it is settled, and returns its name.
func (p *party) reserve(limiter string, permits int64, r *rratelimiter.Reservation) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.births++
	name := fmt.Sprint(p.id, "#", p.births)
	p.reserved[limiter] = append(p.reserved[limiter], reservation{r, name, permits})
	return name
}

// toSettle has the call settle one of the reservations, if there is one, or renew it.
func (p *party) toSettle(c *call, draw *rand.Rand) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.reserved[c.Limiters[0]]
	if len(all) == 0 {
		return false
	}
	i := draw.IntN(len(all))
	c.reserved, c.Reservation, c.Permits = all[i].Reservation, all[i].name, all[i].permits
	if c.Name == op.Renew {
		return true
	}
	c.Used = draw.Int64N(2*c.Permits + 2)
	p.reserved[c.Limiters[0]] = slices.Delete(all, i, i+1)
	return true
}

func newGoCrew(p *plan, who clientPlan, life string, to route, began time.Time, j journal) *goCrew {
	w := &goCrew{clientPlan: who, plan: p, life: life, began: began, journal: j, rdb: to.connect(redisOptions[who.redis])}
	if p.hook != nil {
		w.rdb.AddHook(p.hook(w))
	}
	w.next()
	return w
}

// next makes callers use another Client from now on and returns the previous one.
func (w *goCrew) next() *party {
	w.births++
	p := &party{
		id:          fmt.Sprintf("%s%s.%d", w.name, w.life, w.births),
		handles:     map[string]*handle{},
		callTimeout: w.callTimeout,
		closing:     &w.closing,
		inline:      redisOptions[w.redis].ContextTimeoutEnabled,
		held:        map[string]int64{},
		reserved:    map[string][]reservation{},
	}
	opts := []rratelimiter.Option{rratelimiter.WithClientID(p.id), rratelimiter.WithCallTimeout(w.callTimeout)}
	if w.plan.redisson != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(w.plan.redisson))
	}
	p.client = rratelimiter.New(w.rdb, opts...)
	for _, l := range w.plan.limiters {
		p.handles[l.name] = l.handle(p.client)
	}
	w.journal.born(p.id)
	return w.party.Swap(p)
}

func (w *goCrew) current() string { return w.party.Load().id }

func (w *goCrew) replace() (old string, err error) {
	p := w.next()
	return p.id, p.close()
}

func (w *goCrew) leave() error {
	if err := w.party.Load().close(); err != nil {
		return fmt.Errorf("Close of %s: %w", w.current(), err)
	}
	return w.rdb.Close()
}

func (w *goCrew) work(ctx context.Context) {
	w.eachCaller(ctx, func(i int) *rand.Rand { return w.plan.draw("caller", w.name+w.life, i) }, w.call)
}

// eachCaller makes all callers make calls until ctx ends.
func (c clientPlan) eachCaller(ctx context.Context, drawOf func(i int) *rand.Rand, call func(*rand.Rand)) {
	var callers sync.WaitGroup
	for i := range c.callers {
		draw := drawOf(i)
		callers.Go(func() {
			for ctx.Err() == nil {
				call(draw)
				time.Sleep(time.Duration(draw.Int64N(int64(c.pause))))
			}
		})
	}
	callers.Wait()
}

// call makes one call; a Release only if there is something to release.
func (w *goCrew) call(draw *rand.Rand) {
	l := w.plan.limiters[draw.IntN(len(w.plan.limiters))]
	o := w.plan.drawOperation(draw, l)
	p := w.party.Load()
	c, ok := p.drawCall(draw, o, l, w.name)
	if !ok {
		return
	}
	c.Start = time.Since(w.began)
	end := w.journal.begin(&c)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch {
	case c.Ends > 0 && c.Cancels:
		defer time.AfterFunc(c.Ends, cancel).Stop()
	case c.Ends > 0:
		var stop func()
		ctx, stop = context.WithTimeout(ctx, c.Ends)
		defer stop()
	}
	h := p.handles[l.name].Handle
	h.Reserved = c.reserved
	if c.Name == op.All {
		for _, name := range c.Limiters {
			h.Claims = append(h.Claims, p.handles[name].Claim(c.permitsOf(name)))
		}
	}
	c.Start = time.Since(w.began)
	c.Answer = c.Do(ctx, h)
	c.End = time.Since(w.began)
	if c.Name == op.Renew && errors.Is(c.Err, rratelimiter.ErrSettled) { // others may have settled or reset it meanwhile
		c.Outcome = op.Done
	}
	if c.Name == op.Reserve && c.granted() {
		c.Reservation = p.reserve(l.name, c.Permits, c.Reserved)
	}
	p.note(&c)
	end(c)
}

// drawCall draws a call of the party's; false if it would release or settle what no caller holds.
func (p *party) drawCall(draw *rand.Rand, o op.Op, l *limiter, worker string) (c call, ok bool) {
	c = drawCall(draw, o, l)
	c.Worker, c.Client = worker, p.id
	if c.Name == op.Release {
		if c.Permits = p.part(l.name, draw); c.Permits == 0 {
			return c, false
		}
	}
	if (c.Name == op.Settle || c.Name == op.Renew) && !p.toSettle(&c, draw) {
		return c, false
	}
	c.Bound = p.bound(&c)
	return c, true
}

// note writes down the result of a call, and what callers hold by it.
func (p *party) note(c *call) {
	if c.Err != nil {
		c.Error = c.Err.Error()
	}
	if !c.granted() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range c.Limiters {
		p.held[name] += c.permitsOf(name)
	}
}

// part draws some of the permits that callers hold, for one to give back; it is no longer
// theirs, whatever the result of the call.
func (p *party) part(name string, draw *rand.Rand) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[name] == 0 {
		return 0
	}
	n := 1 + draw.Int64N(p.held[name])
	p.held[name] -= n
	return n
}

// bound is by when the call must be answered, as the docs of the calls say.
func (p *party) bound(c *call) time.Duration {
	const underWay = 100 * time.Millisecond // that a question is waited for when its time is over
	b := p.callTimeout
	switch {
	case c.Name == op.Acquire:
		b = c.Ends + p.callTimeout
	case c.Timeout > 0:
		b = c.Timeout + underWay
	case c.Name == op.Release, c.Name == op.Settle, c.Name == op.Renew, c.Name == op.Rename:
		b *= 2 // until flights have landed, and the call
	case c.Name == op.Migrate:
		b *= 4 // the same, two pages
	}
	if c.Ends > 0 && (!c.Cancels || !p.inline) {
		b = min(b, c.Ends)
	}
	return b
}

// close closes the Client. What it gives back meanwhile may take several call timeouts,
// eight at a time.
func (p *party) close() error {
	p.closing.Store(true)
	defer p.closing.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), rest)
	defer cancel()
	return p.client.Close(ctx)
}

// rest is how long Clients may take to be closed, and calls after the round is over.
const rest = time.Minute

// A call is one call of a limiter, and its answer. Those who make calls record them in this form,
// in this process or, a line of JSON each, in another one.
type call struct {
	op.Op
	op.Answer

	Worker   string        `json:"worker"`
	Redisson string        `json:"redisson,omitempty"` // its release, if the call is one of its own
	Client   string        `json:"client"`             // one Client; a worker may have several, one after another
	Limiters []string      `json:"limiters"`           // more than one: TryAcquireAll
	Ends     time.Duration `json:"ends,omitempty"`     // after which the context does
	Cancels  bool          `json:"cancels,omitempty"`  // the context is cancelled then; else it has a deadline
	Bound    time.Duration `json:"bound"`              // by which there must be an answer
	Start    time.Duration `json:"start"`              // since the round's beginning
	End      time.Duration `json:"end"`                // the same
	Error    string        `json:"error,omitempty"`

	Reservation string                    `json:"reservation,omitempty"` // that Reserve has made or Settle settles
	reserved    *rratelimiter.Reservation // by Settle
}

// asks returns for how many permits of the limiter the call asks: TryAcquireAll for one more of each further one.
func (c *call) asks(limiter string) int64 {
	return c.Permits + int64(max(0, slices.Index(c.Limiters, limiter)))
}

// permitsOf returns how many permits of the limiter the call is about: of TakeUpTo what it took, or one if it was
// refused. If that is unknown, it may be all.
func (c *call) permitsOf(limiter string) int64 {
	if c.Name == op.UpTo && c.Outcome == op.Done {
		return max(1, c.Taken)
	}
	return c.asks(limiter)
}

// counted returns the call as one that takes or gives back permits of the limiter: what Settle does is a release,
// or a grant that no one asks for.
func (c *call) counted(limiter string) *call {
	counted := *c
	counted.Permits = c.permitsOf(limiter)
	if c.Name == op.Settle {
		counted.Name, counted.Permits = op.Release, c.Permits-c.Used
	}
	if counted.Permits < 0 {
		counted.Name, counted.Permits = charge, -counted.Permits
	}
	return &counted
}

// charge is a Settle's charge beyond the reservation.
const charge op.Name = "charge"

// takes reports whether the call asks for permits.
func (c *call) takes() bool { return c.Takes() || c.Name == charge }

func (c *call) granted() bool { return c.takes() && c.Did() }

func (c *call) refused() bool { return c.takes() && c.Outcome == op.Done && !c.OK }

// of reports whether the call's outcome is one of those.
func (c *call) of(outcomes ...op.Outcome) bool { return slices.Contains(outcomes, c.Outcome) }

// result is the outcome in records.
func (c *call) result() string {
	switch {
	case c.granted():
		return "granted"
	case c.refused():
		return "refused"
	}
	return string(c.Outcome)
}

// title is the call's name in records.
func (c *call) title() string {
	if c.Redisson != "" {
		return c.Title() + ", of Redisson"
	}
	return c.Title()
}

func (c *call) String() string {
	ends := ""
	if c.Ends > 0 {
		ends = fmt.Sprintf(", deadline %v", c.Ends)
	}
	if c.Cancels {
		ends = fmt.Sprintf(", cancelled after %v", c.Ends)
	}
	text := fmt.Sprintf("%s-%s ms  %s  %s %v%s: %s", millis(c.Start), millis(c.End), c.Client, strings.Join(c.Limiters, "+"),
		c.Op, ends, c.result())
	for _, more := range []string{c.Reservation, c.Error} {
		if more != "" {
			text += "  [" + more + "]"
		}
	}
	return text
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%8.1f", float64(d)/float64(time.Millisecond))
}
