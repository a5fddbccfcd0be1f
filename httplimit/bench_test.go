package httplimit_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

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
