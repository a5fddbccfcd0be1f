package suite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
)

// cell is one load, granting or refusing.
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

const many = 10_000 // limiters

// cells returns the loads of a network.
func (r *run) cells(network string) []cell {
	var cells []cell
	for _, mode := range []string{report.Granting, report.Refusing} {
		for _, callers := range r.callers(network) {
			cells = append(cells, cell{network, mode, callers, 1})
		}
		if !r.Short || network == report.Direct {
			cells = append(cells, cell{network, mode, 256, many})
		}
	}
	return cells
}

func (r *run) callers(network string) []int {
	switch {
	case r.Short && network == report.Delayed:
		return []int{256}
	case r.Short:
		return []int{1, 64, 256}
	}
	return []int{1, 8, 64, 256, 1024}
}

// moreThreads are those that Redisson is tried with beside callers, for its best.
var moreThreads = []int{2, 4, 16, 32}

// throughput measures decisions/s, latencies and what they cost the server.
func (r *run) throughput(ctx context.Context, network string) error {
	rounds := r.Rounds
	if network == report.Delayed {
		rounds = max(1, rounds/2)
	}
	for round := range rounds {
		for _, c := range r.cells(network) {
			for _, p := range r.inTurn(network, round) {
				if err := r.measure(ctx, p, c); err != nil {
					return err
				}
			}
		}
		for _, p := range r.inTurn(network, round) {
			if p.Name != peer.Redisson || r.Short {
				continue
			}
			for _, threads := range moreThreads {
				if err := r.measure(ctx, p, cell{network, report.Granting, threads, 1}); err != nil {
					return err
				}
			}
		}
		r.logf("%s, round %d of %d", network, round+1, rounds)
	}
	return nil
}

// measure puts one load on one peer.
func (r *run) measure(ctx context.Context, p *opened, c cell) error {
	if p.Floor && c.mode == report.Refusing {
		return nil
	}
	l := load.Load{Callers: c.callers, Limiters: c.limiters, Warm: 70 * time.Millisecond, Length: 230 * time.Millisecond}
	if r.Short {
		l.Length = 150 * time.Millisecond
	}
	rule := grantAll
	if c.mode == report.Refusing {
		rule = refuseAll
	}
	if err := r.put(ctx, p, c, rule, l); err != nil {
		return fmt.Errorf("%s, %s, %s, %d callers, %d limiters: %w", p.Name, c.network, c.mode, c.callers, c.limiters, err)
	}
	return nil
}

func (r *run) put(ctx context.Context, p *opened, c cell, rule peer.Rule, l load.Load) error {
	if err := r.redis.Flush(ctx); err != nil {
		return err
	}
	prefix := r.prefix()
	if err := p.peer.Make(ctx, prefix, c.limiters, rule); err != nil {
		return err
	}
	if c.mode == report.Refusing {
		n, err := p.peer.Each(ctx)
		if err == nil && n != c.limiters {
			err = fmt.Errorf("of %d limiters that had a permit %d gave it", c.limiters, n)
		}
		if err != nil {
			return err
		}
		if c.limiters > 1 && c.network == report.Direct {
			if err := r.bytes(ctx, c.key(report.BytesLimiter, p.Name), int64(c.limiters)); err != nil {
				return err
			}
		}
	}
	// Of many limiters a load would meet most for the first time, which costs more.
	given := 0
	for range 3 {
		if c.limiters == 1 {
			break
		}
		n, err := p.peer.Each(ctx)
		if err != nil {
			return err
		}
		given += n
	}
	l.Patience = p.Patience
	before, err := r.redis.Usage(ctx)
	if err != nil {
		return err
	}
	result, err := p.peer.Load(ctx, l)
	if err != nil {
		return err
	}
	after, err := r.redis.Usage(ctx)
	if err != nil {
		return err
	}
	cost := after.Since(before, p.Commands)

	add := func(metric string, value float64) { r.results.Add(c.key(metric, p.Name), value) }
	add(report.Rate, result.Rate())
	for metric, percentile := range map[string]float64{report.P50: 50, report.P99: 99, report.P999: 99.9} {
		add(metric, micros(result.Latencies.Percentile(percentile)))
	}
	if result.All > 0 {
		add(report.ServerTime, micros(cost.Took)/float64(result.All))
		add(report.ServerCPU, micros(cost.CPU)/float64(result.All))
		add(report.ScriptCalls, float64(cost.Scripts)/float64(result.All))
	}
	wrong := result.Refused
	if c.mode == report.Refusing {
		wrong = result.Granted
	}
	add(report.Wrong, float64(wrong))
	add(report.Errors, float64(result.Errors))
	if result.Errors > 0 {
		r.logf("%s, %s, %d callers: %d errors, such as: %s", p.Name, c.mode, c.callers, result.Errors, result.FirstError)
	}
	if c.mode != report.Granting || p.Floor {
		return nil
	}
	if c.callers == 256 && c.limiters == 1 && c.network == report.Direct {
		if err := r.bytes(ctx, c.key(report.BytesPermit, p.Name), result.All); err != nil {
			return err
		}
	}
	// After an error nobody knows what was taken.
	if p.Value == nil || result.Failed > 0 {
		return nil
	}
	used, err := r.used(ctx, p, prefix, c.limiters, rule)
	add(report.Unaccounted, float64(used-int64(given)-result.All))
	return err
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
			continue // nobody drew this limiter
		}
		if err != nil {
			return 0, err
		}
		used += rule.Limit - free
	}
	return used, nil
}

// steadyRule runs out within the load, so that what was granted is reclaimed as
// fast as more is.
var steadyRule = peer.Rule{Limit: 10_000_000, Interval: time.Second}

// Steadily is the mode of loads in which permits come back all the time.
const Steadily = "steadily"

// steady measures those that keep a log for longer than its interval.
func (r *run) steady(ctx context.Context) error {
	l := load.Load{Callers: 256, Limiters: 1, Warm: 1200 * time.Millisecond, Length: time.Second}
	rounds := min(r.Rounds, 3)
	for round := range rounds {
		for _, p := range r.inTurn(report.Direct, round) {
			if !p.Log {
				continue
			}
			if err := r.put(ctx, p, cell{report.Direct, Steadily, l.Callers, 1}, steadyRule, l); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
