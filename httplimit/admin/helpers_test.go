package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

const (
	actor     = "ann"
	configKey = "rate:limit:config"
)

// anyone lets everybody do everything.
func anyone(*http.Request, admin.Access) (string, error) { return actor, nil }

// rig is a handler on a miniredis.
type rig struct {
	http.Handler

	t      *testing.T
	rdb    *redis.Client
	client *rratelimiter.Client
	log    *records
}

// newRig returns a handler of the RateLimiters "orders" and keyed:*, and of the
// sliding log "web", whose limit is 3.
func newRig(t *testing.T, rdb *redis.Client, change func(*admin.Config)) *rig {
	t.Helper()
	r := &rig{t: t, rdb: rdb, log: &records{}, client: rratelimiter.New(rdb)}
	t.Cleanup(func() { assert.NoError(t, r.client.Close(context.Background())) })
	cfg := admin.Config{
		Authorize:    anyone,
		Client:       r.client,
		RateLimiters: []string{"orders"},
		Prefixes:     []string{"keyed:"},
		SlidingLogs:  map[string]admin.SlidingLog{"web": newWeb(rdb)},
		Logger:       slog.New(slog.NewJSONHandler(r.log, nil)),
		Timeout:      time.Minute, // a busy machine is no reason to give up
	}
	if change != nil {
		change(&cfg)
	}
	r.Handler = admin.New(cfg)
	return r
}

func miniRig(t *testing.T, change ...func(*admin.Config)) *rig {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	return newRig(t, rdb, append(change, nil)[0])
}

// ask makes a request such as "GET /limiters", and checks the status of the answer. Its
// body must be want if that is JSON, and else contain it.
func (r *rig) ask(what, body string, status int, want string) *httptest.ResponseRecorder {
	r.t.Helper()
	w := serve(r.t, r, request(what, body))
	assert.Equal(r.t, status, w.Code, "%s %s: %s", what, body, w.Body)
	if strings.HasPrefix(want, "{") {
		assert.JSONEq(r.t, want, w.Body.String(), what)
	} else {
		assert.Contains(r.t, w.Body.String(), want, "%s %s", what, body)
	}
	return w
}

// keys returns all keys in Redis.
func (r *rig) keys() []string {
	r.t.Helper()
	keys, err := r.rdb.Keys(r.t.Context(), "*").Result()
	require.NoError(r.t, err)
	return keys
}

// config returns the rate of a RateLimiter.
func (r *rig) config(name string) rratelimiter.Config {
	r.t.Helper()
	cfg, err := r.client.RateLimiter(name).Config(r.t.Context())
	require.NoError(r.t, err)
	return cfg
}

func request(what, body string) *http.Request {
	method, target, _ := strings.Cut(what, " ")
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

// serve checks what all answers have in common, and that they are as described.
func serve(t *testing.T, h http.Handler, req *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	switch {
	case w.Code == http.StatusNoContent:
		assert.Empty(t, w.Body.String())
	case w.Code < http.StatusBadRequest:
		assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
	default:
		assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		var p struct {
			Title  string
			Status int
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		assert.Equal(t, w.Code, p.Status)
		assert.Equal(t, http.StatusText(w.Code), p.Title)
	}
	described(t).checkAnswer(t, req.Method, req.URL.Path, w)
	return w
}

// records is what was logged as JSON, a map a line.
type records struct {
	mu    sync.Mutex
	lines []map[string]any
}

func (r *records) Write(line []byte) (int, error) {
	var entry map[string]any
	if err := json.Unmarshal(line, &entry); err != nil {
		return 0, err
	}
	delete(entry, "time")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, entry)
	return len(line), nil
}

// take returns what was logged since the last call.
func (r *records) take() []map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

// one returns the only line that was logged since the last call.
func (r *records) one(t *testing.T) map[string]any {
	t.Helper()
	lines := r.take()
	require.Len(t, lines, 1)
	return lines[0]
}

// untouchable is a client that fails the test when it is used.
func untouchable(t *testing.T) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("Redis was asked")
		return nil, errors.New("not to be asked")
	}})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	return rdb
}

func textLog(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func rateBody(rate int64, interval string) string {
	return fmt.Sprintf(`{"rate":%d,"interval":%q}`, rate, interval)
}

// newWeb returns a sliding log of 3 a minute.
func newWeb(rdb *redis.Client) *slidinglog.Limiter {
	return slidinglog.New(rdb, slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: configKey})
}
