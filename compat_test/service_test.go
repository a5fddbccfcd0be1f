package compat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// service is a program that uses limiters, in either language. Its methods fail
// the test on an error, and skip it if the release of Redisson lacks the call.
type service struct {
	*rratelimiter.Client // nil in Java

	java *javaClient // nil in Go
	t    testing.TB
}

// newGo returns a Go service that uses rdb.
func newGo(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.Option) service {
	t.Helper()
	return service{limitertest.NewClient(t, rdb, opts...), nil, t}
}

// in returns the service for use in a subtest.
func (s service) in(t testing.TB) service { return service{s.Client, s.java, t} }

// done ends the test on an error.
func (s service) done(err error) {
	skipUnsupported(s.t, err)
	require.NoError(s.t, err)
}

// either makes a call of Java's limiter or of Go's, which must not fail.
func either[T any](s service, limiter, op string, goes func(l *rratelimiter.RateLimiter) (T, error), args ...any) (answer T) {
	s.t.Helper()
	var err error
	if s.java != nil {
		answer, err = ask[T](s.t.Context(), s.java, op, limiter, args...)
	} else {
		answer, err = goes(s.RateLimiter(limiter))
	}
	s.done(err)
	return answer
}

func (s service) TrySetRate(limiter string, cfg rratelimiter.Config) bool {
	return either(s, limiter, "trySetRate", func(l *rratelimiter.RateLimiter) (bool, error) { return l.TrySetRate(s.t.Context(), cfg) }, rateArgs(cfg)...)
}

func (s service) SetRate(limiter string, cfg rratelimiter.Config) {
	either(s, limiter, "setRate", func(l *rratelimiter.RateLimiter) (any, error) { return nil, l.SetRate(s.t.Context(), cfg) }, rateArgs(cfg)...)
}

func (s service) KeepState(limiter string, cfg rratelimiter.Config) {
	either(s, limiter, "setRateArgs", func(l *rratelimiter.RateLimiter) (any, error) {
		return nil, l.SetRate(s.t.Context(), cfg, rratelimiter.KeepState())
	}, rateArgs(cfg, true)...)
}

// take asks until a timeout is over, or once.
func (s service) take(ctx context.Context, limiter string, permits int64, timeout time.Duration) (bool, error) {
	switch {
	case s.java == nil:
		return s.RateLimiter(limiter).TryAcquire(ctx, permits, timeout)
	case timeout == 0:
		return ask[bool](ctx, s.java, "tryAcquire", limiter, permits)
	}
	return ask[bool](ctx, s.java, "tryAcquire", limiter, permits, timeout.Milliseconds())
}

func (s service) Try(limiter string, permits int64) bool {
	s.t.Helper()
	return s.Wait(limiter, permits, 0)
}

func (s service) Wait(limiter string, permits int64, timeout time.Duration) bool {
	s.t.Helper()
	ok, err := s.take(s.t.Context(), limiter, permits, timeout)
	s.done(err)
	return ok
}

func (s service) Acquire(ctx context.Context, limiter string, permits int64) error {
	if s.java != nil {
		return limitertest.Second(ask[any](ctx, s.java, "acquire", limiter, permits))
	}
	return s.RateLimiter(limiter).Acquire(ctx, permits)
}

func (s service) Release(limiter string, permits int64) {
	either(s, limiter, "release", func(l *rratelimiter.RateLimiter) (any, error) { return nil, l.Release(s.t.Context(), permits) }, permits)
}

func (s service) Available(limiter string) int64 {
	return either(s, limiter, "availablePermits", func(l *rratelimiter.RateLimiter) (int64, error) { return l.AvailablePermits(s.t.Context()) })
}

func (s service) Config(limiter string) rratelimiter.Config {
	return either(s, limiter, "getConfig", func(l *rratelimiter.RateLimiter) (rratelimiter.Config, error) { return l.Config(s.t.Context()) })
}

func (s service) Delete(limiter string) bool {
	return either(s, limiter, "delete", func(l *rratelimiter.RateLimiter) (bool, error) { return l.Delete(s.t.Context()) })
}

// unlink calls Redisson's unlink.
func (s service) unlink(limiter string) bool { return either[bool](s, limiter, "unlink", nil) }

// requireRelease skips the test if the release of Redisson is an older one.
func requireRelease(t testing.TB, first string) {
	t.Helper()
	if model.Older(*redissonVersion, first) {
		t.Skipf("Redisson %s is older than %s", *redissonVersion, first)
	}
}

// passTime lets time pass for the limiter: what Redis holds of it, also for the
// clients of these ids, is moved back in time.
func passTime(t testing.TB, rdb redistest.Client, limiter string, d time.Duration, ids ...string) {
	t.Helper()
	set := layout.KeysOf(limiter, "")
	all := []string{set.Config, set.Value, set.Permits}
	for _, id := range ids {
		set := layout.KeysOf(limiter, id)
		all = append(all, set.ClientValue, set.ClientPermits)
	}
	require.NoError(t, moveBack.Run(t.Context(), rdb, all, d.Milliseconds()).Err())
}

// javaDriver is a JVM with one release of Redisson.
type javaDriver struct {
	*javadriver.Process

	release *model.Release
}

func newJavaDriver(version string) (*javaDriver, error) {
	jvm, err := javadriver.StartRedisson("java", version)
	return &javaDriver{jvm, model.ReleaseOf(version)}, err
}

// service returns a service of the JVM that uses the server at url.
func (d *javaDriver) service(t testing.TB, url string) service {
	t.Helper()
	return service{nil, d.open(t, url), t}
}

// startDriver starts a JVM with this release of Redisson; the end of the test
// ends it. Most tests share one instead: sharedDriver.
func startDriver(t testing.TB, version string) *javaDriver {
	t.Helper()
	redistest.SkipShort(t, "a JVM with Redisson")
	d, err := newJavaDriver(version)
	skipIfMissing(t, err)
	t.Cleanup(d.Close)
	return d
}

var startShared = sync.OnceValues(func() (*javaDriver, error) { return newJavaDriver(*redissonVersion) })

// sharedDriver returns the test binary's JVM, with the release that -redisson
// names. The first call starts it; it ends with the binary.
func sharedDriver(t testing.TB) *javaDriver {
	t.Helper()
	redistest.SkipShort(t, "a JVM with Redisson")
	d, err := startShared()
	skipIfMissing(t, err)
	return d
}

func skipIfMissing(t testing.TB, err error) {
	t.Helper()
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Why)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// skipUnsupported ends the test if an older release lacks the operation.
func skipUnsupported(t testing.TB, err error) {
	t.Helper()
	if *redissonVersion != newestRedisson && errors.Is(err, javadriver.ErrUnsupported) {
		t.Skip(err)
	}
}

// javaClient is a RedissonClient of a javaDriver: one Java service.
type javaClient struct {
	// ID is the id that stands in the client's own keys of PER_CLIENT limiters.
	ID string

	driver *javaDriver
	name   string
}

var lastClient atomic.Int64

// open returns a new RedissonClient of the server at url, redis://host:port or
// redis://host:port/database; the end of the test closes it.
func (d *javaDriver) open(t testing.TB, url string) *javaClient {
	t.Helper()
	return d.openBy(t, "open", url)
}

// openThere returns a new RedissonClient of the servers of [redistest.CurrentClient], which reads
// of masters only: what Go has written is not at the replicas yet.
func (d *javaDriver) openThere(t testing.TB) *javaClient {
	t.Helper()
	to, patience := redistest.CurrentRoute(t), time.Minute.Milliseconds()
	return d.openBy(t, "openOn", to.Servers, to.Master, strings.Join(to.Addrs, ","), "", patience, "turns", patience/3)
}

// openBy is open by another operation of the driver, or with more arguments.
func (d *javaDriver) openBy(t testing.TB, op string, args ...any) *javaClient {
	t.Helper()
	c := &javaClient{driver: d, name: fmt.Sprint("c", lastClient.Add(1))}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	c.ID, err = javadriver.Call[string](ctx, d.Process, op, append([]any{c.name}, args...)...)
	skipUnsupported(t, err)
	if err != nil {
		t.Fatalf("%v\nstderr of the JVM:\n%s", err, d.Stderr())
	}
	t.Cleanup(func() {
		if text := d.Stderr(); t.Failed() && text != "" {
			t.Logf("stderr of the JVM, of all tests:\n%s", text)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// Redisson never answers the acquires that wait in it: their ctx ends those.
		if _, err := javadriver.Call[string](ctx, d.Process, "close", c.name); err != nil {
			t.Errorf("closing client %s: %v", c.name, err)
		}
	})
	return c
}

// ask calls an operation of the driver on a limiter.
func ask[T any](ctx context.Context, c *javaClient, op, limiter string, args ...any) (T, error) {
	return javadriver.Call[T](ctx, c.driver.Process, op, append([]any{c.name, limiter}, args...)...)
}

// rateArgs is how the driver takes a configuration; without a keep-alive time it calls the
// form that has none.
func rateArgs(cfg rratelimiter.Config, more ...any) []any {
	return append([]any{cfg.Type, cfg.Rate, cfg.Interval.Milliseconds(), cfg.KeepAlive.Milliseconds()}, more...)
}

func TestDriverJVMEnds(t *testing.T) {
	t.Parallel()
	d := startDriver(t, *redissonVersion)
	d.Kill()
	assert.ErrorContains(t, limitertest.Second(javadriver.Call[string](t.Context(), d.Process, "version")), "signal: killed")
}

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
