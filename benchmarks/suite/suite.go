// Package suite measures limiters beside each other: in one run, in turn, round
// by round.
package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
	"github.com/rratelimiter/rratelimiter/internal/javadriver"
)

// Options says how much is measured.
type Options struct {
	Rounds int
	Short  bool           // fewer and shorter measurements
	Only   *regexp.Regexp // peers by name; nil for all
	Skip   []string       // sections
	Piled  int            // members for Stalls; 0 for a million
	Server string         // the redis-server; see server.Start
	Log    io.Writer
}

// EachWay is how long the delayed network holds bytes back, in each direction.
const EachWay = 250 * time.Microsecond

// The most connections that a Go client, and Redisson, may have. Near the server
// more of them cost more than they bring; with a delay, a caller keeps one busy.
const (
	connectionsNear = 20
	connectionsFar  = 256
	redissonNear    = 8
	redissonFar     = 256
)

// The rules of a measurement: all is granted, or, once each limiter's permit is
// taken, nothing.
var (
	grantAll  = peer.Rule{Limit: 100_000_000, Interval: time.Minute}
	refuseAll = peer.Rule{Limit: 1, Interval: time.Minute}
)

// Sections that Options may skip.
const (
	Throughput = "throughput"
	Network    = "network"
	Steady     = "steady"
	Alone      = "alone"
	Stalls     = "stalls"
	Crowds     = "crowds"
)

// Sections returns their names, in order.
func Sections() []string { return []string{Throughput, Network, Steady, Alone, Stalls, Crowds} }

// run is a run under way.
type run struct {
	Options
	redis   *server.Redis
	peers   map[string][]*opened // by network
	results *report.Results
	names   int // prefixes given out
}

// opened is a peer on one network.
type opened struct {
	peer.Kind
	peer    peer.Peer
	network string
}

// Run measures and returns the results.
func Run(ctx context.Context, o Options) (*report.Results, error) {
	if o.Piled == 0 {
		o.Piled = 1_000_000
	}
	redis, err := server.Start(ctx, o.Server)
	if err != nil {
		return nil, err
	}
	defer redis.Close()
	delay, err := server.StartDelay(ctx, redis.Addr, EachWay)
	switch {
	case errors.Is(err, server.ErrNoDelay):
		o.Skip = append(o.Skip, Network)
	case err != nil:
		return nil, err
	default:
		defer delay.Close()
	}
	r := &run{Options: o, redis: redis, peers: map[string][]*opened{}, results: report.New()}
	defer r.close()
	r.about(ctx)

	if err := r.open(ctx, report.Direct, redis.Addr); err != nil {
		return nil, err
	}
	if !slices.Contains(o.Skip, Network) {
		if err := r.open(ctx, report.Delayed, delay.Addr); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"warming up", r.warm},
		{Throughput, func(ctx context.Context) error { return r.throughput(ctx, report.Direct) }},
		{Network, func(ctx context.Context) error { return r.throughput(ctx, report.Delayed) }},
		{Steady, r.steady},
		{Alone, r.alone},
		{Stalls, r.stalls},
		{Crowds, r.crowds},
	} {
		if slices.Contains(o.Skip, step.name) {
			continue
		}
		began := time.Now()
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		r.logf("%s: %.0f s", step.name, time.Since(began).Seconds())
	}
	r.results.Note("duration", time.Since(start).Round(time.Second).String())
	return r.results, nil
}

func (r *run) logf(format string, args ...any) {
	fmt.Fprintf(r.Log, format+"\n", args...)
}

// about notes what is measured, and on what.
func (r *run) about(ctx context.Context) {
	r.results.Note("date", time.Now().UTC().Format("2006-01-02"))
	r.results.Note("rounds", fmt.Sprint(r.Rounds))
	r.results.Note("machine", fmt.Sprintf("%s, %d cores, %s/%s", cpuModel(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH))
	r.results.Note("redis", r.redis.Version)
	r.results.Note("go", runtime.Version())
	if version, err := peer.JavaVersion(ctx); err == nil {
		r.results.Note("java", version)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if slices.Contains(peer.Modules, dep.Path) {
				r.results.Note("module "+dep.Path, dep.Version)
			}
		}
	}
}

// open opens the peers. Those in Java are left out where there is no Java.
func (r *run) open(ctx context.Context, network, addr string) error {
	for _, kind := range peer.Kinds() {
		if r.Only != nil && !r.Only.MatchString(kind.Name) {
			continue
		}
		p, err := kind.Open(ctx, addr, connections(kind, network))
		if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
			r.logf("%s is left out: %v", kind.Name, missing)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", kind.Name, err)
		}
		r.peers[network] = append(r.peers[network], &opened{Kind: kind, peer: p, network: network})
		if network == report.Direct {
			r.results.Note("peer "+kind.Name, kind.Setup)
		}
	}
	return nil
}

func connections(kind peer.Kind, network string) int {
	near, far := connectionsNear, connectionsFar
	if kind.Java {
		near, far = redissonNear, redissonFar
	}
	if network == report.Direct {
		return near
	}
	return far
}

func (r *run) close() {
	for _, peers := range r.peers {
		for _, p := range peers {
			if err := p.peer.Close(); err != nil {
				r.logf("closing %s: %v", p.Name, err)
			}
		}
	}
}

// prefix returns a new name for limiters.
func (r *run) prefix() string {
	r.names++
	return fmt.Sprintf("bench:%d:", r.names)
}

// warm runs those in Java until their code is compiled, and has all open their
// connections through the delay, which takes time.
func (r *run) warm(ctx context.Context) error {
	for _, p := range r.peers[report.Delayed] {
		if err := p.peer.Make(ctx, r.prefix(), 1, grantAll); err != nil {
			return err
		}
		if _, err := p.peer.Load(ctx, load.Load{Callers: 256, Limiters: 1, Length: 300 * time.Millisecond}); err != nil {
			return err
		}
	}
	length := 3 * time.Second
	if r.Short {
		length = 1500 * time.Millisecond
	}
	for _, p := range r.peers[report.Direct] {
		if !p.Java {
			continue
		}
		for _, rule := range []peer.Rule{grantAll, refuseAll} {
			if err := p.peer.Make(ctx, r.prefix(), 1, rule); err != nil {
				return err
			}
			if _, err := p.peer.Load(ctx, load.Load{Callers: 64, Limiters: 1, Length: length}); err != nil {
				return err
			}
		}
	}
	return nil
}

// inTurn returns the peers of a network in another order each round, so that
// none comes always behind the same.
func (r *run) inTurn(network string, round int) []*opened {
	peers := r.peers[network]
	if len(peers) == 0 {
		return nil
	}
	k := round * 5 % len(peers)
	return slices.Concat(peers[k:], peers[:k])
}
