package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
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
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		code := run(ctx, append([]string{"dashboard", "--json", "--listen", "127.0.0.1:0"}, args...), w, &stderr, func(name string) string { return env[name] })
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
	return answer.URL, answer.Token
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
	url, token := startDashboard(t, map[string]string{"REDIS_URL": "nowhere:1"}, "--write")
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
		{"--write", "--token-file", file}, {"--write", "--token-file", file + "x"}, {"--reads", "1"}, {"--listen", "nowhere"},
		{"--keys", "x"}, {"--keys", "fixed-window:api:"}, {"--keys", "fixed-window:api:=x"}, {"--keys", "tokens:api:=1/1s"}, {"--keys", "token-bucket:api:=x+1/1s"},
	} {
		got := rrl(t, append([]string{"dashboard", "--redis", m.Addr()}, args...)...)
		assert.Equal(t, exitError, got.code, "%v", args)
		assert.NotEmpty(t, got.stderr)
	}
	assert.Equal(t, exitError, rrl(t, "dashboard", "--keys", "fixed-window:api:=5/1m").code, "without --redis")
	assert.True(t, strings.HasPrefix(served{URL: "u", Token: "t"}.String(), "dashboard: u\ntoken: t"))
}
