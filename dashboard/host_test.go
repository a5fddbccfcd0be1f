package dashboard

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
)

func (s *site) byHost(host, arrivedAt string) int {
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, "/api/about", http.NoBody)
	if arrivedAt != "" {
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(arrivedAt), Port: 8320}))
	}
	r.Host = host
	w := httptest.NewRecorder()
	s.h.ServeHTTP(w, r)
	return w.Code
}

// A web site whose name leads here must not read the page by it.
func TestNamesByWhichThePageIsServed(t *testing.T) {
	t.Parallel()
	plain := newSite(t)
	named := newSite(t, func(c *Config) { c.Hosts = []string{"Limits.Example.com", "10.0.0.9:80"} })
	for _, tt := range []struct {
		s          *site
		host, at   string
		want       int
		whatItIsOf string
	}{
		{plain, "localhost", "", 200, "this machine"}, {plain, "LocalHost.:8320", "10.0.0.5", 200, "this machine"}, {plain, "127.0.0.2:1", "", 200, "this machine"},
		{plain, "[::1]:80", "", 200, "this machine"}, {plain, "[::1]", "", 200, "this machine"}, {plain, "[::ffff:127.0.0.1]:80", "", 200, "this machine"},
		{plain, "10.0.0.5:8320", "10.0.0.5", 200, "where it arrived"}, {plain, "10.0.0.5", "10.0.0.5", 200, "where it arrived"},
		{plain, "[fe80::1]:80", "fe80::1", 200, "where it arrived"}, {plain, "10.0.0.6:8320", "10.0.0.5", 421, "another address"}, {plain, "10.0.0.5", "", 421, "another address"},
		{plain, "evil.example", "127.0.0.1", 421, "a name"}, {plain, "evil.example:8320", "10.0.0.5", 421, "a name"}, {plain, "localhost.evil.example", "", 421, "a name"},
		{plain, "127.0.0.1.evil.example", "127.0.0.1", 421, "a name"}, {plain, "evil.example.", "", 421, "a name"}, {plain, "", "", 421, "none"}, {plain, "localhost@evil.example", "", 421, "a name"},
		{plain, "localhost:80:evil", "", 421, "none"}, {plain, "[localhost", "", 200, "this machine"}, {plain, "0.0.0.0:80", "127.0.0.1", 421, "another address"}, {plain, "*", "", 421, "a name"},
		{named, "limits.example.com", "", 200, "one that is configured"}, {named, "LIMITS.example.com.:8320", "", 200, "one that is configured"}, {named, "10.0.0.9:8320", "", 200, "one that is configured"},
		{named, "example.com", "", 421, "a name"}, {named, "x.limits.example.com", "", 421, "a name"}, {named, "localhost", "", 200, "this machine"},
		{newSite(t, func(c *Config) { c.Hosts = []string{"*"} }), "evil.example", "", 200, "any"},
	} {
		assert.Equal(t, tt.want, tt.s.byHost(tt.host, tt.at), "%q is %s", tt.host, tt.whatItIsOf)
	}
	// What a proxy, or anybody, says beside it counts for nothing.
	for _, header := range []string{"X-Forwarded-Host", "X-Host", "Forwarded"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://evil.example/api/about", http.NoBody)
		r.Header.Set(header, "localhost")
		w := httptest.NewRecorder()
		plain.h.ServeHTTP(w, r)
		assert.Equal(t, http.StatusMisdirectedRequest, w.Code, header)
		assert.Contains(t, w.Body.String(), "Hosts of dashboard.Config adds it")
	}
}

// The page of another site may send its visitors here, but asks for nothing itself.
func TestOtherSitesAskForNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for path := range endpoints {
		for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"} {
			assert.Equal(t, http.StatusForbidden, s.code(http.MethodGet, path, func(r *http.Request) { r.Header.Set(name, value) }), "%s %s", path, name)
		}
	}
	assert.Equal(t, http.StatusOK, s.code(http.MethodGet, "/", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }), "a link")
	assert.Equal(t, http.StatusMethodNotAllowed, s.code(http.MethodOptions, "/api/limiters", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }))
	w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/about", http.NoBody))
	assert.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
}

func TestATokenForLooking(t *testing.T) {
	t.Parallel()
	const look = "a token for those who look"
	s := newSite(t, func(c *Config) { c.Authorize = WithTokens(look, token) })
	ask := func(path string, change func(*http.Request)) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		if change != nil {
			change(r)
		}
		return s.do(r)
	}
	basic := func(password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth("anybody", password) }
	}
	bearerOf := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	for _, path := range []string{"/", "/assets/app.js", "/api/about", "/api/limiters", "/api/limiters/stream", "/none"} {
		w := ask(path, nil)
		assert.Equal(t, http.StatusUnauthorized, w.Code, path)
		assert.Contains(t, w.Header().Get("WWW-Authenticate"), "Basic ", "so that browsers ask")
	}
	for name, wrong := range map[string]func(*http.Request){
		"another": basic(look + "x"), "none": basic(""), "another bearer": bearerOf(look[1:]), "an empty bearer": bearerOf(""),
		"no scheme": func(r *http.Request) { r.Header.Set("Authorization", look) },
	} {
		assert.Equal(t, http.StatusUnauthorized, ask("/api/limiters", wrong).Code, name)
	}
	assert.Equal(t, "Bearer", ask("/api/about", bearerOf("old")).Header().Get("WWW-Authenticate"), "what the page sent is the page's to ask for")
	for name, right := range map[string]func(*http.Request){"looking": basic(look), "looking, bearer": bearerOf(look), "changing": bearerOf(token), "changing, basic": basic(token),
		"looking, with an old token for changes": func(r *http.Request) { basic(look)(r); r.Header.Set("Dashboard-Token", "old") }} {
		assert.Equal(t, http.StatusOK, ask("/api/limiters", right).Code, name)
	}
	for name, change := range map[string]func(*http.Request){"looking": basic(look), "looking, bearer": bearerOf(look), "a browser sends it for any site": basic(token)} {
		r := s.request("/api/preview", rateBody("orders", 1, 1, false))
		change(r)
		assert.Equal(t, http.StatusUnauthorized, s.do(r).Code, name)
	}
	assert.Equal(t, http.StatusNotFound, s.do(s.request("/api/preview", rateBody("orders", 1, 1, false))).Code)
	r := s.request("/api/preview", rateBody("orders", 1, 1, false))
	basic(look)(r)
	r.Header.Set("Dashboard-Token", token)
	assert.Equal(t, http.StatusNotFound, s.do(r).Code, "both, as the page sends them")
	assert.NotContains(t, s.log.String(), look)
	assert.NotContains(t, s.log.String(), token)
}
