package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

const actor = "ann"

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

func miniRig(t *testing.T) *rig {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	return newRig(t, rdb, nil)
}

func (r *rig) do(method, target, body string) *httptest.ResponseRecorder {
	r.t.Helper()
	return serve(r.t, r, request(method, target, body))
}

func request(method, target, body string) *http.Request {
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

// serve checks what all answers have in common.
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
		assert.True(t, json.Valid(w.Body.Bytes()), w.Body)
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

// brokenBody fails while it is read.
type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func textLog(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func rateBody(rate int64, interval string) string {
	return fmt.Sprintf(`{"rate":%d,"interval":%q}`, rate, interval)
}

const configKey = "rate:limit:config"

// newWeb returns a sliding log of 3 a minute.
func newWeb(rdb *redis.Client) *slidinglog.Limiter {
	return slidinglog.New(rdb, slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: configKey})
}

func quote(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}
