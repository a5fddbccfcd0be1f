package compat_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// javaBlock returns the first block of Java that a page shows.
func javaBlock(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", page))
	require.NoError(t, err)
	_, code, found := strings.Cut(string(text), "```java\n")
	require.True(t, found, "%s shows no Java", page)
	code, _, _ = strings.Cut(code, "```")
	return code
}

// The Java that the docs show is compiled without a warning of calls that the newest Redisson
// deprecates, and the program of docs/java.md takes a permit of Go's limiter.
func TestDocs_JavaSharesALimiter(t *testing.T) {
	t.Parallel()
	classPath, err := javadriver.RedissonClassPath("java", newestRedisson)
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Error())
	}
	require.NoError(t, err)
	server := redistest.StartRedis(t)
	limiter := rratelimiter.New(server.Client(t, nil), limitertest.Patient()).RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(100)))
	ok, err := limiter.TryAcquire(t.Context(), 1, 0)
	require.NoError(t, err)
	require.True(t, ok)

	dir := t.TempDir()
	program := javaBlock(t, "docs/java.md")
	imports, _, _ := strings.Cut(program, "public class")
	for name, code := range map[string]string{
		"Orders.java": strings.ReplaceAll(program, "localhost:6379", server.Addr()),
		"Readme.java": imports + "class Readme { void run(RedissonClient redisson) {\n" + javaBlock(t, "README.md") + "}}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(code), 0o600))
	}
	java := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	said := java("javac", "-Xlint:deprecation", "-cp", classPath, "Orders.java", "Readme.java")
	assert.NotContains(t, said, "[deprecation]")
	said = java("java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", dir+string(os.PathListSeparator)+classPath, "Orders")
	assert.Equal(t, "true\n", said)
	free, err := limiter.AvailablePermits(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 98, free)
}
