package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// hanging is a hook that makes of a client's server one that hangs, while it is on:
// go-redis waits as long as by default, and can't be interrupted.
type hanging struct {
	mu   sync.Mutex
	on   bool
	sent int // commands, since it went on
	now  int // round trips under way
	most int
}

func (*hanging) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hanging) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.do([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (h *hanging) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.do(cmds, func() error { return next(ctx, cmds) })
	}
}

func (h *hanging) do(cmds []redis.Cmder, next func() error) error {
	h.mu.Lock()
	if !h.on {
		h.mu.Unlock()
		return next()
	}
	h.sent += len(cmds)
	h.now++
	h.most = max(h.most, h.now)
	h.mu.Unlock()
	time.Sleep(3 * time.Second)
	h.mu.Lock()
	h.now--
	h.mu.Unlock()
	err := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

func (h *hanging) hang(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = on
}

// seen returns how many commands were sent, how many round trips are under way and
// how many were at the same time.
func (h *hanging) seen() (sent, now, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent, h.now, h.most
}

// question is a call of a limiter, of a key.
type question func(ctx context.Context, key string) error

// askBehind runs test in a bubble, with a Client whose commands go through the hook, and
// the question of that name.
func askBehind(
	t *testing.T, name string, opt *redis.Options, hook redis.Hook, test func(t *testing.T, c *rratelimiter.Client, ask question),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, opt)
		rdb.AddHook(hook)
		c := limitertest.NewClient(t, rdb)
		test(t, c, questions(c, rdb, "thresholds")[name])
	})
}

// questions are calls of all limiters, each of a key of its own. The sliding log's
// thresholds are at the key of that name.
func questions(c *rratelimiter.Client, rdb rratelimiter.Redis, thresholds string) map[string]question {
	byDefault := rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))
	all := map[string]question{}
	for name, call := range limitertest.Operations {
		all[name] = func(ctx context.Context, key string) error { return call(ctx, c.RateLimiter(key, byDefault)) }
	}
	all["TryAcquireAll"] = func(ctx context.Context, key string) error {
		_, err := c.TryAcquireAll(ctx, 1, 0, c.RateLimiter(key+"1", byDefault), c.RateLimiter(key+"2", byDefault))
		return err
	}
	all["Migrate"] = func(ctx context.Context, key string) error {
		_, err := c.Migrate(ctx, key)
		return err
	}
	all["Keyed"] = func(ctx context.Context, key string) error {
		_, err := c.Keyed("k:", limitertest.Every(1000, time.Hour)).Take(ctx, key, 1)
		return err
	}
	window := fixedwindow.New(rdb, fixedwindow.Config{Limit: 1000, Window: time.Hour})
	all["fixedwindow"] = func(ctx context.Context, key string) error {
		_, err := window.Take(ctx, key+"w", 1)
		return err
	}
	log := slidinglog.New(rdb, slidinglog.Config{Limit: 1000, Window: time.Hour, Thresholds: thresholds})
	all["slidinglog"] = func(ctx context.Context, key string) error {
		_, err := log.Take(ctx, key+"l", 1)
		return err
	}
	all["slidinglog, SetThreshold"] = func(ctx context.Context, key string) error { return log.SetThreshold(ctx, key, 5) }
	all["slidinglog, Threshold"] = func(ctx context.Context, key string) error {
		_, err := log.Threshold(ctx, key)
		return err
	}
	bucket := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 1000, Refill: 1, Interval: time.Second})
	all["tokenbucket"] = func(ctx context.Context, key string) error {
		_, err := bucket.Take(ctx, key+"b", 1)
		return err
	}
	return all
}

// Whatever is asked of a server that hangs, and however many ask: each is answered
// within a call's time, or when its own is over, few round trips are under way, and
// nothing more is sent for those who have gone.
func TestAServerThatHangs(t *testing.T) {
	t.Parallel()
	for name := range questions(rratelimiter.New(nil), nil, "") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &hanging{}
			askBehind(t, name, &redis.Options{PoolSize: 256}, hook, func(t *testing.T, c *rratelimiter.Client, ask question) {
				require.NoError(t, c.RateLimiter("other", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))).Acquire(t.Context(), 1))
				hook.hang(true)

				var wg sync.WaitGroup
				for i := range 300 {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						ctx, limit := t.Context(), 3*time.Second
						if i%3 > 0 {
							var cancel context.CancelFunc
							limit = 500 * time.Millisecond
							ctx, cancel = context.WithTimeout(ctx, limit)
							defer cancel()
						}
						start := time.Now()
						err := ask(ctx, fmt.Sprintf("{key%d}", i))
						assert.LessOrEqual(t, time.Since(start), limit)
						if i%3 > 0 {
							assert.ErrorIs(t, err, context.DeadlineExceeded)
						} else {
							assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
						}
					})
				}
				wg.Wait()
				_, _, most := hook.seen()
				assert.LessOrEqual(t, most, 3*64)
				time.Sleep(3*time.Second + 100*time.Millisecond)
				before, _, _ := hook.seen()
				time.Sleep(time.Minute)
				sent, now, _ := hook.seen()
				assert.Equal(t, before, sent, "sent for nobody")
				assert.Zero(t, now)

				hook.hang(false)
				start := time.Now()
				require.NoError(t, c.RateLimiter("other").Acquire(t.Context(), 1))
				require.NoError(t, c.RateLimiter("other").Release(t.Context(), 1))
				assert.Less(t, time.Since(start), 10*time.Millisecond)
				synctest.Wait() // a flight ends a moment after its callers have their answers
				assert.Zero(t, engine.Of(c).Groups())
			})
		})
	}
}

// What is left of a lease goes back before a change, within the same time.
func TestAChangeBesideALeaseOnAServerThatHangs(t *testing.T) {
	t.Parallel()
	for name, call := range limitertest.Operations {
		if limitertest.Reads[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, m := redistest.Mini(t)
				rdb := redistest.MiniClient(t, m, nil)
				hook := &hanging{}
				rdb.AddHook(hook)
				l := limitertest.NewClient(t, rdb).RateLimiter("orders",
					rratelimiter.WithDefault(limitertest.Every(100_000, time.Hour)), limitertest.Ahead(0))
				for range 50 {
					limitertest.MustAcquire(t, l, 1)
				}
				hook.hang(true)
				start := time.Now()
				err := call(t.Context(), l)
				assert.LessOrEqual(t, time.Since(start), 3*time.Second)
				switch name {
				case "TryAcquire", "TryAcquire, waiting", "Acquire":
					require.NoError(t, err, "the lease has permits left")
				default:
					require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
				}
				hook.hang(false)
				time.Sleep(time.Minute)
			})
		})
	}
}

// A timeout bounds the wait for permits also where go-redis ends its reads in time.
func TestATimeoutOnAServerThatHangs(t *testing.T) {
	t.Parallel()
	for _, punctual := range []bool{false, true} {
		t.Run(fmt.Sprintf("ContextTimeoutEnabled %v", punctual), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, m := redistest.Mini(t)
				proxy := redistest.MiniProxy(t, m)
				c := limitertest.NewClient(t, proxy.Client(t, &redis.Options{ContextTimeoutEnabled: punctual, ReadTimeout: time.Minute}))
				byDefault := rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))
				limitertest.MustAcquire(t, c.RateLimiter("{a}1", byDefault), 1)
				proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Swallow })
				start := time.Now()
				_, err := c.RateLimiter("{a}2", byDefault).TryAcquire(t.Context(), 1, time.Millisecond)
				require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(start), 101*time.Millisecond)
				start = time.Now()
				_, err = c.TryAcquireAll(t.Context(), 1, time.Millisecond, c.RateLimiter("{a}3", byDefault), c.RateLimiter("{a}4", byDefault))
				require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(start), 101*time.Millisecond)
				proxy.OnCommand(nil)
				time.Sleep(2 * time.Minute)
			})
		})
	}
}
