// Package bench measures what a server gives to the machine it runs on: [Run] makes callers
// take permits for a while, on keys of its own, and removes the keys.
package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/histogram"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// Limiters of a bench have enough permits to refuse no request.
const (
	rate     = 1 << 30
	interval = time.Second
	// keepAfter is how long keys outlive the time that the bench should take, if
	// they are not removed.
	keepAfter = time.Minute
	setters   = 32 // limiters that are given their rate at the same time
	// maxWarmUp bounds the part of a run's start that does not count.
	maxWarmUp = 300 * time.Millisecond
	// unlinkBatch is how many limiters' keys are removed by one round trip.
	unlinkBatch = 100
)

// cleanTimeout bounds removing the keys.
const cleanTimeout = 10 * time.Second

// Options choose the measurements.
type Options struct {
	Time     time.Duration // for all runs together, about
	Callers  []int         // of the runs with many callers
	Limiters int           // of the runs with many limiters
	Prefix   string        // of the keys
	Client   []rratelimiter.Option
	// Started receives each run before it begins, and Done what it came to;
	// either may be nil.
	Started func(callers, limiters int, span time.Duration)
	Done    func(Result)
}

// Result is what one run came to.
type Result struct {
	Callers   int     `json:"callers"`
	Limiters  int     `json:"limiters"`
	Decisions int64   `json:"decisions"`
	PerSecond float64 `json:"decisions_per_second"`
	P50Micros float64 `json:"p50_us"`
	P99Micros float64 `json:"p99_us"`
	Refused   int64   `json:"refused"`
}

// Report is all of them.
type Report struct {
	Results []Result `json:"results"`
	// Left is how many limiters' keys could not be removed; they go by themselves.
	Left int `json:"limiters_left"`
}

// Run measures, one run after the other. It removes its keys also when ctx ends
// early.
func Run(ctx context.Context, rdb nodes.Client, opts Options) (report Report, err error) {
	b := &bench{
		rdb: rdb, prefix: opts.Prefix + "rrl-bench-" + rand.Text(), ttl: opts.Time + keepAfter,
		sets: map[int][]*rratelimiter.RateLimiter{},
	}
	plan := [][2]int{{1, 1}}
	for _, limiters := range []int{1, opts.Limiters} {
		for _, callers := range opts.Callers {
			plan = append(plan, [2]int{callers, limiters})
		}
	}
	b.client = rratelimiter.New(rdb, opts.Client...)
	defer func() {
		// No caller may take permits while the keys are deleted: they would come back.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		_ = b.client.Close(clean)
		left, cleanErr := b.clean(clean)
		report.Left = left
		if err == nil {
			err = cleanErr
		}
	}()
	span := opts.Time / time.Duration(len(plan))
	for _, p := range plan {
		if opts.Started != nil {
			opts.Started(p[0], p[1], span)
		}
		r, err := b.run(ctx, p[0], p[1], span)
		if err != nil {
			return report, err
		}
		report.Results = append(report.Results, r)
		if opts.Done != nil {
			opts.Done(r)
		}
	}
	return report, nil
}

type bench struct {
	rdb    nodes.Client
	client *rratelimiter.Client
	prefix string
	ttl    time.Duration
	sets   map[int][]*rratelimiter.RateLimiter // by their number
	names  []string                            // of all limiters that may have keys
}

// limiters returns that many limiters, which have a rate and a time to live.
func (b *bench) limiters(ctx context.Context, n int) ([]*rratelimiter.RateLimiter, error) {
	if all, made := b.sets[n]; made {
		return all, nil
	}
	all := make([]*rratelimiter.RateLimiter, n)
	for i := range all {
		name := fmt.Sprintf("%s:%d:%d", b.prefix, n, i)
		b.names = append(b.names, name)
		all[i] = b.client.RateLimiter(name)
	}
	err := each(min(n, setters), func(worker int) error {
		for i := worker; i < n; i += setters {
			if err := all[i].SetRate(ctx, rratelimiter.Config{Rate: rate, Interval: interval}); err != nil {
				return err
			}
			if _, err := all[i].Expire(ctx, b.ttl); err != nil {
				return err
			}
		}
		return nil
	})
	b.sets[n] = all
	return all, err
}

// each calls do with the numbers below n, at the same time, and returns the error of one that
// failed.
func each(n int, do func(i int) error) error {
	var (
		group  sync.WaitGroup
		failed atomic.Pointer[error]
	)
	for i := range n {
		group.Go(func() {
			if err := do(i); err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// run makes that many callers take permits of that many limiters, each of the next
// one.
func (b *bench) run(ctx context.Context, callers, limiters int, span time.Duration) (Result, error) {
	all, err := b.limiters(ctx, limiters)
	if err != nil {
		return Result{}, err
	}
	var (
		stop     atomic.Bool
		counts   atomic.Bool
		refused  atomic.Int64
		times    = make([]histogram.Histogram, callers)
		warmUp   = min(span/5, maxWarmUp)
		counting time.Time
		end      time.Time
	)
	done := make(chan error, 1)
	go func() {
		done <- each(callers, func(caller int) error {
			own := &times[caller]
			for i := caller; !stop.Load(); i++ {
				start := time.Now()
				granted, err := all[i%limiters].TryAcquire(ctx, 1, 0)
				if err != nil {
					stop.Store(true)
					return err
				}
				if counts.Load() {
					own.Add(time.Since(start))
					if !granted {
						refused.Add(1)
					}
				}
			}
			return nil
		})
		close(done)
	}()
	err = wait(ctx, warmUp, done)
	if err == nil {
		counts.Store(true)
		counting = time.Now()
		err = wait(ctx, span-warmUp, done)
		end = time.Now()
		counts.Store(false)
	}
	stop.Store(true)
	// However the run ended, no one takes permits after it.
	if late := <-done; err == nil {
		err = late
	}
	if err != nil {
		return Result{}, err
	}
	return resultOf(times, limiters, refused.Load(), end.Sub(counting)), nil
}

func resultOf(times []histogram.Histogram, limiters int, refused int64, took time.Duration) Result {
	var sum histogram.Histogram
	for i := range times {
		sum.Merge(&times[i])
	}
	return Result{
		Callers: len(times), Limiters: limiters, Decisions: sum.Count(),
		PerSecond: float64(sum.Count()) / took.Seconds(), Refused: refused,
		P50Micros: micros(sum.Percentile(50)), P99Micros: micros(sum.Percentile(99)),
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// wait waits, or until the callers end first, which they do by an error.
func wait(ctx context.Context, d time.Duration, done <-chan error) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-done:
		return err
	case <-timer.C:
		return nil
	}
}

// clean removes the keys of all limiters, and returns how many limiters may still
// have some.
func (b *bench) clean(ctx context.Context) (left int, err error) {
	for at := 0; at < len(b.names); at += unlinkBatch {
		pipe := b.rdb.Pipeline()
		for _, name := range b.names[at:min(at+unlinkBatch, len(b.names))] {
			k := redisson.KeysOf(name, "")
			// One command a key: a cluster may have them in different slots.
			for _, key := range []string{k.Config, k.Value, k.Permits} {
				pipe.Unlink(ctx, key)
			}
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return len(b.names) - at, fmt.Errorf("remove keys %s*: %w", b.prefix, err)
		}
	}
	return 0, nil
}
