package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func TestHead(t *testing.T) {
	t.Parallel()
	r := newRequest(t)
	r.Method = http.MethodHead
	w := serve(httplimit.New(says(limit.Decision{Limit: 10, RetryAfter: 2100 * time.Millisecond}, nil))(refuseAll(t)), r)
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "3", w.Header().Get("Retry-After"))
	assert.Empty(t, w.Body.Bytes())
}

func TestRefusalHandler(t *testing.T) {
	t.Parallel()
	refused := limit.Decision{Limit: 10, Remaining: 2, RetryAfter: 1500 * time.Millisecond, ResetAfter: time.Minute}
	var got httplimit.Refusal
	handler := httplimit.New(says(refused, nil), httplimit.WithName("burst"), httplimit.WithRefusal(
		func(w http.ResponseWriter, _ *http.Request, refusal httplimit.Refusal) {
			got = refusal
			w.WriteHeader(http.StatusTeapot)
		}))(refuseAll(t))
	w := serve(handler, newRequest(t))
	assert.Equal(t, http.StatusTeapot, w.Code)
	assert.Equal(t, "2", w.Header().Get("Retry-After"))
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	assert.Equal(t, `"burst";r=2;t=2`, w.Header().Get("RateLimit"))
	assert.Empty(t, w.Body.Bytes())
	assert.Equal(t, httplimit.Refusal{
		Policies:   []httplimit.PolicyDecision{{Name: "burst", Decision: refused}},
		Violated:   []string{"burst"},
		RetryAfter: 1500 * time.Millisecond,
	}, got)
}

func TestWriterIsNotWrapped(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	httplimit.New(grants())(http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) {
		assert.Same(t, w, got)
	})).ServeHTTP(w, newRequest(t))
}

func TestNestedLimitsTellOfBoth(t *testing.T) {
	t.Parallel()
	inner := httplimit.New(grants(), httplimit.WithName("route"))(hello)
	w := serve(httplimit.New(grants(), httplimit.WithName("all"))(inner), newRequest(t))
	assert.Len(t, members(t, w.Header(), "RateLimit"), 2)
	assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 2)
}

func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	type user struct{}
	userOf := func(r *http.Request) string { name, _ := r.Context().Value(user{}).(string); return name }
	for _, test := range []struct {
		part httplimit.KeyFunc
		want string
	}{
		{httplimit.Header("X-Api-Key"), ""},
		{httplimit.Header("accept"), "text/html"},
		{httplimit.Header("host"), "tenant.example"},
		{httplimit.User(userOf), ""},
		{httplimit.Path(), "/items/1"},
		{httplimit.Route(), ""},
		{httplimit.ClientIP(httplimit.ClientIPConfig{}), "192.0.2.1"},
	} {
		r := newRequest(t)
		r.Host = "tenant.example"
		r.Header.Set("Accept", "text/html")
		got, err := test.part(r)
		require.NoError(t, err)
		assert.Equal(t, test.want, got)
	}
}

func TestRouteIsThePattern(t *testing.T) {
	t.Parallel()
	limiter := grants()
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", httplimit.New(limiter, httplimit.WithKey(httplimit.Route()))(hello))
	assert.Equal(t, http.StatusOK, serve(mux, newRequest(t)).Code)
	assert.Equal(t, "http:GET%20/items/%7Bid%7D", limiter.Key())
}

func TestDeclare(t *testing.T) {
	t.Parallel()
	var rates []httplimit.Rate
	limiter := grants()
	rate := httplimit.Declare(func(r httplimit.Rate) limit.Limiter {
		rates = append(rates, r)
		return limiter
	}, httplimit.WithName("declared"))
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", rate(httplimit.Rate{Period: 30 * time.Second, Threshold: 2})(hello))
	mux.Handle("GET /a", rate(httplimit.Rate{}, httplimit.WithPrefix("a:"), httplimit.WithName("a"))(hello))
	mux.Handle("GET /b", rate(httplimit.Rate{Threshold: 7})(hello))
	minutes := httplimit.Rate{Period: time.Minute, Threshold: 3}
	assert.Equal(t, []httplimit.Rate{{Period: 30 * time.Second, Threshold: 2}, minutes, {Period: time.Minute, Threshold: 7}}, rates)

	for path, name := range map[string]string{"/items/1": "declared", "/a": "a", "/b": "declared"} {
		r := newRequest(t)
		r.URL.Path = path
		w := serve(mux, r)
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, name, members(t, w.Header(), "RateLimit")[0].Name)
	}
	assert.ElementsMatch(t, []call{
		{Key: "http:192.0.2.1:GET%20/items/%7Bid%7D:2/30s", N: 1},
		{Key: "a:192.0.2.1:GET%20/a:3/1m0s", N: 1},
		{Key: "http:192.0.2.1:GET%20/b:7/1m0s", N: 1},
	}, limiter.Asked())
}

func TestDeclareBadRates(t *testing.T) {
	t.Parallel()
	limiter := grants()
	toLimiter := func(httplimit.Rate) limit.Limiter { return limiter }
	for _, test := range []struct {
		newLimiter func(httplimit.Rate) limit.Limiter
		rate       httplimit.Rate
	}{
		{toLimiter, httplimit.Rate{Period: -1}},
		{toLimiter, httplimit.Rate{Threshold: -1}},
		{nil, httplimit.Rate{}},
		{func(httplimit.Rate) limit.Limiter { return nil }, httplimit.Rate{}},
	} {
		var errs middlewaretest.Errors
		w := serve(httplimit.Declare(test.newLimiter, hearing(&errs))(test.rate)(hello), newRequest(t))
		assert.Equal(t, http.StatusInternalServerError, w.Code)
		errs.Check(t, limit.ErrInvalidConfig)
	}
	assert.Empty(t, limiter.Asked())
}

// No request is refused and no client learns of a limit; what is charged, and what is
// reported, is as without the option.
func TestShadow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		told := &limitertest.Recorder{}
		minute := slidinglog.New(rdb, slidinglog.Config{Limit: 2, Window: time.Minute})
		hour := slidinglog.New(rdb, slidinglog.Config{Limit: 100, Window: time.Hour})
		handler := httplimit.New(minute, httplimit.WithName("minute"), httplimit.WithShadow(), httplimit.WithObserver(told),
			httplimit.WithLegacyHeaders(), policy("hour", hour))(hello)
		for range 5 {
			w := serve(handler, newRequest(t))
			assert.Equal(t, "hello", w.Body.String())
			assert.Len(t, w.Header(), 1, "Content-Type")
		}
		outcomes := map[string][]limit.Outcome{}
		for _, d := range told.Decisions() {
			outcomes[d.Limiter] = append(outcomes[d.Limiter], d.Outcome)
			assert.True(t, d.Shadow)
			assert.Equal(t, "httplimit", d.Call)
			assert.Equal(t, limit.FromLimiter, d.Source)
			assert.EqualValues(t, 1, d.Permits)
		}
		granted, refused := limit.Granted, limit.Refused
		assert.Equal(t, []limit.Outcome{granted, granted, refused, refused, refused}, outcomes["minute"])
		d, err := hour.Peek(t.Context(), "http:hour:192.0.2.1", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 97, d.Remaining, "after a third: what one policy would refuse is charged to none")
	})
}

// free is a limiter that costs nothing.
type free struct{}

func (free) Take(context.Context, string, int64) (limit.Decision, error) {
	return limit.Decision{Granted: true, Limit: 100, Remaining: 50, ResetAfter: time.Minute}, nil
}

// discard is a ResponseWriter that costs nothing.
type discard http.Header

func (d discard) Header() http.Header                        { return http.Header(d) }
func (discard) Write(p []byte) (int, error)                  { return len(p), nil }
func (discard) WriteHeader(int)                              {}
func (discard) ServeHTTP(http.ResponseWriter, *http.Request) {}

// BenchmarkMiddleware measures what the middleware adds to a request, beyond the
// limiter and the handler.
func BenchmarkMiddleware(b *testing.B) {
	limiter := windowed{Limiter: free{}, Span: time.Minute}
	hour := httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: limiter})
	for _, bench := range []struct {
		name    string
		handler http.Handler
	}{
		{"bare handler", discard{}},
		{"default", httplimit.New(limiter)(discard{})},
		{"no headers", httplimit.New(limiter, httplimit.WithHeaders(httplimit.NoHeaders))(discard{})},
		{"user and path", httplimit.New(limiter, httplimit.WithKey(httplimit.Header("X-User"), httplimit.Path()))(discard{})},
		{"two policies", httplimit.New(limiter, hour)(discard{})},
		{"refused", httplimit.New(says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil))(discard{})},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := newRequest(b)
			r.Header.Set("X-User", "ann")
			w := discard{}
			took := make([]time.Duration, 0, 1<<16)
			b.ReportAllocs()
			for b.Loop() {
				clear(w)
				began := time.Now()
				bench.handler.ServeHTTP(w, r)
				if len(took) < cap(took) {
					took = append(took, time.Since(began))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
		})
	}
}
