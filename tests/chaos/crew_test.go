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
	mortal      bool          // they may be killed
	redisson    string        // the release of Redisson that they have instead, in a JVM of its own
}

var redisOptions = map[string]redis.UniversalOptions{
	"defaults":               {},
	"keeps deadlines":        {ContextTimeoutEnabled: true},
	"small pool":             {PoolSize: 2, PoolTimeout: 300 * time.Millisecond},
	"RESP2":                  {Protocol: 2, ReadTimeout: time.Second},
	"small, keeps deadlines": {PoolSize: 3, ContextTimeoutEnabled: true, ReadTimeout: 500 * time.Millisecond},
}

// A worker is one program: who makes its calls, and the proxies that all it sends goes through.
type worker struct {
	clientPlan

	r       *round
	proxies map[string]*redistest.Proxy // by the server's address
	crew    crew
}

// A crew is who makes a worker's calls: callers, and the Clients that they use, one after another.
type crew interface {
	// work makes calls until ctx ends and all are answered.
	work(ctx context.Context)
	// current is the id of the Client that callers use.
	current() string
	// replace closes the Client, once callers have another one.
	replace() (old string, err error)
	// kill ends the program in the middle of its calls, and has another one take over; not all can.
	kill() (left string)
	// leave closes the last Client and all connections. No call may be under way.
	leave() error
}

func newWorker(r *round, plan clientPlan) *worker {
	w := &worker{clientPlan: plan, r: r, proxies: map[string]*redistest.Proxy{}}
	to := r.arena.route
	to.Instead = map[string]string{}
	for _, addr := range r.arena.addrs() {
		w.proxies[addr] = redistest.StartProxy(r.t, addr)
		to.Instead[addr] = w.proxies[addr].Addr()
	}
	if plan.redisson != "" {
		w.crew = newJavaCrew(r, plan, to)
	} else {
		w.crew = newGoCrew(r, plan, to)
	}
	return w
}

type route struct {
	redistest.Route

	Instead map[string]string // where to go in place of a server's address
}

// A network connects a program with the servers. Once it is down it stays so, and for them it is as if the program were
// killed: its connections end, and nothing more comes of what it does.
type network struct {
	route

	mu    sync.Mutex
	conns []net.Conn
	down  bool
}

func (n *network) dial(ctx context.Context, kind, addr string) (net.Conn, error) {
	if proxy := n.Instead[addr]; proxy != "" {
		addr = proxy
	}
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, kind, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	n.conns = append(n.conns, conn)
	return conn, nil
}

func (n *network) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for _, conn := range n.conns {
		_ = conn.Close()
	}
}

func (n *network) connect(opt redis.UniversalOptions) redistest.Client {
	opt.Addrs, opt.MasterName = n.Addrs, n.Master
	opt.ClientName = roundConnection
	opt.Dialer = n.dial
	switch n.Servers {
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

	r       *round
	network *network
	rdb     redistest.Client
	party   atomic.Pointer[party]
	births  int      // parties so far
	dead    []func() // closes what was killed
}

// A party is one Client and what its callers hold.
type party struct {
	id          string
	client      *rratelimiter.Client
	handles     map[string]*handle
	callTimeout time.Duration
	killed      atomic.Bool
	inline      bool // a cancelled context may be noticed with the answer only

	mu       sync.Mutex
	held     map[string]int64
	reserved map[string][]reservation // by the limiter, not settled
}

type reservation struct {
	*rratelimiter.Reservation

	permits int64
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
	c.reserved, c.Permits = all[i].Reservation, all[i].permits
	if c.Name == op.Renew {
		return true
	}
	c.Used = draw.Int64N(2*c.Permits + 2)
	p.reserved[c.Limiters[0]] = slices.Delete(all, i, i+1)
	return true
}

func newGoCrew(r *round, plan clientPlan, to route) *goCrew {
	w := &goCrew{clientPlan: plan, r: r}
	w.connect(to)
	w.next()
	return w
}

func (w *goCrew) connect(to route) {
	w.network = &network{route: to}
	w.rdb = w.network.connect(redisOptions[w.redis])
	if w.r.hook != nil {
		w.rdb.AddHook(w.r.hook)
	}
}

// next makes callers use another Client from now on and returns the previous one.
func (w *goCrew) next() *party {
	w.births++
	p := &party{
		id: fmt.Sprintf("%s.%d", w.name, w.births), callTimeout: w.callTimeout, inline: redisOptions[w.redis].ContextTimeoutEnabled,
		handles: map[string]*handle{}, held: map[string]int64{}, reserved: map[string][]reservation{},
	}
	opts := []rratelimiter.Option{rratelimiter.WithClientID(p.id), rratelimiter.WithCallTimeout(w.callTimeout)}
	if w.r.redisson != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(w.r.redisson))
	}
	p.client = rratelimiter.New(w.rdb, opts...)
	for _, l := range w.r.limiters {
		p.handles[l.name] = l.handle(p.client)
	}
	w.r.born(p.id, false)
	return w.party.Swap(p)
}

func (w *goCrew) current() string { return w.party.Load().id }

func (w *goCrew) replace() (old string, err error) {
	p := w.next()
	return p.id, p.close()
}

// kill ends all that the Client has sent or will send. What its callers hold is theirs for good.
func (w *goCrew) kill() (left string) {
	if !w.mortal || w.r.hook != nil {
		return ""
	}
	p, rdb := w.party.Load(), w.rdb
	p.killed.Store(true)
	w.network.end()
	w.r.died(p.id, w.r.now()-4*w.callTimeout)
	w.dead = append(w.dead, func() { _, _ = p.close(), rdb.Close() })
	w.connect(w.network.route)
	w.next()
	return p.id
}

func (w *goCrew) leave() error {
	for _, bury := range w.dead {
		bury()
	}
	if err := w.party.Load().close(); err != nil {
		return fmt.Errorf("Close of %s: %w", w.current(), err)
	}
	return w.rdb.Close()
}

func (w *goCrew) work(ctx context.Context) { w.eachCaller(ctx, w.r, w.call) }

func (c clientPlan) eachCaller(ctx context.Context, r *round, call func(*rand.Rand)) {
	var callers sync.WaitGroup
	for i := range c.callers {
		draw := r.draw("caller", c.name, i)
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
	l := w.r.limiters[draw.IntN(len(w.r.limiters))]
	p := w.party.Load()
	c, ok := p.drawCall(draw, drawOperation(draw, l), l)
	if !ok {
		return
	}
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
	c.Start = w.r.now()
	c.Answer = c.Do(ctx, h)
	c.End = w.r.now()
	if p.killed.Load() {
		c.Answer = op.Answer{Outcome: op.Killed}
	}
	if c.Name == op.Renew && errors.Is(c.Err, rratelimiter.ErrSettled) { // others may have settled or reset it meanwhile
		c.Outcome = op.Done
	}
	p.note(&c)
	w.r.tell(c)
}

// drawCall draws a call of the party's; false if it would release or settle what no caller holds.
func (p *party) drawCall(draw *rand.Rand, o op.Op, l *limiter) (c call, ok bool) {
	c = drawCall(draw, o, l)
	c.Client = p.id
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
	if c.Name == op.Reserve {
		p.reserved[c.Limiters[0]] = append(p.reserved[c.Limiters[0]], reservation{c.Reserved, c.Permits})
	}
}

// part draws some of the permits that callers hold, for one to give back; it is no longer theirs, whatever the result of the call.
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
	case c.Name == op.Release, c.Name == op.Settle, c.Name == op.Renew:
		b *= 2 // until flights have landed, and the call
	}
	if c.Ends > 0 && (!c.Cancels || !p.inline) {
		b = min(b, c.Ends)
	}
	return b
}

// close closes the Client. What it gives back meanwhile may take several call timeouts, eight at a time.
func (p *party) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), rest)
	defer cancel()
	return p.client.Close(ctx)
}

// rest is how long Clients may take to be closed, and calls after the round is over.
const rest = time.Minute

type call struct {
	op.Op
	op.Answer

	Redisson string        // its release, if the call is one of its own
	Client   string        // one Client; a worker may have several, one after another
	Limiters []string      // more than one: TryAcquireAll
	Ends     time.Duration // after which the context does
	Cancels  bool          // the context is cancelled then; else it has a deadline
	Bound    time.Duration // by which there must be an answer
	Start    time.Duration // since the round's beginning
	End      time.Duration // the same
	Error    string

	reserved *rratelimiter.Reservation // which Settle settles
}

// permitsOf returns how many permits of the limiter the call is about: of TryAcquireAll one more of each further one, of
// TakeUpTo what it took, or one if it was refused. If that is unknown, it may be all.
func (c *call) permitsOf(limiter string) int64 {
	if c.Name == op.UpTo && c.Outcome == op.Done {
		return max(1, c.Taken)
	}
	return c.Permits + int64(max(0, slices.Index(c.Limiters, limiter)))
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

func (c *call) takes() bool                    { return c.Takes() || c.Name == charge }
func (c *call) granted() bool                  { return c.takes() && c.Did() }
func (c *call) refused() bool                  { return c.takes() && c.Outcome == op.Done && !c.OK }
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
	return fmt.Sprintf("%s-%s ms  %s  %s %v%s: %s %s", millis(c.Start), millis(c.End), c.Client, strings.Join(c.Limiters, "+"),
		c.Op, ends, c.result(), c.Error)
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%8.1f", float64(d)/float64(time.Millisecond))
}
