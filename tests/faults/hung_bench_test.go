package faults_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// BenchmarkHungServer tells what callers of a server meet that hangs (SIGSTOP): how
// long the slowest waits, and how many goroutines there are beside the callers' own.
func BenchmarkHungServer(b *testing.B) {
	for _, enabled := range []bool{false, true} {
		b.Run(fmt.Sprintf("ContextTimeoutEnabled=%v", enabled), func(b *testing.B) {
			run := func(name string, test func(h *hung)) {
				b.Run(name, func(b *testing.B) {
					for b.Loop() {
						h := newHung(b, &redis.Options{ContextTimeoutEnabled: enabled})
						test(h)
						h.end()
					}
				})
			}
			for _, timeout := range []time.Duration{0, 200 * time.Millisecond} {
				run(fmt.Sprintf("75 callers of one limiter, timeout %v", timeout), func(h *hung) { h.ofOne(timeout) })
			}
			run("8000 limiters, timeout 100ms", func(h *hung) { h.ofMany(8000) })
			run("beside Acquire of 8000 limiters, timeout 100ms", func(h *hung) { h.ofMany(10) })
			for _, name := range []string{"Keyed", "fixedwindow", "AvailablePermits", "Release"} {
				run("1000 new keys a second, "+name, func(h *hung) { h.ofNewKeys(name) })
			}
		})
	}
}

// hung is a server that hangs and those who ask it.
type hung struct {
	*testing.B

	server *redistest.Server
	rdb    *redis.Client
	client *rratelimiter.Client
	before int // goroutines

	alive   atomic.Int64 // callers
	callers sync.WaitGroup
	granted atomic.Int64

	mu      sync.Mutex
	slowest time.Duration

	stop    chan struct{}
	stopped chan int // the most goroutines beside callers
}

func newHung(b *testing.B, opt *redis.Options) *hung {
	b.Helper()
	logging.Disable()
	h := &hung{B: b, server: redistest.StartRedis(b), stop: make(chan struct{}), stopped: make(chan int)}
	h.rdb = h.server.Client(b, opt)
	h.client = rratelimiter.New(h.rdb)
	return h
}

func (h *hung) ofOne(timeout time.Duration) {
	l := h.client.RateLimiter("one", rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
	limitertest.MustAcquire(h, l, 1)
	h.freeze()
	for range 75 {
		h.call(func() error { return limitertest.Second(l.TryAcquire(context.Background(), 1, timeout)) })
	}
	h.report()
}

// ofMany lets so many of 8000 limiters try again and again, and the others wait.
func (h *hung) ofMany(trying int) {
	all := make([]*rratelimiter.RateLimiter, 8000)
	var wg sync.WaitGroup
	for i := range all {
		all[i] = h.client.RateLimiter(fmt.Sprint("l", i), rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
		wg.Go(func() { _, _ = all[i].TryAcquire(context.Background(), 1, time.Second) })
	}
	wg.Wait()
	h.freeze()
	end := time.Now().Add(5 * time.Second)
	for i, l := range all {
		h.alive.Add(1)
		wg.Go(func() {
			defer h.alive.Add(-1)
			for time.Now().Before(end) {
				if i >= trying {
					_ = l.Acquire(context.Background(), 1)
					continue
				}
				h.time(func() error { return limitertest.Second(l.TryAcquire(context.Background(), 1, 100*time.Millisecond)) })
			}
		})
	}
	wg.Wait()
	h.report()
}

func (h *hung) ofNewKeys(name string) {
	ask := questions(h.client, h.rdb, "thresholds")[name]
	_ = ask(context.Background(), "first")
	h.freeze()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range 6000 {
		<-tick.C
		h.call(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			defer cancel()
			return ask(ctx, fmt.Sprint("key", i))
		})
	}
	h.report()
	time.Sleep(20 * time.Second)
	h.ReportMetric(float64(runtime.NumGoroutine()-h.before), "goroutines-20s-after")
}

// end lets all that the server holds up end, so that the next begins at rest.
func (h *hung) end() {
	h.server.Thaw(h)
	require.NoError(h, h.client.Close(context.Background()))
	require.NoError(h, h.rdb.Close())
	h.server.Kill()
	time.Sleep(4 * time.Second)
}

func (h *hung) freeze() {
	h.server.Freeze(h)
	h.before = runtime.NumGoroutine()
	go func() {
		most := 0
		for {
			select {
			case <-h.stop:
				h.stopped <- most
				return
			case <-time.After(2 * time.Millisecond):
				alive := int(h.alive.Load()) // those that begin meanwhile count as ours
				most = max(most, runtime.NumGoroutine()-alive-h.before)
			}
		}
	}()
}

func (h *hung) call(f func() error) {
	h.alive.Add(1)
	h.callers.Go(func() {
		defer h.alive.Add(-1)
		h.time(f)
	})
}

func (h *hung) time(f func() error) {
	start := time.Now()
	if f() == nil {
		h.granted.Add(1)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slowest = max(h.slowest, time.Since(start))
}

func (h *hung) report() {
	h.callers.Wait()
	after := runtime.NumGoroutine() - h.before
	close(h.stop)
	most := <-h.stopped
	require.Zero(h, h.granted.Load())
	h.ReportMetric(0, "ns/op")
	h.ReportMetric(float64(most), "goroutines-most")
	h.ReportMetric(float64(after), "goroutines-after")
	h.ReportMetric(h.slowest.Seconds(), "slowest-s")
}
