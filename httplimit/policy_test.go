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
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestSeveralPoliciesInOneAnswer(t *testing.T) {
	t.Parallel()
	second, hour := grants(), says(limit.Decision{Granted: true, Limit: 1000, Remaining: 998, ResetAfter: time.Hour}, nil)
	w := serve(httplimit.New(windowed{second, time.Second}, httplimit.WithName("second"),
		httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: hour, Window: time.Hour}),
		httplimit.WithCost(func(*http.Request) int64 { return 2 }))(hello), newRequest(t))
	assert.Equal(t, "hello", w.Body.String())
	assert.Equal(t, []member{{"second", map[string]int64{"q": 10, "w": 1}}, {"hour", map[string]int64{"q": 1000, "w": 3600}}}, members(t, w.Header(), "RateLimit-Policy"))
	assert.Equal(t, []member{{"second", map[string]int64{"r": 9, "t": 60}}, {"hour", map[string]int64{"r": 998, "t": 3600}}}, members(t, w.Header(), "RateLimit"))
	assert.Equal(t, []call{{"http:second:192.0.2.1", 2}}, second.asked())
	assert.Equal(t, []call{{"http:hour:192.0.2.1", 2}}, hour.asked())
}

func TestPolicyNamesCannotRunIntoTheKey(t *testing.T) {
	t.Parallel()
	first, second := grants(), grants()
	serve(httplimit.New(first, httplimit.WithName("a:{b}"), httplimit.WithPolicy(httplimit.Policy{Name: "a", Limiter: second}))(hello), newRequest(t))
	assert.Equal(t, "http:a%3A%7Bb%7D:192.0.2.1", first.key(t))
	assert.Equal(t, "http:a:192.0.2.1", second.key(t))
}

func TestRefusalTakesNothingAnywhere(t *testing.T) {
	t.Parallel()
	second := &returner{fake: says(limit.Decision{Granted: true, Limit: 10, Remaining: 5, ResetAfter: time.Second}, nil)}
	minute := &returner{fake: says(limit.Decision{Granted: true, Limit: 5, Remaining: 4, ResetAfter: time.Minute}, nil)}
	hour := &returner{fake: says(limit.Decision{Limit: 100, Remaining: 1, RetryAfter: 90 * time.Second, ResetAfter: time.Hour}, nil)}
	day := &returner{fake: says(limit.Decision{Limit: 100, RetryAfter: time.Hour, ResetAfter: time.Hour}, nil)}
	w := serve(httplimit.New(second, httplimit.WithName("second"),
		httplimit.WithPolicy(httplimit.Policy{Name: "minute", Limiter: minute}),
		httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: hour}),
		httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: day}),
		httplimit.WithCost(func(*http.Request) int64 { return 2 }))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "3600", w.Header().Get("Retry-After"), "the longest of those that refuse")
	assert.Equal(t, []any{"hour", "day"}, problem(t, w)["violated-policies"])
	assert.Equal(t, []member{
		{"second", map[string]int64{"r": 7}},
		{"minute", map[string]int64{"r": 5}},
		{"hour", map[string]int64{"r": 1, "t": 90}},
		{"day", map[string]int64{"r": 0, "t": 3600}},
	}, members(t, w.Header(), "RateLimit"))
	assert.Equal(t, []call{{"http:second:192.0.2.1", 2}}, second.givenBack())
	assert.Equal(t, []call{{"http:minute:192.0.2.1", 2}}, minute.givenBack())
	assert.Empty(t, hour.givenBack())
}

func TestGrantThatCannotBeGivenBack(t *testing.T) {
	t.Parallel()
	var errs errorLog
	lost := &returner{fake: grants(), giving: errDown}
	plain := grants()
	w := serve(httplimit.New(lost, httplimit.WithErrorHandler(errs.hook),
		httplimit.WithPolicy(httplimit.Policy{Name: "plain", Limiter: plain}),
		httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)}))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Len(t, errs.all(), 1)
	require.ErrorIs(t, errs.all()[0], errDown)
	for _, m := range members(t, w.Header(), "RateLimit")[:2] {
		assert.EqualValues(t, 9, m.params["r"], "what was not given back is not shown as free")
	}
}

// A panic while a grant is given back must not end the process: it is told as a
// failure.
func TestPanicOfGivingBack(t *testing.T) {
	t.Parallel()
	var errs errorLog
	w := serve(httplimit.New(mined{grants()}, httplimit.WithErrorHandler(errs.hook),
		httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)}))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Len(t, errs.all(), 1)
	assert.ErrorContains(t, errs.all()[0], "boom")
	assert.EqualValues(t, 9, members(t, w.Header(), "RateLimit")[0].params["r"])
}

// mined panics when a grant is given back.
type mined struct{ *fake }

func (m mined) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	d, err := m.Take(ctx, key, n)
	return d, func(context.Context) error { panic("boom") }, err
}

// A policy that panics leaves nothing taken of the others.
func TestPanicOfOnePolicy(t *testing.T) {
	t.Parallel()
	panics := &fake{answer: func(context.Context, int64) (limit.Decision, error) { panic(http.ErrAbortHandler) }}
	first, last := &returner{fake: grants()}, &returner{fake: grants()}
	handler := httplimit.New(first, httplimit.WithPolicy(httplimit.Policy{Name: "panics", Limiter: panics}),
		httplimit.WithPolicy(httplimit.Policy{Name: "last", Limiter: last}))(refuseAll(t))
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { serve(handler, newRequest(t)) })
	assert.Len(t, first.givenBack(), 1)
	assert.Len(t, last.givenBack(), 1)
}

func TestFailureOfOnePolicy(t *testing.T) {
	t.Parallel()
	down := says(limit.Decision{}, errDown)
	refusing := says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)
	for name, test := range map[string]struct {
		other limit.Limiter
		opts  []httplimit.Option
		hour  httplimit.Policy
		code  int
		names []string
	}{
		"closed":           {grants(), nil, httplimit.Policy{}, 503, nil},
		"closed, refused":  {refusing, nil, httplimit.Policy{}, 429, []string{"other"}},
		"open":             {grants(), []httplimit.Option{httplimit.WithFailure(limit.FailOpen())}, httplimit.Policy{}, 200, []string{"other"}},
		"open, refused":    {refusing, []httplimit.Option{httplimit.WithFailure(limit.FailOpen())}, httplimit.Policy{}, 429, []string{"other"}},
		"common fallback":  {grants(), []httplimit.Option{httplimit.WithFallback(grants())}, httplimit.Policy{}, 200, []string{"other", "hour"}},
		"own fallback":     {grants(), nil, httplimit.Policy{Fallback: grants()}, 200, []string{"other", "hour"}},
		"fallback refuses": {grants(), nil, httplimit.Policy{Fallback: refusing}, 429, []string{"other", "hour"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs errorLog
			other := &returner{fake: test.other.(*fake)}
			test.hour.Name, test.hour.Limiter = "hour", down
			opts := append([]httplimit.Option{httplimit.WithErrorHandler(errs.hook), httplimit.WithName("other"), httplimit.WithPolicy(test.hour)}, test.opts...)
			w := serve(httplimit.New(other, opts...)(hello), newRequest(t))
			assert.Equal(t, test.code, w.Code)
			var names []string
			for _, m := range members(t, w.Header(), "RateLimit") {
				names = append(names, m.name)
			}
			assert.Equal(t, test.names, names)
			require.Len(t, errs.all(), 1)
			require.ErrorIs(t, errs.all()[0], errDown)
			taken := test.other != limit.Limiter(refusing) && test.code != http.StatusOK
			assert.Equal(t, taken, len(other.givenBack()) == 1, "what a request that did not pass took is given back")
		})
	}
}

// A policy that is slow to answer is no excuse for the others: what they said
// counts, and who refuses refuses.
func TestSlowPolicyDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	refusing := says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)
	for _, f := range []httplimit.Option{httplimit.WithFailure(limit.FailClosed()), httplimit.WithFailure(limit.FailOpen()), httplimit.WithFallback(grants())} {
		synctest.Test(t, func(t *testing.T) {
			w := serve(httplimit.New(deaf(time.Minute), f, httplimit.WithErrorHandler(new(errorLog).hook),
				httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: refusing}))(refuseAll(t)), newRequest(t))
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, []any{"hour"}, problem(t, w)["violated-policies"])
			time.Sleep(time.Hour)
		})
	}
}

// Fallbacks too are asked at the same time, and bounded.
func TestSlowFallbacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var errs errorLog
		down := says(limit.Decision{}, errDown)
		began := time.Now()
		w := serve(httplimit.New(down, httplimit.WithFallback(deaf(time.Minute)), httplimit.WithErrorHandler(errs.hook),
			httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: down, Fallback: deaf(time.Minute)}))(refuseAll(t)), newRequest(t))
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Equal(t, httplimit.DefaultTimeout, time.Since(began))
		assert.Len(t, errs.all(), 1)
		time.Sleep(time.Hour)
	})
}

func TestAllPoliciesFail(t *testing.T) {
	t.Parallel()
	var errs errorLog
	other := errors.New("another one")
	w := serve(httplimit.New(says(limit.Decision{}, errDown), httplimit.WithErrorHandler(errs.hook),
		httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: says(limit.Decision{}, other)}))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Len(t, errs.all(), 1, "once for the request")
	require.ErrorIs(t, errs.all()[0], errDown)
	assert.ErrorIs(t, errs.all()[0], other)
}

// Policies are asked at the same time, and what they grant too late, or to a
// client that has gone, is given back all the same.
func TestGivingBackOutlivesTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		quick := &returner{fake: grants()}
		late := &returner{fake: deaf(time.Minute)}
		open := httplimit.New(quick, httplimit.WithPolicy(httplimit.Policy{Name: "late", Limiter: deaf(time.Minute)}),
			httplimit.WithFailure(limit.FailOpen()))(refuseAll(t))
		handler := httplimit.New(quick, httplimit.WithPolicy(httplimit.Policy{Name: "late", Limiter: late}),
			httplimit.WithErrorHandler(func(*http.Request, error) {}))(refuseAll(t))

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		serve(handler, newRequest(t).WithContext(ctx))
		assert.Len(t, quick.givenBack(), 1)
		assert.Empty(t, late.givenBack())
		time.Sleep(time.Hour)
		assert.Len(t, late.givenBack(), 1)

		began := time.Now()
		assert.Equal(t, http.StatusServiceUnavailable, serve(handler, newRequest(t)).Code)
		assert.Equal(t, httplimit.DefaultTimeout, time.Since(began))
		assert.Len(t, quick.givenBack(), 2)
		time.Sleep(time.Hour)
		assert.Len(t, late.givenBack(), 2)

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		serve(open, newRequest(t).WithContext(ctx))
		assert.Len(t, quick.givenBack(), 3)
		time.Sleep(time.Hour)
	})
}

// A single policy too gets back what it granted after the answer.
func TestLateGrantIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := &returner{fake: deaf(time.Minute)}
		handler := httplimit.New(late, httplimit.WithErrorHandler(new(errorLog).hook))(refuseAll(t))
		assert.Equal(t, http.StatusServiceUnavailable, serve(handler, newRequest(t)).Code)
		assert.Empty(t, late.givenBack())
		time.Sleep(time.Hour)
		assert.Equal(t, late.asked(), late.givenBack())
	})
}

func TestPoliciesAreAskedAtTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := serve(httplimit.New(deaf(300*time.Millisecond), httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: deaf(400 * time.Millisecond)}))(hello), newRequest(t))
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, 400*time.Millisecond, time.Since(began))
	})
}

// A stuck give-back does not hold the answer up for longer than WithTimeout.
func TestSlowGivingBackIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var errs errorLog
		w := serve(httplimit.New(stuck{grants()}, httplimit.WithErrorHandler(errs.hook), httplimit.WithTimeout(0),
			httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)}))(refuseAll(t)), newRequest(t))
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Len(t, errs.all(), 1)
		require.ErrorIs(t, errs.all()[0], context.DeadlineExceeded)
		time.Sleep(time.Hour)
	})
}

// stuck gives back in an hour, whatever its context says.
type stuck struct{ *fake }

func (s stuck) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	d, err := s.Take(ctx, key, n)
	return d, func(context.Context) error { time.Sleep(time.Hour); return nil }, err
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
	assert.Equal(t, "limit:ann:/items/1", user.key(t), "one that begins so is in need of no name")
	assert.Equal(t, "client:192.0.2.1", address.key(t))

	user, address = grants(), grants()
	mw = httplimit.New(user, httplimit.WithHashTag(),
		httplimit.WithPolicy(httplimit.Policy{Name: "address", Limiter: address, Key: []httplimit.KeyFunc{httplimit.Path(), httplimit.Header("X-User")}}),
		httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: day, Prefix: "day:"}))
	serve(mw(hello), r)
	assert.Equal(t, "http:default:{192.0.2.1}", user.key(t))
	assert.Equal(t, "http:address:{/items/1:ann}", address.key(t))
	assert.Equal(t, "day:{192.0.2.1}", day.key(t))
}

// Who is called "ip" must not reach keys of the policy of that prefix. A hash tag
// ends a prefix.
func TestPoliciesOfPrefixesThatContinueEachOther(t *testing.T) {
	t.Parallel()
	user, address := grants(), grants()
	var errs errorLog
	opts := []httplimit.Option{
		httplimit.WithErrorHandler(errs.hook), httplimit.WithName("user"), httplimit.WithPrefix("api:"),
		httplimit.WithKey(httplimit.Header("X-User"), httplimit.Header("X-Item")),
		httplimit.WithPolicy(httplimit.Policy{
			Name: "address", Limiter: address, Prefix: "api:ip:", Key: []httplimit.KeyFunc{httplimit.ClientIP(httplimit.ClientIPConfig{})},
		}),
	}
	r := newRequest(t)
	r.Header.Set("X-User", "ip")
	r.Header.Set("X-Item", "192.0.2.1")
	assert.Equal(t, http.StatusInternalServerError, serve(httplimit.New(user, opts...)(refuseAll(t)), r).Code)
	require.Len(t, errs.all(), 1)
	require.ErrorIs(t, errs.all()[0], limit.ErrInvalidConfig)
	for _, text := range []string{`"user"`, `"api:"`, `"address"`, `"api:ip:"`, "WithPrefix", "Policy.Prefix"} {
		assert.ErrorContains(t, errs.all()[0], text)
	}

	assert.Equal(t, http.StatusOK, serve(httplimit.New(user, append(opts, httplimit.WithHashTag())...)(hello), r).Code)
	assert.Equal(t, "api:{ip:192.0.2.1}", user.key(t))
	assert.Equal(t, "api:ip:{192.0.2.1}", address.key(t))
}

func TestPolicyWhoseKeyFails(t *testing.T) {
	t.Parallel()
	var errs errorLog
	first, second := grants(), grants()
	w := serve(httplimit.New(first, httplimit.WithErrorHandler(errs.hook), httplimit.WithPolicy(httplimit.Policy{
		Name: "session", Limiter: second, Key: []httplimit.KeyFunc{func(*http.Request) (string, error) { return "", errDown }},
	}))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.ErrorIs(t, errs.all()[0], errDown)
	assert.Empty(t, first.asked(), "nobody is charged")
	assert.Empty(t, second.asked())
}
