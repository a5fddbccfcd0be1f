package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

func (s *site) code(method, path string, change func(*http.Request)) int {
	r := httptest.NewRequestWithContext(s.t.Context(), method, path, strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	if change != nil {
		change(r)
	}
	return s.do(r).Code
}

func TestAnswer_SecurityHeaders(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/assets/app.js": "text/javascript; charset=utf-8", "/assets/style.css": "text/css; charset=utf-8",
		"/assets/icon.svg": "image/svg+xml", "/api/about": "application/json", "/none": "application/problem+json",
	} {
		h := s.read(path).Header()
		for header, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Content-Type": kind,
		} {
			assert.Equal(t, want, h.Get(header), "%s of %s", header, path)
		}
	}
	assert.NotContains(t, policy, "unsafe")
	for _, path := range []string{"/none", "/assets/", "/assets/../doc.go", "/index.html", "/api/"} {
		assert.Equal(t, http.StatusNotFound, s.code(http.MethodGet, path, nil), path)
	}
}

// The page has nothing that its own policy forbids, and nothing that makes markup of text.
func TestPage_MakesNoMarkupOfText(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|` +
		`createContextualFragment|srcdoc|https?://(?:[^w]|w[^w])`)
	err := fs.WalkDir(assets, "assets", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text := limitertest.Must(assets.ReadFile(path))(t)
		assert.Empty(t, forbidden.FindAllString(string(text), -1), path)
		if strings.HasSuffix(path, ".html") {
			assert.NotRegexp(t, `(?i)<style|\son[a-z]+="|\sstyle="|<script>`, string(text), path)
		}
		assert.Less(t, strings.Count(string(text), "\n"), 400, path)
		return nil
	})
	require.NoError(t, err)
}

func withHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func withBearer(token string) func(*http.Request) {
	return withHeader("Authorization", "Bearer "+token)
}

func TestConfigsWithFaults(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"no Redis":     func(c *Config) { c.Redis = nil },
		"a nil client": func(c *Config) { c.Redis = (*redis.ClusterClient)(nil) },
		"no Authorize": func(c *Config) { c.Authorize = nil },
		"few reads":    func(c *Config) { c.Reads = 1 },
		"no host":      func(c *Config) { c.Hosts = []string{""} },
		"a URL":        func(c *Config) { c.Hosts = []string{"https://limits.example.com"} },
		"an other":     func(c *Config) { c.Others = []Other{{Name: "x"}} },
		"no Redisson":  func(c *Config) { c.RedissonVersion = "0.1" },
	} {
		s := newSite(t, change)
		assert.Equal(t, http.StatusInternalServerError, s.code(http.MethodGet, "/api/limiters", nil), name)
		assert.Contains(t, s.log.String(), "dashboard request failed", name)
	}
}

// The page of another site may send its visitors here, but asks for nothing itself.
func TestRequests_OtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for path := range endpoints {
		for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"} {
			assert.Equal(t, http.StatusForbidden, s.code(http.MethodGet, "/api"+path, withHeader(name, value)), "%s %s", path, name)
		}
	}
	assert.Equal(t, http.StatusOK, s.code(http.MethodGet, "/", withHeader("Sec-Fetch-Site", "cross-site")), "a link")
	assert.Equal(t, http.StatusMethodNotAllowed, s.code(http.MethodOptions, "/api/limiters", withBearer(token)))
	assert.Empty(t, s.read("/api/about").Header().Get("Access-Control-Allow-Origin"))
	for _, path := range []string{"/", "/api/limiters", "/api/audit", "/none"} {
		assert.NotEqual(t, http.StatusOK, s.code(http.MethodPost, path, nil), path)
	}
}

// The story of tokens says which lets one do what.
func TestTokens_AskForWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = WithTokens(lookToken, token) })
	for _, path := range []string{"/", "/assets/app.js", "/api/limiters", "/api/limiters/stream", "/none"} {
		w := s.read(path)
		assert.Equal(t, http.StatusUnauthorized, w.Code, path)
		assert.Contains(t, w.Header().Get("WWW-Authenticate"), "Basic ", "so that browsers ask")
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/about", http.NoBody)
	withBearer("old")(r)
	assert.Equal(t, "Bearer", s.do(r).Header().Get("WWW-Authenticate"), "what the page sent is the page's to ask for")
	s = newSite(t, func(c *Config) { c.Authorize = WithToken("") })
	assert.Equal(t, http.StatusUnauthorized, s.code(http.MethodPost, "/api/preview/delete?name=orders", withBearer("")), "an empty token changes nothing")
}

// Who tries tokens is slowed down, and counted in the log; others, and who has the token, are not.
func TestGuessingTokensIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		may := WithTokens("", token)
		const here, neighbour, there = "[2001:db8::1]:1234", "[2001:db8::2]:1", "192.0.2.7:1234"
		try := func(given, from string, want time.Duration, says string) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/change", http.NoBody)
			r.RemoteAddr = from
			withBearer(given)(r)
			start := time.Now()
			_, err := may(r, Access{Action: Change})
			assert.Equal(t, want, time.Since(start))
			assert.Contains(t, fmt.Sprint(err), says)
		}
		for n := range freeGuesses {
			try("a guess", here, 0, fmt.Sprintf("a wrong token, number %d from 2001:db8::/64", n+1))
		}
		try("a guess", neighbour, guessPause, ErrUnauthenticated.Error())
		for range maxGuessing {
			go try("a guess", here, guessPause, ErrUnauthenticated.Error())
		}
		synctest.Wait()
		try(token, here, 0, errGuessing.Error())
		try("a guess", there, 0, "number 1 from 192.0.2.7")
		time.Sleep(guessPause)
		synctest.Wait()
		try(token, here, 0, "<nil>")
		time.Sleep(2 * guessMemory)
		try("a guess", here, 0, "number 1 ") // the others are forgotten
	})
	g := &guesses{}
	for i := range 2 * maxGuessers {
		_ = g.wrong(t.Context(), strconv.Itoa(i))
	}
	assert.LessOrEqual(t, len(g.by), maxGuessers)
}

// What is planted in keys that are no limiter's, as a text and as a number.
const (
	secret       = "SECRET"
	secretNumber = 8675309421
)

// plant writes keys with secrets, of each type one within api:* and one outside, and returns the names that a viewer knows.
func plant(t *testing.T, s *site) (names []string) {
	t.Helper()
	ctx := t.Context()
	pipe := s.rdb.Pipeline()
	for _, prefix := range []string{"api:", "session:"} {
		add := func(name string) string {
			names = append(names, prefix+name)
			return prefix + name
		}
		pipe.HSet(ctx, add("hash"), "token", secret, secret, "x")
		pipe.HSet(ctx, add("numbers"), "token", int64(secretNumber), secret, 1)
		pipe.HSet(ctx, add("type"), "type", secret, "rate", "10", "interval", "1000")
		pipe.HSet(ctx, add("rate"), "type", "0", "rate", secret, "interval", "1000")
		pipe.HSet(ctx, add("alive"), "type", "0", "rate", "7", "interval", "1000", "keepAliveTime", secret)
		pipe.Set(ctx, add("text"), secret, 0)
		pipe.Set(ctx, add("number"), int64(secretNumber), time.Hour)
		pipe.ZAdd(ctx, add("set"), redis.Z{Score: secretNumber, Member: secret})
		pipe.ZAdd(ctx, add("log"), redis.Z{Score: secretNumber * 200, Member: secret}) // as a time
		pipe.Expire(ctx, prefix+"log", time.Hour)
		pipe.RPush(ctx, add("list"), secret)
		pipe.SAdd(ctx, add("members"), secret)
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: add("stream"), Values: []any{secret, secret}})
		// Pairs of value and set without a limiter, with a damaged one, and with a good one.
		for _, name := range []string{"none", "type", "good"} {
			pipe.Set(ctx, "{"+prefix+name+"}:value", secret, 0)
			pipe.ZAdd(ctx, "{"+prefix+name+"}:permits", redis.Z{Score: secretNumber, Member: secret})
		}
		names = append(names, prefix+"none", prefix+"good", prefix+"count")
		names = append(names, "{"+prefix+"good}:value", "{"+prefix+"good}:permits", "{"+prefix+"none}:value", "{"+prefix+"count}:value")
		pipe.HSet(ctx, prefix+"good", "type", "0", "rate", "7", "interval", "1000")
		pipe.Set(ctx, "{"+prefix+"count}:value", int64(secretNumber), 0)
	}
	pipe.HSet(ctx, "session:limiter", "type", "0", "rate", int64(secretNumber), "interval", "1000") // outside of the pattern
	pipe.HSet(ctx, "limits", "log:ann", 40, "log:bob", secret, secret, secret)
	pipe.Set(ctx, "win:text", secret, 0)
	pipe.HSet(ctx, "win:hash", secret, secret)
	pipe.RPush(ctx, "log:list", secret)
	require.NoError(t, limitertest.Second(pipe.Exec(ctx)))
	return append(names, "session:limiter", "limits", "win:text", "win:hash", "log:list", "log:ann", "log:bob")
}

// questions are requests to all endpoints about a name.
func questions(t *testing.T, name string) (all []*http.Request) {
	t.Helper()
	given := url.Values{
		"name": {name}, "key": {name}, "hash": {name}, "client": {name}, "search": {name}, "sort": {"name"}, "entry": {"1"}, "cursor": {"0"},
	}
	values := m{
		"rate": 1, "interval_ms": 1, "type": "OVERALL", "keep_alive_ms": 1, "keep_state": true, "for_ms": 1, "create": false,
		"ttl_ms": 1, "permits": 1, "threshold": 1,
	}
	ask := func(path string, e endpoint, query url.Values, body m) {
		of := url.Values{}
		for _, param := range e.params {
			param = strings.TrimSuffix(param, "?")
			if query.Has(param) {
				of[param] = query[param]
			}
		}
		text := limitertest.Must(json.Marshal(body))(t)
		r := httptest.NewRequestWithContext(t.Context(), e.method, "/api"+path+"?"+of.Encode(), bytes.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
		all = append(all, r)
	}
	for path, e := range endpoints {
		body := m{}
		for field := range strings.FieldsSeq(kinds[e.verb].fields) {
			body[field] = values[field]
		}
		ask(path, e, given, body)
		if strings.Contains(e.verb, "threshold") {
			for hash, key := range map[string]string{name: "token", "limits": "log:bob"} {
				ask(path, e, url.Values{"hash": {hash}, "key": {key}}, body)
			}
		}
		if e.verb == "rate" {
			ask(path, e, given, m{"rate": 1, "interval_ms": 1, "type": "PER_CLIENT", "create": true})
		}
	}
	all = append(all, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/api/key?key="+url.QueryEscape(name), http.NoBody))
	return all
}

// The name of a key is not enough to learn what it holds, unless it is a limiter's.
func TestAnswer_HidesContentOfForeignKeys(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]string{"all": "", "api": "api:*"}, func(t *testing.T, pattern string) {
		limitertest.Bubbles(t, map[string]string{"none": "", "looks": "a token for looking", "changes": token}, func(t *testing.T, given string) {
			askForSecrets(t, pattern, given)
		})
	})
}

func askForSecrets(t *testing.T, pattern, given string) {
	t.Helper()
	s := newSite(t, withLogs("limits"), func(c *Config) {
		c.Pattern = pattern
		windows := fixedwindow.New(limitertest.OpenClient(c.Redis), fixedwindow.Config{Limit: 9, Window: time.Hour})
		c.Others = append(c.Others, Other{Name: "windows", Prefix: "win:", Limiter: windows})
	})
	asked := map[string]bool{}
	names := plant(t, s)
	if pattern == "" { // within no pattern it is a limiter like others, and its rate is shown
		require.NoError(t, s.rdb.Del(t.Context(), "session:limiter").Err())
	}
	for _, name := range names {
		for _, r := range questions(t, name) {
			if r.Method == http.MethodPost && given != token {
				r.Body = http.NoBody // it is refused before that is read
			}
			if given != "" {
				r.Header.Set("Authorization", "Bearer "+given)
			}
			ctx, cancel := context.WithTimeout(r.Context(), 1500*time.Millisecond) // ends streams
			w := s.do(r.WithContext(ctx))
			cancel()
			asked[r.URL.Path] = true
			told := fmt.Sprint(w.Header(), w.Body)
			about := fmt.Sprintf("%s of %s", r.URL, name)
			require.NotContains(t, told, secret, about)
			require.NotContains(t, told, fmt.Sprint(int64(secretNumber)), about)
			if pattern != "" {
				require.NotContains(t, told, `"name":"session:`, about)
			}
		}
	}
	assert.Len(t, asked, len(endpoints))
	assert.Equal(t, secret, s.rdb.HGet(t.Context(), "session:hash", "token").Val())
	assert.NotContains(t, s.log.String(), secret)
	assert.NotContains(t, s.log.String(), fmt.Sprint(" ", int64(secretNumber)))
}

// Outside of the pattern an answer does not even show whether there is such a key.
func TestPattern_OutsideIsHidden(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Pattern = "api:*" })
	plant(t, s)
	answers := func(name string) (all []string) {
		for _, r := range questions(t, name) {
			path := r.URL.Path
			isList := slices.ContainsFunc([]string{"/api/openapi.json", "/api/about", "/api/audit", "/api/limiters", "/api/others"}, func(list string) bool {
				return strings.HasPrefix(path, list)
			})
			if isList || r.Method == http.MethodGet && strings.HasSuffix(path, "stream") {
				continue
			}
			r.Header.Set("Authorization", "Bearer "+token)
			w := s.do(r)
			all = append(all, fmt.Sprint(r.Method, path, w.Code, w.Body))
			assert.NotEqual(t, http.StatusOK, w.Code, "%s: %s", name, r.URL)
		}
		return all
	}
	assert.ElementsMatch(t, answers("session:nothing"), answers("session:limiter"))
	assert.ElementsMatch(t, answers("session:nothing"), answers("session:text"))
	assert.Empty(t, s.get("/api/audit")["entries"], "what is refused so is not in a list that others read")
	assert.Equal(t, int64(secretNumber), s.config("session:limiter").Rate)
}

// The page is 30 KB, and little for those who have it.
func TestPage_IsLight(t *testing.T) {
	t.Parallel()
	s, sum := newSite(t), 0
	for path := range limitertest.Must(pack())(t) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		r.Header.Set("Accept-Encoding", "gzip")
		w := s.do(r)
		sum += w.Body.Len()
		r.Header.Set("If-None-Match", w.Header().Get("ETag"))
		assert.Equal(t, http.StatusNotModified, s.do(r).Code, path)
	}
	assert.Less(t, sum, 60_000)
}
