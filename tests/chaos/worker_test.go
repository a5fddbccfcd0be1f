package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A worker makes calls and tells of each. Those of this file are Clients of this
// process; another process is one if it writes its calls as lines of JSON.
type worker interface {
	// work makes calls until ctx ends and all are answered.
	work(ctx context.Context, tell func(call))
}

// clientPlan is how a Go Client reaches the servers, and who uses it.
type clientPlan struct {
	name        string
	redis       string // one of redisOptions
	callTimeout time.Duration
	callers     int
	pause       time.Duration // a caller's, between calls, at most
}

// redisOptions are the go-redis configurations that Clients have.
var redisOptions = map[string]redis.UniversalOptions{
	"defaults":               {},
	"keeps deadlines":        {ContextTimeoutEnabled: true},
	"small pool":             {PoolSize: 2, PoolTimeout: 300 * time.Millisecond},
	"RESP2":                  {Protocol: 2, ReadTimeout: time.Second},
	"small, keeps deadlines": {PoolSize: 3, ContextTimeoutEnabled: true, ReadTimeout: 500 * time.Millisecond},
}

// goWorker is one go-redis client behind proxies of its own, and a Client on it that
// may be closed and replaced.
type goWorker struct {
	clientPlan

	r       *round
	rdb     redis.UniversalClient
	proxies map[string]*redistest.Proxy // by the server's address
	party   atomic.Pointer[party]
	born    int         // parties so far
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

	mu   sync.Mutex
	held map[string]int64
}

func newGoWorker(r *round, plan clientPlan) *goWorker {
	w := &goWorker{clientPlan: plan, r: r, proxies: map[string]*redistest.Proxy{}}
	for _, addr := range r.arena.addrs() {
		w.proxies[addr] = redistest.StartProxy(r.t, addr)
	}
	opt := redisOptions[plan.redis]
	opt.ClientName = roundConnection
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if proxy := w.proxies[addr]; proxy != nil {
			addr = proxy.Addr()
		}
		dialer := net.Dialer{Timeout: 5 * time.Second}
		return dialer.DialContext(ctx, network, addr)
	}
	w.rdb = r.arena.client(r.t, opt)
	if r.hook != nil {
		w.rdb.AddHook(r.hook(w))
	}
	w.replace()
	return w
}

// replace has callers use another Client from now on and returns the one before.
func (w *goWorker) replace() *party {
	w.born++
	p := &party{
		id:          fmt.Sprintf("%s.%d", w.name, w.born),
		handles:     map[string]*handle{},
		callTimeout: w.callTimeout,
		closing:     &w.closing,
		inline:      redisOptions[w.redis].ContextTimeoutEnabled,
		held:        map[string]int64{},
	}
	p.client = rratelimiter.New(w.rdb, rratelimiter.WithClientID(p.id), rratelimiter.WithCallTimeout(w.callTimeout))
	for _, l := range w.r.limiters {
		p.handles[l.name] = l.handle(p.client, w.rdb, w.callTimeout)
	}
	w.r.born(p.id)
	return w.party.Swap(p)
}

func (w *goWorker) work(ctx context.Context, tell func(call)) {
	var callers sync.WaitGroup
	for i := range w.callers {
		draw := w.r.draw("caller", w.name, i)
		callers.Go(func() {
			for ctx.Err() == nil {
				if c, made := w.call(draw); made {
					tell(c)
				}
				time.Sleep(time.Duration(draw.Int64N(int64(w.pause))))
			}
		})
	}
	callers.Wait()
}

// call makes one call, if there is something to be released where it is a Release.
func (w *goWorker) call(draw *rand.Rand) (c call, made bool) {
	l := w.r.limiters[draw.IntN(len(w.r.limiters))]
	op := drawOperation(draw, l)
	c = drawCall(draw, op, l)
	p := w.party.Load()
	c.Worker, c.Client = w.name, p.id
	if op.name == opRelease {
		if c.Permits = p.part(l.name, draw); c.Permits == 0 {
			return c, false
		}
	}
	c.Bound = p.bound(&c)
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
	c.Start = time.Since(w.r.began)
	ok, err := op.do(ctx, p, p.handles[l.name], &c)
	c.End = time.Since(w.r.began)
	if c.Answer = answerOf(err, ok); err != nil {
		c.Error = err.Error()
	}
	if c.Answer == granted {
		p.hold(c.Limiters, c.Permits)
	}
	return c, true
}

func (p *party) hold(limiters []string, permits int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range limiters {
		p.held[name] += permits
	}
}

// part draws some of the permits that callers hold, for one to give back; it is theirs
// no longer, whatever comes of the call.
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
	case c.Op == opAcquire:
		b = c.Ends + p.callTimeout
	case c.Timeout > 0:
		b = c.Timeout + underWay
	case c.Op == opRelease, c.Op == opRename:
		b *= 2 // until flights have landed, and the call
	case c.Op == opMigrate:
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
const rest = 20 * time.Second
