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

// patient is how long a gateway waits for Redis in tests: a busy machine is no
// reason to give up.
const patient = "1m"

// site is a gateway that answers.
type site struct {
	t      *testing.T
	url    string
	logged *redistest.Buffer
	send   func(*http.Request) (*http.Response, error)
}

// serve runs a gateway as the command does, until the test ends.
func serve(t *testing.T, args ...string) *site {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	s := &site{t: t, logged: &redistest.Buffer{}, send: client.Do}
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		usual := []string{"--listen", "127.0.0.1:0", "--timeout", patient}
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

// inMemory answers in place of the network, and sees what would go out.
type inMemory struct {
	t     testing.TB
	model http.Handler
}

func (s *inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	assert.Equal(s.t, []string{"192.0.2.1"}, r.Header["X-Forwarded-For"], "the model hears the peer's address and no other")
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	s.model.ServeHTTP(w, r)
	got := w.Result()
	got.Request = r
	return got, nil
}

// newInMemory returns a gateway whose model is in memory.
func newInMemory(t testing.TB, rdb redistest.Client, log io.Writer, failure limit.Failure, planOf func(string) string) (*gateway, *inMemory) {
	t.Helper()
	transport := &inMemory{t, chat()}
	g, err := newGateway(config{
		rdb: rdb.(*redis.Client), model: &url.URL{Scheme: "http", Host: "model"}, transport: transport, planOf: planOf,
		timeout: time.Minute, failure: failure, log: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, err)
	return g, transport
}

// virtual runs test in a bubble, with a gateway whose Redis is behind a proxy.
func virtual(t *testing.T, failure limit.Failure, planOf func(string) string,
	test func(t *testing.T, s *site, rdb redistest.Client, proxy *redistest.Proxy),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		s := &site{t: t, logged: &redistest.Buffer{}}
		g, _ := newInMemory(t, proxy.Client(t, nil), s.logged, failure, planOf)
		t.Cleanup(func() { assert.NoError(t, g.client.Close(context.Background())) })
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

// chat makes a request of a user, whose answer has that many words.
func (s *site) chat(user string, words, status int) answer {
	s.t.Helper()
	return s.ask("POST /chat", fmt.Sprintf(`{"prompt": "say hello", "words": %d}`, words), http.Header{"X-User": {user}}, status)
}

// remaining is what the headers say remains of each policy.
func remaining(t testing.TB, h http.Header) map[string]int64 {
	t.Helper()
	states, err := middlewaretest.Members(h, "RateLimit")
	require.NoError(t, err)
	all := map[string]int64{}
	for _, s := range states {
		all[s.Name] = s.Params["r"]
	}
	return all
}

// checkKeys checks that Redis has keys of the gateway alone, each with the user as its hash tag.
func checkKeys(t testing.TB, rdb redistest.Client) {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		assert.Regexp(t, `^gateway:(requests|tokens)-(minute|day):\{[^{}]*\}(:value|:permits)?$`, key)
	}
}
