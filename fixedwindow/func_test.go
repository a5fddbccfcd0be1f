package fixedwindow_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Each key has the rule that the function says at the moment; what was granted by an earlier one stays counted.
func TestNewFunc_RuleOfEachKeyIsTheFunctions(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		berlin, ctx, most := zone(t, "Europe/Berlin"), t.Context(), int64(5)
		l := fixedwindow.NewFunc(limitertest.OpenClient(rdb), func(key string) fixedwindow.Config {
			switch key {
			case "ann":
				return fixedwindow.Config{Limit: most, Window: time.Hour}
			case "berlin":
				return fixedwindow.Config{Limit: 2, Calendar: fixedwindow.Daily(berlin)}
			}
			return fixedwindow.Config{Limit: 1, Window: time.Minute}
		})
		require.NoError(t, l.Err())
		assert.Zero(t, l.Window())
		assert.Equal(t, limit.Decision{Granted: true, Limit: 5, Remaining: 1, ResetAfter: time.Hour}, limittest.Take(t, l, "ann", 4))
		assert.Equal(t, 23*time.Hour, limittest.Take(t, l, "berlin", 2).ResetAfter)
		assert.Equal(t, 1, limittest.Grants(t, l, "bob", 3))

		most = 10
		d, err := l.Peek(ctx, "ann", 6)
		require.NoError(t, err)
		assert.Equal(t, limit.Decision{Granted: true, Limit: 10, ResetAfter: time.Hour}, d)
		taken, _, err := l.TakeUpTo(ctx, "ann", 20)
		require.NoError(t, err)
		assert.EqualValues(t, 6, taken)
		most = 3
		assert.Equal(t, limit.Decision{Limit: 3, RetryAfter: time.Hour, ResetAfter: time.Hour}, limittest.Take(t, l, "ann", 1))
		require.NoError(t, l.Reset(ctx, "ann"))
		d, settle, err := l.TakeReserved(ctx, "ann", 3)
		require.NoError(t, err)
		require.True(t, d.Granted)
		most = 4
		require.NoError(t, settle(ctx, 1))
		assert.Equal(t, int64(2), limittest.Take(t, l, "ann", 1).Remaining)
	})
}

// A key whose rule is bad has the error, and no other key.
func TestNewFunc_BadRuleIsThatOfItsKey(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	l := fixedwindow.NewFunc(limitertest.OpenClient(rdb), func(key string) fixedwindow.Config {
		return fixedwindow.Config{Limit: int64(len(key) - 3), Window: time.Minute}
	})
	require.NoError(t, l.Err())
	limittest.RequireRefused(t, l, "ann", 1, limit.ErrInvalidConfig, "limit 0")
	assert.True(t, limittest.Take(t, l, "anna", 1).Granted)
	none := fixedwindow.NewFunc(limitertest.OpenClient(limittest.Unreachable(t)), nil)
	require.ErrorIs(t, none.Err(), limit.ErrInvalidConfig)
	limittest.RequireRefused(t, none, "ann", 1, limit.ErrInvalidConfig, "limit 0")
	require.ErrorIs(t, fixedwindow.NewFunc(nil, func(string) fixedwindow.Config { return fixedwindow.Config{} }).Err(), limit.ErrInvalidConfig)
}

// Callers whose rules differ never get more of a key together than the larger limit.
func TestNewFunc_CallersOfAllRulesShareTheCount(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	var calls, granted atomic.Int64
	l := fixedwindow.NewFunc(limitertest.OpenClient(rdb), func(string) fixedwindow.Config {
		return fixedwindow.Config{Limit: 50 + calls.Add(1)%10, Window: time.Hour}
	})
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			d, err := l.Take(t.Context(), "key", 1)
			assert.NoError(t, err)
			if d.Granted {
				granted.Add(1)
			}
		})
	}
	all.Wait()
	for range 10 {
		granted.Add(int64(limittest.Grants(t, l, "key", 1)))
	}
	assert.EqualValues(t, 59, granted.Load())
	assert.EqualValues(t, 210, calls.Load(), "it is asked once a call")
}

// Behind middleware the function is asked once for a request, and the headers show the limit that it says.
func TestNewFunc_IsAskedOnceForARequest(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	var asked []string
	l := fixedwindow.NewFunc(limitertest.OpenClient(rdb), func(key string) fixedwindow.Config {
		asked = append(asked, key)
		return fixedwindow.Config{Limit: int64(len(key)) + 5, Window: time.Minute}
	})
	limits := httplimit.New(httplimit.Policy{Limiter: l, Settle: true}, httplimit.WithKey(httplimit.Header("X-User")))
	require.NoError(t, limits.Err())
	handler := limits.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, httplimit.Settle(r.Context(), 3))
	}))
	for _, policy := range []string{`"default";q=8`, `"default";q=8`} {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set("X-User", "ann")
		handler.ServeHTTP(w, r)
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, policy, w.Header().Get("RateLimit-Policy"))
	}
	assert.Equal(t, []string{"ann", "ann"}, asked, "the key as the program made it")
	assert.Equal(t, "6", rdb.Get(t.Context(), "http:ann").Val())
}
