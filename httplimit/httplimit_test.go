package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestGranted(t *testing.T) {
	t.Parallel()
	limiter := grants()
	w := serve(httplimit.New(windowed{limiter, time.Minute})(hello), newRequest(t))
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, "hello", w.Body.String())
	assert.Equal(t, []call{{"http:192.0.2.1", 1}}, limiter.asked())
	assert.Equal(t, `"default";q=10;w=60`, w.Header().Get("RateLimit-Policy"))
	assert.Equal(t, `"default";r=9;t=60`, w.Header().Get("RateLimit"))
	assert.Empty(t, w.Header().Get("Retry-After"))
	assert.Empty(t, w.Header().Get("X-RateLimit-Limit"))
}

func TestRefused(t *testing.T) {
	t.Parallel()
	limiter := windowed{says(limit.Decision{Limit: 10, RetryAfter: 2100 * time.Millisecond, ResetAfter: time.Minute}, nil), time.Minute}
	var errs errorLog
	handler := httplimit.New(limiter, httplimit.WithErrorHandler(errs.hook))(refuseAll(t))
	w := serve(handler, newRequest(t))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "3", w.Header().Get("Retry-After"))
	assert.Equal(t, `"default";q=10;w=60`, w.Header().Get("RateLimit-Policy"))
	assert.Equal(t, `"default";r=0;t=3`, w.Header().Get("RateLimit"))
	body := problem(t, w)
	assert.Equal(t, "https://iana.org/assignments/http-problem-types#quota-exceeded", body["type"])
	assert.Equal(t, []any{"default"}, body["violated-policies"])
	assert.Empty(t, errs.all(), "a refusal is no error")

	r := newRequest(t)
	r.Method = http.MethodHead
	w = serve(handler, r)
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "3", w.Header().Get("Retry-After"))
	assert.Empty(t, w.Body.Bytes())
}

// refuseAll fails the test if a request gets to it.
func refuseAll(t testing.TB) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request got through") })
}

func TestCost(t *testing.T) {
	t.Parallel()
	for cost, asked := range map[int64][]call{-1: nil, 0: nil, 1: {{"http:192.0.2.1", 1}}, 7: {{"http:192.0.2.1", 7}}} {
		limiter := grants()
		w := serve(httplimit.New(limiter, httplimit.WithCost(func(*http.Request) int64 { return cost }))(hello), newRequest(t))
		assert.Equal(t, "hello", w.Body.String())
		assert.Equal(t, asked, limiter.asked())
		assert.Equal(t, asked == nil, w.Header().Get("RateLimit") == "", "what is free tells nothing")
	}
}

func TestSkip(t *testing.T) {
	t.Parallel()
	limiter := says(limit.Decision{Limit: 1}, nil)
	handler := httplimit.New(limiter, httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/healthz" }))(hello)
	r := newRequest(t)
	r.URL.Path = "/healthz"
	assert.Equal(t, "hello", serve(handler, r).Body.String())
	assert.Empty(t, limiter.asked())
	assert.Equal(t, http.StatusTooManyRequests, serve(handler, newRequest(t)).Code)
}

func TestCostsMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	for _, err := range []error{limit.ErrPermitsExceedRate, limit.ErrInvalidPermits} {
		var errs errorLog
		w := serve(httplimit.New(says(limit.Decision{}, err), httplimit.WithErrorHandler(errs.hook))(refuseAll(t)), newRequest(t))
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		assert.NotContains(t, w.Header(), "Retry-After")
		assert.NotContains(t, w.Header(), http.CanonicalHeaderKey("RateLimit"))
		body := problem(t, w)
		assert.Contains(t, body["detail"], "costs more")
		assert.Equal(t, []any{"default"}, body["violated-policies"])
		assert.Empty(t, errs.all())
	}
}

func TestLimitOfZero(t *testing.T) {
	t.Parallel()
	w := serve(httplimit.New(says(limit.Decision{}, nil))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.NotContains(t, w.Header(), "Retry-After", "no waiting helps")
	assert.Equal(t, `"default";q=0`, w.Header().Get("RateLimit-Policy"))
	assert.Equal(t, `"default";r=0`, w.Header().Get("RateLimit"))
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

func TestPanicOfLimiterReachesTheServer(t *testing.T) {
	t.Parallel()
	limiter := &fake{answer: func(context.Context, int64) (limit.Decision, error) { panic("oops") }}
	assert.PanicsWithValue(t, "oops", func() {
		serve(httplimit.New(limiter)(hello), newRequest(t))
	})
}

func TestNestedLimitsTellOfBoth(t *testing.T) {
	t.Parallel()
	inner := httplimit.New(grants(), httplimit.WithName("route"))(hello)
	w := serve(httplimit.New(grants(), httplimit.WithName("all"))(inner), newRequest(t))
	assert.Len(t, members(t, w.Header(), "RateLimit"), 2)
	assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 2)
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	sound := grants()
	type o = httplimit.Option
	for name, opts := range map[string][]o{
		"nil option":      {nil},
		"prefix":          {httplimit.WithPrefix("")},
		"no key":          {httplimit.WithKey()},
		"nil key":         {httplimit.WithKey(httplimit.Path(), nil)},
		"nil user":        {httplimit.WithKey(httplimit.User(nil))},
		"no header":       {httplimit.WithKey(httplimit.Header(""))},
		"tag":             {httplimit.WithHashTag(), httplimit.WithPrefix("{a}:")},
		"trusted":         {httplimit.WithKey(httplimit.ClientIP(httplimit.ClientIPConfig{Trusted: []netip.Prefix{{}}}))},
		"bits":            {httplimit.WithKey(httplimit.ClientIP(httplimit.ClientIPConfig{IPv6Bits: 129}))},
		"negative bits":   {httplimit.WithKey(httplimit.ClientIP(httplimit.ClientIPConfig{IPv6Bits: -1}))},
		"cost":            {httplimit.WithCost(nil)},
		"skip":            {httplimit.WithSkip(nil)},
		"no name":         {httplimit.WithName("")},
		"name":            {httplimit.WithName("é")},
		"control in name": {httplimit.WithName("a\nb")},
		"twice":           {httplimit.WithPolicy(httplimit.Policy{Name: "default", Limiter: sound})},
		"policy limiter":  {httplimit.WithPolicy(httplimit.Policy{Name: "hour"})},
		"policy name":     {httplimit.WithPolicy(httplimit.Policy{Limiter: sound})},
		"window":          {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Window: -1})},
		"policy key":      {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Key: []httplimit.KeyFunc{nil}})},
		"policy tag":      {httplimit.WithHashTag(), httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Prefix: "{a}:"})},
		"one prefix":      {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Prefix: "http:"})},
		"prefix twice": {
			httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Prefix: "a:"}),
			httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: sound, Prefix: "a:"}),
		},
		"prefix continued": {httplimit.WithPrefix("a:"), httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Prefix: "a:b:"})},
		"prefix continues": {httplimit.WithPrefix("a:b:"), httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Prefix: "a"})},
		"prefix of names": {
			httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound}),
			httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: sound, Prefix: "http:"}),
		},
		"prefix twice, tag": {httplimit.WithHashTag(), httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Prefix: "http:"})},
		"timeout":           {httplimit.WithTimeout(-1)},
		"fallback":          {httplimit.WithFallback(nil)},
		"hook":              {httplimit.WithErrorHandler(nil)},
		"refusal":           {httplimit.WithRefusal(nil)},
		"headers":           {httplimit.WithHeaders(7)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs errorLog
			opts := append([]o{httplimit.WithErrorHandler(errs.hook), httplimit.WithFailure(limit.FailOpen())}, opts...)
			w := serve(httplimit.New(sound, opts...)(refuseAll(t)), newRequest(t))
			assert.Equal(t, http.StatusInternalServerError, w.Code)
			problem(t, w)
			require.Len(t, errs.all(), 1)
			assert.ErrorIs(t, errs.all()[0], limit.ErrInvalidConfig)
		})
	}
	t.Cleanup(func() { assert.Empty(t, sound.asked()) })

	var errs errorLog
	w := serve(httplimit.New(nil, httplimit.WithErrorHandler(errs.hook))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	require.Len(t, errs.all(), 1)
	assert.ErrorIs(t, errs.all()[0], limit.ErrInvalidConfig)
}

func TestKeyThatCannotBeTold(t *testing.T) {
	t.Parallel()
	limiter := grants()
	failure := errors.New("session store is down")
	var errs errorLog
	handler := httplimit.New(limiter,
		httplimit.WithKey(httplimit.Path(), func(*http.Request) (string, error) { return "", failure }),
		httplimit.WithFailure(limit.FailOpen()), httplimit.WithErrorHandler(errs.hook))(refuseAll(t))
	w := serve(handler, newRequest(t))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.NotEmpty(t, w.Header().Get("Retry-After"))
	require.Len(t, errs.all(), 1)
	require.ErrorIs(t, errs.all()[0], failure)
	assert.Empty(t, limiter.asked())
}

func TestManyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	handler := httplimit.New(httplimit.Local(50, time.Hour))(hello)
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for range 8 {
		wg.Go(func() {
			for range 25 {
				w := serve(handler, newRequest(t))
				mu.Lock()
				codes[w.Code]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	assert.Equal(t, map[int]int{http.StatusOK: 50, http.StatusTooManyRequests: 150}, codes)
}
