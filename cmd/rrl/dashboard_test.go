package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startDashboard runs rrl dashboard until the test ends, and returns what it printed
// first.
func startDashboard(t *testing.T, env map[string]string, args ...string) (url, token string) {
	t.Helper()
	answer := startServed(t, env, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	return answer.URL, answer.Token
}

// startServed is startDashboard with where it listens, and all of what it printed.
func startServed(t *testing.T, env map[string]string, args ...string) served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		code := run(ctx, append([]string{"dashboard", "--json"}, args...), w, &stderr, func(name string) string { return env[name] })
		_ = w.Close()
		ended <- code
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case code := <-ended:
			assert.Equal(t, exitYes, code, stderr.String())
		case <-time.After(10 * time.Second):
			t.Error("it does not end")
		}
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err, stderr.String())
	go func() { _, _ = io.Copy(io.Discard, r) }()
	var answer served
	require.NoError(t, json.Unmarshal([]byte(line), &answer), line)
	return answer
}

// ask sends a request and returns status and body.
func ask(t *testing.T, method, url, token, host string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	require.NoError(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	r.Host = host
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

func TestTheDashboardOfTheDemo(t *testing.T) {
	t.Parallel()
	url, token := startDashboard(t, map[string]string{"REDIS_URL": "nowhere:1"}, "--write", "--demo")
	assert.Len(t, token, 26)
	_, body := ask(t, http.MethodGet, url+"api/about", token, "")
	assert.Contains(t, body, `"allowed":true`)
	assert.Contains(t, body, `"refusals":true`)
	for _, want := range []string{"demo:orders", "demo:damaged", "PER_CLIENT"} {
		_, body = ask(t, http.MethodGet, url+"api/limiters?limit=100", "", "")
		assert.Contains(t, body, want)
	}
	_, body = ask(t, http.MethodGet, url+"api/others", "", "")
	assert.Contains(t, body, "demo:window:")
	for host, want := range map[string]int{
		"": http.StatusOK, "localhost": http.StatusOK, "LOCALHOST:80": http.StatusOK, "[::1]:80": http.StatusOK, "[::1]": http.StatusOK, "127.0.0.1": http.StatusOK,
		"evil.example": http.StatusMisdirectedRequest, "localhost.evil.example:8320": http.StatusMisdirectedRequest, "10.0.0.1:8320": http.StatusMisdirectedRequest,
	} {
		status, _ := ask(t, http.MethodGet, url, "", host)
		assert.Equal(t, want, status, host)
	}
}

func TestTheDashboardOfAServer(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer func() { _ = rdb.Close() }()
	require.Equal(t, exitYes, rrl(t, "try-set-rate", "orders", "10/1m", "--redis", m.Addr()).code)
	require.NoError(t, rdb.Set(t.Context(), "api:ann", 3, time.Minute).Err())
	url, token := startDashboard(t, nil, "--redis", m.Addr(), "--keys", "fixed-window:api:=5/1m", "ord*")
	assert.Empty(t, token)
	_, body := ask(t, http.MethodGet, url+"api/limiters", "", "")
	assert.Contains(t, body, `"name":"orders"`)
	_, body = ask(t, http.MethodGet, url+"api/others", "", "")
	assert.Contains(t, body, `"name":"api:ann","bytes":7,"of":"fixed-window","limit":5,"free":2`)
	status, _ := ask(t, http.MethodPost, url+"api/change", "", "")
	assert.Equal(t, http.StatusUnauthorized, status)
}

func TestTokensOfTheDashboard(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	file := filepath.Join(t.TempDir(), "token")
	const mine, others = "sixteen characters", "another of that length"
	require.NoError(t, os.WriteFile(file, []byte(others+"\n"), 0o600))
	url, token := startDashboard(t, map[string]string{"RRL_DASHBOARD_TOKEN": mine + "\n"}, "--redis", m.Addr(), "--write")
	assert.Empty(t, token, "what is known already is not printed")
	_, body := ask(t, http.MethodGet, url+"api/about", mine, "")
	assert.Contains(t, body, `"allowed":true`)
	url, _ = startDashboard(t, map[string]string{"RRL_DASHBOARD_TOKEN": mine}, "--redis", m.Addr(), "--write", "--token-file", file)
	for token, want := range map[string]string{mine: `"allowed":false`, others: `"allowed":true`} {
		_, body := ask(t, http.MethodGet, url+"api/about", token, "")
		assert.Contains(t, body, want)
	}
	require.NoError(t, os.WriteFile(file, []byte("sixteen charactèrs"), 0o600))
	got := rrl(t, "dashboard", "--redis", m.Addr(), "--write", "--token-file", file)
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stderr, "a browser can't send")
	assert.NotContains(t, got.stderr, "sixteen")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, args := range [][]string{
		{"--demo"}, {"--token", "short"}, {"--token", "sixteen characters", "--open"}, {"--host", ""}, {"--host", "http://limits.example"}, {"--token", ""},
		{"--write", "--token-file", file}, {"--write", "--token-file", file + "x"}, {"--reads", "1"}, {"--listen", "nowhere"},
		{"--keys", "x"}, {"--keys", "fixed-window:api:"}, {"--keys", "fixed-window:api:=x"}, {"--keys", "sliding-log:api:=5/1s,"}, {"--keys", "tokens:api:=1/1s"}, {"--keys", "token-bucket:api:=x+1/1s"},
	} {
		got := rrl(t, append([]string{"dashboard", "--redis", m.Addr()}, args...)...)
		assert.Equal(t, exitError, got.code, "%v", args)
		assert.NotEmpty(t, got.stderr)
	}
	assert.Equal(t, exitError, rrl(t, "dashboard", "--keys", "fixed-window:api:=5/1m").code, "without --redis")
	assert.True(t, strings.HasPrefix(served{URL: "u", Shows: "s", Token: "t"}.String(), "dashboard: u shows s\ntoken: t"))
}

// What it shows is what was named, and it says so first.
func TestWhatTheDashboardShows(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	env := map[string]string{"REDIS_URL": "redis://" + m.Addr()}
	require.Equal(t, exitYes, rrl(t, "try-set-rate", "orders", "10/1m", "--redis", m.Addr()).code)
	for _, tt := range []struct {
		name  string
		env   map[string]string
		args  []string
		shows string
		has   string
	}{
		{"a variable", env, nil, "the server at " + m.Addr(), "orders"},
		{"a flag before a variable", map[string]string{"REDIS_URL": "nowhere:1"}, []string{"--redis", m.Addr()}, "the server at " + m.Addr(), "orders"},
		{"a demo by name", env, []string{"--demo"}, "a demo: ", "demo:orders"},
		{"nothing", nil, nil, "a demo: ", "demo:orders"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			answer := startServed(t, tt.env, append([]string{"--listen", "127.0.0.1:0"}, tt.args...)...)
			assert.Contains(t, answer.Shows, tt.shows)
			assert.Contains(t, strings.SplitN(answer.String(), "\n", 2)[0], tt.shows)
			_, body := ask(t, http.MethodGet, answer.URL+"api/limiters?limit=100", "", "")
			assert.Contains(t, body, `"name":"`+tt.has)
		})
	}
}

// Where other machines reach the page, looking needs a token, and its names are known.
func TestTheDashboardOnOtherAddresses(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		got := rrl(t, "dashboard", "--redis", m.Addr(), "--listen", listen)
		assert.Equal(t, exitError, got.code, listen)
		for _, want := range []string{"--listen " + listen, "$RRL_DASHBOARD_READ_TOKEN", "--token", "--open"} {
			assert.Contains(t, got.stderr, want)
		}
	}
	got := rrl(t, "dashboard", "--redis", m.Addr(), "--write", "--token-file", tokenFile(t), "--token", "sixteen characters")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stderr, "who may look could change")

	const look = "a token for looking"
	byFlag := startServed(t, nil, "--redis", m.Addr(), "--listen", "0.0.0.0:0", "--host", "limits.example", "--token", look)
	port := byFlag.URL[strings.LastIndex(byFlag.URL, ":"):]
	assert.Equal(t, "http://limits.example"+port, byFlag.URL)
	assert.NotContains(t, byFlag.String(), look)
	byEnv := startServed(t, map[string]string{"RRL_DASHBOARD_READ_TOKEN": look}, "--redis", m.Addr(), "--listen", "0.0.0.0:0")
	open := startServed(t, nil, "--redis", m.Addr(), "--listen", "0.0.0.0:0", "--open")
	for _, tt := range []struct {
		answer      served
		token, host string
		want        int
	}{
		{byFlag, look, "", http.StatusOK}, {byFlag, "", "", http.StatusUnauthorized}, {byFlag, look + "x", "", http.StatusUnauthorized},
		{byFlag, look, "limits.example", http.StatusOK}, {byFlag, look, "LIMITS.example.:80", http.StatusOK}, {byFlag, look, "evil.example", http.StatusMisdirectedRequest},
		{byEnv, look, "", http.StatusOK}, {byEnv, "", "", http.StatusUnauthorized}, {byEnv, look, "limits.example", http.StatusMisdirectedRequest},
		{open, "", "", http.StatusOK}, {open, "", "localhost", http.StatusOK}, {open, "", "0.0.0.0", http.StatusOK}, {open, "", "evil.example", http.StatusMisdirectedRequest},
		{open, "", "192.0.2.1", http.StatusMisdirectedRequest},
	} {
		port := tt.answer.URL[strings.LastIndex(tt.answer.URL, ":"):]
		for _, path := range []string{"", "api/limiters"} {
			status, _ := ask(t, http.MethodGet, "http://127.0.0.1"+port+path, tt.token, tt.host)
			assert.Equal(t, tt.want, status, "%s by %q with %q", tt.answer.URL, tt.host, tt.token)
		}
	}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, addr := range addrs {
		if network, ok := addr.(*net.IPNet); ok && network.IP.To4() != nil {
			status, _ := ask(t, http.MethodGet, "http://127.0.0.1"+open.URL[strings.LastIndex(open.URL, ":"):], "", network.IP.String())
			assert.Equal(t, http.StatusOK, status, "%s", network.IP)
		}
	}
}

func tokenFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("sixteen characters"), 0o600))
	return file
}
