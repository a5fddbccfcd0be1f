package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
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
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// hanging makes of a client's server one that hangs, while it is on: go-redis waits as
// long as by default, and can't be interrupted.
type hanging struct {
	lasts time.Duration // how long go-redis waits
	only  string        // the command of the round trips that are counted; "" for all

	on atomic.Bool

	mu   sync.Mutex
	sent int // commands, since it went on
	now  int // round trips under way
	most int
}

func newHanging(rdb *redis.Client) *hanging {
	h := &hanging{lasts: 3 * time.Second}
	rdb.AddHook(redistest.Hook(h.do))
	return h
}

func (h *hanging) do(_ context.Context, cmds []redis.Cmder, next func() error) error {
	if !h.on.Load() {
		return next()
	}
	h.mu.Lock()
	if h.only == "" || h.only == cmds[0].Name() {
		h.sent += len(cmds)
		h.now++
		h.most = max(h.most, h.now)
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.now--
		}()
	}
	h.mu.Unlock()
	time.Sleep(h.lasts)
	return redistest.Fail(cmds, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded})
}

func (h *hanging) hang(on bool) { h.on.Store(on) }

// seen returns how many commands were sent, how many round trips are under way and
// how many were at the same time.
func (h *hanging) seen() (sent, now, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent, h.now, h.most
}

// call is a call of a limiter, of a key.
type call func(ctx context.Context, key string) error

// questions are calls of all limiters, each of a key of its own. The sliding log's
// thresholds are at the key of that name.
func questions(c *rratelimiter.Client, rdb rratelimiter.Redis, thresholds string) map[string]call {
	byDefault := rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))
	all := map[string]call{}
	for name, call := range limitertest.Operations {
		all[name] = func(ctx context.Context, key string) error { return call(ctx, c.RateLimiter(key, byDefault)) }
	}
	all["TryAcquireAll"] = func(ctx context.Context, key string) error {
		return limitertest.Second(c.TryAcquireAll(ctx, 1, 0, c.RateLimiter(key+"1", byDefault), c.RateLimiter(key+"2", byDefault)))
	}
	all["Migrate"] = func(ctx context.Context, key string) error { return limitertest.Second(c.Migrate(ctx, key)) }
	log := slidinglog.New(rdb, slidinglog.Config{Limit: 1000, Window: time.Hour, Thresholds: thresholds})
	all["slidinglog, SetThreshold"] = func(ctx context.Context, key string) error { return log.SetThreshold(ctx, key, 5) }
	all["slidinglog, Threshold"] = func(ctx context.Context, key string) error { return limitertest.Second(log.Threshold(ctx, key)) }
	for name, l := range map[string]limit.Limiter{
		"Keyed":       c.Keyed("k:", limitertest.Every(1000, time.Hour)),
		"fixedwindow": fixedwindow.New(rdb, fixedwindow.Config{Limit: 1000, Window: time.Hour}),
		"slidinglog":  log,
		"tokenbucket": tokenbucket.New(rdb, tokenbucket.Config{Capacity: 1000, Refill: 1, Interval: time.Second}),
	} {
		all[name] = func(ctx context.Context, key string) error { return limitertest.Second(l.Take(ctx, key+name, 1)) }
	}
	return all
}

// A question is one of questions, and who asks it.
type question struct {
	name   string
	rdb    *redis.Client
	client *rratelimiter.Client
	ask    call
}

func (q *question) limiter(key string) *rratelimiter.RateLimiter {
	return q.client.RateLimiter(key, rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
}

func eachQuestion(t *testing.T, opt *redis.Options, test func(t *testing.T, q *question)) {
	t.Helper()
	for name := range questions(rratelimiter.New(nil), nil, "") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, m := redistest.Mini(t)
				q := &question{name: name, rdb: redistest.MiniClient(t, m, opt)}
				q.client = limitertest.NewClient(t, q.rdb)
				q.ask = questions(q.client, q.rdb, "thresholds")[name]
				test(t, q)
			})
		})
	}
}

// Whatever is asked of a server that hangs, and however many ask: each is answered
// within a call's time, or when its own is over, few round trips are under way, and
// nothing more is sent for those who have gone.
func TestAServerThatHangs(t *testing.T) {
	t.Parallel()
	eachQuestion(t, &redis.Options{PoolSize: 256}, func(t *testing.T, q *question) {
		hook := newHanging(q.rdb)
		limitertest.MustAcquire(t, q.limiter("other"), 1)
		hook.hang(true)

		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				ctx, within, want := t.Context(), 3*time.Second, rratelimiter.ErrUnavailable
				if i%3 > 0 {
					within, want = 500*time.Millisecond, context.DeadlineExceeded
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, within)
					defer cancel()
				}
				start := time.Now()
				assert.ErrorIs(t, q.ask(ctx, fmt.Sprintf("{key%d}", i)), want)
				assert.LessOrEqual(t, time.Since(start), within)
			})
		}
		wg.Wait()
		_, _, most := hook.seen()
		assert.LessOrEqual(t, most, 3*64)
		time.Sleep(3*time.Second + 100*time.Millisecond)
		before, _, _ := hook.seen()
		time.Sleep(time.Minute)
		sent, now, _ := hook.seen()
		assert.Equal(t, before, sent, "sent for callers who have gone")
		assert.Zero(t, now)

		hook.hang(false)
		start := time.Now()
		limitertest.MustAcquire(t, q.limiter("other"), 1)
		require.NoError(t, q.limiter("other").Release(t.Context(), 1))
		assert.Less(t, time.Since(start), 10*time.Millisecond)
		synctest.Wait() // a flight ends a moment after its callers have their answers
		assert.Zero(t, engine.Of(q.client).Groups())
	})
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
				rdb, _ := redistest.Mini(t)
				hook := newHanging(rdb)
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

// A timeout bounds the wait for permits also if go-redis ends its reads in time.
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

// probePace is how often a server that answers no call is asked.
const probePace = time.Second / 3

// askWhileItHangs asks a server that hangs, of 100 keys within 100 ms, and lets it
// answer again after so long. go-redis waits on for answers to what was sent before.
func askWhileItHangs(t *testing.T, hook *hanging, d time.Duration, ask call) {
	t.Helper()
	hook.hang(true)
	for i := range 100 {
		go func() { _ = ask(context.Background(), fmt.Sprintf("{key%d}", i)) }()
		time.Sleep(time.Millisecond)
	}
	time.Sleep(d - 100*time.Millisecond)
	hook.hang(false)
}

// A server that hung and answers again is soon asked, whatever the question, though
// go-redis still waits on the connections of before. Once it has answered all go through.
func TestAServerThatAnswersAgain(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{200 * time.Millisecond, 1200 * time.Millisecond, 2500 * time.Millisecond} {
		t.Run(fmt.Sprint("after ", d), func(t *testing.T) {
			t.Parallel()
			eachQuestion(t, &redis.Options{PoolSize: 256}, func(t *testing.T, q *question) {
				askWhileItHangs(t, newHanging(q.rdb), d, q.ask)
				start := time.Now()
				require.NotErrorIs(t, q.ask(t.Context(), "{new}"), rratelimiter.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(start), probePace+10*time.Millisecond)
				start = time.Now()
				var wg sync.WaitGroup
				for i := range 100 {
					wg.Go(func() {
						assert.NotErrorIs(t, q.ask(t.Context(), fmt.Sprintf("{new%d}", i)), rratelimiter.ErrUnavailable)
					})
				}
				wg.Wait()
				assert.Less(t, time.Since(start), 10*time.Millisecond)
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestAServerThatHangsAgainAndAgain(t *testing.T) {
	t.Parallel()
	eachQuestion(t, nil, func(t *testing.T, q *question) {
		hook := newHanging(q.rdb)
		for range 5 {
			askWhileItHangs(t, hook, 600*time.Millisecond, q.ask)
			time.Sleep(100 * time.Millisecond)
		}
		_, _, most := hook.seen()
		assert.LessOrEqual(t, most, 4*64+64)
		time.Sleep(time.Minute)
		_, now, _ := hook.seen()
		assert.Zero(t, now)
	})
}

// Notices to a server that is silent gather no goroutines, and hold up no Close for longer
// than a call takes. Once the server answers, each limiter that was changed gets a notice.
func TestNoticesToASilentServer(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := rratelimiter.New(rdb, rratelimiter.WithCallTimeout(timeout))
		var limiters []*rratelimiter.RateLimiter
		for i := range 10 {
			limiters = append(limiters, client.RateLimiter(fmt.Sprint("l", i), rratelimiter.WithRefusalCache(rratelimiter.WithNotices())))
			limitertest.MustTrySetRate(t, limiters[i], limitertest.Every(5, time.Hour))
		}
		synctest.Wait()
		var published sync.Map // the channels that got a notice
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			err := next()
			for _, cmd := range cmds {
				if err == nil && cmd.Name() == "publish" {
					published.Store(cmd.Args()[1], true)
				}
			}
			return err
		}))
		hook := newHanging(rdb)
		hook.lasts, hook.only = 12*time.Second, "publish" // all that go-redis does by itself, four reads
		release := func(lasting time.Duration) {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					for start := time.Now(); time.Since(start) < lasting; {
						_ = limiters[i%10].Release(t.Context(), 1)
					}
				})
			}
			wg.Wait()
		}
		hook.hang(true)
		release(10 * time.Second)
		_, _, most := hook.seen()
		assert.LessOrEqual(t, most, 2, "round trips that publish")

		hook.hang(false)
		time.Sleep(15 * time.Second)
		channels := 0
		published.Range(func(any, any) bool { channels++; return true })
		assert.Equal(t, 10, channels)

		hook.hang(true)
		release(time.Second)
		start := time.Now()
		require.NoError(t, client.Close(t.Context()))
		assert.LessOrEqual(t, time.Since(start), timeout)
		time.Sleep(time.Minute)
	})
}
