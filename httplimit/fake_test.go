package httplimit_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/limit"
)

// call is one request that a fake limiter got.
type call struct {
	key string
	n   int64
}

// fake is a limiter that says what answer says, and remembers what it was asked.
type fake struct {
	answer func(ctx context.Context, n int64) (limit.Decision, error)

	mu    sync.Mutex
	calls []call
}

func (f *fake) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	f.mu.Lock()
	f.calls = append(f.calls, call{key, n})
	f.mu.Unlock()
	return f.answer(ctx, n)
}

func (f *fake) asked() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]call(nil), f.calls...)
}

// key returns the key of the only request.
func (f *fake) key(t testing.TB) string {
	t.Helper()
	calls := f.asked()
	require.Len(t, calls, 1)
	return calls[0].key
}

func says(d limit.Decision, err error) *fake {
	return &fake{answer: func(context.Context, int64) (limit.Decision, error) { return d, err }}
}

func grants() *fake {
	return says(limit.Decision{Granted: true, Limit: 10, Remaining: 9, ResetAfter: time.Minute}, nil)
}

// returner is a fake whose grants can be given back.
type returner struct {
	*fake

	giving error // what giving back answers

	mu    sync.Mutex
	given []call
}

func (r *returner) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	d, err := r.Take(ctx, key, n)
	if err != nil || !d.Granted {
		return d, nil, err
	}
	return d, func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.given = append(r.given, call{key, n})
		return r.giving
	}, nil
}

func (r *returner) givenBack() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call(nil), r.given...)
}

// windowed is a limiter that knows its window.
type windowed struct {
	limit.Limiter

	window time.Duration
}

func (w windowed) Window() time.Duration { return w.window }

func newRequest(t testing.TB) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/items/1?q=2", http.NoBody)
}

// hello is a handler that answers "hello".
var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })

func serve(handler http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// errorLog is a hook that remembers its errors.
type errorLog struct {
	mu   sync.Mutex
	errs []error
}

func (l *errorLog) hook(_ *http.Request, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

func (l *errorLog) all() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]error(nil), l.errs...)
}

// problem is the body of a refusal, read without this package's types.
func problem(t testing.TB, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	var body map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	assert.InDelta(t, w.Code, body["status"], 0)
	assert.NotEmpty(t, body["title"])
	assert.NotEmpty(t, body["detail"])
	return body
}

// member is a list member such as "burst";q=10;w=1.
type member struct {
	name   string
	params map[string]int64
}

var (
	memberText = regexp.MustCompile(`^"((?:[^"\\]|\\["\\])+)"((?:;[a-z]+=\d{1,15})+)$`)
	paramText  = regexp.MustCompile(`;([a-z]+)=(\d+)`)
)

// members reads a header that is a list of strings with integer parameters. It
// is written from the grammar of RFC 9651 alone; no name in these tests holds
// ", ".
func members(t testing.TB, h http.Header, name string) []member {
	t.Helper()
	var list []member
	for _, line := range h.Values(name) {
		for text := range strings.SplitSeq(line, ", ") {
			match := memberText.FindStringSubmatch(text)
			require.NotNil(t, match, "%s: %s", name, text)
			assert.NotRegexp(t, `[^ -~]`, text)
			m := member{strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(match[1]), map[string]int64{}}
			for _, p := range paramText.FindAllStringSubmatch(match[2], -1) {
				n, err := strconv.ParseInt(p[2], 10, 64)
				require.NoError(t, err)
				m.params[p[1]] = n
			}
			list = append(list, m)
		}
	}
	return list
}
