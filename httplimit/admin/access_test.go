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

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// everyRequest is one of each kind, with what Authorize is asked for it.
var everyRequest = []struct {
	what, body string
	asked      admin.Access
}{
	{"GET /openapi.json", "", admin.Access{Action: admin.Look}},
	{"GET /limiters", "", admin.Access{Action: admin.Look}},
	{"GET /rate?name=orders", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "orders"}},
	{"HEAD /rate?name=other", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "other"}},
	{"PUT /rate?name=orders", rateBody(9, "1s"), admin.Access{Action: admin.Change, Kind: admin.RateLimiters, Limiter: "orders"}},
	{"PATCH /rate?name=orders", `{"rate":9}`, admin.Access{Action: admin.Change, Kind: admin.RateLimiters, Limiter: "orders"}},
	{"PUT /rate?name=a&name=b", "{}", admin.Access{Action: admin.Change, Kind: admin.RateLimiters}},
	{"GET /clients?name=orders", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters, Limiter: "orders"}},
	{"GET /thresholds?limiter=web", "", admin.Access{Action: admin.Look, Kind: admin.SlidingLogs, Limiter: "web"}},
	{"GET " + threshold, "", admin.Access{Action: admin.Look, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{"PUT " + threshold, `{"threshold":9}`, admin.Access{Action: admin.Change, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{"DELETE " + threshold, "", admin.Access{Action: admin.Change, Kind: admin.SlidingLogs, Limiter: "web", Key: "k"}},
	{"GET /nowhere", "", admin.Access{Action: admin.Look}},
	{"POST /nowhere", "", admin.Access{Action: admin.Change}},
	{"GET /rate?%zz", "", admin.Access{Action: admin.Look, Kind: admin.RateLimiters}},
}

func TestWithoutAuthorizeNothingIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), func(cfg *admin.Config) { cfg.Authorize = nil })
	for _, c := range everyRequest {
		r.ask(c.what, c.body, http.StatusInternalServerError, "")
		line := r.log.one(t)
		assert.Equal(t, "ERROR", line["level"])
		assert.Contains(t, line["error"], "no Authorize")
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
		w := serve(t, admin.New(c.cfg), request("GET /limiters", ""))
		assert.Equal(t, http.StatusInternalServerError, w.Code, c.says)
		assert.NotContains(t, w.Body.String(), "admin.Config")
		assert.Contains(t, log.String(), c.says)
	}
}

func TestAuthorizeIsAskedFirst(t *testing.T) {
	t.Parallel()
	for _, refusal := range []struct {
		err       error
		status    int
		challenge string
	}{
		{errors.New("not at night"), http.StatusForbidden, ""},
		{fmt.Errorf("no token: %w", admin.ErrUnauthenticated), http.StatusUnauthorized, "Bearer"},
	} {
		var asked []admin.Access
		r := newRig(t, untouchable(t), func(cfg *admin.Config) {
			cfg.Authorize = func(_ *http.Request, a admin.Access) (string, error) {
				asked = append(asked, a)
				return "bob", refusal.err
			}
		})
		for _, c := range everyRequest {
			asked = nil
			w := r.ask(c.what, c.body, refusal.status, "")
			assert.NotContains(t, w.Body.String(), refusal.err.Error())
			assert.Equal(t, refusal.challenge, w.Header().Get("WWW-Authenticate"))
			assert.Equal(t, []admin.Access{c.asked}, asked)
			line := r.log.one(t)
			assert.Equal(t, "admin request refused", line["msg"])
			assert.Equal(t, "bob", line["actor"])
			assert.Equal(t, refusal.err.Error(), line["error"])
		}
	}
}

func TestAuthorizeByLimiterAndAction(t *testing.T) {
	t.Parallel()
	r := miniRig(t, func(cfg *admin.Config) {
		cfg.Authorize = func(_ *http.Request, a admin.Access) (string, error) {
			if a.Action == admin.Look || a.Limiter == "keyed:own" {
				return "carl", nil
			}
			return "carl", errors.New("not his")
		}
	})
	r.ask("PUT /rate?name=orders", rateBody(1, "1s"), http.StatusForbidden, "")
	r.ask("GET /rate?name=orders", "", http.StatusNotFound, "")
	r.log.take()
	r.ask("PUT /rate?name=keyed:own", rateBody(1, "1s"), http.StatusOK, "")
	assert.Equal(t, "carl", r.log.one(t)["actor"])
}

func TestChallenge(t *testing.T) {
	t.Parallel()
	h := admin.New(admin.Config{
		Authorize: func(*http.Request, admin.Access) (string, error) { return "", admin.ErrUnauthenticated },
		Challenge: `Basic realm="limits"`,
		Logger:    slog.New(slog.DiscardHandler),
	})
	w := serve(t, h, request("GET /limiters", ""))
	assert.Equal(t, `Basic realm="limits"`, w.Header().Get("WWW-Authenticate"))
}

func TestNobodyWritesLinesIntoTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	const hostile = "x\nlevel=INFO msg=\"limit changed\" actor=root \x1b[31m\u2028"
	r := miniRig(t, func(cfg *admin.Config) {
		cfg.Logger = textLog(&log)
		cfg.Authorize = func(r *http.Request, _ admin.Access) (string, error) { return r.Header.Get("X-User"), nil }
	})
	req := request("PUT "+target(hostile), `{"threshold":5}`)
	req.Header.Set("X-User", hostile)
	assert.Equal(t, http.StatusOK, serve(t, r, req).Code)
	assert.Equal(t, 1, strings.Count(log.String(), "\n"))
	assert.NotContains(t, log.String(), "\x1b")
}
