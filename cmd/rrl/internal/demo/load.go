package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// Load is limiters of every kind on a server of their own, in use all the time.
type Load struct {
	Redis   *redis.Client
	Windows *fixedwindow.Limiter // of keys that begin with WindowKeys
	Logs    *slidinglog.Limiter
	Buckets *tokenbucket.Limiter

	clients []*rratelimiter.Client
	users   *rratelimiter.KeyedLimiter
	end     []func()
	working sync.WaitGroup
}

// What the keys of a Load begin with.
const (
	WindowKeys = "demo:window:"
	LogKeys    = "demo:log:"
	BucketKeys = "demo:bucket:"
	Thresholds = "demo:thresholds"
)

// loadStep is how often some permits are taken.
const loadStep = 100 * time.Millisecond

// StartLoad starts a Load that reports to observer. Close ends it.
func StartLoad(ctx context.Context, observer limit.Observer) (*Load, error) {
	rdb, m := embedded(8)
	l := &Load{Redis: rdb}
	for _, name := range []string{"orders-1", "orders-2", "billing"} {
		l.clients = append(l.clients, newClient(rdb, rratelimiter.WithClientName(name), rratelimiter.WithObserver(observer)))
	}
	l.Windows = fixedwindow.New(l.clients[0], fixedwindow.Config{Limit: 60, Window: time.Minute})
	l.Logs = slidinglog.New(l.clients[0], slidinglog.Config{Limit: 20, Window: 30 * time.Second, Thresholds: Thresholds})
	l.Buckets = tokenbucket.New(l.clients[0], tokenbucket.Config{Capacity: 40, Refill: 5, Interval: time.Second})
	l.users = l.clients[0].Keyed("demo:api:", rratelimiter.Config{Rate: 50, Interval: 30 * time.Second, KeepAlive: time.Hour})
	ctx, cancel := context.WithCancel(ctx)
	l.end = append(l.end, cancel, func() {
		l.working.Wait()
		for _, c := range l.clients {
			closeClient(context.WithoutCancel(ctx), c)
		}
		_ = rdb.Close()
		m.Close()
	})
	if err := l.prepare(ctx); err != nil {
		l.Close()
		return nil, err
	}
	l.working.Go(func() { l.run(ctx) })
	return l, nil
}

// Close ends the Load and its server.
func (l *Load) Close() {
	for _, end := range l.end {
		end()
	}
}

// loaded is a limiter of the Load, and how many permits are wanted of it a second.
type loaded struct {
	name   string
	cfg    rratelimiter.Config
	wanted float64
}

func loads() []loaded {
	return []loaded{
		{"demo:orders", rratelimiter.PerSecond(40), 44},
		{"demo:mail", rratelimiter.PerMinute(60), 0.8},
		{"demo:reports", rratelimiter.PerHour(12), 0.01},
		{"demo:search", rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 30, Interval: 10 * time.Second}, 6},
		{`demo:<img src=x onerror="alert(1)">`, rratelimiter.PerMinute(30), 0.3},
		{"demo:\u05e9\u05dc\u05d5\u05dd", rratelimiter.PerMinute(20), 0.2}, // from right to left
		{"demo:\u202egnp.exe", rratelimiter.PerMinute(10), 0.1},            // turns the direction round
	}
}

// damaged is a limiter with something wrong.
const damaged = "demo:damaged"

func (l *Load) prepare(ctx context.Context) error {
	var errs []error
	for i, one := range append(loads(), loaded{damaged, rratelimiter.PerHour(10), 0}) {
		limiter := l.clients[i%len(l.clients)].RateLimiter(one.name)
		_, err := limiter.TrySetRate(ctx, one.cfg)
		errs = append(errs, err)
		if one.name == damaged || one.name == "demo:reports" {
			_, err := limiter.Take(ctx, 3)
			errs = append(errs, err)
		}
	}
	errs = append(errs, l.Redis.Set(ctx, redisson.KeysOf(damaged, "").Value, 12, 0).Err(), l.Logs.SetThreshold(ctx, LogKeys+"ann", 40))
	return errors.Join(errs...)
}

// run takes permits until ctx ends.
func (l *Load) run(ctx context.Context) {
	tick := time.NewTicker(loadStep)
	defer tick.Stop()
	people := []string{"ann", "bob", "cleo", "dan", "eve"}
	for {
		for _, one := range loads() {
			client := l.clients[rand.IntN(len(l.clients))]
			if n := draw(one.wanted * loadStep.Seconds()); n > 0 {
				_, _ = client.RateLimiter(one.name).Take(ctx, n)
			}
		}
		for range 3 {
			_, _ = l.users.Take(ctx, fmt.Sprintf("user-%02d", int(rand.ExpFloat64()*8)%40), 1)
		}
		who := people[int(rand.ExpFloat64()*1.5)%len(people)]
		_, _ = l.Windows.Take(ctx, WindowKeys+who, 1)
		_, _ = l.Logs.Take(ctx, LogKeys+who, 1)
		_, _ = l.Buckets.Take(ctx, BucketKeys+who, 1)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// draw returns a whole number that is, on average, n.
func draw(n float64) int64 {
	whole := int64(n)
	if rand.Float64() < n-float64(whole) {
		whole++
	}
	return whole
}
