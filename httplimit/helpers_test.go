package httplimit_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
)

type (
	call     = middlewaretest.Call
	fake     = middlewaretest.Fake
	returner = middlewaretest.Returner
	windowed = middlewaretest.Windowed
)

var (
	says    = middlewaretest.Says
	grants  = middlewaretest.Grants
	deaf    = middlewaretest.Deaf
	errDown = errors.New("connection refused")
)

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

// refuseAll fails the test if a request gets to it.
func refuseAll(t testing.TB) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request got through") })
}

// hearing has errors be told of what fails.
func hearing(errs *middlewaretest.Errors) httplimit.Option {
	return httplimit.WithErrorHandler(func(_ *http.Request, err error) { errs.Add(err) })
}

// quiet keeps failures that a test expects out of its output.
var quiet = hearing(new(middlewaretest.Errors))

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

// members reads a header that is a list.
func members(t testing.TB, h http.Header, name string) []middlewaretest.Member {
	t.Helper()
	list, err := middlewaretest.Members(h, name)
	require.NoError(t, err)
	return list
}

func integer(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}
