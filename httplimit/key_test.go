package httplimit_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	type user struct{}
	userOf := func(r *http.Request) string { name, _ := r.Context().Value(user{}).(string); return name }
	for _, test := range []struct {
		part httplimit.KeyFunc
		want string
	}{
		{httplimit.Header("X-Api-Key"), ""},
		{httplimit.Header("accept"), "text/html"},
		{httplimit.Header("host"), "tenant.example"},
		{httplimit.User(userOf), ""},
		{httplimit.Path(), "/items/1"},
		{httplimit.Route(), ""},
		{httplimit.ClientIP(httplimit.ClientIPConfig{}), "192.0.2.1"},
	} {
		r := newRequest(t)
		r.Host = "tenant.example"
		r.Header.Set("Accept", "text/html")
		got, err := test.part(r)
		require.NoError(t, err)
		assert.Equal(t, test.want, got)
	}
}

func TestRouteIsThePattern(t *testing.T) {
	t.Parallel()
	limiter := grants()
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", httplimit.New(limiter, httplimit.WithKey(httplimit.Route()))(hello))
	assert.Equal(t, http.StatusOK, serve(mux, newRequest(t)).Code)
	assert.Equal(t, "http:GET%20/items/%7Bid%7D", limiter.Key())
}

func TestBadKeyFunctions(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]httplimit.KeyFunc{
		"nil user":      httplimit.User(nil),
		"no header":     httplimit.Header(""),
		"trusted":       httplimit.ClientIP(httplimit.ClientIPConfig{Trusted: []netip.Prefix{{}}}),
		"bits":          httplimit.ClientIP(httplimit.ClientIPConfig{IPv6Bits: 129}),
		"negative bits": httplimit.ClientIP(httplimit.ClientIPConfig{IPv6Bits: -1}),
	} {
		var errs middlewaretest.Errors
		limiter := grants()
		w := serve(httplimit.New(limiter, hearing(&errs), httplimit.WithFailure(limit.FailOpen()), httplimit.WithKey(key))(refuseAll(t)), newRequest(t))
		assert.Equal(t, http.StatusInternalServerError, w.Code, name)
		errs.Check(t, limit.ErrInvalidConfig)
		assert.Empty(t, limiter.Asked(), name)
	}
}
