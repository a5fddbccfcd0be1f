package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
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
		{httplimit.Host(), "https://Example.ORG.:443", "example.org"},
		{httplimit.Host(), "http://example.org:443", "example.org:443"},
		{httplimit.Host(), "http://example.org.:", "example.org"},
		{httplimit.Host(), "https://[2001:DB8::1]:443/", "[2001:db8::1]"},
		{httplimit.Host(), "https://[2001:db8::1]:8443/", "[2001:db8::1]:8443"},
		{httplimit.Host(), "http://[2001:db8::1]", "[2001:db8::1]"},
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
		"of a local page":    {http.MethodOptions, []string{origin, "null", method, "PUT"}, true},
		"OPTIONS":            {http.MethodOptions, nil, false},
		"OPTIONS of a page":  {http.MethodOptions, []string{origin, "https://shop.example"}, false},
		"of no origin":       {http.MethodOptions, []string{method, "PUT"}, false},
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

// Whatever policies meet, and whatever requests cost: the same request passes
// when Retry-After is over, and never if there is none.
func TestRetryAfterIsNeverTooEarly(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same histories each time
		upTo := func(n int64) int64 { return 1 + random.Int64N(n) }
		newLimiter := func() limit.Limiter {
			most, window := upTo(12), time.Duration(upTo(20_000))*time.Millisecond
			all := middlewaretest.Limiters(client, most, window)
			all["local"] = httplimit.Local(most, window)
			all["tokenbucket"] = tokenbucket.New(client, tokenbucket.Config{
				Capacity: most, Refill: upTo(most), Interval: time.Duration(upTo(5)) * time.Second, Borrow: random.Int64N(4),
			})
			return all[[]string{"keyed", "fixedwindow", "slidinglog", "tokenbucket", "local"}[random.IntN(5)]]
		}
		refused, never := 0, 0
		for round := range 8 {
			cost := int64(1)
			opts := []httplimit.Option{
				httplimit.WithPrefix(fmt.Sprintf("round%d:", round)), httplimit.WithHashTag(), httplimit.WithLegacyHeaders(),
				httplimit.WithCost(func(*http.Request) (int64, error) { return cost, nil }),
			}
			for i := range random.IntN(4) {
				opts = append(opts, policy(fmt.Sprint("policy", i), newLimiter()))
			}
			handler := httplimit.New(newLimiter(), opts...).Handler(hello)
			for range 40 {
				cost = upTo(5)
				w := serve(handler, newRequest(t))
				members(t, w.Header(), "RateLimit")
				members(t, w.Header(), "RateLimit-Policy")
				switch retry := w.Header().Get("Retry-After"); {
				case w.Code == http.StatusOK:
				case retry == "":
					never++
					time.Sleep(100 * time.Second)
					again := serve(handler, newRequest(t))
					require.Equal(t, http.StatusTooManyRequests, again.Code, "round %d, cost %d: %v", round, cost, w.Header())
				default:
					refused++
					wait := time.Duration(integer(t, retry)) * time.Second
					reset := time.Unix(integer(t, w.Header().Get("X-RateLimit-Reset")), 0)
					require.Greater(t, time.Until(reset), wait-time.Second)
					time.Sleep(wait)
					again := serve(handler, newRequest(t))
					require.Equal(t, http.StatusOK, again.Code, "round %d, cost %d: %v, then %v", round, cost, w.Header(), again.Header())
				}
				if random.IntN(3) > 0 {
					time.Sleep(time.Duration(random.Int64N(3000)) * time.Millisecond)
				}
			}
		}
		t.Logf("%d refused for a time, %d for ever", refused, never)
		assert.Positive(t, refused)
		assert.Positive(t, never)
	})
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

type programObserver struct {
	limit.NoObserver

	decided func()
}

func (o programObserver) Decided(context.Context, limit.Decided) { o.decided() }

// While a function of the program's blocks, only its request waits. It may send requests itself, and close the Client.
func TestFunctionOfTheProgram_BlocksOnlyItsRequest(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Key", "User", "Cost", "Plan", "Skip", "Decided", "RefusalHandler", "ErrorHandler", "policy's Key", "policy's Cost", "policy's Plan"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := redistest.Mini(t)
			client := rratelimiter.New(rdb, limitertest.Patient())
			var do func()
			var done atomic.Bool
			called := func(of string) {
				if of == name && !done.Swap(true) {
					do()
				}
			}
			user := func(of string) func(*http.Request) string {
				return func(r *http.Request) string { called(of); return r.Header.Get("User") }
			}
			key := func(of string) httplimit.KeyFunc {
				return func(r *http.Request) (string, error) { return user(of)(r), nil }
			}
			cost := func(of string) func(*http.Request) (int64, error) {
				return func(*http.Request) (int64, error) { called(of); return 1, nil }
			}
			plan := func(of string) func(*http.Request) limit.Limiter {
				return func(r *http.Request) limit.Limiter {
					if user(of)(r) == "bad" {
						return client.Keyed("bad:", rratelimiter.Config{}) // for the ErrorHandler
					}
					return client.Keyed("plan:", rratelimiter.PerHour(2))
				}
			}
			handler := httplimit.New(
				httplimit.Policy{Limiter: client.Keyed("default:", rratelimiter.PerHour(2)), Plan: plan("Plan")},
				httplimit.WithKey(key("Key"), httplimit.User(user("User"))), httplimit.WithCost(cost("Cost")),
				httplimit.WithSkip(func(*http.Request) bool { called("Skip"); return false }),
				httplimit.WithObserver(programObserver{decided: func() { called("Decided") }}),
				httplimit.WithRefusal(func(http.ResponseWriter, *http.Request, httplimit.Refusal) { called("RefusalHandler") }),
				httplimit.WithErrorHandler(func(*http.Request, error) { called("ErrorHandler") }),
				httplimit.WithPolicy(httplimit.Policy{
					Name: "b", Limiter: client.Keyed("policy:", rratelimiter.PerHour(2)),
					Key: []httplimit.KeyFunc{key("policy's Key")}, Cost: cost("policy's Cost"), Plan: plan("policy's Plan"),
				})).Handler(hello)
			use := func(users ...string) {
				for i := range 3 * len(users) {
					r := newRequest(t)
					r.Header.Set("User", users[i/3])
					serve(handler, r)
				}
			}

			begun, free := make(chan struct{}), make(chan struct{})
			do = func() { // as the function itself
				use("other")
				_ = client.Close(limitertest.EndedContext(t))
				close(begun)
				<-free
			}
			working := limitertest.Go(func() { use("ann", "bad") })
			limitertest.Soon(t, begun, "it is called, and can use the limiters")
			limitertest.Soon(t, limitertest.Go(func() { use("third") }), "another request waits for it")
			close(free)
			limitertest.Soon(t, working, "the request goes on")
			assert.NoError(t, client.Close(t.Context()))
		})
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := httplimit.Local(5, time.Minute)
		check := func(after time.Duration, key string, n int64, want limit.Decision) {
			t.Helper()
			time.Sleep(after)
			got, err := l.Take(t.Context(), key, n)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		}
		const s = time.Second
		check(0, "a", 3, limit.Decision{Granted: true, Limit: 5, Remaining: 2, ResetAfter: 60 * s})
		check(10*s, "a", 1, limit.Decision{Granted: true, Limit: 5, Remaining: 1, ResetAfter: 60 * s})
		check(10*s, "a", 2, limit.Decision{Limit: 5, Remaining: 1, RetryAfter: 40 * s, ResetAfter: 50 * s})
		check(0, "a", 5, limit.Decision{Limit: 5, Remaining: 1, RetryAfter: 50 * s, ResetAfter: 50 * s})
		check(0, "b", 5, limit.Decision{Granted: true, Limit: 5, ResetAfter: 60 * s})
		check(40*s-1, "a", 2, limit.Decision{Limit: 5, Remaining: 1, RetryAfter: 1, ResetAfter: 10*s + 1})
		check(1, "a", 2, limit.Decision{Granted: true, Limit: 5, Remaining: 2, ResetAfter: 60 * s})
		check(time.Hour, "a", 1, limit.Decision{Granted: true, Limit: 5, Remaining: 4, ResetAfter: 60 * s})
		assert.Equal(t, time.Minute, l.(limit.Windowed).Window())
	})
}

func TestLocalGivesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := httplimit.Local(5, time.Minute).(limit.Returner)
		take := func(n int64) func(context.Context) error {
			d, giveBack, err := l.TakeReturnable(t.Context(), "a", n)
			require.NoError(t, err)
			require.Equal(t, d.Granted, giveBack != nil)
			return giveBack
		}
		first, second := take(2), take(3)
		assert.Nil(t, take(1))
		require.NoError(t, first(t.Context()))
		third := take(2)
		require.NotNil(t, third)
		require.NoError(t, second(t.Context()))
		require.NoError(t, third(t.Context()))
		time.Sleep(time.Second)
		last := take(5)
		time.Sleep(time.Minute)
		require.NotNil(t, take(5))
		require.NoError(t, last(t.Context()), "what has run out is not given back twice")
		assert.Nil(t, take(1))

		time.Sleep(time.Minute)
		last = take(5)
		time.Sleep(time.Minute)
		_, err := l.Take(t.Context(), "b", 1)
		require.NoError(t, err)
		require.NoError(t, last(t.Context()), "its key is forgotten")
		assert.NotNil(t, take(5))
	})
}

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
		_, err := test.limiter.Take(test.ctx, "a", test.n)
		assert.ErrorIs(t, err, test.want)
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
