package httplimit_test

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestHeaderText(t *testing.T) {
	t.Parallel()
	type d = limit.Decision
	const most, sec, minute = 999_999_999_999_999, time.Second, time.Minute
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
		{"short", 999 * time.Millisecond, d{Granted: true, Limit: 1, ResetAfter: 999 * time.Millisecond}, `"short";q=1`, `"short";r=0;t=1`, ""},
		{"unknown", 0, d{Granted: true, Limit: 1, ResetAfter: sec}, `"unknown";q=1`, `"unknown";r=0;t=1`, ""},
		{`a "b" \c`, sec, d{Granted: true, Limit: 1}, `"a \"b\" \\c";q=1;w=1`, `"a \"b\" \\c";r=0`, ""},
		{
			"huge", math.MaxInt64, d{Granted: true, Limit: math.MaxInt64, Remaining: most + 1, ResetAfter: math.MaxInt64},
			`"huge";q=999999999999999;w=9223372037`, `"huge";r=999999999999999;t=9223372037`, "",
		},
		{"refused", minute, d{Limit: 5, Remaining: 1, RetryAfter: sec, ResetAfter: minute}, `"refused";q=5;w=60`, `"refused";r=1;t=1`, "1"},
		{"refused", minute, d{Limit: 5, RetryAfter: sec + 1, ResetAfter: minute}, `"refused";q=5;w=60`, `"refused";r=0;t=2`, "2"},
		{"soon", minute, d{Limit: 5, ResetAfter: minute}, `"soon";q=5;w=60`, `"soon";r=0;t=1`, "1"},
		{"far", minute, d{Limit: 5, RetryAfter: math.MaxInt64}, `"far";q=5;w=60`, `"far";r=0;t=9223372037`, "9223372037"},
		{"zero", 0, d{}, `"zero";q=0`, `"zero";r=0`, ""},
		{"below", minute, d{Limit: 5, Remaining: -1, RetryAfter: -1}, `"below";q=5;w=60`, `"below";r=0;t=1`, "1"},
	} {
		limiter := windowed{Limiter: says(test.decision, nil), Span: test.window}
		w := serve(httplimit.New(limiter, httplimit.WithName(test.name))(hello), newRequest(t))
		assert.Equal(t, test.policy, w.Header().Get("RateLimit-Policy"))
		assert.Equal(t, test.rate, w.Header().Get("RateLimit"))
		assert.Equal(t, test.retryAfter, w.Header().Get("Retry-After"))
		assert.Len(t, members(t, w.Header(), "RateLimit"), 1)
		assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 1)
		assert.Empty(t, w.Header().Get("X-RateLimit-Limit"))
	}
}

func TestWindowOfThePolicyComesFirst(t *testing.T) {
	t.Parallel()
	w := serve(httplimit.New(grants(), httplimit.WithPolicy(httplimit.Policy{
		Name: "hour", Limiter: windowed{Limiter: grants(), Span: time.Minute}, Window: time.Hour,
	}))(hello), newRequest(t))
	assert.EqualValues(t, 3600, members(t, w.Header(), "RateLimit-Policy")[1].Params["w"])
}

// The window is that of the limiter which answers, if it is known.
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
		handler := httplimit.New(limiter, c.opt, quiet)(hello)
		assert.Equal(t, map[string]int64{"q": 10, "w": 3600}, members(t, serve(handler, newRequest(t)).Header(), "RateLimit-Policy")[0].Params)
		down = errDown
		assert.Equal(t, c.want, members(t, serve(handler, newRequest(t)).Header(), "RateLimit-Policy")[0].Params, name)
	}
}

func TestNoHeaders(t *testing.T) {
	t.Parallel()
	w := serve(httplimit.New(refusing, httplimit.WithHeaders(httplimit.NoHeaders))(hello), newRequest(t))
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
				httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: says(hour, nil)}))(hello), newRequest(t)).Header()
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
			Granted: rapid.Bool().Draw(t, "granted"), Limit: rapid.Int64Min(1).Draw(t, "limit"), Remaining: rapid.Int64().Draw(t, "remaining"),
			RetryAfter: time.Duration(rapid.Int64().Draw(t, "retry")), ResetAfter: time.Duration(rapid.Int64().Draw(t, "reset")),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		all := rapid.SliceOfN(decision, 2, 4).Draw(rt, "decisions")
		var opts []httplimit.Option
		for i, d := range all[1:] {
			opts = append(opts, httplimit.WithPolicy(httplimit.Policy{Name: strconv.Itoa(i), Limiter: says(d, nil)}))
		}
		w := serve(httplimit.New(says(all[0], nil), opts...)(hello), newRequest(t))
		limits := members(t, w.Header(), "RateLimit")
		require.Len(rt, limits, len(all))
		require.Len(rt, members(t, w.Header(), "RateLimit-Policy"), len(all))
		for i, d := range all {
			if d.Granted {
				continue
			}
			require.Equal(rt, http.StatusTooManyRequests, w.Code)
			retry := integer(t, w.Header().Get("Retry-After"))
			assert.GreaterOrEqual(rt, float64(retry), d.RetryAfter.Seconds())
			assert.GreaterOrEqual(rt, retry, limits[i].Params["t"])
			assert.GreaterOrEqual(rt, retry, int64(1))
		}
	})
}
