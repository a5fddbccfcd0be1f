package dashboard

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
)

func (s *site) code(method, path string, change func(*http.Request)) int {
	r := httptest.NewRequestWithContext(s.t.Context(), method, path, strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	if change != nil {
		change(r)
	}
	return s.do(r).Code
}

func TestEveryAnswerIsGuarded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{"/", "/assets/app.js", "/assets/style.css", "/api/about", "/api/limiters", "/none", "/api/none"} {
		w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		h := w.Header()
		assert.Equal(t, policy, h.Get("Content-Security-Policy"), path)
		assert.NotContains(t, h.Get("Content-Security-Policy"), "unsafe")
		assert.Equal(t, []string{"nosniff", "DENY", "no-referrer"}, []string{h.Get("X-Content-Type-Options"), h.Get("X-Frame-Options"), h.Get("Referrer-Policy")}, path)
		assert.NotEmpty(t, h.Get("Content-Type"), path)
	}
	for path, want := range map[string]string{"/": "text/html; charset=utf-8", "/assets/app.js": "text/javascript; charset=utf-8", "/assets/style.css": "text/css; charset=utf-8", "/assets/icon.svg": "image/svg+xml"} {
		w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		assert.Equal(t, want, w.Header().Get("Content-Type"), path)
	}
	for _, path := range []string{"/none", "/assets/", "/assets/../doc.go", "/assets", "/index.html", "/api/", "/api/limiters/"} {
		assert.Equal(t, http.StatusNotFound, s.code(http.MethodGet, path, nil), path)
	}
}

// The page has nothing that its own policy forbids, and nothing that makes markup of
// text.
func TestThePageMakesNoMarkup(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|createContextualFragment|srcdoc|https?://(?:[^w]|w[^w])`)
	err := fs.WalkDir(assets, "assets", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := assets.ReadFile(path)
		require.NoError(t, err)
		assert.Empty(t, forbidden.FindAllString(string(text), -1), path)
		if strings.HasSuffix(path, ".html") {
			assert.NotRegexp(t, `(?i)<style|\son[a-z]+="|\sstyle="|<script>`, string(text), path)
		}
		assert.Less(t, strings.Count(string(text), "\n"), 400, path)
		return nil
	})
	require.NoError(t, err)
}

func TestWhoMayChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	body := rateBody("orders", 20, 1000, false)
	for name, want := range map[string]struct {
		change func(*http.Request)
		code   int
	}{
		"no token":       {func(r *http.Request) { r.Header.Del("Authorization") }, http.StatusUnauthorized},
		"another token":  {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token+"x") }, http.StatusUnauthorized},
		"a part of it":   {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[:5]) }, http.StatusUnauthorized},
		"an empty token": {func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") }, http.StatusUnauthorized},
		"basic":          {func(r *http.Request) { r.SetBasicAuth("", token) }, http.StatusUnauthorized},
		"another site": {func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Origin", "https://evil.example")
		}, http.StatusForbidden},
		"the same site":  {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, http.StatusForbidden},
		"another origin": {func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "http://evil.example") }, http.StatusForbidden},
		"no origin":      {func(r *http.Request) { r.Header.Set("Origin", "null"); r.Header.Del("Sec-Fetch-Site") }, http.StatusForbidden},
		"a form":         {func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }, http.StatusUnsupportedMediaType},
		"text":           {func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, http.StatusUnsupportedMediaType},
		"a get":          {func(r *http.Request) { r.Method = http.MethodGet }, http.StatusMethodNotAllowed},
		"a head":         {func(r *http.Request) { r.Method = http.MethodHead }, http.StatusMethodNotAllowed},
		"a put":          {func(r *http.Request) { r.Method = http.MethodPut }, http.StatusMethodNotAllowed},
	} {
		for _, path := range []string{"/api/preview", "/api/change"} {
			r := s.request(path, body)
			want.change(r)
			assert.Equal(t, want.code, s.do(r).Code, "%s: %s", name, path)
		}
	}
	assert.Equal(t, int64(10), s.config("orders").Rate)
	assert.Empty(t, s.get("/api/audit")["entries"])
	assert.Contains(t, s.log.String(), "dashboard request refused")
	assert.NotContains(t, s.log.String(), token)
	for _, path := range []string{"/", "/api/limiters", "/api/audit", "/none"} {
		assert.NotEqual(t, http.StatusOK, s.code(http.MethodPost, path, nil), path)
	}
	s.change(body)
	assert.Equal(t, int64(20), s.config("orders").Rate)
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Write = false })
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	for _, path := range []string{"/api/preview", "/api/change"} {
		code, _ := s.post(path, rateBody("orders", 20, 1000, false))
		assert.Equal(t, http.StatusForbidden, code)
	}
	about := s.get("/api/about")
	assert.Equal(t, []any{false, false}, []any{about["write"], about["allowed"]})
	assert.Equal(t, int64(10), s.config("orders").Rate)
}

func TestAnEmptyTokenLetsNobodyChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = WithToken("") })
	r := s.request("/api/preview", rateBody("orders", 20, 1000, false))
	r.Header.Set("Authorization", "Bearer ")
	assert.Equal(t, http.StatusUnauthorized, s.do(r).Code)
}

// With one's own login nobody sees anything without it, and the list of changes says who.
func TestBehindOnesOwnLogin(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.Authorize = func(r *http.Request, action Action) (string, error) {
			cookie, err := r.Cookie("session")
			switch {
			case err != nil:
				return "", ErrUnauthenticated
			case cookie.Value == "ann", action == Look:
				return cookie.Value, nil
			}
			return cookie.Value, errors.New("only ann may change")
		}
	})
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	as := func(who string) func(*http.Request) {
		return func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "session", Value: who}) }
	}
	for _, path := range []string{"/", "/assets/app.js", "/api/limiters", "/api/limiters/stream", "/none"} {
		assert.Equal(t, http.StatusUnauthorized, s.code(http.MethodGet, path, nil), path)
	}
	assert.Equal(t, http.StatusOK, s.code(http.MethodGet, "/api/limiters", as("bob")))
	assert.Equal(t, http.StatusForbidden, s.code(http.MethodPost, "/api/change", as("bob")))

	preview := s.request("/api/preview", rateBody("orders", 20, 1000, false))
	as("ann")(preview)
	w := s.do(preview)
	require.Equal(t, http.StatusOK, w.Code)
	body := rateBody("orders", 20, 1000, false)
	body["expect"] = object(t, w.Body.Bytes())["expect"]
	change := s.request("/api/change", body)
	as("ann")(change)
	w = s.do(change)
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	assert.Equal(t, "ann", object(t, w.Body.Bytes())["entry"].(map[string]any)["who"])
	assert.Contains(t, s.log.String(), "who=ann")
}

func TestConfigsWithFaults(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"no Redis":     func(c *Config) { c.Redis = nil },
		"no Authorize": func(c *Config) { c.Authorize = nil },
		"few reads":    func(c *Config) { c.Reads = 1 },
		"no host":      func(c *Config) { c.Hosts = []string{""} },
		"a URL":        func(c *Config) { c.Hosts = []string{"https://limits.example.com"} },
		"an other":     func(c *Config) { c.Others = []Other{{Name: "x"}} },
		"no Redisson":  func(c *Config) { c.RedissonVersion = "0.1" },
	} {
		s := newSite(t, change)
		for _, path := range []string{"/", "/api/limiters"} {
			assert.Equal(t, http.StatusInternalServerError, s.code(http.MethodGet, path, nil), name)
		}
		assert.Contains(t, s.log.String(), "dashboard request failed", name)
	}
}
