package httplimit_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestDeclare(t *testing.T) {
	t.Parallel()
	var rates []httplimit.Rate
	limiter := grants()
	rate := httplimit.Declare(func(r httplimit.Rate) limit.Limiter {
		rates = append(rates, r)
		return limiter
	}, httplimit.WithName("declared"))
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", rate(httplimit.Rate{Period: 30 * time.Second, Threshold: 2})(hello))
	mux.Handle("GET /a", rate(httplimit.Rate{}, httplimit.WithPrefix("a:"), httplimit.WithName("a"))(hello))
	mux.Handle("GET /b", rate(httplimit.Rate{Threshold: 7})(hello))
	assert.Equal(t, []httplimit.Rate{{Period: 30 * time.Second, Threshold: 2}, {Period: time.Minute, Threshold: 3}, {Period: time.Minute, Threshold: 7}}, rates)

	for path, name := range map[string]string{"/items/1": "declared", "/a": "a", "/b": "declared"} {
		r := newRequest(t)
		r.URL.Path = path
		w := serve(mux, r)
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, name, members(t, w.Header(), "RateLimit")[0].Name)
	}
	assert.ElementsMatch(t, []call{
		{Key: "http:192.0.2.1:GET%20/items/%7Bid%7D:2/30s", N: 1}, {Key: "a:192.0.2.1:GET%20/a:3/1m0s", N: 1}, {Key: "http:192.0.2.1:GET%20/b:7/1m0s", N: 1},
	}, limiter.Asked())
}

func TestDeclareBadRates(t *testing.T) {
	t.Parallel()
	limiter := grants()
	toLimiter := func(httplimit.Rate) limit.Limiter { return limiter }
	for _, test := range []struct {
		newLimiter func(httplimit.Rate) limit.Limiter
		rate       httplimit.Rate
	}{
		{toLimiter, httplimit.Rate{Period: -1}},
		{toLimiter, httplimit.Rate{Threshold: -1}},
		{nil, httplimit.Rate{}},
		{func(httplimit.Rate) limit.Limiter { return nil }, httplimit.Rate{}},
	} {
		var errs middlewaretest.Errors
		w := serve(httplimit.Declare(test.newLimiter, hearing(&errs))(test.rate)(hello), newRequest(t))
		assert.Equal(t, http.StatusInternalServerError, w.Code)
		errs.Check(t, limit.ErrInvalidConfig)
	}
	assert.Empty(t, limiter.Asked())
}
