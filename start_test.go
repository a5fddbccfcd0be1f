package rratelimiter_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// seconds are what a step's output has of the time since the steps before.
var seconds = regexp.MustCompile(`(t=|Retry-After: )\d+`)

// TestStart takes the steps of docs/start.md as they stand, with a Redis and ports of its own.
func TestStart(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "building programs")
	if _, err := exec.LookPath("curl"); err != nil {
		redistest.SkipOrFail(t, "no curl")
	}
	server := redistest.StartRedis(t)
	var config net.ListenConfig
	port, err := config.Listen(t.Context(), "tcp", "localhost:0")
	require.NoError(t, err)
	addr, dir := port.Addr().String(), t.TempDir()

	text := strings.ReplaceAll(readText(t, "docs/start.md"), "localhost:8080", addr)
	program := strings.ReplaceAll(goBlocks(t, "docs/start.md")[0], "localhost:8080", addr)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	for name, of := range map[string]string{"shop": filepath.Join(dir, "main.go"), "rrl": "./cmd/rrl"} {
		out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, name), of).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	env := append(os.Environ(), "REDIS_ADDR="+server.Addr(), "REDIS_URL=redis://"+server.Addr(), "PATH="+dir+":"+os.Getenv("PATH"))
	shop := exec.CommandContext(t.Context(), filepath.Join(dir, "shop"))
	shop.Env = env
	require.NoError(t, port.Close()) // not before: others may take it while programs are built
	require.NoError(t, shop.Start())
	t.Cleanup(func() { _, _ = shop.Process.Kill(), shop.Wait() })
	require.Eventually(t, func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		return err == nil && conn.Close() == nil
	}, time.Minute, 10*time.Millisecond)

	ask, steps := "", 0
	sh := func(script string) string {
		run := exec.CommandContext(t.Context(), "bash", "-c", script)
		run.Env = env
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s%s", script, out)
		return strings.Join(trimmed(string(out)), "\n")
	}
	for _, step := range regexp.MustCompile("(?s)```sh\n([^`]*)```\n\n```text\n(.*?)```\n").FindAllStringSubmatch(text, -1) {
		if strings.Contains(step[1], "fay") {
			server.Crash()
		}
		if strings.Contains(step[1], "set-rate") {
			server.Restart(t)
			awaitRedisAsked(t, server.Client(t, nil), "http://"+addr+"/orders")
		}
		got := sh(ask + strings.ReplaceAll(step[1], "go install", "# go install"))
		assert.Contains(t, seconds.ReplaceAllString(got, "${1}n"), seconds.ReplaceAllString(strings.TrimSpace(step[2]), "${1}n"), step[1])
		if line, _, found := strings.Cut(step[1], "\n"); found && strings.HasPrefix(line, "ask()") {
			ask = line + "\n"
		}
		steps++
	}
	assert.Equal(t, 5, steps)
	assert.Contains(t, sh("rrl top --once; rrl doctor || [ $? = 1 ]"), "http:user:ann")
}

// awaitRedisAsked waits until the server at url asks Redis again after an outage. A request that
// Redis answers late does not do: the server leaves Redis alone after it, and decides the next
// one by itself.
func awaitRedisAsked(t *testing.T, rdb redistest.Client, url string) {
	t.Helper()
	users := 0
	require.Eventually(t, func() bool {
		users++
		user, from := fmt.Sprint("gus", users), fmt.Sprintf("203.0.%d.%d", users/200, users%200)
		for range 2 {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
			require.NoError(t, err)
			request.Header = http.Header{"X-User": {user}, "X-Forwarded-For": {from}}
			if answer, err := http.DefaultClient.Do(request); err != nil || answer.Body.Close() != nil {
				return false
			}
		}
		return rdb.Get(t.Context(), "{http:user:"+user+"}:value").Val() == "1"
	}, time.Minute, 100*time.Millisecond, "the server asks Redis again")
}
