package suite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
)

// cell is a number of callers on a number of limiters, which grant all or refuse all.
type cell struct {
	network  string
	mode     string
	callers  int
	limiters int
}

func (c cell) key(metric, name string) report.Key {
	return report.Key{
		Metric: metric, Peer: name, Network: c.network, Mode: c.mode, Callers: c.callers, Limiters: c.limiters,
	}
}

func (c cell) String() string {
	return fmt.Sprintf("%s, %s, %d callers, %d limiters", c.network, c.mode, c.callers, c.limiters)
}

// cells returns the cells to measure on a network: with the delay, only grants.
func (r *run) cells(network string) []cell {
	modes := []string{report.Granting, report.Refusing}
	callers := []int{1, 8, 64, 256}
	if network == report.Delayed {
		modes = modes[:1]
	}
	if r.Short {
		callers = []int{1, 8, 256}
	}
	var cells []cell
	for _, mode := range modes {
		for _, n := range callers {
			cells = append(cells, cell{network, mode, n, 1})
		}
		cells = append(cells, cell{network, mode, 256, r.Many})
	}
	return cells
}

// moreThreads are those that Redisson is tried with beside callers, for its best.
var moreThreads = []int{2, 4, 16, 32}

// throughput measures decisions/s, latencies and what they cost.
func (r *run) throughput(ctx context.Context, network string, round int) error {
	cells := r.cells(network)
	for _, c := range cells {
		for _, p := range r.peersOf(network, round) {
			if p.Floor && c.mode == report.Refusing {
				continue
			}
			if err := r.measure(ctx, p, c); err != nil {
				return fmt.Errorf("%s, %v: %w", p.Name, c, err)
			}
		}
	}
	p := r.find(peer.Redisson)
	if p == nil || network == report.Delayed {
		return nil
	}
	for _, mode := range []string{report.Granting, report.Refusing} {
		for _, threads := range moreThreads {
			if err := r.measure(ctx, p, cell{network, mode, threads, 1}); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
	}
	return nil
}

// measure makes limiters and puts their loads on one peer. Of many, each has been
// asked before, since most are known in a service, and they are asked all alike
// and then a few for most.
func (r *run) measure(ctx context.Context, p *opened, c cell) error {
	rule := grantAll
	if c.mode == report.Refusing {
		rule = refuseAll
	}
	if err := r.redis.Flush(ctx); err != nil {
		return err
	}
	prefix := r.prefix()
	if err := p.peer.Make(ctx, prefix, c.limiters, rule); err != nil {
		return err
	}
	taken, err := r.prepare(ctx, p, c)
	if err != nil {
		return err
	}
	result, err := r.put(ctx, p, c, load.Uniform)
	if err != nil {
		return err
	}
	taken, failed := taken+result.All, result.Failed
	if c.limiters > 1 {
		skewed := c
		skewed.mode += report.Skewed
		result, err := r.put(ctx, p, skewed, load.Zipf)
		if err != nil {
			return err
		}
		taken, failed = taken+result.All, failed+result.Failed
	}
	if c.mode != report.Granting || p.Floor {
		return nil
	}
	if c.callers == 256 && c.limiters == 1 && c.network == report.Direct {
		if err := r.bytes(ctx, c.key(report.BytesPermit, p.Name), taken); err != nil {
			return err
		}
	}
	// After an error it is unknown how many were taken.
	if p.Value == nil || failed > 0 {
		return nil
	}
	used, err := r.used(ctx, p, prefix, c.limiters, rule)
	r.results.Add(c.key(report.Unaccounted, p.Name), float64(used-taken))
	return err
}

// prepare takes the only permit of those that are to refuse, has many limiters
// known, and returns how many permits it was granted.
func (r *run) prepare(ctx context.Context, p *opened, c cell) (int64, error) {
	given := 0
	for i := range 2 {
		if c.limiters == 1 && (c.mode == report.Granting || i > 0) {
			break
		}
		n, err := p.peer.Each(ctx)
		if err != nil {
			return 0, err
		}
		given += n
		if c.mode == report.Granting || i > 0 {
			continue
		}
		if n != c.limiters {
			return 0, fmt.Errorf("of %d limiters that had a permit %d gave it", c.limiters, n)
		}
		if c.limiters > 1 && c.network == report.Direct {
			if err := r.bytes(ctx, c.key(report.BytesLimiter, p.Name), int64(c.limiters)); err != nil {
				return 0, err
			}
		}
	}
	return int64(given), nil
}

// put puts one load on one peer and adds the result.
func (r *run) put(ctx context.Context, p *opened, c cell, draw load.Draw) (*load.Result, error) {
	l := load.Load{
		Callers: c.callers, Limiters: c.limiters, Draw: draw,
		Warm: 70 * time.Millisecond, Length: 230 * time.Millisecond, Patience: p.Patience,
	}
	if r.Short {
		l.Length = 150 * time.Millisecond
	}
	result, cost, err := r.cost(ctx, p, l)
	if err != nil {
		return nil, err
	}
	add := func(metric string, value float64) { r.results.Add(c.key(metric, p.Name), value) }
	add(report.Rate, result.Rate())
	add(report.P50, micros(result.Latencies.Percentile(50)))
	add(report.P99, micros(result.Latencies.Percentile(99)))
	if result.All > 0 {
		add(report.ServerTime, micros(cost.Took)/float64(result.All))
		add(report.ServerCPU, micros(cost.CPU)/float64(result.All))
	}
	if n := result.Granted + result.Refused; n > 0 && result.CPU > 0 {
		add(report.ClientCPU, micros(result.CPU)/float64(n))
	}
	wrong := result.Refused
	if strings.HasPrefix(c.mode, report.Refusing) {
		wrong = result.Granted
	}
	add(report.Wrong, float64(wrong))
	add(report.Errors, float64(result.Errors))
	if result.Errors > 0 {
		r.logf("%s, %v: %d errors, such as: %s", p.Name, c, result.Errors, result.FirstError)
	}
	return result, nil
}

// cost puts a load on one peer and tells what the server spent meanwhile.
func (r *run) cost(ctx context.Context, p *opened, l load.Load) (*load.Result, server.Cost, error) {
	return r.costOf(ctx, p.Commands, func() (*load.Result, error) { return p.peer.Load(ctx, l) })
}

// costOf is cost for a load of calls that send those commands: see [peer.Kind].
func (r *run) costOf(ctx context.Context, commands map[string]float64, run func() (*load.Result, error)) (*load.Result, server.Cost, error) {
	before, err := r.redis.Usage(ctx)
	if err != nil {
		return nil, server.Cost{}, err
	}
	result, err := run()
	if err != nil {
		return nil, server.Cost{}, err
	}
	after, err := r.redis.Usage(ctx)
	if err != nil {
		return nil, server.Cost{}, err
	}
	return result, after.Since(before, commands), nil
}

// bytes adds the bytes of all keys, shared out among n.
func (r *run) bytes(ctx context.Context, k report.Key, n int64) error {
	sum, err := r.redis.Memory(ctx)
	r.results.Add(k, float64(sum)/float64(n))
	return err
}

// used returns how many permits the limiters' values say are taken: those that
// callers were granted, if none was lost or granted for nothing.
func (r *run) used(ctx context.Context, p *opened, prefix string, n int, rule peer.Rule) (int64, error) {
	values := make([]*redis.StringCmd, n)
	_, err := r.redis.Client().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range values {
			values[i] = pipe.Get(ctx, p.Value(prefix+strconv.Itoa(i)))
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	var used int64
	for _, value := range values {
		free, err := value.Int64()
		if errors.Is(err, redis.Nil) {
			continue // no caller drew this limiter
		}
		if err != nil {
			return 0, err
		}
		used += rule.Limit - free
	}
	return used, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
