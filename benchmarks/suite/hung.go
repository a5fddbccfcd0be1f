package suite

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
)

// hung measures what callers meet whose server hangs, with a caller for each of
// many limiters: the slowest call, and the most goroutines beside the callers.
func (r *run) hung(ctx context.Context, _ int) error {
	before := runtime.NumGoroutine()
	s, err := server.Start(ctx, r.Server)
	if err != nil {
		return err
	}
	defer s.Close()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	client := rratelimiter.New(rdb)
	limiters := make([]*rratelimiter.RateLimiter, r.Stalled)
	for i := range limiters {
		limiters[i] = client.RateLimiter("hung:"+strconv.Itoa(i), rratelimiter.WithDefault(rratelimiter.PerHour(1_000_000)))
	}
	take := func(timeout time.Duration) load.Take {
		return func(ctx context.Context, i int) (bool, error) { return limiters[i].TryAcquire(ctx, 1, timeout) }
	}
	_, err = load.Each(ctx, len(limiters), take(0))
	if err != nil {
		return err
	}
	thaw, err := s.Freeze()
	if err != nil {
		return err
	}
	slowest, most, err := hang(ctx, len(limiters), before, take(100*time.Millisecond))
	thaw()
	key := func(metric string) report.Key {
		return report.Key{Metric: metric, Peer: peer.Ours, Network: report.Direct, Mode: Hung, Callers: r.Stalled, Limiters: r.Stalled}
	}
	r.results.Add(key(report.HungSlowest), micros(slowest))
	r.results.Add(key(report.HungMost), float64(most))
	return errors.Join(err, client.Close(ctx), rdb.Close())
}

// hang has a caller for each of n limiters ask a server that hangs, for two
// seconds. Goroutines count beyond these and those that were there before.
func hang(ctx context.Context, n, before int, take load.Take) (slowest time.Duration, most int, err error) {
	var (
		longest, granted atomic.Int64
		callers          sync.WaitGroup
	)
	end := time.Now().Add(2 * time.Second)
	for i := range n {
		callers.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				start := time.Now()
				ok, err := take(ctx, i)
				took := int64(time.Since(start))
				for old := longest.Load(); took > old && !longest.CompareAndSwap(old, took); {
					old = longest.Load()
				}
				if ok && err == nil {
					granted.Add(1)
				}
			}
		})
	}
	for time.Now().Before(end) {
		time.Sleep(2 * time.Millisecond)
		most = max(most, runtime.NumGoroutine()-before-n) // until the end all callers are there
	}
	callers.Wait()
	if granted.Load() > 0 {
		err = errors.New("a server that hangs has granted permits")
	}
	return time.Duration(longest.Load()), most, err
}
