package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// policy adds a policy that has no more than a name and a limiter.
func policy(name string, l limit.Limiter) httplimit.Option {
	return httplimit.WithPolicy(httplimit.Policy{Name: name, Limiter: l})
}

// refusing refuses everything for a second.
var refusing = says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)

// What a limit counts, if not requests, is the unit of its quota.
func TestPolicy_UnitIsThatOfTheQuota(t *testing.T) {
	t.Parallel()
	handler := httplimit.New(httplimit.Policy{Name: "requests", Limiter: grants()},
		httplimit.WithPolicy(httplimit.Policy{Name: "tokens", Limiter: grants(), Window: time.Minute, Unit: "tokens"}),
		httplimit.WithPolicy(httplimit.Policy{Name: "size", Limiter: refusing, Unit: `"bytes"`})).Handler(hello)
	for range 2 {
		w := serve(handler, newRequest(t))
		want := `"requests";q=10, "tokens";q=10;qu="tokens";w=60, "size";q=1;qu="\"bytes\""`
		assert.Equal(t, want, w.Header().Get("RateLimit-Policy"))
		list, err := httpsfv.UnmarshalList(w.Header().Values("RateLimit-Policy"))
		require.NoError(t, err)
		unit, _ := list[2].(httpsfv.Item).Params.Get("qu")
		assert.Equal(t, `"bytes"`, unit)
		assert.NotContains(t, w.Header().Get("RateLimit"), "qu=")
	}
}

func TestPolicy_NameIsEscapedInKey(t *testing.T) {
	t.Parallel()
	first, second := grants(), grants()
	serve(httplimit.New(httplimit.Policy{Name: "a:{b}", Limiter: first}, policy("a", second)).Handler(hello), newRequest(t))
	assert.Equal(t, "http:a%3A%7Bb%7D:192.0.2.1", first.Key())
	assert.Equal(t, "http:a:192.0.2.1", second.Key())
}

// Each policy is charged or none, the refusals tell of the longest wait, and in a 429 only
// policies that stand in the way tell when there is more: so Retry-After is never earlier
// than a t.
func TestPolicies(t *testing.T) {
	t.Parallel()
	granted := func(most, remaining int64, reset time.Duration) *fake {
		return says(limit.Decision{Granted: true, Limit: most, Remaining: remaining, ResetAfter: reset}, nil)
	}
	refused := func(remaining int64, retry time.Duration) *fake {
		return says(limit.Decision{Limit: 100, Remaining: remaining, RetryAfter: retry, ResetAfter: time.Hour}, nil)
	}
	yes, no, down, hour := granted(10, 9, time.Minute), refused(0, 3*time.Second), says(limit.Decision{}, errDown), time.Hour
	both := `"a";r=9;t=60, "b";r=9;t=60`
	open, fallback := httplimit.WithFailure(limit.FailOpen()), httplimit.WithFallback(yes)
	for name, c := range map[string]struct {
		policies []*fake // named "a", "b" and so on
		kept     bool    // what they grant can't be given back
		own      *fake   // the fallback of the last
		opts     []httplimit.Option
		cost     int64
		status   int
		retry    string
		limits   string // RateLimit
		violated string // by the names
		given    string // back
		failed   bool
	}{
		"closed":           {[]*fake{yes, down}, false, nil, nil, 1, 503, "5", "", "", "a", true},
		"closed, refused":  {[]*fake{no, down}, false, nil, nil, 1, 429, "3", `"a";r=0;t=3`, "a", "", true},
		"open":             {[]*fake{yes, down}, false, nil, []httplimit.Option{open}, 1, 200, "", `"a";r=9;t=60`, "", "", true},
		"open, refused":    {[]*fake{no, down}, false, nil, []httplimit.Option{open}, 1, 429, "3", `"a";r=0;t=3`, "a", "", true},
		"fallback":         {[]*fake{yes, down}, false, nil, []httplimit.Option{fallback}, 1, 200, "", both, "", "", true},
		"own fallback":     {[]*fake{yes, down}, false, yes, nil, 1, 200, "", both, "", "", true},
		"fallback refuses": {[]*fake{yes, down}, false, no, nil, 1, 429, "3", `"a";r=10, "b";r=0;t=3`, "b", "a", true},
		"shadow":           {[]*fake{yes, no, down}, false, nil, []httplimit.Option{open, httplimit.WithShadow()}, 1, 200, "", "", "", "a", true},
		"two refuse": {
			[]*fake{granted(10, 5, time.Second), granted(5, 4, time.Minute), refused(1, 90*time.Second), refused(0, hour)},
			false, nil, nil, 2, 429, "3600", `"a";r=7, "b";r=5, "c";r=1;t=90, "d";r=0;t=3600`, "cd", "ab", false,
		},
		"some are left":       {[]*fake{granted(10, 4, hour), no}, true, nil, nil, 1, 429, "3", `"a";r=4, "b";r=0;t=3`, "b", "", false},
		"as many as it takes": {[]*fake{granted(10, 2, hour), no}, true, nil, nil, 2, 429, "3", `"a";r=2, "b";r=0;t=3`, "b", "", false},
		"too few are left": {
			[]*fake{granted(10, 1, hour), no}, true, nil, nil, 2, 429, "3600", `"a";r=1;t=3600, "b";r=0;t=3`, "b", "", false,
		},
	} {
		var errs middlewaretest.Errors
		opts := []httplimit.Option{patient(), hearing(&errs), httplimit.WithCost(func(*http.Request) (int64, error) { return c.cost, nil })}
		opts = append(opts, c.opts...)
		all := make([]*returner, len(c.policies))
		limiters := make([]limit.Limiter, len(c.policies))
		for i, p := range c.policies {
			all[i] = &returner{Fake: p}
			limiters[i] = all[i]
			if c.kept {
				limiters[i] = p
			}
			made := httplimit.Policy{Name: string(rune('a' + i)), Limiter: limiters[i]}
			if c.own != nil {
				made.Fallback = c.own
			}
			if i > 0 {
				opts = append(opts, httplimit.WithPolicy(made))
			}
		}
		w := serve(httplimit.New(httplimit.Policy{Name: "a", Limiter: limiters[0]}, opts...).Handler(hello), newRequest(t))
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
				assert.Equal(t, c.cost, call.N)
			}
		}
		assert.Equal(t, c.given, given, name)
		if c.failed {
			errs.Check(t, errDown)
		}
		errs.Check(t)
	}
}

// A grant that stays taken is an error and does not show as free. Giving back does not
// hold up the answer for longer than the timeout.
func TestPolicies_GiveBackFails(t *testing.T) {
	t.Parallel()
	for says, giving := range map[string]func() error{
		errDown.Error():                  func() error { return errDown },
		"panic: boom":                    func() error { panic("boom") },
		context.DeadlineExceeded.Error(): func() error { time.Sleep(time.Hour); return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			var errs middlewaretest.Errors
			start := time.Now()
			w := serve(httplimit.New(&returner{Fake: grants(), Giving: giving}, hearing(&errs), httplimit.WithTimeout(0),
				policy("plain", grants()), policy("hour", refusing)).Handler(refuseAll(t)), newRequest(t))
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.LessOrEqual(t, time.Since(start), time.Second)
			heard := errs.Take()
			require.Len(t, heard, 1)
			require.ErrorContains(t, heard[0], says)
			for _, m := range members(t, w.Header(), "RateLimit")[:2] {
				assert.EqualValues(t, 9, m.Params["r"], says)
			}
			time.Sleep(time.Hour)
		})
	}
}

// A policy that panics leaves nothing taken of the others.
func TestPanicOfOnePolicy(t *testing.T) {
	t.Parallel()
	panics := &fake{Answer: func(context.Context, int64) (limit.Decision, error) { panic(http.ErrAbortHandler) }}
	first, last := &returner{Fake: grants()}, &returner{Fake: grants()}
	handler := httplimit.New(first, policy("panics", panics), policy("last", last)).Handler(refuseAll(t))
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { serve(handler, newRequest(t)) })
	assert.Len(t, first.GivenBack(), 1)
	assert.Len(t, last.GivenBack(), 1)
}

// A policy that is slow to answer is no excuse for the others: what they said
// counts, and who refuses refuses.
func TestSlowPolicyDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	for _, f := range []httplimit.Option{
		httplimit.WithFailure(limit.FailClosed()), httplimit.WithFailure(limit.FailOpen()), httplimit.WithFallback(grants()),
	} {
		synctest.Test(t, func(t *testing.T) {
			w := serve(httplimit.New(deaf(time.Minute), f, quiet, policy("hour", refusing)).Handler(refuseAll(t)), newRequest(t))
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, []any{"hour"}, problem(t, w)["violated-policies"])
			time.Sleep(time.Hour)
		})
	}
}

// Policies are asked at the same time, and so are their fallbacks.
func TestPoliciesAreAskedAtTheSameTime(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	down, other := says(limit.Decision{}, errDown), errors.New("another one")
	for name, c := range map[string]struct {
		first limit.Limiter
		opts  []httplimit.Option
		code  int
		took  time.Duration
		heard []error // in one
	}{
		"slow": {deaf(300 * ms), []httplimit.Option{policy("hour", deaf(400*ms))}, 200, 400 * ms, nil},
		"down": {down, []httplimit.Option{policy("hour", says(limit.Decision{}, other))}, 503, 0, []error{errDown, other}},
		"down, and slow fallbacks": {down, []httplimit.Option{
			httplimit.WithFallback(deaf(time.Minute)),
			httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: down, Fallback: deaf(time.Minute)}),
		}, 503, httplimit.DefaultTimeout, []error{errDown}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var errs middlewaretest.Errors
			began := time.Now()
			assert.Equal(t, c.code, serve(httplimit.New(c.first, append(c.opts, hearing(&errs))...).Handler(hello), newRequest(t)).Code, name)
			assert.Equal(t, c.took, time.Since(began), name)
			errs.Check(t, c.heard...)
			time.Sleep(time.Hour)
		})
	}
}

// Grants that come too late, or for a client that has gone, are given back.
func TestGivingBackOutlivesTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		quick, late := &returner{Fake: grants()}, &returner{Fake: deaf(time.Minute)}
		closed := httplimit.New(quick, policy("late", late), quiet).Handler(refuseAll(t))
		open := httplimit.New(quick, policy("late", deaf(time.Minute)), httplimit.WithFailure(limit.FailOpen())).Handler(refuseAll(t))
		leave := func(handler http.Handler) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			serve(handler, newRequest(t).WithContext(ctx))
		}
		leave(closed)
		assert.Len(t, quick.GivenBack(), 1)
		assert.Empty(t, late.GivenBack())
		time.Sleep(time.Hour)
		assert.Len(t, late.GivenBack(), 1)

		began := time.Now()
		assert.Equal(t, http.StatusServiceUnavailable, serve(closed, newRequest(t)).Code)
		assert.Equal(t, httplimit.DefaultTimeout, time.Since(began))
		assert.Len(t, quick.GivenBack(), 2)
		time.Sleep(time.Hour)
		assert.Len(t, late.GivenBack(), 2)

		leave(open)
		assert.Len(t, quick.GivenBack(), 3)
		time.Sleep(time.Hour)
	})
}

func TestPolicyWithAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	user, address, day := grants(), grants(), grants()
	limits := httplimit.New(httplimit.Policy{Name: "user", Limiter: user}, httplimit.WithPrefix("limit:"),
		httplimit.WithKey(httplimit.Header("X-User"), httplimit.Path()),
		httplimit.WithPolicy(httplimit.Policy{
			Name: "address", Limiter: address, Prefix: "client:", Key: []httplimit.KeyFunc{httplimit.ClientIP(httplimit.ClientIPConfig{})},
		}))
	r := newRequest(t)
	r.Header.Set("X-User", "ann")
	serve(limits.Handler(hello), r)
	assert.Equal(t, "limit:ann:/items/1", user.Key(), "one that begins so is in need of no name")
	assert.Equal(t, "client:192.0.2.1", address.Key())

	user, address = grants(), grants()
	pathAndUser := []httplimit.KeyFunc{httplimit.Path(), httplimit.Header("X-User")}
	limits = httplimit.New(user, httplimit.WithHashTag(),
		httplimit.WithPolicy(httplimit.Policy{Name: "address", Limiter: address, Key: pathAndUser}),
		httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: day, Prefix: "day:"}))
	serve(limits.Handler(hello), r)
	assert.Equal(t, "http:default:{192.0.2.1}", user.Key())
	assert.Equal(t, "http:address:{/items/1:ann}", address.Key())
	assert.Equal(t, "day:{192.0.2.1}", day.Key())
}

// Who is called "ip" must not reach keys of the policy of that prefix. A hash tag
// ends a prefix.
func TestPolicies_KeysOfNestedPrefixesStayApart(t *testing.T) {
	t.Parallel()
	user, address := grants(), grants()
	var errs middlewaretest.Errors
	byUser := httplimit.Policy{Name: "user", Limiter: user}
	opts := []httplimit.Option{
		hearing(&errs), httplimit.WithPrefix("api:"),
		httplimit.WithKey(httplimit.Header("X-User"), httplimit.Header("X-Item")),
		httplimit.WithPolicy(httplimit.Policy{
			Name: "address", Limiter: address, Prefix: "api:ip:", Key: []httplimit.KeyFunc{httplimit.ClientIP(httplimit.ClientIPConfig{})},
		}),
	}
	r := newRequest(t)
	r.Header.Set("X-User", "ip")
	r.Header.Set("X-Item", "192.0.2.1")
	assert.Equal(t, http.StatusInternalServerError, serve(httplimit.New(byUser, opts...).Handler(refuseAll(t)), r).Code)
	heard := errs.Take()
	require.Len(t, heard, 1)
	require.ErrorIs(t, heard[0], limit.ErrInvalidConfig)
	for _, text := range []string{`"user"`, `"api:"`, `"address"`, `"api:ip:"`, "WithPrefix", "Policy.Prefix"} {
		assert.ErrorContains(t, heard[0], text)
	}

	assert.Equal(t, http.StatusOK, serve(httplimit.New(byUser, append(opts, httplimit.WithHashTag())...).Handler(hello), r).Code)
	assert.Equal(t, "api:{ip:192.0.2.1}", user.Key())
	assert.Equal(t, "api:ip:{192.0.2.1}", address.Key())
}

func TestPolicyWhoseKeyFails(t *testing.T) {
	t.Parallel()
	var errs middlewaretest.Errors
	first, second := grants(), grants()
	w := serve(httplimit.New(first, hearing(&errs), httplimit.WithPolicy(httplimit.Policy{
		Name: "session", Limiter: second, Key: []httplimit.KeyFunc{func(*http.Request) (string, error) { return "", errDown }},
	})).Handler(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	errs.Check(t, errDown)
	assert.Empty(t, first.Asked(), "no limit is charged")
	assert.Empty(t, second.Asked())
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
		w := serve(httplimit.New(httplimit.Policy{Name: test.name, Limiter: limiter}).Handler(hello), newRequest(t))
		assert.Equal(t, test.policy, w.Header().Get("RateLimit-Policy"))
		assert.Equal(t, test.rate, w.Header().Get("RateLimit"))
		assert.Equal(t, test.retryAfter, w.Header().Get("Retry-After"))
		assert.Len(t, members(t, w.Header(), "RateLimit"), 1)
		assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 1)
		assert.Empty(t, w.Header().Get("X-RateLimit-Limit"))
	}
}

// The window is the answering limiter's, if it is known.
func TestWindowWhileTheLimiterFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opt  httplimit.Option
		want map[string]int64
	}{
		"fallback":          {httplimit.WithFallback(httplimit.Local(2, time.Minute)), map[string]int64{"q": 2, "w": 60}},
		"of unknown window": {httplimit.WithFallback(grants()), map[string]int64{"q": 10, "w": 3600}},
		"local":             {httplimit.WithFailure(limit.FailLocal(0.2)), map[string]int64{"q": 2, "w": 3600}},
	} {
		var down error
		limiter := windowed{Limiter: &fake{Answer: func(context.Context, int64) (limit.Decision, error) {
			return limit.Decision{Granted: true, Limit: 10}, down
		}}, Span: time.Hour}
		handler := httplimit.New(limiter, c.opt, quiet).Handler(hello)
		policy := func() map[string]int64 {
			return members(t, serve(handler, newRequest(t)).Header(), "RateLimit-Policy")[0].Params
		}
		assert.Equal(t, map[string]int64{"q": 10, "w": 3600}, policy())
		down = errDown
		assert.Equal(t, c.want, policy(), name)
	}
}

func TestNoHeaders(t *testing.T) {
	t.Parallel()
	w := serve(httplimit.New(refusing, httplimit.WithHeaders(httplimit.NoHeaders)).Handler(hello), newRequest(t))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Empty(t, w.Header().Values("RateLimit"))
	assert.Empty(t, w.Header().Values("RateLimit-Policy"))
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
}

func TestLegacyHeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(300 * time.Millisecond)
		ask := func(second, hour limit.Decision) http.Header {
			return serve(httplimit.New(says(second, nil), httplimit.WithLegacyHeaders(), httplimit.WithHeaders(httplimit.NoHeaders),
				httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: says(hour, nil)})).Handler(hello), newRequest(t)).Header()
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

		h = ask(limit.Decision{Limit: 10, RetryAfter: math.MaxInt64 - 1}, limit.Decision{Granted: true, Limit: 20})
		assert.Equal(t, math.MaxInt64*time.Nanosecond, time.Until(time.Unix(integer(t, h.Get("X-RateLimit-Reset")), 0)), "in centuries, not before 1970")

		h = ask(limit.Decision{}, limit.Decision{Granted: true, Limit: 20})
		assert.Equal(t, "0", h.Get("X-RateLimit-Limit"))
		assert.NotContains(t, h, http.CanonicalHeaderKey("X-RateLimit-Reset"), "it never will be")
	})
}

// Whatever limiters say, what clients read is in range and never too early.
func TestHeadersOfAnyDecision(t *testing.T) {
	t.Parallel()
	decision := rapid.Custom(func(t *rapid.T) limit.Decision {
		return limit.Decision{
			Granted: rapid.Bool().Draw(t, "granted"),
			Limit:   rapid.Int64Min(1).Draw(t, "limit"), Remaining: rapid.Int64().Draw(t, "remaining"),
			RetryAfter: time.Duration(rapid.Int64().Draw(t, "retry")), ResetAfter: time.Duration(rapid.Int64().Draw(t, "reset")),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		all := rapid.SliceOfN(decision, 2, 4).Draw(rt, "decisions")
		opts := []httplimit.Option{patient()}
		for i, d := range all[1:] {
			opts = append(opts, httplimit.WithPolicy(httplimit.Policy{Name: strconv.Itoa(i), Limiter: says(d, nil)}))
		}
		w := serve(httplimit.New(says(all[0], nil), opts...).Handler(hello), newRequest(t))
		limits := members(t, w.Header(), "RateLimit")
		require.Len(rt, limits, len(all))
		require.Len(rt, members(t, w.Header(), "RateLimit-Policy"), len(all))
		never := slices.ContainsFunc(all, func(d limit.Decision) bool { return !d.Granted && d.RetryAfter == math.MaxInt64 })
		for i, d := range all {
			if d.Granted {
				continue
			}
			require.Equal(rt, http.StatusTooManyRequests, w.Code)
			if never {
				assert.Empty(rt, w.Header().Get("Retry-After"))
				continue
			}
			retry := integer(t, w.Header().Get("Retry-After"))
			assert.GreaterOrEqual(rt, float64(retry), d.RetryAfter.Seconds())
			assert.GreaterOrEqual(rt, retry, limits[i].Params["t"])
			assert.GreaterOrEqual(rt, retry, int64(1))
		}
	})
}

// All policies of all middleware around a handler are settled, and one that failed by the next
// call. What they reserved goes back if another refuses, even if the request passes.
func TestSettleSettlesAllPolicies(t *testing.T) {
	t.Parallel()
	var all [3]*middlewaretest.Reserver
	for i := range all {
		all[i] = &middlewaretest.Reserver{Fake: grants()}
	}
	all[1].Fails = limit.ErrUnavailable
	outer := httplimit.New(httplimit.Policy{Limiter: all[0], Settle: true})
	inner := httplimit.New(httplimit.Policy{Limiter: all[1], Settle: true},
		httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: all[2], Settle: true}))
	w := serve(outer.Handler(inner.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.EqualError(t, httplimit.Settle(r.Context(), 3), `httplimit: Settle: limit "default": `+limit.ErrUnavailable.Error())
		all[1].Fails = nil
		assert.NoError(t, httplimit.Settle(r.Context(), 3))
		assert.ErrorIs(t, httplimit.Settle(r.Context(), 3), limit.ErrSettled)
	}))), newRequest(t))
	require.Equal(t, http.StatusOK, w.Code)
	for _, limiter := range all {
		assert.Equal(t, []int64{3}, limiter.Settled)
	}
	for i, opts := range [][]httplimit.Option{nil, {httplimit.WithShadow()}} {
		all[i].Settled = nil
		opts = append(opts, httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: says(limit.Decision{}, nil), Settle: true}))
		serve(httplimit.New(httplimit.Policy{Limiter: all[i], Settle: true}, opts...).Handler(
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { assert.NoError(t, httplimit.Settle(r.Context(), 3)) })), newRequest(t))
		assert.Equal(t, []int64{0}, all[i].Settled)
	}
}
