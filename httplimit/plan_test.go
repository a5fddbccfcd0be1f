package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Users have two requests a day, or five if they pay. Windows of all plans count at the same keys, so
// what ann has used stays counted as she changes her plan.
func ExamplePolicy_plan() {
	rdb, stop := limittest.ConnectExample()
	defer stop()

	day := fixedwindow.Daily(time.UTC)
	free := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 2, Calendar: day})
	paid := map[string]limit.Limiter{"paid": fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 5, Calendar: day})}
	perUser := httplimit.Policy{Limiter: free, Plan: func(r *http.Request) limit.Limiter { return paid[r.Header.Get("Plan")] }}
	handler := httplimit.New(perUser, httplimit.WithKey(httplimit.Header("User"))).Handler(http.NotFoundHandler())

	get(handler, "192.0.2.1", "/", "User", "ann")
	get(handler, "192.0.2.1", "/", "User", "ann", "Plan", "unknown")
	get(handler, "192.0.2.1", "/", "User", "ann", "Plan", "unknown")
	get(handler, "192.0.2.1", "/", "User", "ann", "Plan", "paid")
	// Output:
	// 404 "default";r=1;t=43200
	// 404 "default";r=0;t=43200
	// 429 "default";r=0;t=43200
	//     try again in 43200 s
	// 404 "default";r=2;t=43200
}

// Each policy has a plan of its own, and headers tell the window of the limiter that decided.
func TestPolicyPlan_Policies(t *testing.T) {
	t.Parallel()
	second, minute, hour := windowed{Limiter: grants(), Span: time.Second}, windowed{Limiter: grants(), Span: time.Minute}, windowed{Limiter: grants(), Span: time.Hour}
	paid := func(l limit.Limiter) func(*http.Request) limit.Limiter {
		return func(r *http.Request) limit.Limiter {
			if r.Header.Get("Plan") == "paid" {
				return l
			}
			return nil
		}
	}
	handler := httplimit.New(httplimit.Policy{Name: "a", Limiter: second, Plan: paid(minute)},
		httplimit.WithPolicy(httplimit.Policy{Name: "b", Limiter: second, Plan: paid(hour)}),
		httplimit.WithPolicy(httplimit.Policy{Name: "c", Limiter: second, Plan: paid(hour), Window: 2 * time.Second})).Handler(hello)
	for plan, want := range map[string][]int64{"": {1, 1, 2}, "paid": {60, 3600, 2}} {
		r := newRequest(t)
		r.Header.Set("Plan", plan)
		var got []int64
		for _, m := range members(t, serve(handler, r).Header(), "RateLimit-Policy") {
			got = append(got, m.Params["w"])
		}
		assert.Equal(t, want, got, plan)
	}
}

// A transport waits for the permits of the limiter that the request chose, each in its way.
func TestPolicyPlan_TransportWaits(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := rratelimiter.New(rdb, limitertest.Patient())
		defer func() { assert.NoError(t, client.Close(t.Context())) }()
		keyed := client.Keyed("paid:", rratelimiter.PerSecond(1))
		transport := httplimit.NewTransport(answers(http.StatusNoContent), httplimit.Policy{
			Limiter: fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 1, Window: 3 * time.Second}),
			Plan: func(r *http.Request) limit.Limiter {
				if r.Context().Value(planKey{}) != nil {
					return keyed
				}
				return nil
			},
		})
		paid := context.WithValue(t.Context(), planKey{}, "paid")
		for _, c := range []struct {
			ctx  context.Context
			took time.Duration
		}{{t.Context(), 0}, {paid, 0}, {paid, time.Second}, {t.Context(), 2 * time.Second}, {paid, 0}} {
			took, err := send(c.ctx, t, transport, api)
			require.NoError(t, err)
			assert.Equal(t, c.took, took)
		}
	})
}

type planKey struct{}

// A limiter that is not made properly does not let requests pass.
func TestPolicyPlan_BadLimiter(t *testing.T) {
	t.Parallel()
	var errs middlewaretest.Errors
	bad := fixedwindow.New(limitertest.OpenClient(nil), fixedwindow.Config{Limit: 1, Window: time.Second})
	handler := httplimit.New(httplimit.Policy{Limiter: grants(), Plan: func(*http.Request) limit.Limiter { return bad }}, hearing(&errs)).Handler(hello)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, newRequest(t))
	assert.Equal(t, http.StatusInternalServerError, w.Code, w.Body.String())
	errs.Check(t, limit.ErrInvalidConfig)
}

// KeyedFunc's function may be a look-up: it is asked once for each request, however often the limiters are.
func TestKeyedFunc_IsAskedOnceForEachRequest(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]httplimit.Option{"one call each": nil, "one call for both": {httplimit.WithHashTag()}, "settled": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
				client := limitertest.NewClient(t, rdb)
				asked := map[string]int{}
				counting := func(prefix string) limit.Limiter {
					return client.KeyedFunc(prefix, func(string) rratelimiter.Config {
						asked[prefix]++
						return rratelimiter.PerSecond(2)
					})
				}
				settled := name == "settled"
				opts := append(opts, httplimit.WithKey(httplimit.Header("User")),
					httplimit.WithPolicy(httplimit.Policy{Name: "b", Limiter: counting("b:"), Settle: settled}))
				handler := httplimit.New(httplimit.Policy{Limiter: counting("a:"), Settle: settled}, opts...).Handler(hello)
				for i := range 4 {
					serve(handler, newRequest(t))
					assert.Equal(t, map[string]int{"a:": i + 1, "b:": i + 1}, asked)
				}

				clear(asked)
				transport := httplimit.NewTransport(answers(http.StatusNoContent), counting("c:"), httplimit.WithPolicy(httplimit.Policy{Name: "d", Limiter: counting("d:")}))
				for i := range 4 {
					require.NoError(t, limitertest.Second(send(t.Context(), t, transport, api)), "it waits for its permits")
					assert.Equal(t, map[string]int{"c:": i + 1, "d:": i + 1}, asked)
				}
			})
		})
	}
}

// KeyedFunc's function gets what the key functions have returned, whatever the key is, also of a limiter that answers in
// another's place.
func TestKeyedFunc_GetsTheKeyAsTheProgramMadeIt(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("bob", 100)
	for name, c := range map[string]struct {
		opts []httplimit.Option
		user string
		want string
		key  string
	}{
		"plain":     {nil, "ann", "ann", "http:ann"},
		"escaped":   {nil, "google:{bob} 100%", "google:{bob} 100%", "http:google%3A%7Bbob%7D%20100%25"},
		"hashed":    {nil, long, long, ""},
		"missing":   {nil, "", "", "http:"},
		"tagged":    {[]httplimit.Option{httplimit.WithHashTag()}, "google:bob", "google:bob", "http:{google%3Abob}"},
		"prefix":    {[]httplimit.Option{httplimit.WithPrefix("api:")}, "a:b", "a:b", "api:a%3Ab"},
		"two parts": {[]httplimit.Option{httplimit.WithKey(httplimit.Header("User"), httplimit.Path())}, "a:b", "a:b:/items/1", "http:a%3Ab:/items/1"},
	} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			client := limitertest.NewClient(t, rdb)
			var asked []string
			keyed := client.KeyedFunc("", func(key string) rratelimiter.Config {
				asked = append(asked, key)
				return rratelimiter.PerMinute(10)
			})
			opts := append([]httplimit.Option{httplimit.WithKey(httplimit.Header("User")), quiet}, c.opts...)
			r := newRequest(t)
			r.Header.Set("User", c.user)
			serve(httplimit.New(keyed, opts...).Handler(hello), r)
			assert.Equal(t, []string{c.want}, asked, name)
			if c.key != "" {
				assert.EqualValues(t, 1, rdb.Exists(t.Context(), c.key).Val(), name)
			}
			down := middlewaretest.Says(limit.Decision{}, limit.ErrUnavailable)
			serve(httplimit.New(down, append(opts, httplimit.WithFallback(keyed))...).Handler(hello), r)
			assert.Equal(t, []string{c.want, c.want}, asked, name)
			plan := httplimit.Policy{Limiter: grants(), Plan: func(*http.Request) limit.Limiter { return keyed }}
			serve(httplimit.New(plan, opts...).Handler(hello), r)
			assert.Equal(t, []string{c.want, c.want, c.want}, asked, name)

			asked = nil
			quota := fixedwindow.NewFunc(client, func(key string) fixedwindow.Config {
				asked = append(asked, key)
				return fixedwindow.Config{Limit: 10, Window: time.Minute}
			})
			serve(httplimit.New(quota, opts...).Handler(hello), r)
			assert.Equal(t, []string{c.want}, slices.Compact(asked), name)
		})
	}
}

// A policy in shadow, or one whose limiter is, shows in no header, and counts as refused what all others let pass.
func TestPolicyShadow_CountsWhatTheOthersLetPass(t *testing.T) {
	t.Parallel()
	for name, shadow := range map[string]httplimit.Policy{
		"policy":  {Shadow: true},
		"limiter": {},
		"foreign": {Shadow: true, Limiter: &returner{Fake: middlewaretest.Budget(2, time.Minute)}},
	} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			var own, told limitertest.Recorder
			client := rratelimiter.New(rdb, rratelimiter.WithObserver(&own), limitertest.Patient())
			if shadow.Name = "watches"; shadow.Limiter == nil {
				var opts []rratelimiter.LimiterOption
				if !shadow.Shadow {
					opts = append(opts, rratelimiter.WithShadow())
				}
				shadow.Limiter = client.Keyed("", rratelimiter.PerMinute(2), append(opts, rratelimiter.WithName("watches"))...)
			}
			var errs middlewaretest.Errors
			handler := httplimit.New(client.Keyed("", rratelimiter.PerMinute(4)), httplimit.WithHashTag(), hearing(&errs),
				httplimit.WithLegacyHeaders(), httplimit.WithObserver(&told), httplimit.WithPolicy(shadow)).Handler(hello)
			for i, want := range []int{200, 200, 200, 200, 429, 429} {
				w := serve(handler, newRequest(t))
				assert.Equal(t, want, w.Code, name)
				assert.Len(t, members(t, w.Header(), "RateLimit"), 1)
				assert.NotContains(t, w.Header().Get("RateLimit-Policy"), "watches")
				assert.Equal(t, "4", w.Header().Get("X-RateLimit-Limit"))
				if want == http.StatusTooManyRequests {
					assert.Equal(t, []any{"default"}, problem(t, w)["violated-policies"], i)
				}
			}
			errs.Check(t)
			for of, recorder := range map[string]*limitertest.Recorder{"middleware": &told, "limiter": &own} {
				var outcomes []limit.Outcome
				for _, d := range recorder.Decisions() {
					if d.Limiter == "watches" {
						assert.True(t, d.Shadow)
						assert.Equal(t, map[string]string{"middleware": "http:watches:{192.0.2.1}", "limiter": ""}[of], d.Key)
						assert.Equal(t, []int64{2, max(0, 1-int64(len(outcomes)))}, []int64{d.Limit, d.Remaining})
						outcomes = append(outcomes, d.Outcome)
					}
				}
				if name == "foreign" && of == "limiter" {
					assert.Empty(t, outcomes)
					continue
				}
				assert.Equal(t, []limit.Outcome{limit.Granted, limit.Granted, limit.Refused, limit.Refused}, outcomes, name+", "+of)
			}
		})
	}
}

// A limit of a day is tried out beside that of a minute: it refuses nothing, and an observer sees what it would refuse.
func ExamplePolicy_shadow() {
	handler := httplimit.New(httplimit.Local(100, time.Minute),
		httplimit.WithObserver(wouldRefuse{}),
		httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: httplimit.Local(1, 24*time.Hour), Shadow: true})).Handler(hello)
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody)) // from 192.0.2.1
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// "day" would refuse http:day:192.0.2.1
	// 200
}

// wouldRefuse prints what policies in shadow would refuse.
type wouldRefuse struct{ limit.NoObserver }

func (wouldRefuse) Decided(_ context.Context, d limit.Decided) {
	if d.Shadow && d.Outcome == limit.Refused {
		fmt.Printf("%q would refuse %s\n", d.Limiter, d.Key)
	}
}
