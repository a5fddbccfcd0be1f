package admin_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// everyRequest is one of each kind, with what Authorize is asked for it.
var everyRequest = []struct {
	method, target, body string
	asked                admin.Access
}{
	{http.MethodGet, "/openapi.json", "", admin.Access{Action: admin.Look}},
	{http.MethodGet, "/limiters", "", admin.Access{Action: admin.Look}},
	{http.MethodGet, "/rate?name=orders", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "orders"}},
	{http.MethodHead, "/rate?name=other", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "other"}},
	{http.MethodPut, "/rate?name=orders", rateBody(9, "1s"), admin.Access{Action: admin.Change, Kind: admin.RateLimiters, Limiter: "orders"}},
	{http.MethodPatch, "/rate?name=orders", `{"rate":9}`, admin.Access{Action: admin.Change, Kind: admin.RateLimiters, Limiter: "orders"}},
	{http.MethodPut, "/rate?name=a&name=b", "{}", admin.Access{Action: admin.Change, Kind: admin.RateLimiters}},
	{http.MethodGet, "/clients?name=orders", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "orders"}},
	{http.MethodGet, "/thresholds?limiter=web", "", admin.Access{Action: admin.Look, Kind: admin.SlidingLogs, Limiter: "web"}},
	{http.MethodGet, "/threshold?limiter=web&key=k", "", admin.Access{Action: admin.Look, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{http.MethodPut, "/threshold?limiter=web&key=k", `{"threshold":9}`, admin.Access{Action: admin.Change, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{http.MethodDelete, "/threshold?limiter=web&key=k", "", admin.Access{Action: admin.Change, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{http.MethodGet, "/nowhere", "", admin.Access{Action: admin.Look}},
	{http.MethodPost, "/nowhere", "", admin.Access{Action: admin.Change}},
	{http.MethodGet, "/rate?%zz", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters}},
}

func TestWithoutAuthorizeNothingIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), func(cfg *admin.Config) { cfg.Authorize = nil })
	for _, c := range everyRequest {
		w := r.do(c.method, c.target, c.body)
		assert.Equal(t, http.StatusInternalServerError, w.Code, c.target)
		lines := r.log.take()
		require.Len(t, lines, 1)
		assert.Equal(t, "ERROR", lines[0]["level"])
		assert.Contains(t, lines[0]["error"], "no Authorize")
	}
}

func TestBadConfigsAreReported(t *testing.T) {
	t.Parallel()
	client := rratelimiter.New(untouchable(t))
	var noLog *slidinglog.Limiter
	for _, c := range []struct {
		says string
		cfg  admin.Config
	}{
		{"no Client", admin.Config{RateLimiters: []string{"orders"}}},
		{"no Client", admin.Config{Prefixes: []string{"orders:"}}},
		{"is empty", admin.Config{Client: client, RateLimiters: []string{"x", ""}}},
		{"is empty", admin.Config{Client: client, Prefixes: []string{""}}},
		{"is nil", admin.Config{SlidingLogs: map[string]admin.SlidingLog{"web": nil}}},
		{"is nil", admin.Config{SlidingLogs: map[string]admin.SlidingLog{"web": noLog}}},
		{"no name", admin.Config{SlidingLogs: map[string]admin.SlidingLog{"": newWeb(untouchable(t))}}},
		{"Timeout", admin.Config{Timeout: -1}},
	} {
		var log bytes.Buffer
		c.cfg.Authorize, c.cfg.Logger = anyone, textLog(&log)
		w := serve(t, admin.New(c.cfg), request(http.MethodGet, "/limiters", ""))
		assert.Equal(t, http.StatusInternalServerError, w.Code, c.says)
		assert.NotContains(t, w.Body.String(), "admin.Config")
		assert.Contains(t, log.String(), c.says)
	}
}

func TestAuthorizeIsAskedFirst(t *testing.T) {
	t.Parallel()
	for _, refusal := range []struct {
		err    error
		status int
	}{
		{errors.New("not at night"), http.StatusForbidden},
		{fmt.Errorf("no token: %w", admin.ErrUnauthenticated), http.StatusUnauthorized},
	} {
		var asked []admin.Access
		r := newRig(t, untouchable(t), func(cfg *admin.Config) {
			cfg.Authorize = func(_ *http.Request, a admin.Access) (string, error) {
				asked = append(asked, a)
				return "bob", refusal.err
			}
		})
		for i, c := range everyRequest {
			w := r.do(c.method, c.target, c.body)
			assert.Equal(t, refusal.status, w.Code, c.target)
			assert.NotContains(t, w.Body.String(), refusal.err.Error())
			challenge := ""
			if refusal.status == http.StatusUnauthorized {
				challenge = "Bearer"
			}
			assert.Equal(t, challenge, w.Header().Get("WWW-Authenticate"))
			require.Len(t, asked, i+1)
			assert.Equal(t, c.asked, asked[i])
			lines := r.log.take()
			require.Len(t, lines, 1)
			assert.Equal(t, "admin request refused", lines[0]["msg"])
			assert.Equal(t, "bob", lines[0]["actor"])
			assert.Equal(t, refusal.err.Error(), lines[0]["error"])
		}
	}
}

func TestAuthorizeByLimiterAndAction(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	r := newRig(t, rdb, func(cfg *admin.Config) {
		cfg.Authorize = func(_ *http.Request, a admin.Access) (string, error) {
			if a.Action == admin.Look || a.Limiter == "keyed:own" {
				return "carl", nil
			}
			return "carl", errors.New("not his")
		}
	})
	assert.Equal(t, http.StatusForbidden, r.do(http.MethodPut, "/rate?name=orders", rateBody(1, "1s")).Code)
	assert.Equal(t, http.StatusNotFound, r.do(http.MethodGet, "/rate?name=orders", "").Code)
	r.log.take()
	assert.Equal(t, http.StatusOK, r.do(http.MethodPut, "/rate?name=keyed:own", rateBody(1, "1s")).Code)
	assert.Equal(t, "carl", r.log.take()[0]["actor"])
}

func TestChallenge(t *testing.T) {
	t.Parallel()
	h := admin.New(admin.Config{
		Authorize: func(*http.Request, admin.Access) (string, error) { return "", admin.ErrUnauthenticated },
		Challenge: `Basic realm="limits"`,
		Logger:    slog.New(slog.DiscardHandler),
	})
	w := serve(t, h, request(http.MethodGet, "/limiters", ""))
	assert.Equal(t, `Basic realm="limits"`, w.Header().Get("WWW-Authenticate"))
}

func TestNobodyWritesLinesIntoTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	rdb, _ := redistest.Mini(t)
	const hostile = "x\nlevel=INFO msg=\"limit changed\" actor=root \x1b[31m\u2028"
	r := newRig(t, rdb, func(cfg *admin.Config) {
		cfg.Logger = textLog(&log)
		cfg.Authorize = func(r *http.Request, _ admin.Access) (string, error) { return r.Header.Get("X-User"), nil }
	})
	req := request(http.MethodPut, target(hostile), `{"threshold":5}`)
	req.Header.Set("X-User", hostile)
	assert.Equal(t, http.StatusOK, serve(t, r, req).Code)
	assert.Equal(t, 1, strings.Count(log.String(), "\n"))
	assert.NotContains(t, log.String(), "\x1b")
}
