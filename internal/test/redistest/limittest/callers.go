package limittest

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Many callers of several processes, and the articles' scripts beside them, get exactly the limit.
func testManyCallers(t *testing.T, k Kind) {
	atRest(t, func(t *testing.T, rdb redistest.Client) {
		const permits = 100
		both := []Limiter{k.on(rdb, permits, time.Hour), k.on(rdb, permits, time.Hour)}
		for _, key := range []string{Key(t), Key(t), Key(t)} {
			var rules []Rule
			if k.Articles != nil {
				rules = k.Articles(rdb, key, permits)
			}
			var granted atomic.Int64
			limitertest.Together(24, func(i int) {
				for range 12 {
					n := 1 + rand.Int64N(3)
					var passes bool
					if i >= 16 && rules != nil {
						answer, err := rules[i%len(rules)](t.Context())
						n, passes = 1, assert.NoError(t, err) && answer > 0
					} else {
						d, err := both[i%2].Take(t.Context(), key, n)
						passes = assert.NoError(t, err) && d.Granted
					}
					if passes {
						granted.Add(n)
					}
				}
			})
			sum := granted.Load()
			assert.LessOrEqual(t, sum, int64(permits))
			assert.Greater(t, sum, int64(permits-3), "what fits is granted")
			if k.Type == "zset" {
				assert.Equal(t, sum, rdb.ZCard(t.Context(), key).Val())
			}
			assert.EqualValues(t, permits-sum, Grants(t, both[0], key, 5))
		}
	})
}

// A held is a limiter that reaches its server through a proxy, inside a bubble.
type held struct {
	Limiter

	proxy *redistest.Proxy
	rdb   redistest.Client // past the proxy
	other Limiter          // past it, too
}

func newHeld(t *testing.T, k Kind, permits int64) held {
	t.Helper()
	direct, m := redistest.Mini(t)
	// With so few connections one flight is under way at a time, so that a test can
	// say who goes together.
	h := held{proxy: redistest.MiniProxy(t, m), rdb: direct, other: k.exact(direct, permits)}
	h.Limiter = k.exact(h.proxy.Client(t, &redistest.Options{ReadTimeout: time.Second / 2, PoolSize: 3}), permits)
	// The server knows the scripts by then.
	Take(t, h, "warm", 1)
	require.NoError(t, h.Reset(t.Context(), "warm"))
	synctest.Wait()
	return h
}

// hold keeps back the answer to the next script call until the function returned is called.
func (h held) hold(t *testing.T) (letGo func()) {
	t.Helper()
	gate := make(chan struct{})
	letGo = sync.OnceFunc(func() {
		close(gate)
		synctest.Wait()
	})
	t.Cleanup(letGo)
	h.proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(gate)))
	return letGo
}

// Those who come while a call is on its way share the next one.
func testCallersGather(t *testing.T, k Kind) {
	synctest.Test(t, func(t *testing.T) {
		const callers, permits = 200, 150
		h := newHeld(t, k, permits)
		letGo := h.hold(t)
		before := h.proxy.Requests()
		var (
			wg      sync.WaitGroup
			granted atomic.Int64
			mu      sync.Mutex
			left    = map[int64]int{}
		)
		for range callers {
			wg.Go(func() {
				d, err := h.Take(t.Context(), "orders", 1)
				if !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, int64(permits), d.Limit)
				assert.Equal(t, !d.Granted, d.RetryAfter > 0)
				assert.Equal(t, time.Hour, d.ResetAfter.Round(time.Minute))
				if d.Granted {
					granted.Add(1)
					mu.Lock()
					left[d.Remaining]++
					mu.Unlock()
				} else {
					assert.Zero(t, d.Remaining)
				}
			})
		}
		synctest.Wait()
		letGo()
		wg.Wait()
		assert.EqualValues(t, permits, granted.Load())
		assert.LessOrEqual(t, h.proxy.Requests()-before, 4, "script calls of %d callers", callers)
		assert.Len(t, left, permits, "each learns what was left behind it")
	})
}

// The requests of one call are decided about one after another: a large one that
// does not fit denies itself, not the smaller ones behind it.
func testCallersWithinOneCall(t *testing.T, k Kind) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, k, 10)
		letGo := h.hold(t)
		type result struct {
			d        limit.Decision
			giveBack func(context.Context) error
		}
		steps := []struct {
			n       int64
			granted bool
			left    int64
		}{{1, true, 9}, {4, true, 5}, {6, false, 5}, {2, true, 3}, {10, false, 3}, {3, true, 0}, {1, false, 0}}
		results := make([]result, len(steps))
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i, step := range steps {
			if i == 2 {
				wg.Go(func() {
					assert.ErrorIs(t, limitertest.Second(h.Take(ctx, "orders", 3)), context.Canceled, "it leaves before it is sent")
				})
				synctest.Wait()
			}
			wg.Go(func() {
				d, giveBack, err := h.TakeReturnable(t.Context(), "orders", step.n)
				assert.NoError(t, err)
				results[i] = result{d, giveBack}
			})
			synctest.Wait()
		}
		leave()
		synctest.Wait() // it has gone
		letGo()
		wg.Wait()
		for i, step := range steps {
			assert.Equal(t, step.granted, results[i].d.Granted, "request %d", i)
			assert.Equal(t, step.left, results[i].d.Remaining, "request %d", i)
			assert.Equal(t, step.granted, results[i].giveBack != nil, "request %d", i)
			assert.Equal(t, !step.granted, results[i].d.RetryAfter > 0, "request %d", i)
		}

		require.NoError(t, results[3].giveBack(t.Context()))
		assert.True(t, Take(t, h.other, "orders", 2).Granted, "what one of them gave back")
		assert.False(t, Take(t, h.other, "orders", 1).Granted)
		require.NoError(t, results[1].giveBack(t.Context()))
		require.NoError(t, results[5].giveBack(t.Context()))
		assert.True(t, Take(t, h.other, "orders", 7).Granted)
		assert.False(t, Take(t, h.other, "orders", 1).Granted)
	})
}

// A caller who goes away returns at once, and gives back a grant made meanwhile. Its deadline is a net.Error, and yet no
// outage: no policy may answer in its place. The outcome is unknown of a change that was sent.
func testContextEndIsNoOutage(t *testing.T, k Kind) {
	type giveBack = func(context.Context) error
	for name, call := range map[string]struct {
		do      func(ctx context.Context, h held, back giveBack) error
		changes bool
	}{
		"Reset":    {func(ctx context.Context, h held, _ giveBack) error { return h.Reset(ctx, "orders") }, true},
		"giveBack": {func(ctx context.Context, _ held, back giveBack) error { return back(ctx) }, true},
		"Take": {func(ctx context.Context, h held, _ giveBack) error {
			return limitertest.Second(h.Take(ctx, "orders", 4))
		}, false},
		"Peek": {func(ctx context.Context, h held, _ giveBack) error {
			return limitertest.Second(h.Peek(ctx, "orders", 1))
		}, false},
		"TakeUpTo": {func(ctx context.Context, h held, _ giveBack) error {
			_, _, err := h.TakeUpTo(ctx, "orders", 20)
			return err
		}, false},
	} {
		for _, when := range []string{"sent", "sent, script unknown", "behind another"} {
			synctest.Test(t, func(t *testing.T) {
				h := newHeld(t, k, 10)
				_, back, err := h.TakeReturnable(t.Context(), "orders", 2)
				require.NoError(t, err)
				letGo, sent := h.hold(t), when != "behind another"
				if when == "sent, script unknown" { // its text does not follow once the caller has gone
					require.NoError(t, h.rdb.ScriptFlush(t.Context()).Err())
				}
				if !sent {
					go func() { _, _ = h.Take(context.WithoutCancel(t.Context()), "ahead", 1) }()
					synctest.Wait()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				start := time.Now()
				err = call.do(ctx, h, back)
				require.ErrorIs(t, err, context.DeadlineExceeded, name)
				require.NotErrorIs(t, err, limit.ErrUnavailable, name)
				assert.Equal(t, 300*time.Millisecond, time.Since(start), name)
				if sent || name != "giveBack" { // which may go on without its caller
					assert.Equal(t, sent && call.changes, errors.Is(err, limit.ErrUnknownOutcome), "%s %s: %v", name, when, err)
				}
				letGo()
				time.Sleep(100 * time.Millisecond)
				left, err := h.other.Peek(t.Context(), "orders", 0)
				require.NoError(t, err)
				want := map[bool]int64{true: 10, false: 8}[name == "giveBack" || name == "Reset" && when == "sent"]
				assert.Equal(t, want, left.Remaining, "%s %s", name, when)
			})
		}
	}
}

// ConnectExample returns a client of a Redis in this process, whose clock stands at noon
// so that an example prints the same each time, and what stops it.
func ConnectExample() (rdb redistest.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.SetTime(time.Date(2026, time.November, 21, 12, 0, 0, 0, time.UTC))
	var stopped atomic.Bool
	rdb = redistest.NewClient(server.Addr(), &redistest.Options{
		ReadTimeout: time.Minute, DialerRetries: 1, MaxRetries: -1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if stopped.Load() { // another server may have its port by now
				return nil, syscall.ECONNREFUSED
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	return rdb, func() {
		stopped.Store(true)
		server.Close()
	}
}

// Unreachable returns a client that fails the test once it dials.
func Unreachable(t testing.TB) redistest.Client {
	t.Helper()
	rdb := redistest.NewClient("", &redistest.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("Redis was asked")
		return nil, net.ErrClosed
	}, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
