// Package suite measures limiters beside each other: in one run, in turn, round
// by round.
package suite

import (
	"cmp"
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
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
)

// Options says how much is measured.
type Options struct {
	Rounds   int
	Short    bool           // the aims only, by fewer and shorter measurements
	Only     *regexp.Regexp // peers by name; nil for all
	Sections []string       // sections to measure; nil for all
	Many     int            // limiters of loads of many; 0 for 10,000
	Piled    int            // members for Stalls; 0 for a million
	Stalled  int            // limiters for Hung; 0 for 8,000
	Server   string         // the redis-server; see server.Start
	Log      io.Writer
}

// EachWay is how long the delayed network holds bytes back, in each direction.
const EachWay = 500 * time.Microsecond

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

// The sections of measurements.
const (
	Throughput = "throughput" // loads beside the server
	Network    = "network"    // loads with a network between
	Beside     = "beside"     // callers beside as many bare script calls, with a network between
	Alone      = "alone"      // one caller beside a bare script call
	InTurn     = "turns"      // the server's time for one caller of ours and of Redisson, in turn
	Allocated  = "allocations"
	Stalls     = "stalls" // the longest script
	Crowds     = "crowds" // grants counted from outside
	Hung       = "hung"   // a server that hangs
)

// Sections returns their names, in order.
func Sections() []string {
	return []string{Throughput, Network, Beside, Alone, InTurn, Allocated, Stalls, Crowds, Hung}
}

// run is a run under way.
type run struct {
	Options
	redis   *server.Redis
	delay   *server.Delay        // nil if there is none
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
	o.Many, o.Piled, o.Stalled = cmp.Or(o.Many, 10_000), cmp.Or(o.Piled, 1_000_000), cmp.Or(o.Stalled, 8000)
	redis, err := server.Start(ctx, o.Server)
	if err != nil {
		return nil, err
	}
	defer redis.Close()
	r := &run{Options: o, redis: redis, peers: map[string][]*opened{}, results: report.New()}
	if r.delay, err = server.StartDelay(ctx, redis.Addr, EachWay); err == nil {
		defer r.delay.Close()
	} else if !errors.Is(err, server.ErrNoDelay) {
		return nil, err
	}
	defer r.close()
	r.about(ctx)

	if err := r.open(ctx, report.Direct, redis.Addr); err != nil {
		return nil, err
	}
	if r.wants(Network) {
		if err := r.open(ctx, report.Delayed, r.delay.Addr); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	if err := r.warm(ctx); err != nil {
		return nil, fmt.Errorf("warming up: %w", err)
	}
	for _, step := range []struct {
		name   string
		rounds int
		run    func(ctx context.Context, round int) error
	}{
		{Throughput, r.Rounds, func(ctx context.Context, round int) error { return r.throughput(ctx, report.Direct, round) }},
		{Network, max(1, r.Rounds/2), func(ctx context.Context, round int) error { return r.throughput(ctx, report.Delayed, round) }},
		{Beside, r.Rounds, r.beside},
		{Alone, r.Rounds, r.alone},
		{InTurn, r.Rounds, r.inTurns},
		{Allocated, 1, r.allocated},
		{Stalls, min(r.Rounds, 2), r.stalls},
		{Crowds, min(r.Rounds, 2), r.crowds},
		{Hung, min(r.Rounds, 3), r.hung},
	} {
		if !r.wants(step.name) {
			continue
		}
		for round := range step.rounds {
			began := time.Now()
			if err := step.run(ctx, round); err != nil {
				return nil, fmt.Errorf("%s: %w", step.name, err)
			}
			r.logf("%s, round %d of %d: %.0f s", step.name, round+1, step.rounds, time.Since(began).Seconds())
		}
	}
	r.results.Note("duration", time.Since(start).Round(time.Second).String())
	return r.results, nil
}

// wants reports whether a section is to be measured and can be.
func (r *run) wants(section string) bool {
	if (section == Network || section == Beside) && r.delay == nil {
		return false
	}
	return len(r.Sections) == 0 || slices.Contains(r.Sections, section)
}

func (r *run) logf(format string, args ...any) {
	fmt.Fprintf(r.Log, format+"\n", args...)
}

// about records what is measured, and on which machine.
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

// open opens the peers. Those in Java are left out if there is no Java.
func (r *run) open(ctx context.Context, network, addr string) error {
	for _, kind := range peer.Kinds() {
		if r.Only == nil && r.Short && !kind.Aim || r.Only != nil && !r.Only.MatchString(kind.Name) {
			continue
		}
		p, err := peer.OpenApart(ctx, kind, addr, connections(kind, network))
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
	measured := slices.ContainsFunc([]string{Throughput, Network, InTurn}, r.wants)
	for _, p := range r.peers[report.Direct] {
		if !p.Java || !measured {
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

// peersOf returns the peers of a network in another order each round, so that
// none comes always behind the same.
func (r *run) peersOf(network string, round int) []*opened {
	peers := r.peers[network]
	if len(peers) == 0 {
		return nil
	}
	k := round * 5 % len(peers)
	return slices.Concat(peers[k:], peers[:k])
}

// find returns a peer beside the server; nil if it is not measured.
func (r *run) find(name string) *opened {
	for _, p := range r.peers[report.Direct] {
		if p.Name == name {
			return p
		}
	}
	return nil
}
