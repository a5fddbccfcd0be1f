package chaos_test

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

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

// A journal is where a crew writes down what it does.
type journal interface {
	// born notes a Client before its first call.
	born(id string)
	// begin notes a call that is about to be made; end is to be called with its answer.
	begin(c *call) (end func(c call))
}

func newWorker(r *round, plan clientPlan) *worker {
	w := &worker{clientPlan: plan, r: r, proxies: map[string]*redistest.Proxy{}}
	to := r.arena.route()
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
	Addrs   []string          `json:"addrs"`            // that a client is told: of Sentinels, where there are some
	Master  string            `json:"master,omitempty"` // the name that Sentinels have for the master
	Instead map[string]string `json:"instead"`          // where to go in place of a server's address
}

// connect returns a client of the options.
func (to route) connect(opt redis.UniversalOptions) redis.UniversalClient {
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
