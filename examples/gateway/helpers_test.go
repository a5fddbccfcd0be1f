package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	token  = "secret"
	plenty = 1_000_000

	// patient is how long a gateway waits for Redis in tests: a busy machine is no
	// reason to give up.
	patient = "1m"
)

// site is a gateway that answers.
type site struct {
	t      *testing.T
	url    string
	logged *redistest.Buffer
	quota  int64 // of each client in a minute
	send   func(*http.Request) (*http.Response, error)
}

// serve runs a gateway as the command does, until the test ends.
func serve(t *testing.T, quota int64, args ...string) *site {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	s := &site{t: t, logged: &redistest.Buffer{}, quota: quota, send: client.Do}
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		usual := []string{"--listen", "127.0.0.1:0", "--token", token, "--per-client", fmt.Sprint(quota), "--timeout", patient}
		err := run(ctx, append(usual, args...), in, s.logged)
		_ = in.CloseWithError(errors.Join(err, io.EOF))
		done <- err
	}()
	t.Cleanup(func() {
		client.CloseIdleConnections()
		cancel()
		assert.NoError(t, <-done)
	})
	said := bufio.NewReader(out)
	first, err := said.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, said) }()
	s.url = strings.Fields(first)[2]
	return s
}

func redisURL(address string) string {
	return "redis://" + address + "?read_timeout=" + patient + "&pool_timeout=" + patient
}

// services answers in place of the network, and sees what would go out.
type services struct {
	t    testing.TB
	host map[string]http.Handler
}

func (s *services) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
	} else {
		r.Body = http.NoBody
	}
	assert.Equal(s.t, []string{"192.0.2.1"}, r.Header["X-Forwarded-For"], "the service hears the peer's address and no other")
	w := httptest.NewRecorder()
	s.host[r.URL.Host].ServeHTTP(w, r)
	return w.Result(), nil
}

// inMemory returns a gateway whose services are in memory.
func inMemory(rdb redistest.Client, log io.Writer, quota int64, failure limit.Failure) (*gateway, *services) {
	transport := &services{host: map[string]http.Handler{"greeter": greeter(), "shop": shop(), "chat": chat()}}
	at := func(host string) *url.URL { return &url.URL{Scheme: "http", Host: host} }
	return newGateway(config{
		rdb: rdb.(*redis.Client), greeter: at("greeter"), shop: at("shop"), chat: at("chat"), transport: transport,
		token: token, perClient: quota, shopRate: plenty, tokens: plenty, timeout: time.Minute, failure: failure,
		log: slog.New(slog.NewTextHandler(log, nil)),
	}), transport
}

// virtual runs test in a bubble, with a gateway whose Redis is behind a proxy.
func virtual(t *testing.T, quota int64, failure limit.Failure,
	test func(t *testing.T, s *site, rdb redistest.Client, proxy *redistest.Proxy),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		s := &site{t: t, logged: &redistest.Buffer{}, quota: quota}
		g, transport := inMemory(proxy.Client(t, nil), s.logged, quota, failure)
		t.Cleanup(g.close)
		transport.t = t
		s.send = func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			return w.Result(), nil
		}
		test(t, s, rdb, proxy)
	})
}

// answer is the result of a request.
type answer struct {
	*http.Response

	body string
}

// try makes a request. "GET /hello" is what it asks for.
func (s *site) try(what, body string, header http.Header) (answer, error) {
	method, path, _ := strings.Cut(what, " ")
	r := httptest.NewRequest(method, s.url+path, strings.NewReader(body))
	r.RequestURI = ""
	maps.Copy(r.Header, header)
	got, err := s.send(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	return answer{got, string(text)}, err
}

// ask makes a request that must be answered by a status.
func (s *site) ask(what, body string, header http.Header, status int) answer {
	s.t.Helper()
	got, err := s.try(what, body, header)
	require.NoError(s.t, err)
	require.Equal(s.t, status, got.StatusCode, "%s: %s", what, got.body)
	return got
}

// as makes a request of a user.
func (s *site) as(user, what string, status int) answer {
	s.t.Helper()
	return s.ask(what, "", http.Header{"X-User": {user}}, status)
}

// admin makes a request with the token.
func (s *site) admin(what, body string, status int) answer {
	s.t.Helper()
	return s.ask(what, body, http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}, status)
}

// threshold is a user's threshold for /hello.
func threshold(user string) string {
	return "/admin/threshold?" + url.Values{"limiter": {"hello"}, "key": {"limit:" + user + ":/hello"}}.Encode()
}

// quotas are what the headers say about each policy: its limit, its window in seconds and
// what remains.
func quotas(t testing.TB, h http.Header) map[string][3]int64 {
	t.Helper()
	declared, err := middlewaretest.Members(h, "RateLimit-Policy")
	require.NoError(t, err)
	states, err := middlewaretest.Members(h, "RateLimit")
	require.NoError(t, err)
	require.Len(t, states, len(declared))
	all := map[string][3]int64{}
	for i, d := range declared {
		require.Equal(t, d.Name, states[i].Name)
		all[d.Name] = [3]int64{d.Params["q"], d.Params["w"], states[i].Params["r"]}
	}
	return all
}

// ours reports whether a key of Redis begins as the gateway's do.
func ours(key string) bool {
	key = strings.TrimPrefix(key, "{")
	prefixes := []string{userPrefix, clientPrefix + "client:", clientPrefix + "admin:", clientPrefix + "tokens:", shopLimiter}
	return key == thresholds || slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// checkKeys checks that Redis has keys of the gateway alone.
func checkKeys(t testing.TB, rdb redistest.Client) {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		assert.True(t, ours(key), "%q", key)
		assert.NotContains(t, strings.TrimPrefix(key, "{"), "{", "%q", key)
	}
}
