package rratelimitertest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
)

// placeOrder is the application of the page.
func placeOrder(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }

func TestOrders_OnePerMinute(t *testing.T) {
	t.Parallel()
	env := rratelimitertest.New(t)
	orders := env.Client.Keyed("orders:", rratelimiter.PerMinute(1))
	handler := httplimit.New(orders, httplimit.WithTimeout(time.Minute)).Handler(http.HandlerFunc(placeOrder))
	post := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders", http.NoBody))
		return w
	}
	if w := post(); w.Code != http.StatusCreated {
		t.Errorf("the first: %d", w.Code)
	}
	if w := post(); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "60" {
		t.Errorf("the second: %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	env.Advance(time.Minute)
	if w := post(); w.Code != http.StatusCreated {
		t.Errorf("a minute later: %d", w.Code)
	}
}

func TestReports_TenTakeNineMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := rratelimitertest.New(t)
		limiter := env.Client.RateLimiter("reports", rratelimiter.WithDefault(rratelimiter.PerMinute(1)))
		start := time.Now()
		for range 10 {
			if err := limiter.Acquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 9*time.Minute {
			t.Errorf("ten reports took %v", took)
		}
	})
}

func TestRedisIsDown(t *testing.T) {
	t.Parallel()
	script := rratelimitertest.NewScript(t,
		rratelimitertest.Grant(),
		rratelimitertest.Refuse(time.Minute),
		rratelimitertest.Fail(limit.ErrUnavailable),
	)
	handler := httplimit.New(script).Handler(http.HandlerFunc(placeOrder))
	for _, want := range []int{http.StatusCreated, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders", http.NoBody))
		if w.Code != want {
			t.Errorf("%d, not %d", w.Code, want)
		}
	}
	if asked := script.Asked(); len(asked) != 3 || asked[0].N != 1 {
		t.Errorf("asked for %v", asked)
	}
}

func TestOrdersWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := rratelimitertest.New(t, rratelimiter.WithFailure(limit.FailLocal(0.5)))
		orders := env.Client.Keyed("orders:", rratelimiter.PerMinute(4))
		handler := httplimit.New(orders).Handler(http.HandlerFunc(placeOrder))
		created := func(calls int) (n int) {
			for range calls {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders", http.NoBody))
				if w.Code == http.StatusCreated {
					n++
				}
			}
			return n
		}
		if n := created(6); n != 4 {
			t.Errorf("%d orders of 4", n)
		}
		env.Down()
		if n := created(6); n != 2 {
			t.Errorf("%d orders of this program's share, which is 2", n)
		}
		time.Sleep(time.Minute)
		if n := created(6); n != 2 {
			t.Errorf("%d orders a minute later", n)
		}
		env.Up()
		time.Sleep(time.Second)
		if n := created(6); n != 4 {
			t.Errorf("%d orders when Redis is back", n)
		}
	})
}

// answer is a handler that learns what a request costs when it is done.
func answer(w http.ResponseWriter, r *http.Request) {
	if err := httplimit.Settle(r.Context(), 7); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func TestAnswerChargesItsTokens(t *testing.T) {
	t.Parallel()
	script := rratelimitertest.NewScript(t, rratelimitertest.Grant())
	estimate := httplimit.WithCost(func(*http.Request) (int64, error) { return 10, nil })
	handler := httplimit.New(httplimit.Policy{Limiter: script, Settle: true}, estimate).Handler(http.HandlerFunc(answer))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/answers", http.NoBody))
	if settled := script.Settled(); len(settled) != 1 || settled[0].N != 10 || settled[0].Actual != 7 {
		t.Errorf("settled %v", settled)
	}
}

var (
	_ limit.Returner = (*rratelimitertest.Script)(nil)
	_ limit.Reserver = (*rratelimitertest.Script)(nil)
)

// failures is a test that records its failures.
type failures struct {
	testing.TB

	said []string
}

func (f *failures) Helper()                        {}
func (f *failures) Errorf(format string, _ ...any) { f.said = append(f.said, format) }

func TestScript(t *testing.T) {
	t.Parallel()
	f := &failures{TB: t}
	d := limit.Decision{Granted: true, Limit: 7, Remaining: 3}
	s := rratelimitertest.NewScript(f, rratelimitertest.Decide(d)).
		For("ann", rratelimitertest.Fail(limit.ErrUnavailable), rratelimitertest.Grant())
	require.ErrorIs(t, limitertest.Second(s.Take(t.Context(), "ann", 1)), limit.ErrUnavailable)
	assert.Equal(t, d, limittest.Take(t, s, "bob", 2))
	got, giveBack, err := s.TakeReturnable(t.Context(), "ann", 3)
	require.NoError(t, err)
	assert.True(t, got.Granted)
	require.NoError(t, giveBack(t.Context()))
	require.ErrorIs(t, limitertest.Second(s.Take(t.Context(), "ann", 0)), limit.ErrInvalidPermits)
	require.ErrorIs(t, limitertest.Second(s.Take(limitertest.EndedContext(t), "ann", 1)), context.Canceled)
	assert.Empty(t, f.said)
	_, giveBack, err = s.TakeReturnable(t.Context(), "bob", 1)
	require.Error(t, err)
	assert.Nil(t, giveBack)
	assert.Len(t, f.said, 1, "the list is used up")
	asked := []rratelimitertest.Question{{Key: "ann", N: 1}, {Key: "bob", N: 2}, {Key: "ann", N: 3}, {Key: "ann"}, {Key: "ann", N: 1}, {Key: "bob", N: 1}}
	assert.Equal(t, asked, s.Asked())
	assert.Equal(t, asked[2:3], s.GivenBack())
}

func TestScript_SettlesOnce(t *testing.T) {
	t.Parallel()
	s := rratelimitertest.NewScript(t, rratelimitertest.Grant(), rratelimitertest.Grant(), rratelimitertest.Refuse(time.Second))
	var settle []func(context.Context, int64) error
	for i := range 3 {
		_, one, err := s.TakeReserved(t.Context(), "ann", int64(i+1))
		require.NoError(t, err)
		settle = append(settle, one)
	}
	require.ErrorIs(t, settle[1](t.Context(), -1), limit.ErrInvalidPermits)
	require.NoError(t, settle[1](t.Context(), 5))
	require.ErrorIs(t, settle[1](t.Context(), 5), limit.ErrSettled)
	require.NoError(t, settle[0](t.Context(), 0))
	require.NoError(t, settle[2](t.Context(), 7), "was refused")
	of := func(n, actual int64) rratelimitertest.Settlement {
		return rratelimitertest.Settlement{Question: rratelimitertest.Question{Key: "ann", N: n}, Actual: actual}
	}
	assert.Equal(t, []rratelimitertest.Settlement{of(2, 5), of(1, 0)}, s.Settled())
}

// What applications import brings no test code along.
func TestLimitersBringNoTestCode(t *testing.T) {
	t.Parallel()
	const module = "github.com/rratelimiter/rratelimiter"
	list := exec.CommandContext(t.Context(), "go", "list", "-deps",
		module, module+"/limit", module+"/codec", module+"/fixedwindow", module+"/slidinglog", module+"/tokenbucket",
		module+"/httplimit")
	packages := strings.Fields(string(limitertest.Must(list.Output())(t)))
	assert.Contains(t, packages, module+"/internal/engine")
	for _, path := range packages {
		for _, test := range []string{
			"testing", "github.com/alicebob/", "github.com/stretchr/", "github.com/yuin/", "pgregory.net/",
			module + "/rratelimitertest", module + "/internal/test/redistest", module + "/internal/test/limitertest", module + "/internal/memory",
		} {
			assert.False(t, path == test || strings.HasPrefix(path, strings.TrimSuffix(test, "/")+"/"), "%s", path)
		}
	}
}

func exhausted(t *testing.T, env *rratelimitertest.Env, cfg rratelimiter.Config, opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
	t.Helper()
	l := env.Client.RateLimiter("orders", append(opts, rratelimiter.WithDefault(cfg))...)
	limitertest.MustAcquire(t, l, cfg.Rate)
	return l
}

// TestAdvance runs these outside a bubble and in one.
func TestAdvance(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, advancing, func(t *testing.T, test func(t *testing.T, env *rratelimitertest.Env)) {
		test(t, rratelimitertest.New(t, rratelimiter.WithCallTimeout(time.Minute)))
	})
	t.Run("in a bubble", func(t *testing.T) {
		t.Parallel()
		limitertest.Bubbles(t, advancing, func(t *testing.T, test func(t *testing.T, env *rratelimitertest.Env)) {
			test(t, rratelimitertest.New(t))
		})
	})
}

var advancing = limitertest.Tests[*rratelimitertest.Env]{
	"PermitsComeBack": func(t *testing.T, env *rratelimitertest.Env) {
		l := exhausted(t, env, rratelimiter.PerMinute(2))
		assert.Equal(t, limit.Decision{Limit: 2, RetryAfter: time.Minute, ResetAfter: time.Minute}, limitertest.Take(t, l, 1))
		env.Advance(time.Minute - time.Millisecond)
		assert.Equal(t, limit.Decision{Limit: 2, RetryAfter: time.Millisecond, ResetAfter: time.Millisecond}, limitertest.Take(t, l, 1))
		env.Advance(time.Millisecond)
		assert.True(t, limitertest.Take(t, l, 2).Granted)
		server := limitertest.Must(env.Redis.Time(t.Context()).Result())(t)
		assert.True(t, server.Equal(env.Now()), "%v, %v", server, env.Now())
	},
	// Outside a bubble the server is ahead of the Client after an Advance.
	"GrantsBeforeItCanBeReleasedAndSettled": func(t *testing.T, env *rratelimitertest.Env) {
		l := env.Client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
		r := limitertest.Reserve(t, l, 3)
		limitertest.MustAcquire(t, l, 3)
		env.Advance(50 * time.Second)
		require.NoError(t, l.Release(t.Context(), 2))
		require.NoError(t, r.Settle(t.Context(), 5))
		assert.EqualValues(t, 4, limitertest.Available(t, l))
		env.Advance(10 * time.Second)
		assert.EqualValues(t, 8, limitertest.Available(t, l), "two were charged when it was settled")
		env.Advance(50 * time.Second)
		assert.EqualValues(t, 10, limitertest.Available(t, l))

		unused := limitertest.Reserve(t, l, 10)
		env.Advance(time.Hour)
		require.NoError(t, unused.Cancel(t.Context()))
		assert.EqualValues(t, 10, limitertest.Available(t, l))
	},
}

// In a bubble callers, leases and refusals that are remembered go by the same time.
func TestAdvance_MovesAllInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := rratelimitertest.New(t)
		leased := env.Client.RateLimiter("leased", rratelimiter.WithDefault(rratelimiter.PerMinute(1000)),
			rratelimiter.WithLease(rratelimiter.Lease{Permits: 50}))
		for range 40 {
			limitertest.MustAcquire(t, leased, 1)
		}
		look := env.Client.RateLimiter("leased")
		assert.Less(t, limitertest.Available(t, look), int64(960), "some are taken ahead")
		l := exhausted(t, env, rratelimiter.PerMinute(1), rratelimiter.WithRefusalCache())
		limitertest.MustRefuse(t, l, 1)
		var granted atomic.Bool
		go func() {
			ok, err := l.TryAcquire(t.Context(), 1, time.Hour)
			granted.Store(ok && err == nil)
		}()
		env.Advance(10 * time.Second)
		assert.EqualValues(t, 960, limitertest.Available(t, look), "the lease has ended")
		env.Advance(50*time.Second - 1)
		assert.False(t, granted.Load())
		env.Advance(1)
		assert.True(t, granted.Load())
		env.Advance(time.Minute)
		limitertest.MustAcquire(t, l, 1)
	})
}

// failing are the ways in which a server may fail.
var failing = map[string]func(*rratelimitertest.Env){"down": (*rratelimitertest.Env).Down, "hung": (*rratelimitertest.Env).Hang}

// unavailable runs calls while the server is away, and after it.
func unavailable(t *testing.T, env *rratelimitertest.Env, fail func(*rratelimitertest.Env)) {
	t.Helper()
	l := exhausted(t, env, rratelimiter.PerMinute(2))
	window := fixedwindow.New(limitertest.OpenClient(env.Redis), fixedwindow.Config{Limit: 1, Window: time.Minute})
	fail(env)
	for range 3 {
		require.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrUnavailable)
		require.ErrorIs(t, limitertest.Second(window.Take(t.Context(), "ann", 1)), rratelimiter.ErrUnavailable)
	}
	require.ErrorIs(t, l.Acquire(t.Context(), 1), rratelimiter.ErrUnavailable)
	env.Up()
	limitertest.MustRefuse(t, l, 1) // what the server kept is there
	env.Advance(time.Minute)
	limitertest.MustAcquire(t, l, 1)
}

func TestDown_CallsFail(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, failing, func(t *testing.T, fail func(*rratelimitertest.Env)) { unavailable(t, rratelimitertest.New(t), fail) })
	t.Run("outside a bubble", func(t *testing.T) {
		t.Parallel()
		unavailable(t, rratelimitertest.New(t, rratelimiter.WithCallTimeout(time.Minute)), (*rratelimitertest.Env).Down)
	})
}
