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
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// BenchmarkHungServer tells what callers of a server meet that hangs (SIGSTOP): how
// long the slowest waits, and how many goroutines there are beside the callers' own.
func BenchmarkHungServer(b *testing.B) {
	for _, enabled := range []bool{false, true} {
		b.Run(fmt.Sprintf("ContextTimeoutEnabled=%v", enabled), func(b *testing.B) {
			opt := &redis.Options{ContextTimeoutEnabled: enabled}
			for _, timeout := range []time.Duration{0, 200 * time.Millisecond} {
				b.Run(fmt.Sprintf("75 callers of one limiter, timeout %v", timeout), func(b *testing.B) {
					for b.Loop() {
						h := newHung(b, opt)
						l := h.client.RateLimiter("one", rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
						limitertest.MustAcquire(b, l, 1)
						h.freeze(b)
						for range 75 {
							h.call(func(ctx context.Context) error {
								_, err := l.TryAcquire(ctx, 1, timeout)
								return err
							})
						}
						h.report(b)
						h.end(b)
					}
				})
			}
			b.Run("8000 limiters, timeout 100ms", func(b *testing.B) {
				for b.Loop() {
					h := newHung(b, opt)
					all := h.limiters(b, 8000)
					h.freeze(b)
					end := time.Now().Add(5 * time.Second)
					var wg sync.WaitGroup
					for _, l := range all {
						h.alive.Add(1)
						wg.Go(func() {
							defer h.alive.Add(-1)
							for time.Now().Before(end) {
								h.time(func() error {
									_, err := l.TryAcquire(context.Background(), 1, 100*time.Millisecond)
									return err
								})
							}
						})
					}
					wg.Wait()
					h.report(b)
					h.end(b)
				}
			})
			b.Run("beside Acquire of 8000 limiters, timeout 100ms", func(b *testing.B) {
				for b.Loop() {
					h := newHung(b, opt)
					all := h.limiters(b, 8000)
					h.freeze(b)
					end := time.Now().Add(5 * time.Second)
					var wg sync.WaitGroup
					for i, l := range all {
						h.alive.Add(1)
						wg.Go(func() {
							defer h.alive.Add(-1)
							for time.Now().Before(end) {
								if i >= 10 {
									_ = l.Acquire(context.Background(), 1)
									continue
								}
								h.time(func() error {
									_, err := l.TryAcquire(context.Background(), 1, 100*time.Millisecond)
									return err
								})
							}
						})
					}
					wg.Wait()
					h.report(b)
					h.end(b)
				}
			})
			for name, take := range map[string]func(h *hung) func(ctx context.Context, key string) error{
				"Keyed": func(h *hung) func(ctx context.Context, key string) error {
					k := h.client.Keyed("k:", limitertest.Every(100, time.Hour))
					return func(ctx context.Context, key string) error { _, err := k.Take(ctx, key, 1); return err }
				},
				"fixedwindow": func(h *hung) func(ctx context.Context, key string) error {
					k := fixedwindow.New(h.rdb, fixedwindow.Config{Limit: 100, Window: time.Hour})
					return func(ctx context.Context, key string) error { _, err := k.Take(ctx, key, 1); return err }
				},
				"AvailablePermits": func(h *hung) func(ctx context.Context, key string) error {
					return func(ctx context.Context, key string) error {
						_, err := h.client.RateLimiter(key).AvailablePermits(ctx)
						return err
					}
				},
				"Release": func(h *hung) func(ctx context.Context, key string) error {
					return func(ctx context.Context, key string) error {
						return h.client.RateLimiter(key).Release(ctx, 1)
					}
				},
			} {
				b.Run("1000 new keys a second, "+name, func(b *testing.B) {
					for b.Loop() {
						h := newHung(b, opt)
						do := take(h)
						_ = do(context.Background(), "first")
						h.freeze(b)
						tick := time.NewTicker(time.Millisecond)
						for i := range 6000 {
							<-tick.C
							h.call(func(ctx context.Context) error {
								ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
								defer cancel()
								return do(ctx, fmt.Sprint("key", i))
							})
						}
						tick.Stop()
						h.report(b)
						time.Sleep(20 * time.Second)
						b.ReportMetric(float64(runtime.NumGoroutine()-h.before), "goroutines-20s-after")
						h.end(b)
					}
				})
			}
		})
	}
}

// hung is a server that hangs and those who ask it.
type hung struct {
	server *redistest.Server
	rdb    *redis.Client
	client *rratelimiter.Client
	before int // goroutines

	alive   atomic.Int64 // callers
	callers sync.WaitGroup
	slowest atomic.Int64
	granted atomic.Int64

	stop    chan struct{}
	stopped chan int // the most goroutines beside callers
}

func newHung(b *testing.B, opt *redis.Options) *hung {
	b.Helper()
	redis.SetLogger(quiet{})
	h := &hung{server: redistest.StartRedis(b), stop: make(chan struct{}), stopped: make(chan int)}
	h.rdb = h.server.Client(b, opt)
	h.client = rratelimiter.New(h.rdb)
	return h
}

// quiet is a log for nobody.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// end has all that the server holds up end, so that the next begins at rest.
func (h *hung) end(b *testing.B) {
	b.Helper()
	h.server.Thaw(b)
	require.NoError(b, h.client.Close(context.Background()))
	require.NoError(b, h.rdb.Close())
	h.server.Kill()
	time.Sleep(4 * time.Second)
}

func (h *hung) limiters(b *testing.B, n int) []*rratelimiter.RateLimiter {
	b.Helper()
	all := make([]*rratelimiter.RateLimiter, n)
	var wg sync.WaitGroup
	for i := range all {
		all[i] = h.client.RateLimiter(fmt.Sprint("l", i), rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
		wg.Go(func() { _, _ = all[i].TryAcquire(context.Background(), 1, time.Second) })
	}
	wg.Wait()
	return all
}

func (h *hung) freeze(b *testing.B) {
	b.Helper()
	h.server.Freeze(b)
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

func (h *hung) call(f func(ctx context.Context) error) {
	h.alive.Add(1)
	h.callers.Go(func() {
		defer h.alive.Add(-1)
		h.time(func() error { return f(context.Background()) })
	})
}

func (h *hung) time(f func() error) {
	start := time.Now()
	err := f()
	took := int64(time.Since(start))
	for {
		old := h.slowest.Load()
		if took <= old || h.slowest.CompareAndSwap(old, took) {
			break
		}
	}
	if err == nil {
		h.granted.Add(1)
	}
}

func (h *hung) report(b *testing.B) {
	b.Helper()
	h.callers.Wait()
	after := runtime.NumGoroutine() - h.before
	close(h.stop)
	most := <-h.stopped
	require.Zero(b, h.granted.Load())
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(most), "goroutines-most")
	b.ReportMetric(float64(after), "goroutines-after")
	b.ReportMetric(time.Duration(h.slowest.Load()).Seconds(), "slowest-s")
}
