package suite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/internal/histogram"
)

// besidePause is the mean of what callers pause, if they do.
const besidePause = 3 * time.Millisecond

// beside measures how long callers wait beside as many callers of a script that
// does nothing, by one Redis client through the delay.
func (r *run) beside(ctx context.Context, round int) error {
	rdb := peer.NewClient(r.delay.Addr, connectionsFar)
	client := rratelimiter.New(rdb)
	err := r.besideAll(ctx, round, rdb, client)
	return errors.Join(err, client.Close(ctx), rdb.Close())
}

func (r *run) besideAll(ctx context.Context, round int, rdb *redis.Client, client *rratelimiter.Client) error {
	if err := r.redis.Flush(ctx); err != nil {
		return err
	}
	names := make([]string, 32)
	limiters := make([]*rratelimiter.RateLimiter, len(names))
	prefix := r.prefix()
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
	}
	bare, err := peer.Bare(ctx, rdb, names) // which deletes what it looks at
	if err != nil {
		return err
	}
	for i := range names {
		limiters[i] = client.RateLimiter(names[i])
		cfg := rratelimiter.Config{Rate: grantAll.Limit, Interval: grantAll.Interval}
		if err := limiters[i].SetRate(ctx, cfg); err != nil {
			return err
		}
		if err := limiters[i].Acquire(ctx, 1); err != nil {
			return err
		}
	}
	ours := func(timeout time.Duration) load.Take {
		return func(ctx context.Context, i int) (bool, error) { return limiters[i].TryAcquire(ctx, 1, timeout) }
	}
	mayWait := ours(time.Minute)
	ways := []besideWay{
		{peer.EVALSHA, report.OneLimiter, bare},
		{peer.Ours, report.OneLimiter, ours(0)},
		{peer.Ours, report.OneLimiter + report.MayWait, mayWait},
	}
	for _, callers := range []int{1, 8, len(names)} {
		if callers == len(names) {
			ways = append(ways,
				besideWay{peer.Ours, report.OwnLimiter, ours(0)},
				besideWay{peer.Ours, report.OwnLimiter + report.MayWait, mayWait})
		}
		for _, pause := range []time.Duration{0, besidePause} {
			if err := r.besideThese(ctx, round, callers, pause, ways); err != nil {
				return err
			}
		}
	}
	return nil
}

// besideWay is one way to ask of many callers.
type besideWay struct {
	name, mode string
	take       load.Take
}

// besideThese makes the callers ask in each way, in turn.
func (r *run) besideThese(ctx context.Context, round, callers int, pause time.Duration, ways []besideWay) error {
	turns, length := 3, 150*time.Millisecond
	if r.Short {
		turns, length = 2, 100*time.Millisecond
	}
	waited := make([]histogram.Histogram, len(ways))
	for turn := range turns {
		for n := range ways {
			i := (n + turn + round) % len(ways)
			l := load.Load{Callers: callers, Limiters: 1, Pause: pause, Warm: 30 * time.Millisecond, Length: length}
			if ways[i].mode == report.OwnLimiter || ways[i].mode == report.OwnLimiter+report.MayWait {
				l.Limiters, l.Draw = callers, load.Own
			}
			result := load.Run(ctx, l, ways[i].take)
			if result.Errors > 0 || result.Refused > 0 {
				return fmt.Errorf("%s, %s, %d callers: %d were refused, %d errors %s",
					ways[i].name, ways[i].mode, callers, result.Refused, result.Errors, result.FirstError)
			}
			waited[i].Merge(&result.Latencies)
		}
	}
	for i, way := range ways {
		mode := way.mode
		if pause > 0 {
			mode += report.Paused
		}
		k := report.Key{Metric: report.Beside, Peer: way.name, Network: report.Delayed, Mode: mode, Callers: callers, Limiters: 1}
		r.results.Add(k, micros(waited[i].Percentile(50)))
	}
	return nil
}
