package suite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
)

// contender is one way to ask, of one caller.
type contender struct {
	name, mode string
	ctx        context.Context
	take       load.Take
	took       []time.Duration
}

// alone measures one caller: its median time beside the time of a script which does nothing,
// call by call in turn.
func (r *run) alone(ctx context.Context, _ int) error {
	calls := 4000
	if r.Short {
		calls = 1500
	}
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	// What cannot be cancelled is the background itself.
	plain := context.WithoutCancel(ctx)
	usual := peer.NewClient(r.redis.Addr, connectionsNear)
	defer func() { _ = usual.Close() }()
	punctual := peer.NewPunctualClient(r.redis.Addr, connectionsNear)
	defer func() { _ = punctual.Close() }()
	contenders, err := r.contenders(plain, cancellable, usual, "")
	if err != nil {
		return err
	}
	more, err := r.contenders(plain, cancellable, punctual, report.Punctual)
	if err != nil {
		return err
	}
	contenders = append(contenders, more...)
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
	return nil
}

// contenders returns the ways to ask by one Redis client, with the ending of their
// modes.
func (r *run) contenders(plain, cancellable context.Context, rdb *redis.Client, ending string) ([]*contender, error) {
	client := rratelimiter.New(rdb)
	bare, err := peer.Bare(plain, rdb, []string{r.prefix()})
	if err != nil {
		return nil, err
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
	contenders := []*contender{
		{peer.EVALSHA, report.Plain + ending, plain, bare, nil},
		{peer.EVALSHA, report.Honoured + ending, cancellable, honoured, nil},
	}
	for mode, rule := range map[string]peer.Rule{report.Granting: grantAll, report.Refusing: refuseAll} {
		l := client.RateLimiter(r.prefix())
		if err := l.SetRate(plain, rratelimiter.Config{Rate: rule.Limit, Interval: rule.Interval}); err != nil {
			return nil, err
		}
		if err := l.Acquire(plain, 1); err != nil {
			return nil, err
		}
		take := func(ctx context.Context, _ int) (bool, error) {
			granted, err := l.TryAcquire(ctx, 1, 0)
			if err == nil && granted != (mode == report.Granting) {
				err = fmt.Errorf("granted: %t", granted)
			}
			return granted, err
		}
		contenders = append(contenders,
			&contender{peer.Ours, mode + ", " + report.Plain + ending, plain, take, nil},
			&contender{peer.Ours, mode + ", " + report.Cancellable + ending, cancellable, take, nil})
	}
	return contenders, nil
}

// inTurns measures what one caller of ours and one thread of Redisson's cost the
// server, in turn, so that whatever the machine does meets both.
func (r *run) inTurns(ctx context.Context, round int) error {
	peers := []*opened{r.find(peer.Ours), r.find(peer.Redisson)}
	if peers[0] == nil || peers[1] == nil {
		return nil
	}
	l := load.Load{Callers: 1, Limiters: 1, Warm: 30 * time.Millisecond, Length: 170 * time.Millisecond}
	for mode, rule := range map[string]peer.Rule{report.Granting: grantAll, report.Refusing: refuseAll} {
		if err := r.redis.Flush(ctx); err != nil {
			return err
		}
		for _, p := range peers {
			if err := p.peer.Make(ctx, r.prefix(), 1, rule); err != nil {
				return err
			}
			if _, err := p.peer.Each(ctx); err != nil {
				return err
			}
		}
		each := func(i int) (*load.Result, server.Cost, error) { return r.cost(ctx, peers[i], l) }
		if err := r.takeTurns(mode, round, each); err != nil {
			return err
		}
		if err := r.oneClient(ctx, mode, rule, peers[1].peer, l, round); err != nil {
			return err
		}
	}
	return nil
}

// takeTurns measures what decisions of ours, which is 0, and of Redisson cost the server, one after the
// other again and again.
func (r *run) takeTurns(mode string, round int, measure func(i int) (*load.Result, server.Cost, error)) error {
	const turns = 5
	var took [2][]float64
	for turn := range turns {
		for n := range took {
			i := (n + turn + round) % 2
			result, cost, err := measure(i)
			if err != nil {
				return err
			}
			took[i] = append(took[i], micros(cost.Took)/float64(max(1, result.All)))
		}
	}
	for i, name := range []string{peer.Ours, peer.Redisson} {
		k := report.Key{Metric: report.InTurn, Peer: name, Network: report.Direct, Mode: mode, Callers: 1, Limiters: 1}
		r.results.Add(k, report.Summarize(took[i]).Median)
	}
	return nil
}

// oneClient is inTurns with one Redis client that runs both scripts, so that nothing else differs.
func (r *run) oneClient(ctx context.Context, mode string, rule peer.Rule, theirs peer.Peer, l load.Load, round int) (err error) {
	rdb := peer.NewClient(r.redis.Addr, connectionsNear)
	client := rratelimiter.New(rdb)
	defer func() { err = errors.Join(err, client.Close(ctx), rdb.Close()) }()
	limiter := client.RateLimiter(r.prefix())
	if err := limiter.SetRate(ctx, rratelimiter.Config{Rate: rule.Limit, Interval: rule.Interval}); err != nil {
		return err
	}
	if err := limiter.Acquire(ctx, 1); err != nil {
		return err
	}
	redisson, err := peer.RedissonScript(ctx, rdb, theirs)
	if err != nil {
		return err
	}
	takes := [2]load.Take{func(ctx context.Context, _ int) (bool, error) { return limiter.TryAcquire(ctx, 1, 0) }, redisson}
	return r.takeTurns(mode+report.OneClient, round, func(i int) (*load.Result, server.Cost, error) {
		return r.costOf(ctx, map[string]float64{"evalsha": 0}, func() (*load.Result, error) {
			result := load.Run(ctx, l, takes[i])
			if result.Failed > 0 {
				return nil, fmt.Errorf("%s: %d of %d calls failed: %s", mode+report.OneClient, result.Failed, result.All, result.FirstError)
			}
			return result, nil
		})
	})
}

// allocated counts what a call allocates, of the peers in Go.
func (r *run) allocated(ctx context.Context, _ int) error {
	for _, p := range r.peers[report.Direct] {
		if p.Java {
			continue
		}
		here, err := p.Open(ctx, r.redis.Addr, connectionsNear)
		if err == nil {
			err = errors.Join(r.allocations(ctx, p.Kind, here), here.Close())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

// allocations counts those of one call of a peer in this process.
func (r *run) allocations(ctx context.Context, kind peer.Kind, p peer.Peer) error {
	const calls = 1000
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	for mode, rule := range map[string]peer.Rule{report.Granting: grantAll, report.Refusing: refuseAll} {
		if kind.Floor && mode == report.Refusing {
			continue
		}
		for ending, ctx := range map[string]context.Context{report.Plain: context.WithoutCancel(ctx), report.Cancellable: cancellable} {
			if err := p.Make(ctx, r.prefix(), 1, rule); err != nil {
				return err
			}
			if _, err := p.Each(ctx); err != nil {
				return err
			}
			take := peer.Take(p)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range calls {
				if _, err := take(ctx, 0); err != nil {
					return err
				}
			}
			runtime.ReadMemStats(&after)
			k := report.Key{Peer: kind.Name, Network: report.Direct, Mode: mode + ", " + ending, Callers: 1, Limiters: 1}
			k.Metric = report.Allocations
			// What other goroutines allocate now and then is no part of a call.
			r.results.Add(k, float64((after.Mallocs-before.Mallocs)/calls))
			k.Metric = report.AllocatedSize
			r.results.Add(k, float64(after.TotalAlloc-before.TotalAlloc)/calls)
		}
	}
	return nil
}
