package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
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
	limiter := says(limit.Decision{Limit: 10, Remaining: 2, RetryAfter: 1500 * time.Millisecond, ResetAfter: time.Minute}, nil)
	var got httplimit.Refusal
	handler := httplimit.New(limiter, httplimit.WithName("burst"), httplimit.WithRefusal(
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
		Policies:   []httplimit.PolicyDecision{{Name: "burst", Decision: limit.Decision{Limit: 10, Remaining: 2, RetryAfter: 1500 * time.Millisecond, ResetAfter: time.Minute}}},
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
