package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

func TestSeveralPoliciesInOneAnswer(t *testing.T) {
	t.Parallel()
	second, hour := grants(), says(limit.Decision{Granted: true, Limit: 1000, Remaining: 998, ResetAfter: time.Hour}, nil)
	w := serve(httplimit.New(windowed{Limiter: second, Span: time.Second}, httplimit.WithName("second"),
		httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: hour, Window: time.Hour}),
		httplimit.WithCost(func(*http.Request) int64 { return 2 }))(hello), newRequest(t))
	assert.Equal(t, "hello", w.Body.String())
	assert.Equal(t, `"second";q=10;w=1, "hour";q=1000;w=3600`, w.Header().Get("RateLimit-Policy"))
	assert.Equal(t, `"second";r=9;t=60, "hour";r=998;t=3600`, w.Header().Get("RateLimit"))
	assert.Equal(t, []call{{Key: "http:second:192.0.2.1", N: 2}}, second.Asked())
	assert.Equal(t, []call{{Key: "http:hour:192.0.2.1", N: 2}}, hour.Asked())
}

func TestPolicyNamesCannotRunIntoTheKey(t *testing.T) {
	t.Parallel()
	first, second := grants(), grants()
	serve(httplimit.New(first, httplimit.WithName("a:{b}"), policy("a", second))(hello), newRequest(t))
	assert.Equal(t, "http:a%3A%7Bb%7D:192.0.2.1", first.Key())
	assert.Equal(t, "http:a:192.0.2.1", second.Key())
}

func TestRefusalTakesNothingAnywhere(t *testing.T) {
	t.Parallel()
	second := &returner{Fake: says(limit.Decision{Granted: true, Limit: 10, Remaining: 5, ResetAfter: time.Second}, nil)}
	minute := &returner{Fake: says(limit.Decision{Granted: true, Limit: 5, Remaining: 4, ResetAfter: time.Minute}, nil)}
	hour := &returner{Fake: says(limit.Decision{Limit: 100, Remaining: 1, RetryAfter: 90 * time.Second, ResetAfter: time.Hour}, nil)}
	day := &returner{Fake: says(limit.Decision{Limit: 100, RetryAfter: time.Hour, ResetAfter: time.Hour}, nil)}
	w := serve(httplimit.New(second, httplimit.WithName("second"),
		policy("minute", minute), policy("hour", hour), policy("day", day),
		httplimit.WithCost(func(*http.Request) int64 { return 2 }))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "3600", w.Header().Get("Retry-After"), "the longest of those that refuse")
	assert.Equal(t, []any{"hour", "day"}, problem(t, w)["violated-policies"])
	assert.Equal(t, `"second";r=7, "minute";r=5, "hour";r=1;t=90, "day";r=0;t=3600`, w.Header().Get("RateLimit"))
	assert.Equal(t, []call{{Key: "http:second:192.0.2.1", N: 2}}, second.GivenBack())
	assert.Equal(t, []call{{Key: "http:minute:192.0.2.1", N: 2}}, minute.GivenBack())
	assert.Empty(t, hour.GivenBack())
}

// What is not given back is told, not shown as free, and does not hold up the answer for
// longer than the timeout.
func TestGrantThatCannotBeGivenBack(t *testing.T) {
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
				policy("plain", grants()), policy("hour", refusing))(refuseAll(t)), newRequest(t))
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
	handler := httplimit.New(first, policy("panics", panics), policy("last", last))(refuseAll(t))
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { serve(handler, newRequest(t)) })
	assert.Len(t, first.GivenBack(), 1)
	assert.Len(t, last.GivenBack(), 1)
}

func TestFailureOfOnePolicy(t *testing.T) {
	t.Parallel()
	down, open := says(limit.Decision{}, errDown), []httplimit.Option{httplimit.WithFailure(limit.FailOpen())}
	for name, test := range map[string]struct {
		other *fake
		opts  []httplimit.Option
		own   limit.Limiter // fallback
		code  int
		names []string
	}{
		"closed":           {grants(), nil, nil, 503, nil},
		"closed, refused":  {refusing, nil, nil, 429, []string{"other"}},
		"open":             {grants(), open, nil, 200, []string{"other"}},
		"open, refused":    {refusing, open, nil, 429, []string{"other"}},
		"common fallback":  {grants(), []httplimit.Option{httplimit.WithFallback(grants())}, nil, 200, []string{"other", "hour"}},
		"own fallback":     {grants(), nil, grants(), 200, []string{"other", "hour"}},
		"fallback refuses": {grants(), nil, refusing, 429, []string{"other", "hour"}},
	} {
		var errs middlewaretest.Errors
		other := &returner{Fake: test.other}
		hour := httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: down, Fallback: test.own})
		w := serve(httplimit.New(other, append(test.opts, hearing(&errs), httplimit.WithName("other"), hour)...)(hello), newRequest(t))
		assert.Equal(t, test.code, w.Code, name)
		var names []string
		for _, m := range members(t, w.Header(), "RateLimit") {
			names = append(names, m.Name)
		}
		assert.Equal(t, test.names, names, name)
		errs.Check(t, errDown)
		taken := test.other != refusing && test.code != http.StatusOK
		assert.Equal(t, taken, len(other.GivenBack()) == 1, "%s: what a request that did not pass took is given back", name)
	}
}

// A policy that is slow to answer is no excuse for the others: what they said
// counts, and who refuses refuses.
func TestSlowPolicyDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	for _, f := range []httplimit.Option{
		httplimit.WithFailure(limit.FailClosed()), httplimit.WithFailure(limit.FailOpen()), httplimit.WithFallback(grants()),
	} {
		synctest.Test(t, func(t *testing.T) {
			w := serve(httplimit.New(deaf(time.Minute), f, quiet, policy("hour", refusing))(refuseAll(t)), newRequest(t))
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, []any{"hour"}, problem(t, w)["violated-policies"])
			time.Sleep(time.Hour)
		})
	}
}

// Policies are asked at the same time, and so are their fallbacks.
func TestPoliciesAreAskedAtTheSameTime(t *testing.T) {
	t.Parallel()
	down, other := says(limit.Decision{}, errDown), errors.New("another one")
	for name, c := range map[string]struct {
		first limit.Limiter
		opts  []httplimit.Option
		code  int
		took  time.Duration
		heard []error // in one
	}{
		"slow": {deaf(300 * time.Millisecond), []httplimit.Option{policy("hour", deaf(400*time.Millisecond))}, 200, 400 * time.Millisecond, nil},
		"down": {down, []httplimit.Option{policy("hour", says(limit.Decision{}, other))}, 503, 0, []error{errDown, other}},
		"down, and slow fallbacks": {down, []httplimit.Option{
			httplimit.WithFallback(deaf(time.Minute)),
			httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: down, Fallback: deaf(time.Minute)}),
		}, 503, httplimit.DefaultTimeout, []error{errDown}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var errs middlewaretest.Errors
			began := time.Now()
			assert.Equal(t, c.code, serve(httplimit.New(c.first, append(c.opts, hearing(&errs))...)(hello), newRequest(t)).Code, name)
			assert.Equal(t, c.took, time.Since(began), name)
			errs.Check(t, c.heard...)
			time.Sleep(time.Hour)
		})
	}
}

// What policies grant too late, or to a client that has gone, is given back all the same.
func TestGivingBackOutlivesTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		quick, late := &returner{Fake: grants()}, &returner{Fake: deaf(time.Minute)}
		closed := httplimit.New(quick, policy("late", late), quiet)(refuseAll(t))
		open := httplimit.New(quick, policy("late", deaf(time.Minute)), httplimit.WithFailure(limit.FailOpen()))(refuseAll(t))
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
	mw := httplimit.New(user, httplimit.WithName("user"), httplimit.WithPrefix("limit:"),
		httplimit.WithKey(httplimit.Header("X-User"), httplimit.Path()),
		httplimit.WithPolicy(httplimit.Policy{
			Name: "address", Limiter: address, Prefix: "client:", Key: []httplimit.KeyFunc{httplimit.ClientIP(httplimit.ClientIPConfig{})},
		}))
	r := newRequest(t)
	r.Header.Set("X-User", "ann")
	serve(mw(hello), r)
	assert.Equal(t, "limit:ann:/items/1", user.Key(), "one that begins so is in need of no name")
	assert.Equal(t, "client:192.0.2.1", address.Key())

	user, address = grants(), grants()
	mw = httplimit.New(user, httplimit.WithHashTag(),
		httplimit.WithPolicy(httplimit.Policy{Name: "address", Limiter: address, Key: []httplimit.KeyFunc{httplimit.Path(), httplimit.Header("X-User")}}),
		httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: day, Prefix: "day:"}))
	serve(mw(hello), r)
	assert.Equal(t, "http:default:{192.0.2.1}", user.Key())
	assert.Equal(t, "http:address:{/items/1:ann}", address.Key())
	assert.Equal(t, "day:{192.0.2.1}", day.Key())
}

// Who is called "ip" must not reach keys of the policy of that prefix. A hash tag
// ends a prefix.
func TestPoliciesOfPrefixesThatContinueEachOther(t *testing.T) {
	t.Parallel()
	user, address := grants(), grants()
	var errs middlewaretest.Errors
	opts := []httplimit.Option{
		hearing(&errs), httplimit.WithName("user"), httplimit.WithPrefix("api:"),
		httplimit.WithKey(httplimit.Header("X-User"), httplimit.Header("X-Item")),
		httplimit.WithPolicy(httplimit.Policy{
			Name: "address", Limiter: address, Prefix: "api:ip:", Key: []httplimit.KeyFunc{httplimit.ClientIP(httplimit.ClientIPConfig{})},
		}),
	}
	r := newRequest(t)
	r.Header.Set("X-User", "ip")
	r.Header.Set("X-Item", "192.0.2.1")
	assert.Equal(t, http.StatusInternalServerError, serve(httplimit.New(user, opts...)(refuseAll(t)), r).Code)
	heard := errs.Take()
	require.Len(t, heard, 1)
	require.ErrorIs(t, heard[0], limit.ErrInvalidConfig)
	for _, text := range []string{`"user"`, `"api:"`, `"address"`, `"api:ip:"`, "WithPrefix", "Policy.Prefix"} {
		assert.ErrorContains(t, heard[0], text)
	}

	assert.Equal(t, http.StatusOK, serve(httplimit.New(user, append(opts, httplimit.WithHashTag())...)(hello), r).Code)
	assert.Equal(t, "api:{ip:192.0.2.1}", user.Key())
	assert.Equal(t, "api:ip:{192.0.2.1}", address.Key())
}

func TestPolicyWhoseKeyFails(t *testing.T) {
	t.Parallel()
	var errs middlewaretest.Errors
	first, second := grants(), grants()
	w := serve(httplimit.New(first, hearing(&errs), httplimit.WithPolicy(httplimit.Policy{
		Name: "session", Limiter: second, Key: []httplimit.KeyFunc{func(*http.Request) (string, error) { return "", errDown }},
	}))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	errs.Check(t, errDown)
	assert.Empty(t, first.Asked(), "nobody is charged")
	assert.Empty(t, second.Asked())
}
