package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

const token = "a token of some length"

// site is a dashboard under test.
type site struct {
	t   *testing.T
	h   http.Handler
	log *logged
	rdb redis.UniversalClient
}

// logged is what the Logger was told.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newSite returns a dashboard that may be written to, on a server in memory.
func newSite(t *testing.T, with ...func(*Config)) *site {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	return siteOn(t, rdb, with...)
}

func siteOn(t *testing.T, rdb redis.UniversalClient, with ...func(*Config)) *site {
	t.Helper()
	s := &site{t: t, log: &logged{}, rdb: rdb}
	cfg := Config{Redis: rdb, Write: true, Authorize: WithToken(token), Logger: slog.New(slog.NewTextHandler(s.log, nil)), Server: "a test"}
	for _, change := range with {
		change(&cfg)
	}
	s.h = Handler(cfg)
	return s
}

// withLogs has a site know sliding logs with these hashes of thresholds.
func withLogs(hashes ...string) func(*Config) {
	return func(c *Config) {
		for _, hash := range hashes {
			c.Others = append(c.Others, Other{
				Name: "logs", Prefix: "log:", Thresholds: hash,
				Limiter: slidinglog.New(c.Redis, slidinglog.Config{Limit: 20, Window: time.Hour, Thresholds: hash}),
			})
		}
	}
}

// limiter makes a limiter and takes permits of it.
func (s *site) limiter(name string, cfg rratelimiter.Config, permits int64) {
	s.t.Helper()
	client := rratelimiter.New(s.rdb)
	defer func() { require.NoError(s.t, client.Close(context.WithoutCancel(s.t.Context()))) }()
	l := client.RateLimiter(name)
	require.NoError(s.t, l.SetRate(s.t.Context(), cfg))
	if permits > 0 {
		d, err := l.Take(s.t.Context(), permits)
		require.NoError(s.t, err)
		require.True(s.t, d.Granted)
	}
}

func (s *site) config(name string) rratelimiter.Config {
	s.t.Helper()
	client := rratelimiter.New(s.rdb)
	defer func() { require.NoError(s.t, client.Close(context.WithoutCancel(s.t.Context()))) }()
	cfg, err := client.RateLimiter(name).Config(s.t.Context())
	require.NoError(s.t, err)
	return cfg
}

// do sends a request and returns what was answered.
func (s *site) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	if r.Host == "example.com" { // httptest's own
		r.Host = "localhost"
	}
	s.h.ServeHTTP(w, r)
	return w
}

// get asks for JSON.
func (s *site) get(path string) map[string]any {
	s.t.Helper()
	w := s.do(httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, path, http.NoBody))
	require.Equal(s.t, http.StatusOK, w.Code, "%s: %s", path, w.Body)
	return object(s.t, w.Body.Bytes())
}

// limiters returns the rows of the list once all keys were walked.
func (s *site) limiters() map[string]map[string]any {
	s.t.Helper()
	var list map[string]any
	require.Eventually(s.t, func() bool {
		list = s.get("/api/limiters")
		return list["complete"] == true
	}, 10*time.Second, 10*time.Millisecond)
	return rows(s.t, list, "limiters")
}

func object(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var o map[string]any
	require.NoError(t, json.Unmarshal(text, &o), "%s", text)
	return o
}

// m is a JSON object.
type m map[string]any

// request is a POST as the page sends it.
func (s *site) request(path string, body any) *http.Request {
	text, err := json.Marshal(body)
	require.NoError(s.t, err)
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, path, bytes.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

// post sends it and returns the answer with its status.
func (s *site) post(path string, body any) (int, map[string]any) {
	s.t.Helper()
	w := s.do(s.request(path, body))
	return w.Code, object(s.t, w.Body.Bytes())
}

// change asks for a preview and then for the change, as the page does.
func (s *site) change(body m) (preview, answer map[string]any) {
	s.t.Helper()
	code, preview := s.post("/api/preview", body)
	require.Equal(s.t, http.StatusOK, code, "%v", preview)
	body["expect"] = preview["expect"]
	code, answer = s.post("/api/change", body)
	require.Equal(s.t, http.StatusOK, code, "%v", answer)
	return preview, answer
}

// rateBody is the change of a rate.
func rateBody(name string, rate, intervalMS int64, keepState bool) m {
	return m{"action": "rate", "id": idOf(name), "rate": rate, "interval_ms": intervalMS, "type": "OVERALL", "keep_state": keepState}
}

// rows returns the rows of a list, by their names.
func rows(t *testing.T, list map[string]any, field string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	items, ok := list[field].([]any)
	require.True(t, ok, "%v", list)
	for _, item := range items {
		row := item.(map[string]any)
		all[row["name"].(string)] = row
	}
	return all
}

// follow reads the events of a stream until stop says that it is enough.
func follow(t *testing.T, url string, enough func(kind string, data map[string]any) bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	kind := ""
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = rest
		}
		if rest, ok := strings.CutPrefix(lines.Text(), "data: "); ok && enough(kind, object(t, []byte(rest))) {
			return
		}
	}
	require.NoError(t, lines.Err())
	t.Error("the stream ended")
}
