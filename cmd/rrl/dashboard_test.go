package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/story"
)

// dashboard runs rrl dashboard until the test ends, and returns what it printed first.
func (s servers) dashboard(format string, args ...any) served {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	line := story.Words("dashboard --json --listen 127.0.0.1:0 " + fmt.Sprintf(format, args...))
	go func() {
		code := runPatiently(ctx, append(line, s.flags...), w, &stderr, s.env)
		_ = w.Close()
		ended <- code
	}()
	s.t.Cleanup(func() {
		cancel()
		select {
		case code := <-ended:
			assert.Equal(s.t, exitYes, code, stderr.String())
		case <-time.After(time.Minute):
			s.t.Error("it does not end")
		}
	})
	first, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(s.t, err, stderr.String())
	go func() { _, _ = io.Copy(io.Discard, r) }()
	var answer served
	require.NoError(s.t, json.Unmarshal([]byte(first), &answer), first)
	return answer
}

// with returns the servers with these variables of the environment.
func (s servers) with(env map[string]string) servers {
	s.env = env
	return s
}

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

func TestDashboard_Demo(t *testing.T) {
	t.Parallel()
	answer := servers{t: t}.with(map[string]string{"REDIS_URL": "nowhere:1"}).dashboard("--write --demo")
	url := answer.URL
	assert.Len(t, answer.Token, 26)
	_, body := ask(t, http.MethodGet, url+"api/about", answer.Token, "")
	assert.Contains(t, body, `"allowed":true`)
	assert.Contains(t, body, `"refusals":true`)
	_, body = ask(t, http.MethodGet, url+"api/limiters?limit=100", "", "")
	for _, want := range []string{"demo:orders", "demo:damaged", "PER_CLIENT"} {
		assert.Contains(t, body, want)
	}
	require.Eventually(t, func() bool { // the demo's window is there while its callers come
		_, body := ask(t, http.MethodGet, url+"api/others", "", "")
		return strings.Contains(body, "demo:window:")
	}, time.Minute, 10*time.Millisecond)
}

func TestDashboard_ShowsLimitersAndOtherKeys(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("try-set-rate orders 10/1m => ...\n")
	require.NoError(t, s.rdb.Set(t.Context(), "api:ann", 3, time.Minute).Err())
	require.NoError(t, s.rdb.Set(t.Context(), "day:ann", 2, time.Minute).Err())
	answer := s.dashboard("--keys fixed-window:api:=5/1m --keys fixed-window:day:=5/daily@Europe/Berlin ord*")
	assert.Empty(t, answer.Token)
	_, body := ask(t, http.MethodGet, answer.URL+"api/limiters", "", "")
	assert.Contains(t, body, `"name":"orders"`)
	_, body = ask(t, http.MethodGet, answer.URL+"api/others", "", "")
	assert.Contains(t, body, `"name":"api:ann","bytes":7,"of":"fixed-window","limit":5,"free":2`)
	assert.Contains(t, body, `"name":"day:ann","bytes":7,"of":"fixed-window","limit":5,"free":3`)
	status, _ := ask(t, http.MethodPost, answer.URL+"api/change/delete?name=orders", "", "")
	assert.Equal(t, http.StatusUnauthorized, status)
}

const myToken, othersToken = "sixteen characters", "another of that length"

func tokenFile(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
	return file
}

func TestDashboard_Tokens(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	answer := s.with(map[string]string{"RRL_DASHBOARD_TOKEN": myToken + "\n"}).dashboard("--write")
	assert.Empty(t, answer.Token, "what is known already is not printed")
	_, body := ask(t, http.MethodGet, answer.URL+"api/about", myToken, "")
	assert.Contains(t, body, `"allowed":true`)
	file := tokenFile(t, othersToken+"\n")
	answer = s.with(map[string]string{"RRL_DASHBOARD_TOKEN": myToken}).dashboard("--write --token-file %s", file)
	for token, want := range map[string]string{myToken: `"allowed":false`, othersToken: `"allowed":true`} {
		_, body := ask(t, http.MethodGet, answer.URL+"api/about", token, "")
		assert.Contains(t, body, want)
	}
	got := s.rrl("dashboard --write --token-file %s", tokenFile(t, "sixteen charactèrs"))
	assert.Contains(t, got.stderr, "a browser can't send")
	assert.NotContains(t, got.stderr, "sixteen")
	assert.True(t, strings.HasPrefix(served{URL: "u", Shows: "s", Token: "t"}.String(), "dashboard: u shows s\ntoken: t"))
}

func TestDashboard_FlagsAreCheckedFirst(t *testing.T) {
	t.Parallel()
	servers{t: t}.fails("--demo shows keys of its own: leave out --keys", "dashboard", "--demo", "--keys", "fixed-window:api:=5/1m")
	// Before a server that is away.
	for flags, want := range map[string]string{"--keys x": "want KIND:PREFIX", "--token short": "easily guessed"} {
		servers{t: t, flags: []string{"--redis", "127.0.0.1:1"}}.fails(want, story.Words("dashboard "+flags)...)
	}
}

// It shows the server that was named, and says so first.
func TestDashboard_NamesServerItShows(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("try-set-rate orders 10/1m => ...\n")
	env, elsewhere := map[string]string{"REDIS_URL": "redis://" + s.addr}, map[string]string{"REDIS_URL": "nowhere:1"}
	for name, tt := range map[string]struct {
		s     servers
		args  string
		shows string
		has   string
	}{
		"a variable":               {servers{t: t, env: env}, "", "the server at " + s.addr, "orders"},
		"a flag before a variable": {s.with(elsewhere), "", "the server at " + s.addr, "orders"},
		"a demo by name":           {servers{t: t, env: env}, "--demo", "a demo: ", "demo:orders"},
	} {
		answer := tt.s.dashboard("%s", tt.args)
		assert.Contains(t, answer.Shows, tt.shows, name)
		assert.Contains(t, strings.SplitN(answer.String(), "\n", 2)[0], tt.shows, name)
		_, body := ask(t, http.MethodGet, answer.URL+"api/limiters?limit=100", "", "")
		assert.Contains(t, body, `"name":"`+tt.has, name)
	}
}

// If other machines reach the page, looking needs a token, and its names are known.
func TestDashboard_OtherAddressesNeedToken(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const look = "a token for looking"
	byFlag := s.dashboard("--listen 0.0.0.0:0 --host limits.example --token %q", look)
	assert.Equal(t, "http://limits.example"+portOf(byFlag), byFlag.URL)
	assert.NotContains(t, byFlag.String(), look)
	byEnv := s.with(map[string]string{"RRL_DASHBOARD_READ_TOKEN": look}).dashboard("--listen 0.0.0.0:0")
	open, local := s.dashboard("--listen 0.0.0.0:0 --open"), s.dashboard("")
	for _, tt := range []struct {
		answer      served
		token, host string
		want        int
	}{
		{byFlag, look, "", http.StatusOK}, {byFlag, "", "", http.StatusUnauthorized}, {byFlag, look + "x", "", http.StatusUnauthorized},
		{byFlag, look, "limits.example", http.StatusOK}, {byFlag, look, "LIMITS.example.:80", http.StatusOK},
		{byFlag, look, "evil.example", http.StatusMisdirectedRequest},
		{byEnv, look, "", http.StatusOK}, {byEnv, "", "", http.StatusUnauthorized},
		{byEnv, look, "limits.example", http.StatusMisdirectedRequest},
		{open, "", "", http.StatusOK}, {open, "", "localhost", http.StatusOK}, {open, "", "0.0.0.0", http.StatusOK},
		{open, "", "evil.example", http.StatusMisdirectedRequest}, {open, "", "192.0.2.1", http.StatusMisdirectedRequest},
		{local, "", "", http.StatusOK}, {local, "", "LOCALHOST:80", http.StatusOK}, {local, "", "[::1]:80", http.StatusOK},
		{local, "", "[::1]", http.StatusOK}, {local, "", "127.0.0.1", http.StatusOK}, {local, "", "localhost", http.StatusOK},
		{local, "", "evil.example", http.StatusMisdirectedRequest}, {local, "", "10.0.0.1:8320", http.StatusMisdirectedRequest},
		{local, "", "localhost.evil.example:8320", http.StatusMisdirectedRequest},
	} {
		for _, path := range []string{"", "api/limiters"} {
			status, _ := ask(t, http.MethodGet, "http://127.0.0.1"+portOf(tt.answer)+path, tt.token, tt.host)
			assert.Equal(t, tt.want, status, "%s by %q with %q", tt.answer.URL, tt.host, tt.token)
		}
	}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, addr := range addrs {
		if network, ok := addr.(*net.IPNet); ok && network.IP.To4() != nil {
			status, _ := ask(t, http.MethodGet, "http://127.0.0.1"+portOf(open), "", network.IP.String())
			assert.Equal(t, http.StatusOK, status, "%s", network.IP)
		}
	}
}

// portOf returns ":", the port at which a page is served, and "/".
func portOf(answer served) string { return answer.URL[strings.LastIndex(answer.URL, ":"):] }

// Without an address it looks at this machine's Redis, as all other commands do, and says how to see a demo
// if there is none.
func TestTheDashboardOfNoAddress(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	stdout := cutOff{after: 1, call: cancel}
	code := runPatiently(ctx, story.Words("dashboard --listen 127.0.0.1:0"), &stdout, &stderr, nil)
	if code == exitYes {
		assert.Contains(t, stdout.String(), " shows the server at 127.0.0.1:6379\n")
		return
	}
	assert.Contains(t, stderr.String(), "127.0.0.1:6379")
	assert.Contains(t, stderr.String(), "; --redis or $REDIS_URL names another server, --demo starts one to look around\n")
}
