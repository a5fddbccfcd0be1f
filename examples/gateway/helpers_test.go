package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const token = "secret"

// site is a gateway that runs as the command does.
type site struct {
	t      *testing.T
	url    string
	logged *buffer
	quota  int64 // of each client in a minute
	http   *http.Client
}

// buffer is written to while it is read.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// patient is how long a gateway waits for Redis in tests: a busy machine is no
// reason to give up.
const patient = "1m"

// serve runs a gateway until the test ends.
func serve(t *testing.T, quota int64, args ...string) *site {
	t.Helper()
	s := &site{t: t, logged: &buffer{}, quota: quota, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"--listen", "127.0.0.1:0", "--token", token, "--per-client", fmt.Sprint(quota), "--timeout", patient}, args...), in, s.logged)
		_ = in.CloseWithError(errors.Join(err, io.EOF))
		done <- err
	}()
	t.Cleanup(func() {
		s.http.CloseIdleConnections()
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

// engines runs test on a gateway before miniredis and on one before a server.
// Each gets a client of that Redis.
func engines(t *testing.T, quota int64, test func(t *testing.T, s *site, rdb *redis.Client)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		rdb, m := redistest.Mini(t)
		require.NoError(t, m.Start())
		test(t, serve(t, quota, "--redis", redisURL(m.Addr())), rdb)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.StartRedis(t)
		test(t, serve(t, quota, "--redis", redisURL(server.Addr())), server.Client(t, nil))
	})
}

func redisURL(address string) string {
	return "redis://" + address + "?read_timeout=" + patient + "&pool_timeout=" + patient
}

// answer is what came of a request.
type answer struct {
	*http.Response

	body string
}

func (s *site) do(method, path, body string, header http.Header) (answer, error) {
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	maps.Copy(r.Header, header)
	got, err := s.http.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	return answer{got, string(text)}, err
}

// as makes a request of a user.
func (s *site) as(user, method, path string) (answer, error) {
	return s.do(method, path, "", http.Header{"X-User": {user}})
}

// admin makes a request with the token.
func (s *site) admin(method, path, body string) (answer, error) {
	return s.do(method, "/admin"+path, body, http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}})
}

// setThreshold sets a user's threshold for /hello; below 0 it resets it.
func (s *site) setThreshold(user string, n int64) error {
	query := "/threshold?" + url.Values{"limiter": {"hello"}, "key": {"limit:" + user + ":/hello"}}.Encode()
	method, body, want := http.MethodPut, fmt.Sprintf(`{"threshold":%d}`, n), http.StatusOK
	if n < 0 {
		method, body, want = http.MethodDelete, "", http.StatusNoContent
	}
	got, err := s.admin(method, query, body)
	if err == nil && got.StatusCode != want {
		err = fmt.Errorf("%s %s: %s: %s", method, query, got.Status, got.body)
	}
	return err
}

// quota is what the headers say about one policy.
type quota struct{ q, w, r, t int64 }

// policies reads RateLimit-Policy and RateLimit.
func policies(h http.Header) (map[string]quota, error) {
	declared, err := parseList(h.Values("RateLimit-Policy"))
	if err != nil {
		return nil, err
	}
	states, err := parseList(h.Values("RateLimit"))
	if err != nil {
		return nil, err
	}
	if len(declared) != len(states) {
		return nil, fmt.Errorf("%d policies and %d states", len(declared), len(states))
	}
	all := map[string]quota{}
	for i, d := range declared {
		s := states[i]
		if d.name != s.name || len(d.params) != 2 || len(s.params) > 2 {
			return nil, fmt.Errorf("%v does not go with %v", d, s)
		}
		p := quota{q: d.params["q"], w: d.params["w"], r: s.params["r"], t: s.params["t"]}
		// No wait brings what a limit of 0 refuses, and it tells of none.
		_, waits := s.params["t"]
		if p.r < 0 || p.r > p.q || p.w < 1 || p.t > p.w || waits != (p.t >= 1) || waits != (p.q > 0) {
			return nil, fmt.Errorf("%s: %+v", d.name, p)
		}
		all[d.name] = p
	}
	return all, nil
}

// The headers of an answer that passed and of one that was refused.
var (
	passedHeaders  = []string{"Content-Length", "Content-Type", "Date", "Ratelimit", "Ratelimit-Policy"}
	refusedHeaders = []string{"Cache-Control", "Content-Length", "Content-Type", "Date", "Ratelimit", "Ratelimit-Policy", "Retry-After", "X-Content-Type-Options"}
)

// checkUser checks every header of an answer to a user on a route of this
// threshold and window, and the body, and returns what is left. granted is
// whether it passed.
func (s *site) checkUser(got answer, threshold int64, window time.Duration) (left int64, granted bool, err error) {
	all, err := policies(got.Header)
	if err != nil {
		return 0, false, err
	}
	client, user := all["client"], all["user"]
	if len(all) != 2 || client.q != s.quota || client.w != 60 {
		return 0, false, fmt.Errorf("policies %+v", all)
	}
	if user.q != threshold || user.w != int64(window.Seconds()) {
		return 0, false, fmt.Errorf("user's policy %+v, want %d in %v", user, threshold, window)
	}
	names := slices.Sorted(maps.Keys(got.Header))
	switch got.StatusCode {
	case http.StatusOK:
		if !slices.Equal(names, passedHeaders) {
			return 0, false, fmt.Errorf("headers %v", got.Header)
		}
		return user.r, true, nil
	case http.StatusTooManyRequests:
		return user.r, false, checkRefusal(got, "user", user)
	}
	return 0, false, fmt.Errorf("answer %s: %s", got.Status, got.body)
}

// checkRefusal checks a 429 by one policy.
func checkRefusal(got answer, policy string, p quota) error {
	h := got.Header
	expected := refusedHeaders
	if p.q == 0 {
		expected = slices.DeleteFunc(slices.Clone(expected), func(name string) bool { return name == "Retry-After" })
	} else if retry, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64); err != nil || retry < 1 || retry < p.t || retry > p.w {
		return fmt.Errorf("Retry-After %q with %+v", h.Get("Retry-After"), p)
	}
	names := slices.Sorted(maps.Keys(h))
	if !slices.Equal(names, expected) || h.Get("Cache-Control") != "no-store" || h.Get("Content-Type") != "application/problem+json" {
		return fmt.Errorf("headers %v", got.Header)
	}
	var problem struct {
		Type     string
		Title    string
		Status   int
		Violated []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(got.body), &problem); err != nil {
		return err
	}
	if problem.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" || problem.Title == "" ||
		problem.Status != http.StatusTooManyRequests || !slices.Equal(problem.Violated, []string{policy}) {
		return fmt.Errorf("body %s", got.body)
	}
	return nil
}

// within runs f until it has kept to its time: what it sees may be otherwise
// once a window is over, and a busy machine must not decide a test.
func within(t *testing.T, window time.Duration, f func() error) {
	t.Helper()
	for {
		start := time.Now()
		err := f()
		if time.Since(start) < window {
			assert.NoError(t, err)
			return
		}
		t.Logf("took longer than %v, again: %v", window, err)
	}
}
