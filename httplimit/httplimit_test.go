package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestRefusalHandler(t *testing.T) {
	t.Parallel()
	refused := limit.Decision{Limit: 10, Remaining: 2, RetryAfter: 1500 * time.Millisecond, ResetAfter: time.Minute}
	var got httplimit.Refusal
	handler := httplimit.New(httplimit.Policy{Name: "burst", Limiter: says(refused, nil)}, httplimit.WithRefusal(
		func(w http.ResponseWriter, _ *http.Request, refusal httplimit.Refusal) {
			got = refusal
			w.WriteHeader(http.StatusTeapot)
		}), quiet, policy("down", says(limit.Decision{}, errDown))).Handler(refuseAll(t)) // that has no part in it
	w := serve(handler, newRequest(t))
	assert.Equal(t, http.StatusTeapot, w.Code)
	assert.Equal(t, "2", w.Header().Get("Retry-After"))
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	assert.Equal(t, `"burst";r=2;t=2`, w.Header().Get("RateLimit"))
	assert.Empty(t, w.Body.Bytes())
	assert.Equal(t, httplimit.Refusal{
		Policies:   []httplimit.Decided{{Name: "burst", Decision: refused}},
		Violated:   []string{"burst"},
		RetryAfter: 1500 * time.Millisecond,
	}, got)
}

func TestNestedLimits_HeadersOfBothAndTheSameWriter(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	inner := httplimit.New(httplimit.Policy{Name: "route", Limiter: grants()}).Handler(http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) {
		assert.Same(t, w, got)
	}))
	httplimit.New(httplimit.Policy{Name: "all", Limiter: grants()}).Handler(inner).ServeHTTP(w, newRequest(t))
	assert.Len(t, members(t, w.Header(), "RateLimit"), 2)
	assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 2)
}

func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	type user struct{}
	userOf := func(r *http.Request) string { name, _ := r.Context().Value(user{}).(string); return name }
	const items = "/items/1"
	for _, test := range []struct {
		part httplimit.KeyFunc
		url  string
		want string
	}{
		{httplimit.Header("X-Api-Key"), items, ""},
		{httplimit.Header("accept"), items, "text/html"},
		{httplimit.Header("host"), items, "Front.Example"},
		{httplimit.User(userOf), items, ""},
		{httplimit.Path(), "/items/1?q=2", items},
		{httplimit.Route(), items, ""},
		{httplimit.ClientIP(httplimit.ClientIPConfig{}), items, "192.0.2.1"},

		{httplimit.Host(), "http://example.org/a", "example.org"},
		{httplimit.Host(), "http://example.org:443", "example.org:443"},
		{httplimit.Host(), "https://[2001:DB8::1]:443/", "[2001:db8::1]"},
		{httplimit.Host(), "unix://socket:80", "socket:80"},
		{httplimit.Host(), items, "front.example"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, test.url, http.NoBody)
		r.Host = "Front.Example"
		r.Header.Set("Accept", "text/html")
		got, err := test.part(r)
		require.NoError(t, err)
		assert.Equal(t, test.want, got, test.url)
	}
}

func TestIsPreflight(t *testing.T) {
	t.Parallel()
	const origin, method = "Origin", "Access-Control-Request-Method"
	for name, c := range map[string]struct {
		method string
		header []string
		want   bool
	}{
		"preflight":          {http.MethodOptions, []string{origin, "https://shop.example", method, "PUT"}, true},
		"OPTIONS":            {http.MethodOptions, nil, false},
		"OPTIONS of a page":  {http.MethodOptions, []string{origin, "https://shop.example"}, false},
		"the request itself": {http.MethodPut, []string{origin, "https://shop.example", method, "PUT"}, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, "/", http.NoBody)
		for i := 0; i < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		limiter := grants()
		w := serve(httplimit.New(limiter, httplimit.WithSkip(httplimit.IsPreflight)).Handler(hello), r)
		assert.Equal(t, "hello", w.Body.String(), name)
		assert.Equal(t, c.want, len(limiter.Asked()) == 0, name)
	}
}

func TestRouteIsThePattern(t *testing.T) {
	t.Parallel()
	limiter := grants()
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", httplimit.New(limiter, httplimit.WithKey(httplimit.Route())).Handler(hello))
	assert.Equal(t, http.StatusOK, serve(mux, newRequest(t)).Code)
	assert.Equal(t, "http:GET%20/items/%7Bid%7D", limiter.Key())
}

// A cost that is read from the body fails as the body does, which is the client's fault and no error of the server's.
func TestWithCost_BodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body io.Reader
		want int
	}{
		"whole":     {strings.NewReader("1234567"), http.StatusOK},
		"too large": {strings.NewReader("123456789"), http.StatusRequestEntityTooLarge},
		"broken":    {io.MultiReader(strings.NewReader("123"), broken{}), http.StatusBadRequest},
	} {
		var errs middlewaretest.Errors
		limiter := middlewaretest.Grants()
		handler := httplimit.New(limiter, hearing(&errs), httplimit.WithCost(func(r *http.Request) (int64, error) {
			body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 8))
			return int64(len(body)), err
		})).Handler(hello)
		r := newRequest(t)
		r.Body = io.NopCloser(c.body)
		w := serve(handler, r)
		assert.Equal(t, c.want, w.Code, name)
		errs.Check(t)
		if c.want == http.StatusOK {
			assert.EqualValues(t, 7, limiter.Asked()[0].N)
			continue
		}
		assert.Empty(t, w.Header().Get("Retry-After"), name)
		assert.Empty(t, limiter.Asked(), name)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the client went away") }

func TestLocalErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ctx     context.Context
		limiter limit.Limiter
		n       int64
		want    error
	}{
		{t.Context(), httplimit.Local(0, time.Minute), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, 0), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, -1), 1, limit.ErrInvalidConfig},
		{t.Context(), httplimit.Local(1, time.Minute), 0, limit.ErrInvalidPermits},
		{t.Context(), httplimit.Local(1, time.Minute), -1, limit.ErrInvalidPermits},
		{t.Context(), httplimit.Local(1, time.Minute), 2, limit.ErrPermitsExceedRate},
		{t.Context(), httplimit.Local(1, time.Minute), math.MaxInt64, limit.ErrPermitsExceedRate},
		{limitertest.EndedContext(t), httplimit.Local(1, time.Minute), 1, context.Canceled},
	} {
		d, err := test.limiter.Take(test.ctx, "a", test.n)
		assert.ErrorIs(t, err, test.want)
		assert.Equal(t, errors.Is(test.want, limit.ErrPermitsExceedRate), d.Limit == 1, "so that an estimate can be lowered")
	}
}

// localStep is one request of a history, so long after the one before.
type localStep struct {
	pause time.Duration
	n     int64
	back  bool // gives back what it was granted
}

// Random requests against the plainest of models: all grants of the last window. Never more
// than the limit; nothing is held back for longer than a 32nd of a window, if there are so many
// that some are kept as one; and a caller that comes back at RetryAfter gets through.
func TestLocalModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.Int64Range(1, 200).Draw(rt, "limit")
		length := rapid.SampledFrom([]int{1, 10, 100, 300}).Draw(rt, "length")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) localStep {
			return localStep{
				pause: time.Duration(rapid.IntRange(0, 60).Draw(rt, "ms")) * time.Millisecond,
				n:     rapid.Int64Range(1, min(most, 4)).Draw(rt, "n"),
				back:  rapid.IntRange(0, 9).Draw(rt, "back") == 0,
			}
		}), length, length).Draw(rt, "steps")
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = runLocal(t.Context(), most, steps) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// runLocal returns the error of the first wrong answer.
func runLocal(ctx context.Context, most int64, steps []localStep) string {
	const window = 3200 * time.Millisecond
	type grant struct {
		at time.Time
		n  int64
	}
	var log []grant
	used := func(span time.Duration) (sum int64) {
		for _, g := range log {
			if time.Since(g.at) < span {
				sum += g.n
			}
		}
		return sum
	}
	l := httplimit.Local(most, window).(limit.Returner)
	for i, step := range steps {
		time.Sleep(step.pause)
		log = slices.DeleteFunc(log, func(g grant) bool { return time.Since(g.at) > 2*window })
		for again := false; ; again = true {
			before, late := used(window), used(window+window/32)
			d, giveBack, err := l.TakeReturnable(ctx, "a", step.n)
			if err != nil {
				return err.Error()
			}
			switch {
			case d.Granted && before+step.n > most:
				return fmt.Sprintf("step %d: granted %d with %d of %d used", i, step.n, before, most)
			case !d.Granted && late+step.n <= most:
				return fmt.Sprintf("step %d: refused %d with %d of %d used", i, step.n, late, most)
			case !d.Granted && again:
				return fmt.Sprintf("step %d: refused again after RetryAfter", i)
			}
			if d.Granted {
				log = append(log, grant{time.Now(), step.n})
			}
			least, greatest := most-used(window+window/32), most-used(window)
			if d.Remaining < least || d.Remaining > greatest || d.ResetAfter <= 0 || d.ResetAfter > window {
				return fmt.Sprintf("step %d: %+v, but %d to %d remain", i, d, least, greatest)
			}
			if !d.Granted {
				time.Sleep(d.RetryAfter)
				continue
			}
			if step.back {
				if err := giveBack(ctx); err != nil {
					return err.Error()
				}
				log = log[:len(log)-1]
			}
			break
		}
	}
	return ""
}
