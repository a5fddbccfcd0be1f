package httpjson_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

func TestBody(t *testing.T) {
	t.Parallel()
	type row struct {
		types  []string
		body   string // none can't be read
		status int    // 0: it is read
	}
	limitertest.Each(t, map[string]row{
		"JSON":                  {[]string{"application/json"}, `{"a":1}`, 0},
		"JSON with a parameter": {[]string{"application/json; charset=utf-8"}, `{}`, 0},
		"as long as it may be":  {[]string{"application/json"}, strings.Repeat(" ", 10), 0},
		"too long":              {[]string{"application/json"}, strings.Repeat(" ", 11), http.StatusRequestEntityTooLarge},
		"capitals":              {[]string{"Application/JSON"}, `{}`, 0},
		"two in one":            {[]string{"application/json, text/plain"}, `{}`, http.StatusUnsupportedMediaType},
		"of no type":            {nil, `{}`, http.StatusUnsupportedMediaType},
		"of two types":          {[]string{"application/json", "text/plain"}, `{}`, http.StatusUnsupportedMediaType},
		"that can't be read":    {[]string{"application/json"}, "", http.StatusBadRequest},
	}, func(t *testing.T, tt row) {
		body := io.Reader(strings.NewReader(tt.body))
		if tt.body == "" {
			body = iotest.ErrReader(io.ErrUnexpectedEOF)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
		for _, value := range tt.types {
			r.Header.Add("Content-Type", value)
		}
		text, err := httpjson.Body(httptest.NewRecorder(), r, 10)
		if tt.status == 0 {
			require.NoError(t, err)
			assert.Equal(t, tt.body, string(text))
			return
		}
		var refusal *httpjson.Error
		require.ErrorAs(t, err, &refusal)
		assert.Equal(t, tt.status, refusal.Status)
	})
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	var refusal *httpjson.Error
	require.ErrorAs(t, fmt.Errorf("wrapped: %w", httpjson.BadRequest("%d is too many", 3)), &refusal)
	for _, tt := range []struct {
		write      func(w http.ResponseWriter)
		status     int
		kind, body string
	}{
		{refusal.Write, 400, "application/problem+json", `{"title":"Bad Request","status":400,"detail":"3 is too many"}` + "\n"},
		{func(w http.ResponseWriter) { httpjson.OK(w, []int{1}) }, 200, "application/json", "[1]\n"},
		{func(w http.ResponseWriter) { httpjson.OK(w, func() {}) }, 500, "application/json", "\n"},
	} {
		w := httptest.NewRecorder()
		tt.write(w)
		assert.Equal(t, tt.status, w.Code)
		assert.Equal(t, tt.kind, w.Header().Get("Content-Type"))
		assert.Equal(t, tt.body, w.Body.String())
	}
}
