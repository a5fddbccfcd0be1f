package suite

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
)

// small is the rule whose grants are counted from outside.
var small = peer.Rule{Limit: 100, Interval: time.Second}

// clockTick is how much earlier than an interval a permit may come back if
// time is counted in milliseconds, as most of the libraries do.
const clockTick = time.Millisecond

// crowds counts, from outside, the most grants in one interval, and afterwards
// whether an idle limiter is full again.
func (r *run) crowds(ctx context.Context, round int) error {
	crowd := load.Crowd{Callers: 256, From: 750 * time.Millisecond, To: 1250 * time.Millisecond}
	peers := slices.DeleteFunc(r.peersOf(report.Direct, round), func(p *opened) bool { return p.Floor })
	if err := r.redis.Flush(ctx); err != nil {
		return err
	}
	key := func(metric string, p *opened) report.Key {
		return report.Key{
			Metric: metric, Peer: p.Name, Network: report.Direct, Mode: Crowds, Callers: crowd.Callers, Limiters: 1,
		}
	}
	for _, p := range peers {
		if err := p.peer.Make(ctx, r.prefix(), 1, small); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		grants, err := p.peer.Crowd(ctx, crowd)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		r.results.Add(key(report.Fullest, p), float64(load.Fullest(grants, small.Interval-clockTick)))
	}
	// The last peer's limiter too, and windows that reach back by one.
	time.Sleep(2*small.Interval + 100*time.Millisecond)
	for _, p := range peers {
		n, err := p.peer.Drain(ctx, int(3*small.Limit))
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		r.results.Add(key(report.AfterIdle, p), float64(n))
	}
	return nil
}
