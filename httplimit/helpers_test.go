package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

type (
	call     = middlewaretest.Call
	fake     = middlewaretest.Fake
	returner = middlewaretest.Returner
	windowed = middlewaretest.Windowed
)

var (
	says    = middlewaretest.Says
	grants  = middlewaretest.Grants
	errDown = errors.New("connection refused")
)

func newRequest(t testing.TB) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/items/1?q=2", http.NoBody)
}

// hello is a handler that answers "hello".
var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })

func serve(handler http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// refuseAll fails the test if a request gets to it.
func refuseAll(t testing.TB) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request got through") })
}

// hearing adds to errs what the error handler hears.
func hearing(errs *middlewaretest.Errors) httplimit.Option {
	return httplimit.WithErrorHandler(func(_ *http.Request, err error) { errs.Add(err) })
}

// quiet keeps failures that a test expects out of its output.
var quiet = hearing(new(middlewaretest.Errors))

// patient is the option to wait for a limiter with redistest.Patience.
func patient() httplimit.Option {
	return httplimit.WithTimeout(redistest.Patience(httplimit.DefaultTimeout))
}

// problem is the body of a refusal, read without this package's types.
func problem(t testing.TB, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	var body map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	assert.InDelta(t, w.Code, body["status"], 0)
	assert.NotEmpty(t, body["title"])
	assert.NotEmpty(t, body["detail"])
	return body
}

// members reads a header that is a list.
func members(t testing.TB, h http.Header, name string) []middlewaretest.Member {
	t.Helper()
	list, err := middlewaretest.Members(h, name)
	require.NoError(t, err)
	return list
}

func integer(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

//nolint:paralleltest // Run replaces slog's default logger
func TestMiddleware(t *testing.T) {
	kind := middlewaretest.Kind[httplimit.Option, httplimit.KeyFunc]{
		Name:    "httplimit",
		Prefix:  "http:",
		Parts:   "192.0.2.1",
		Exact:   time.Second,
		Figures: true,
		Late:    middlewaretest.Unavailable,

		Wrap:   wrap,
		Check:  func(l limit.Limiter, opts ...httplimit.Option) error { return httplimit.New(l, opts...).Err() },
		Policy: policyOf,
		Text:   text,
		User:   httplimit.Header("X-User"),

		WithCost: func(n int64, err error) httplimit.Option {
			return httplimit.WithCost(func(*http.Request) (int64, error) { return n, err })
		},
		WithErrorHandler: func(hook func(error)) httplimit.Option {
			return httplimit.WithErrorHandler(func(_ *http.Request, err error) { hook(err) })
		},
		WithSkip: func(skip bool) httplimit.Option {
			return httplimit.WithSkip(func(r *http.Request) bool { return skip && r.URL.Path == "/items/1" })
		},
		WithFailure:  httplimit.WithFailure,
		WithFallback: httplimit.WithFallback,
		WithHashTag:  httplimit.WithHashTag,
		WithKey:      httplimit.WithKey,
		WithObserver: httplimit.WithObserver,
		WithPrefix:   httplimit.WithPrefix,
		WithShadow:   httplimit.WithShadow,
		WithTimeout:  httplimit.WithTimeout,
		Settle:       httplimit.Settle,
		Bad:          badOptions("http:"),
	}
	maps.Copy(kind.Bad, map[string][]httplimit.Option{"pause": {httplimit.WithPause(0)}, "wait": {httplimit.WithWait(0)}})
	t.Run("handler", kind.Run)

	kind.Prefix, kind.Parts, kind.Exact, kind.Figures, kind.Late = "upstream:", "api.example.org", 1, false, middlewaretest.Overdue
	kind.Settle = nil
	kind.WithWait = func() httplimit.Option { return httplimit.WithWait(time.Hour) }
	kind.Wrap, kind.Bad = wrapTransport, badOptions("upstream:")
	kind.Check = func(l limit.Limiter, opts ...httplimit.Option) error {
		return httplimit.NewTransport(nil, l, opts...).Err()
	}
	kind.Bad["legacy"] = []httplimit.Option{httplimit.WithLegacyHeaders()}
	kind.Bad["settling"] = []httplimit.Option{httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: grants(), Settle: true})}
	kind.Bad["no headers"] = []httplimit.Option{httplimit.WithHeaders(httplimit.NoHeaders)}
	kind.Bad["refusals"] = []httplimit.Option{httplimit.WithRefusal(func(http.ResponseWriter, *http.Request, httplimit.Refusal) {})}
	kind.Bad["negative pause"] = []httplimit.Option{httplimit.WithPause(-1)}
	kind.Bad["negative wait"] = []httplimit.Option{httplimit.WithWait(-1)}
	t.Run("transport", kind.Run)
}

// roundTripper is a function that is a RoundTripper. It closes the request's body.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return f(r)
}

// answers is a RoundTripper that always answers so.
func answers(status int, header ...string) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}
		for i := 0; i+1 < len(header); i += 2 {
			resp.Header.Set(header[i], header[i+1])
		}
		return resp, nil
	}
}

// answersBody is answers with a body to be read.
func answersBody(status int) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		resp, err := answers(status)(r)
		resp.Body = io.NopCloser(strings.NewReader("hello"))
		return resp, err
	}
}

// body is one that must not be read, and must be closed.
type body struct{ closed atomic.Int32 }

func (*body) Read([]byte) (int, error) { return 0, errors.New("the body was read") }

func (b *body) Close() error {
	b.closed.Add(1)
	return nil
}

// wrapTransport is wrap for a transport that does not wait.
func wrapTransport(t testing.TB, l limit.Limiter, opts ...httplimit.Option) middlewaretest.Handler {
	t.Helper()
	transport := httplimit.NewTransport(answers(http.StatusNoContent), l, append([]httplimit.Option{httplimit.WithWait(0)}, opts...)...)
	return func(ctx context.Context, user string) middlewaretest.Answer {
		content := &body{}
		defer func() { assert.EqualValues(t, 1, content.closed.Load(), "by the last holder of the request") }()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://api.example.org/items/1", content)
		require.NoError(t, err)
		r.Header.Set("X-User", user)
		before := r.Clone(ctx)
		resp, err := transport.RoundTrip(r) //nolint:bodyclose // it has none
		assert.Equal(t, before.Header, r.Header)
		assert.Equal(t, err == nil, resp != nil)
		if err == nil {
			return middlewaretest.Answer{Verdict: middlewaretest.Passed}
		}
		var no *httplimit.NotSentError
		require.ErrorAs(t, err, &no)
		got := middlewaretest.Answer{Verdict: middlewaretest.Unavailable, RetryAfter: no.RetryAfter}
		switch {
		case ctx.Err() != nil:
			require.ErrorIs(t, err, ctx.Err())
			got.Verdict = map[bool]middlewaretest.Verdict{true: middlewaretest.Overdue, false: middlewaretest.Gone}[no.Timeout()]
		case errors.Is(err, limit.ErrInvalidConfig):
			got.Verdict = middlewaretest.Misconfigured
		case strings.HasPrefix(no.Err.Error(), "httplimit: cost: "):
			got.Verdict = middlewaretest.Rejected
		case no.RetryAfter > 0 || errors.Is(err, limit.ErrPermitsExceedRate):
			got.Verdict = middlewaretest.Refused
		}
		return got
	}
}

// badKeys are key functions that were not made properly.
func badKeys() map[string]httplimit.KeyFunc {
	bits := func(n int) httplimit.KeyFunc { return httplimit.ClientIP(httplimit.ClientIPConfig{IPv6Bits: n}) }
	return map[string]httplimit.KeyFunc{
		"nil user": httplimit.User(nil), "no header": httplimit.Header(""), "bits": bits(129), "negative bits": bits(-1),
		"trusted": httplimit.ClientIP(httplimit.ClientIPConfig{Trusted: []netip.Prefix{{}}}),
	}
}

func badOptions(prefix string) map[string][]httplimit.Option {
	sound := middlewaretest.Grants()
	of := func(name, prefix string) httplimit.Option {
		return httplimit.WithPolicy(httplimit.Policy{Name: name, Limiter: sound, Prefix: prefix})
	}
	all := map[string][]httplimit.Option{
		"cost":              {httplimit.WithCost(nil)},
		"skip":              {httplimit.WithSkip(nil)},
		"hook":              {httplimit.WithErrorHandler(nil)},
		"refusal":           {httplimit.WithRefusal(nil)},
		"headers":           {httplimit.WithHeaders(7)},
		"name":              {policy("é", sound)},
		"control in name":   {policy("a\nb", sound)},
		"twice":             {policy("default", sound)},
		"policy limiter":    {httplimit.WithPolicy(httplimit.Policy{Name: "hour"})},
		"policy name":       {httplimit.WithPolicy(httplimit.Policy{Limiter: sound})},
		"unit":              {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Unit: "é"})},
		"window":            {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Window: -1})},
		"policy key":        {httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Key: []httplimit.KeyFunc{nil}})},
		"policy tag":        {httplimit.WithHashTag(), of("hour", "{a}:")},
		"one prefix":        {of("hour", prefix)},
		"prefix twice":      {of("hour", "a:"), of("day", "a:")},
		"prefix continued":  {httplimit.WithPrefix("a:"), of("hour", "a:b:")},
		"prefix continues":  {httplimit.WithPrefix("a:b:"), of("hour", "a")},
		"prefix of names":   {policy("hour", sound), of("day", prefix)},
		"prefix twice, tag": {httplimit.WithHashTag(), of("hour", prefix)},
	}
	for name, key := range badKeys() {
		all[name] = []httplimit.Option{httplimit.WithKey(httplimit.Path(), key)}
		all[name+" of a policy"] = []httplimit.Option{httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: sound, Key: []httplimit.KeyFunc{key}})}
	}
	return all
}

var verdicts = map[int]middlewaretest.Verdict{
	http.StatusOK:                  middlewaretest.Passed,
	http.StatusBadRequest:          middlewaretest.Rejected,
	http.StatusTooManyRequests:     middlewaretest.Refused,
	http.StatusServiceUnavailable:  middlewaretest.Unavailable,
	http.StatusInternalServerError: middlewaretest.Misconfigured,
}

// wrap returns middleware, and reads what a client sees.
func wrap(t testing.TB, l limit.Limiter, opts ...httplimit.Option) middlewaretest.Handler {
	t.Helper()
	limits := httplimit.New(l, append(opts, httplimit.WithLegacyHeaders())...)
	return func(ctx context.Context, user string) middlewaretest.Answer {
		handled := false
		r := newRequest(t).WithContext(ctx)
		r.Header.Set("X-User", user)
		w := serve(limits.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			handled = true
			middlewaretest.Handle(r.Context())
		})), r)
		if errors.Is(ctx.Err(), context.Canceled) {
			assert.False(t, handled)
			assert.Equal(t, http.StatusServiceUnavailable, w.Code)
			assert.Empty(t, w.Body.Bytes())
			return middlewaretest.Answer{Verdict: middlewaretest.Gone}
		}
		got := answer(t, w)
		assert.Equal(t, got.Verdict == middlewaretest.Passed, handled)
		return got
	}
}

func answer(t testing.TB, w *httptest.ResponseRecorder) middlewaretest.Answer {
	t.Helper()
	h := w.Header()
	got := middlewaretest.Answer{Verdict: verdicts[w.Code], Text: fmt.Sprint(h, w.Body)}
	for _, m := range members(t, h, "RateLimit") {
		got.Figures = []int64{members(t, h, "RateLimit-Policy")[0].Params["q"], m.Params["r"]}
		assert.Equal(t, fmt.Sprint(got.Figures), fmt.Sprintf("[%s %s]", h.Get("X-RateLimit-Limit"), h.Get("X-RateLimit-Remaining")))
	}
	retry := h.Get("Retry-After")
	if got.Verdict == middlewaretest.Passed {
		assert.Empty(t, retry)
		if got.Figures == nil {
			assert.NotContains(t, strings.ToLower(got.Text), "ratelimit")
		}
		return got
	}
	body := problem(t, w)
	if got.Verdict != middlewaretest.Refused {
		assert.Equal(t, "about:blank", body["type"])
		assert.Equal(t, map[middlewaretest.Verdict]string{middlewaretest.Unavailable: "5"}[got.Verdict], retry)
		return got
	}
	assert.Equal(t, "https://iana.org/assignments/http-problem-types#quota-exceeded", body["type"])
	assert.Len(t, body["violated-policies"], 1)
	if retry == "" {
		assert.Contains(t, body["detail"], "costs more than")
		return got
	}
	assert.Contains(t, body["detail"], "can pass in "+retry+" s")
	got.RetryAfter = time.Duration(integer(t, retry)) * time.Second
	assert.Positive(t, got.RetryAfter)
	return got
}

func policyOf(p middlewaretest.Policy) limit.Limiter {
	policy := httplimit.Policy{Limiter: p.Limiter, Settle: p.Settle, Shadow: p.Shadow, InFlight: p.InFlight, Hold: p.Hold}
	if p.Plan != nil {
		policy.Plan = func(r *http.Request) limit.Limiter { return p.Plan(r.Header.Get("X-User")) }
	}
	return policy
}

func text(part string, err error) httplimit.KeyFunc {
	return func(*http.Request) (string, error) { return part, err }
}
