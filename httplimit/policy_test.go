package httplimit_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
)

func policy(name string, l limit.Limiter) httplimit.Option {
	return httplimit.WithPolicy(httplimit.Policy{Name: name, Limiter: l})
}

var refusing = says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)

// RateLimit-Policy has the window of the limiter that answers, if it is known: that of a plan, or what answers in its place. What a
// limit counts, if not requests, is the unit of its quota. One that limits what is in flight has no window.
func TestRateLimitPolicy(t *testing.T) {
	t.Parallel()
	of := func(window time.Duration) limit.Limiter { return windowed{Limiter: grants(), Span: window} }
	second, minute, hour := of(time.Second), of(time.Minute), of(time.Hour)
	fails := func() limit.Limiter { // from the second request on
		return windowed{Limiter: rratelimitertest.NewScript(t, rratelimitertest.Grant(), rratelimitertest.Fail(errDown)), Span: time.Hour}
	}
	plans := func(user, all limit.Limiter) []httplimit.Policy {
		chosen := func(l limit.Limiter) func(*http.Request) limit.Limiter {
			return func(*http.Request) limit.Limiter { return l }
		}
		return []httplimit.Policy{
			{Name: "a", Limiter: second, Plan: chosen(user)}, {Name: "b", Limiter: second, Plan: chosen(all)},
			{Name: "c", Limiter: second, Plan: chosen(all), Window: 2 * time.Second},
		}
	}
	for want, c := range map[string]struct {
		policies []httplimit.Policy
		opt      httplimit.Option
	}{
		`"requests";q=10, "tokens";q=10;qu="tokens";w=60, "at-once";q=10, "size";q=1;qu="\"bytes\""`: {[]httplimit.Policy{
			{Name: "requests", Limiter: grants()}, {Name: "tokens", Limiter: grants(), Window: time.Minute, Unit: "tokens"},
			{Name: "at-once", Limiter: &middlewaretest.Reserver{Fake: grants(), Many: true}, Window: time.Minute, InFlight: true},
			{Name: "size", Limiter: refusing, Unit: `"bytes"`},
		}, quiet},
		`"a";q=10;w=1, "b";q=10;w=1, "c";q=10;w=2`:     {plans(nil, nil), quiet},
		`"a";q=10;w=60, "b";q=10;w=3600, "c";q=10;w=2`: {plans(minute, hour), quiet},

		`"fallback";q=2;w=60`:             {[]httplimit.Policy{{Name: "fallback", Limiter: fails()}}, httplimit.WithFallback(httplimit.Local(2, time.Minute))},
		`"of unknown window";q=10;w=3600`: {[]httplimit.Policy{{Name: "of unknown window", Limiter: fails()}}, httplimit.WithFallback(grants())},
		`"local";q=2;w=3600`:              {[]httplimit.Policy{{Name: "local", Limiter: fails()}}, httplimit.WithFailure(limit.FailLocal(0.2))},
	} {
		opts := []httplimit.Option{quiet, c.opt}
		for _, p := range c.policies[1:] {
			opts = append(opts, httplimit.WithPolicy(p))
		}
		handler := httplimit.New(c.policies[0], opts...).Handler(hello)
		serve(handler, newRequest(t))
		w := serve(handler, newRequest(t))
		assert.Equal(t, want, w.Header().Get("RateLimit-Policy"))
		assert.NotContains(t, w.Header().Get("RateLimit"), "qu=")
	}
}

// Each policy is charged or none, the refusals tell of the longest wait, and in a 429 only policies in the way tell when there is more.
func TestPolicies(t *testing.T) {
	t.Parallel()
	granted := func(most, remaining int64, reset time.Duration) *fake {
		return says(limit.Decision{Granted: true, Limit: most, Remaining: remaining, ResetAfter: reset}, nil)
	}
	refused := func(remaining int64, retry time.Duration) *fake {
		return says(limit.Decision{Limit: 100, Remaining: remaining, RetryAfter: retry, ResetAfter: time.Hour}, nil)
	}
	yes, no, down, hour := granted(10, 9, time.Minute), refused(0, 3*time.Second), says(limit.Decision{}, errDown), time.Hour
	for name, c := range map[string]struct {
		policies []*fake // named "a", "b" and so on
		kept     bool    // what they grant can't be given back
		giving   error   // what giving back says
		cost     int64   // 0: 1
		status   int
		retry    string
		limits   string // RateLimit
		violated string // by the names
		given    string // back
		failed   bool
	}{
		"closed": {policies: []*fake{yes, down}, status: 503, retry: "5", given: "a", failed: true},
		"stays taken": {
			policies: []*fake{yes, no}, giving: errDown,
			status: 429, retry: "3", limits: `"a";r=9, "b";r=0;t=3`, violated: "b", given: "a", failed: true,
		},
		"two refuse": {
			policies: []*fake{granted(10, 5, time.Second), granted(5, 4, time.Minute), refused(1, 90*time.Second), refused(0, hour)}, cost: 2,
			status: 429, retry: "3600", limits: `"a";r=7, "b";r=5, "c";r=1;t=90, "d";r=0;t=3600`, violated: "cd", given: "ab",
		},
		"some are left": {
			policies: []*fake{granted(10, 4, hour), no}, kept: true,
			status: 429, retry: "3", limits: `"a";r=4, "b";r=0;t=3`, violated: "b",
		},
		"as many as it takes": {
			policies: []*fake{granted(10, 2, hour), no}, kept: true, cost: 2, status: 429, retry: "3", limits: `"a";r=2, "b";r=0;t=3`, violated: "b",
		},
		"too few are left": {
			policies: []*fake{granted(10, 1, hour), no}, kept: true, cost: 2, status: 429, retry: "3600", limits: `"a";r=1;t=3600, "b";r=0;t=3`, violated: "b",
		},
	} {
		var errs middlewaretest.Errors
		cost := max(1, c.cost)
		opts := []httplimit.Option{patient(), hearing(&errs), httplimit.WithCost(func(*http.Request) (int64, error) { return cost, nil })}
		var all []*returner
		var policies []httplimit.Policy
		for i, p := range c.policies {
			all = append(all, &returner{Fake: p, Giving: func() error { return c.giving }})
			made := httplimit.Policy{Name: string(rune('a' + i)), Limiter: all[i]}
			if c.kept {
				made.Limiter = p
			}
			if policies = append(policies, made); i > 0 {
				opts = append(opts, httplimit.WithPolicy(made))
			}
		}
		w := serve(httplimit.New(policies[0], opts...).Handler(hello), newRequest(t))
		assert.Equal(t, c.status, w.Code, name)
		assert.Equal(t, c.retry, w.Header().Get("Retry-After"), name)
		assert.Equal(t, c.limits, w.Header().Get("RateLimit"), name)
		assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), len(members(t, w.Header(), "RateLimit")), name)
		if w.Code == http.StatusTooManyRequests {
			violated := fmt.Sprint(problem(t, w)["violated-policies"])
			assert.Equal(t, c.violated, strings.NewReplacer(" ", "", "[", "", "]", "").Replace(violated), name)
		}
		given := ""
		for i, p := range all {
			for _, call := range p.GivenBack() {
				given += string(rune('a' + i))
				assert.Equal(t, cost, call.N)
			}
		}
		assert.Equal(t, c.given, given, name)
		if c.failed {
			errs.Check(t, errDown)
		}
		errs.Check(t)
	}
}

// A handler learns what all middleware around it has decided, and settles it. The headers are of all that is not in shadow.
func TestDecisions(t *testing.T) {
	t.Parallel()
	reserver := &middlewaretest.Reserver{Fake: grants()}
	outer := httplimit.New(httplimit.Policy{Name: "outer", Limiter: reserver, Settle: true})
	inner := httplimit.New(httplimit.Policy{Name: "shadow", Limiter: refusing}, httplimit.WithShadow())
	skipped := httplimit.New(grants(), httplimit.WithSkip(func(*http.Request) bool { return true }))
	route, w := httplimit.New(httplimit.Policy{Name: "route", Limiter: grants()}), httptest.NewRecorder()
	outer.Handler(inner.Handler(skipped.Handler(route.Handler(http.HandlerFunc(func(got http.ResponseWriter, r *http.Request) {
		assert.Same(t, w, got)
		assert.Equal(t, []httplimit.Decided{
			{Name: "outer", Decision: limit.Decision{Granted: true, Limit: 10, Remaining: 9, ResetAfter: time.Minute}},
			{Name: "shadow", Decision: limit.Decision{Limit: 1, RetryAfter: time.Second}},
			{Name: "route", Decision: limit.Decision{Granted: true, Limit: 10, Remaining: 9, ResetAfter: time.Minute}},
		}, httplimit.Decisions(r.Context()))
		assert.NoError(t, httplimit.Settle(r.Context(), 3))
		err := httplimit.Settle(r.Context(), 3)
		assert.ErrorIs(t, err, limit.ErrSettled)
		assert.ErrorContains(t, err, "httplimit: Settle: ")
	}))))).ServeHTTP(w, newRequest(t))
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Len(t, members(t, w.Header(), "RateLimit"), 2)
	assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 2)
	assert.Equal(t, []int64{3}, reserver.Settled)
	assert.Empty(t, httplimit.Decisions(t.Context()))
}

func TestHeaderText(t *testing.T) {
	t.Parallel()
	type d = limit.Decision
	const most, ms, sec, minute = 999_999_999_999_999, time.Millisecond, time.Second, time.Minute
	for _, test := range []struct {
		name         string
		window       time.Duration
		decision     limit.Decision
		policy, rate string
		retryAfter   string
	}{
		{"burst", minute, d{Granted: true, Limit: 100, Remaining: 50, ResetAfter: 30 * sec}, `"burst";q=100;w=60`, `"burst";r=50;t=30`, ""},
		{"full", minute, d{Granted: true, Limit: 100, Remaining: 100}, `"full";q=100;w=60`, `"full";r=100`, ""},
		{"up", 1500 * time.Millisecond, d{Granted: true, Limit: 1, ResetAfter: time.Nanosecond}, `"up";q=1;w=2`, `"up";r=0;t=1`, ""},
		{"short", 999 * ms, d{Granted: true, Limit: 1, ResetAfter: 999 * ms}, `"short";q=1`, `"short";r=0;t=1`, ""},
		{"unknown", 0, d{Granted: true, Limit: 1, ResetAfter: sec}, `"unknown";q=1`, `"unknown";r=0;t=1`, ""},
		{`a "b" \c`, sec, d{Granted: true, Limit: 1}, `"a \"b\" \\c";q=1;w=1`, `"a \"b\" \\c";r=0`, ""},
		{
			"huge", math.MaxInt64, d{Granted: true, Limit: math.MaxInt64, Remaining: most + 1, ResetAfter: math.MaxInt64},
			`"huge";q=999999999999999;w=9223372037`, `"huge";r=999999999999999;t=9223372037`, "",
		},
		{"refused", minute, d{Limit: 5, Remaining: 1, RetryAfter: sec, ResetAfter: minute}, `"refused";q=5;w=60`, `"refused";r=1;t=1`, "1"},
		{"refused", minute, d{Limit: 5, RetryAfter: sec + 1, ResetAfter: minute}, `"refused";q=5;w=60`, `"refused";r=0;t=2`, "2"},
		{"soon", minute, d{Limit: 5, ResetAfter: minute}, `"soon";q=5;w=60`, `"soon";r=0;t=1`, "1"},
		{"far", minute, d{Limit: 5, RetryAfter: math.MaxInt64 - 1}, `"far";q=5;w=60`, `"far";r=0;t=9223372037`, "9223372037"},
		{"never", minute, d{Limit: 5, RetryAfter: math.MaxInt64}, `"never";q=5;w=60`, `"never";r=0`, ""},
		{"zero", 0, d{}, `"zero";q=0`, `"zero";r=0`, ""},
		{"below", minute, d{Limit: 5, Remaining: -1, RetryAfter: -1}, `"below";q=5;w=60`, `"below";r=0;t=1`, "1"},
	} {
		limiter := windowed{Limiter: says(test.decision, nil), Span: test.window}
		handler := httplimit.New(httplimit.Policy{Name: test.name, Limiter: limiter}).Handler(hello)
		w := serve(handler, newRequest(t))
		assert.Equal(t, test.policy, w.Header().Get("RateLimit-Policy"))
		assert.Equal(t, test.rate, w.Header().Get("RateLimit"))
		assert.Equal(t, test.retryAfter, w.Header().Get("Retry-After"))
		assert.Len(t, members(t, w.Header(), "RateLimit"), 1)
		assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 1)
		assert.Empty(t, w.Header().Get("X-RateLimit-Limit"))
		if !test.decision.Granted {
			r := newRequest(t)
			r.Method = http.MethodHead
			head := serve(handler, r)
			assert.Equal(t, w.Header(), head.Header())
			assert.Empty(t, head.Body.Bytes())
		}
	}
	costly := windowed{Limiter: says(d{Limit: 5}, limit.ErrPermitsExceedRate), Span: minute}
	w := serve(httplimit.New(httplimit.Policy{Name: "costly", Limiter: costly}).Handler(hello), newRequest(t))
	assert.Equal(t, `"costly";q=5;w=60`, w.Header().Get("RateLimit-Policy"))
	assert.NotContains(t, w.Header(), http.CanonicalHeaderKey("RateLimit"))
}

func TestLegacyHeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(300 * time.Millisecond)
		ask := func(second, hour limit.Decision) http.Header {
			h := serve(httplimit.New(says(second, nil), httplimit.WithLegacyHeaders(), httplimit.WithHeaders(httplimit.NoHeaders),
				httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: says(hour, nil)})).Handler(hello), newRequest(t)).Header()
			assert.Empty(t, h.Values("RateLimit"))
			assert.Empty(t, h.Values("RateLimit-Policy"))
			return h
		}
		h := ask(limit.Decision{Granted: true, Limit: 10, Remaining: 4, ResetAfter: time.Second},
			limit.Decision{Granted: true, Limit: 1000, Remaining: 3, ResetAfter: time.Hour})
		assert.Equal(t, "1000", h.Get("X-RateLimit-Limit"), "the least remaining")
		assert.Equal(t, "3", h.Get("X-RateLimit-Remaining"))
		reset := time.Unix(integer(t, h.Get("X-RateLimit-Reset")), 0)
		assert.Equal(t, time.Hour+700*time.Millisecond, time.Until(reset), "rounded up")
		h = ask(limit.Decision{Limit: 10, Remaining: 0, RetryAfter: 700 * time.Millisecond, ResetAfter: time.Second},
			limit.Decision{Granted: true, Limit: 1000, Remaining: 0, ResetAfter: time.Hour})
		assert.Equal(t, "10", h.Get("X-RateLimit-Limit"), "the one that refused")
		assert.Equal(t, 700*time.Millisecond, time.Until(time.Unix(integer(t, h.Get("X-RateLimit-Reset")), 0)))
		h = ask(limit.Decision{Limit: 10, RetryAfter: time.Second}, limit.Decision{Limit: 20, RetryAfter: time.Minute})
		assert.Equal(t, "20", h.Get("X-RateLimit-Limit"), "the longest refusal")
		assert.Equal(t, "60", h.Get("Retry-After"), "with NoHeaders too")
		h = ask(limit.Decision{Limit: 10, RetryAfter: math.MaxInt64 - 1}, limit.Decision{Granted: true, Limit: 20})
		assert.Equal(t, math.MaxInt64*time.Nanosecond, time.Until(time.Unix(integer(t, h.Get("X-RateLimit-Reset")), 0)), "in centuries, not before 1970")
		h = ask(limit.Decision{}, limit.Decision{Granted: true, Limit: 20})
		assert.Equal(t, "0", h.Get("X-RateLimit-Limit"))
		assert.NotContains(t, h, http.CanonicalHeaderKey("X-RateLimit-Reset"), "it never will be")
	})
}

type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }
func (h hijackable) Unwrap() http.ResponseWriter                { return notifier{h} }

// notifier is a ResponseWriter that knows when its client has left.
type notifier struct{ http.ResponseWriter }

var left = make(<-chan bool)

func (notifier) CloseNotify() <-chan bool { return left }

func writes(statuses ...int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, status := range statuses {
			w.WriteHeader(status)
		}
	}
}

func byStatus(_ *http.Request, status int) int64 { return int64(status) }

func settles(t *testing.T, actual int64) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) { assert.NoError(t, httplimit.Settle(r.Context(), actual)) }
}

// A request is charged by the status that its client has got. A handler that settles wins. What was not charged stays so.
func TestPolicyCharge(t *testing.T) {
	t.Parallel()
	down, refuses := says(limit.Decision{}, limit.ErrUnavailable), says(limit.Decision{Limit: 5}, nil)
	for name, c := range map[string]struct {
		handle  http.HandlerFunc
		leaves  bool  // the client does, before it
		want    int   // the status
		limiter *fake // nil: it grants
		opt     httplimit.Option
		charge  func(r *http.Request, status int) int64 // nil: by the status
		settled []int64                                 // nil: as many as the status says
	}{
		"nothing": {handle: writes(), want: 200},
		"a body":  {handle: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, want: 200},
		"bytes":   {handle: hello, want: 200},
		"a copy":  {handle: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, strings.NewReader("hello")) }, want: 200},
		"no copy": {handle: func(w http.ResponseWriter, _ *http.Request) {
			if n, err := io.Copy(w, iotest.ErrReader(errDown)); n == 0 && err != nil {
				w.WriteHeader(http.StatusBadGateway)
			}
		}, want: 502},
		"a status": {handle: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }, want: 401},
		"two":      {handle: writes(202, 500), want: 202},
		"hints":    {handle: writes(103, 404), want: 404},
		"a panic":  {handle: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: 500},
		"a stream": {handle: func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			writes(500)(w, r)
		}, want: 200},
		"taken over": {handle: func(w http.ResponseWriter, _ *http.Request) { _, _, _ = w.(http.Hijacker).Hijack() }, want: 101},
		"switched": {handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
			_, _, _ = http.NewResponseController(w).Hijack()
		}, want: 101},
		"no push": {handle: func(w http.ResponseWriter, _ *http.Request) {
			assert.ErrorIs(t, w.(http.Pusher).Push("/style.css", nil), http.ErrNotSupported)
		}, want: 200},
		"older code": {handle: func(w http.ResponseWriter, _ *http.Request) {
			assert.Equal(t, left, w.(http.CloseNotifier).CloseNotify()) //nolint:staticcheck // such as gin's streams
		}, want: 200},
		// A client that has left may have got the answer or not.
		"left":         {handle: writes(), leaves: true, want: httplimit.StatusClientGone},
		"left, served": {handle: writes(202), leaves: true, want: 202},

		"settled":      {handle: settles(t, 3), want: 200, settled: []int64{3}},
		"as reserved":  {handle: settles(t, 1), want: 200, settled: []int64{1}},
		"refused":      {limiter: refuses},
		"open":         {limiter: down, handle: writes(), want: 200, opt: httplimit.WithFailure(limit.FailOpen()), settled: []int64{}},
		"in shadow":    {handle: writes(), want: 200, opt: httplimit.WithShadow()},
		"free":         {handle: writes(), opt: httplimit.WithCost(func(*http.Request) (int64, error) { return 0, nil })},
		"below 0 is 0": {handle: writes(), want: 200, charge: func(*http.Request, int) int64 { return -1 }, settled: []int64{0}},
	} {
		var got, want []int
		if c.want > 0 {
			want = []int{c.want}
		}
		if c.settled == nil && c.want > 0 {
			c.settled = []int64{int64(c.want)}
		}
		if c.opt == nil {
			c.opt = quiet
		}
		ctx, leave := context.WithCancel(t.Context())
		reserver := &middlewaretest.Reserver{Fake: cmp.Or(c.limiter, grants())}
		limits := httplimit.New(httplimit.Policy{Limiter: reserver, Charge: func(r *http.Request, status int) int64 {
			assert.Equal(t, "/items/1", r.URL.Path)
			got = append(got, status)
			if c.charge != nil {
				return c.charge(r, status)
			}
			return byStatus(r, status)
		}}, quiet, c.opt)
		require.NoError(t, limits.Err())
		func() {
			defer func() { assert.Equal(t, strings.Contains(name, "panic"), recover() != nil, name) }()
			limits.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.leaves {
					leave()
				}
				c.handle(w, r)
			})).ServeHTTP(hijackable{httptest.NewRecorder()}, newRequest(t).WithContext(ctx))
		}()
		leave()
		assert.Equal(t, want, got, name)
		assert.Equal(t, append([]int64(nil), c.settled...), reserver.Settled, name)
	}
	var errs middlewaretest.Errors
	p := httplimit.Policy{Name: "logins", Limiter: &middlewaretest.Reserver{Fake: grants(), Fails: limit.ErrUnavailable}, Charge: byStatus}
	serve(httplimit.New(p, hearing(&errs)).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		assert.NotNil(t, w.(http.CloseNotifier).CloseNotify()) //nolint:staticcheck // though the server has none
	})), newRequest(t))
	require.ErrorContains(t, errs.Take()[0], `httplimit: policy "logins": `)
	p.Limiter = grants()
	require.ErrorIs(t, httplimit.New(p).Err(), limit.ErrUnsupported)
}

// Where a policy waits for Settle, a handler that calls it settles that one; one with a Charge is charged by the status.
func TestPolicyCharge_BesideSettle(t *testing.T) {
	t.Parallel()
	var all [4]*middlewaretest.Reserver
	for i := range all {
		all[i] = &middlewaretest.Reserver{Fake: grants()}
	}
	outer := httplimit.New(httplimit.Policy{Name: "tokens", Limiter: all[0], Settle: true},
		httplimit.WithPolicy(httplimit.Policy{Name: "both", Limiter: all[1], Settle: true, Charge: byStatus}),
		httplimit.WithPolicy(httplimit.Policy{Name: "failures", Limiter: all[2], Charge: byStatus}))
	inner := httplimit.New(httplimit.Policy{Name: "more failures", Limiter: all[3], Charge: byStatus})
	serve(outer.Handler(inner.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, httplimit.Settle(r.Context(), 1234))
		w.WriteHeader(http.StatusTeapot)
	}))), newRequest(t))
	for i, want := range []int64{1234, 1234, http.StatusTeapot, http.StatusTeapot} {
		assert.Equal(t, []int64{want}, all[i].Settled)
	}
}

// A Charge and an error handler that panic do not end the program, also where the response ends with its context.
func TestPolicyCharge_Panics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var errs middlewaretest.Errors
		fails := &middlewaretest.Reserver{Fake: grants(), Fails: limit.ErrUnavailable}
		others := &middlewaretest.Reserver{Fake: grants()}
		charge := func(*http.Request, int) int64 { return 7 }
		transport := httplimit.NewTransport(answersBody(http.StatusOK), httplimit.Policy{
			Name: "mine", Limiter: &middlewaretest.Reserver{Fake: grants()},
			Charge: func(*http.Request, int) int64 { panic("oops") },
		}, httplimit.WithPolicy(httplimit.Policy{Name: "fails", Limiter: fails, Charge: charge}),
			httplimit.WithPolicy(httplimit.Policy{Name: "others", Limiter: others, Charge: charge}),
			httplimit.WithErrorHandler(func(_ *http.Request, err error) {
				errs.Add(err)
				panic("too")
			}))
		ctx, leave := context.WithCancel(t.Context())
		_, err := transport.RoundTrip(newRequest(t).WithContext(ctx)) //nolint:bodyclose // it ends with its context
		require.NoError(t, err)
		leave()
		synctest.Wait()
		got := errs.Take()
		require.Len(t, got, 2)
		require.EqualError(t, got[0], `httplimit: policy "mine": panic: oops`)
		require.ErrorIs(t, got[1], limit.ErrUnavailable)
		assert.Equal(t, []int64{7}, others.Settled)
	})
}

// A transport is charged by what upstreams answer, 0 if there is no answer.
func TestPolicyCharge_Transport(t *testing.T) {
	t.Parallel()
	for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable, 0} {
		upstream := &middlewaretest.Reserver{Fake: grants()}
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			if want == 0 {
				return nil, errDown
			}
			return answers(want)(r)
		}), httplimit.Policy{Limiter: upstream, Charge: byStatus})
		require.NoError(t, transport.Err())
		_, err := send(t.Context(), t, transport, api)
		assert.Equal(t, want == 0, err != nil)
		assert.Equal(t, []int64{int64(want)}, upstream.Settled)
	}
}

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

// Random requests against the plainest of models: all grants of the last window. Never more than the limit; nothing is held back for longer
// than a 32nd of a window, if there are so many that some are kept as one; and a caller that comes back at RetryAfter gets through.
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
