package limittest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
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
	// With so few connections one flight is under way at a time, so that a test can say who goes together.
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
		var left redistest.List[int64]
		over := limitertest.Go(func() {
			limitertest.Together(callers, func(int) {
				d, err := h.Take(t.Context(), "orders", 1)
				if !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, int64(permits), d.Limit)
				assert.Equal(t, !d.Granted, d.RetryAfter > 0)
				assert.Equal(t, time.Hour, d.ResetAfter.Round(time.Minute))
				if d.Granted {
					left.Add(d.Remaining)
				} else {
					assert.Zero(t, d.Remaining)
				}
			})
		})
		synctest.Wait()
		letGo()
		<-over
		behind := left.All()
		assert.Len(t, behind, permits)
		assert.LessOrEqual(t, h.proxy.Requests()-before, 4, "script calls of %d callers", callers)
		slices.Sort(behind)
		assert.Len(t, slices.Compact(behind), permits, "each learns what was left behind it")
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
			got := results[i]
			assert.Equal(t, []any{step.granted, step.left}, []any{got.d.Granted, got.d.Remaining}, "request %d", i)
			assert.Equal(t, []bool{step.granted, step.granted}, []bool{got.giveBack != nil, got.d.RetryAfter == 0}, "request %d", i)
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
	for name, call := range map[string]func(ctx context.Context, h held, back giveBack) error{
		"Reset":    func(ctx context.Context, h held, _ giveBack) error { return h.Reset(ctx, "orders") },
		"giveBack": func(ctx context.Context, _ held, back giveBack) error { return back(ctx) },
		"Take": func(ctx context.Context, h held, _ giveBack) error {
			return limitertest.Second(h.Take(ctx, "orders", 4))
		},
		"Peek": func(ctx context.Context, h held, _ giveBack) error {
			return limitertest.Second(h.Peek(ctx, "orders", 1))
		},
		"TakeUpTo": func(ctx context.Context, h held, _ giveBack) error {
			_, _, err := h.TakeUpTo(ctx, "orders", 20)
			return err
		},
	} {
		changes := name == "Reset" || name == "giveBack"
		for _, when := range []string{"sent", "sent, script unknown", "behind another"} {
			synctest.Test(t, func(t *testing.T) {
				h := newHeld(t, k, 10)
				back := Returnable(t, h, "orders", 2)
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
				err := call(ctx, h, back)
				require.ErrorIs(t, err, context.DeadlineExceeded, name)
				require.NotErrorIs(t, err, limit.ErrUnavailable, name)
				assert.Equal(t, 300*time.Millisecond, time.Since(start), name)
				if sent || name != "giveBack" { // which may go on without its caller
					assert.Equal(t, sent && changes, errors.Is(err, limit.ErrUnknownOutcome), "%s %s: %v", name, when, err)
				}
				letGo()
				time.Sleep(100 * time.Millisecond)
				want := map[bool]int64{true: 10, false: 8}[name == "giveBack" || name == "Reset" && when == "sent"]
				assert.Equal(t, want, limitertest.Must(h.other.Peek(t.Context(), "orders", 0))(t).Remaining, "%s %s", name, when)
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
	rdb := redistest.NewClient("127.0.0.1:1", &redistest.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("Redis was asked")
		return nil, net.ErrClosed
	}, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

var (
	atLeast = flag.Int("turns", 600, "requests that take turns on shared keys, of each limiter and server")
	seed    = flag.Uint64("turns-seed", 0, "seed of the turns; 0 draws one")
)

// Turns are histories of a limiter and of articles' rules that share keys.
type Turns struct {
	Limiter string

	// WholeSeconds: histories start at a whole second.
	WholeSeconds bool

	// Play begins a history. The function it returns makes a request, and says which answer was not as it should, or "".
	Play func(t *testing.T, h History) func() (mismatch string)
}

// A History is what a limiter and articles' rules do with a new key, in virtual time.
type History struct {
	Redis redistest.Client
	Key   string
	Draw  *rand.Rand

	start time.Time
}

// Passed returns how much time has passed in the history.
func (h History) Passed() time.Duration { return time.Since(h.start) }

// Span draws a span of time of at most that many seconds.
func (h History) Span(most int) time.Duration {
	return time.Duration(1+h.Draw.IntN(most)) * time.Second
}

// MayPause lets at most that much time pass, now and then.
func (h History) MayPause(most time.Duration) {
	if h.Draw.IntN(3) == 0 {
		time.Sleep(time.Duration(h.Draw.Int64N(most.Milliseconds()+1)) * time.Millisecond)
	}
}

// Theirs makes a request by an article's rule.
func (h History) Theirs(t *testing.T, rule Rule, want int64) (mismatch string) {
	t.Helper()
	now := h.Passed()
	if got, err := rule(t.Context()); err != nil || got != want {
		return fmt.Sprintf("theirs after %v: got %d, %v, want %d", now, got, err, want)
	}
	return ""
}

// Ours makes a request by a limiter.
func (h History) Ours(t *testing.T, l limit.Limiter, n int64, want limit.Decision, wantErr error) (mismatch string) {
	t.Helper()
	now := h.Passed()
	if got, err := l.Take(t.Context(), h.Key, n); !errors.Is(err, wantErr) || err == nil && got != want {
		return fmt.Sprintf("ours after %v: got %+v, %v, want %+v, %v", now, got, err, want, wantErr)
	}
	return ""
}

// Take plays histories on a miniredis and on a server.
func (turns Turns) Take(t *testing.T) {
	t.Helper()
	limitertest.Each(t, map[string]func(*testing.T, func(*testing.T, redistest.Client)){
		"virtual time": redistest.Virtual, "server": redistest.VirtualServer,
	}, func(t *testing.T, virtual func(*testing.T, func(*testing.T, redistest.Client))) {
		virtual(t, turns.play)
	})
}

// play plays histories until that many requests were made as the flag -turns says. It records
// how many there were, and the mismatches, of which there must be none.
func (turns Turns) play(t *testing.T, rdb redistest.Client) {
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	requests, mismatches := 0, 0
	for i := uint64(0); requests < *atLeast && mismatches < 3; i++ {
		if turns.WholeSeconds {
			time.Sleep(time.Second - time.Duration(time.Now().Nanosecond()))
		}
		request := turns.Play(t, History{Redis: rdb, Key: Key(t), Draw: rand.New(rand.NewPCG(first, i)), start: time.Now()})
		for n := 1; n <= 80; n++ {
			requests++
			if mismatch := request(); mismatch != "" {
				mismatches++
				t.Errorf("-turns-seed %d, history %d, request %d: %s", first, i, n, mismatch)
				break
			}
		}
	}
	t.Logf("-turns-seed %d: %d requests took turns, %d mismatches", first, requests, mismatches)
	redistest.Record(t, "turns-other", turns.Limiter, requests, mismatches)
}
