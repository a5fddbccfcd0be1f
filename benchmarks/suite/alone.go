package suite

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
)

// Cases of a caller who is alone.
const (
	Plain       = "plain"
	Cancellable = "cancellable"
	Honoured    = "honoured"
)

// alone measures one caller: its median time beside that of a script which does
// nothing, call by call in turn, and what calls allocate.
func (r *run) alone(ctx context.Context) error {
	for range r.Rounds {
		if err := r.solo(ctx); err != nil {
			return err
		}
	}
	for _, p := range r.peers[report.Direct] {
		if err := r.allocations(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

func (r *run) solo(ctx context.Context) error {
	calls := 4000
	if r.Short {
		calls = 1500
	}
	rdb := peer.NewClient(r.redis.Addr, connectionsNear)
	defer func() { _ = rdb.Close() }()
	client := rratelimiter.New(rdb)
	granting, refusing := client.RateLimiter(r.prefix()), client.RateLimiter(r.prefix())
	for l, rule := range map[*rratelimiter.RateLimiter]peer.Rule{granting: grantAll, refusing: refuseAll} {
		if err := l.SetRate(ctx, rratelimiter.Config{Rate: rule.Limit, Interval: rule.Interval}); err != nil {
			return err
		}
		if err := l.Acquire(ctx, 1); err != nil {
			return err
		}
	}
	bare, err := peer.Bare(ctx, rdb, []string{r.prefix()})
	if err != nil {
		return err
	}
	acquire := func(l *rratelimiter.RateLimiter, want bool) load.Take {
		return func(ctx context.Context, _ int) (bool, error) {
			granted, err := l.TryAcquire(ctx, 1, 0)
			if err == nil && granted != want {
				err = fmt.Errorf("granted: %t", granted)
			}
			return granted, err
		}
	}

	// go-redis does not notice that a context ends while it reads. To honour one
	// takes a goroutine that the caller can leave.
	honoured := func(ctx context.Context, i int) (bool, error) {
		done := make(chan error, 1)
		go func() {
			_, err := bare(context.WithoutCancel(ctx), i)
			done <- err
		}()
		select {
		case err := <-done:
			return true, err
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}

	// What cannot be cancelled is the background itself.
	plain := context.WithoutCancel(ctx)
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	type contender struct {
		name, mode string
		ctx        context.Context
		take       load.Take
		took       []time.Duration
	}
	contenders := []*contender{
		{peer.EVALSHA, Plain, plain, bare, nil},
		{peer.EVALSHA, Cancellable, cancellable, bare, nil},
		{peer.EVALSHA, Honoured, cancellable, honoured, nil},
		{peer.Ours, report.Granting + ", " + Plain, plain, acquire(granting, true), nil},
		{peer.Ours, report.Granting + ", " + Cancellable, cancellable, acquire(granting, true), nil},
		{peer.Ours, report.Refusing + ", " + Plain, plain, acquire(refusing, false), nil},
		{peer.Ours, report.Refusing + ", " + Cancellable, cancellable, acquire(refusing, false), nil},
	}
	runtime.GC()
	for i := range calls {
		// Each comes behind another one each time.
		for j := range contenders {
			c := contenders[(j*(1+i%5)+i)%len(contenders)]
			start := time.Now()
			if _, err := c.take(c.ctx, 0); err != nil {
				return err
			}
			if i >= calls/10 {
				c.took = append(c.took, time.Since(start))
			}
		}
	}
	for _, c := range contenders {
		slices.Sort(c.took)
		k := report.Key{Metric: report.Solo, Peer: c.name, Network: report.Direct, Mode: c.mode, Callers: 1, Limiters: 1}
		r.results.Add(k, micros(c.took[len(c.took)/2]))
	}
	return client.Close(ctx)
}

// allocations counts those of one call, of those that this process calls.
func (r *run) allocations(ctx context.Context, p *opened) error {
	const calls = 1000
	if p.Java {
		return nil
	}
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	for mode, rule := range map[string]peer.Rule{report.Granting: grantAll, report.Refusing: refuseAll} {
		if p.Floor && mode == report.Refusing {
			continue
		}
		for kind, ctx := range map[string]context.Context{Plain: context.WithoutCancel(ctx), Cancellable: cancellable} {
			if err := p.peer.Make(ctx, r.prefix(), 1, rule); err != nil {
				return err
			}
			if _, err := p.peer.Each(ctx); err != nil {
				return err
			}
			take := peer.Take(p.peer)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range calls {
				if _, err := take(ctx, 0); err != nil {
					return err
				}
			}
			runtime.ReadMemStats(&after)
			k := report.Key{Peer: p.Name, Network: report.Direct, Mode: mode + ", " + kind, Callers: 1, Limiters: 1}
			k.Metric = report.Allocations
			// What other goroutines allocate now and then is no part of a call.
			r.results.Add(k, float64((after.Mallocs-before.Mallocs)/calls))
			k.Metric = report.AllocatedSize
			r.results.Add(k, float64(after.TotalAlloc-before.TotalAlloc)/calls)
		}
	}
	return nil
}
