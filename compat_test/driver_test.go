package compat_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// javaDriver is a JVM with one release of Redisson.
type javaDriver struct{ *javadriver.Process }

func newJavaDriver(version string) (*javaDriver, error) {
	jvm, err := javadriver.StartRedisson("java", version)
	return &javaDriver{jvm}, err
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

// javaTTL returns remainTimeToLive as go-redis would: -1 for no expiry, -2 for no
// limiter.
func javaTTL(ctx context.Context, c *javaClient, limiter string) (time.Duration, error) {
	ms, err := ask[int64](ctx, c, "ttl", limiter)
	if err != nil || ms < 0 {
		return time.Duration(ms), err
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// hammering is what came of javaClient.Hammer.
type hammering struct {
	Granted, Denied, Errors int64
	FirstError              string // empty if there was none
}

// Hammer has this many threads call tryAcquire(permits, timeout) with a pause
// after each call, the last call of each beginning before the time is up.
func (c *javaClient) Hammer(
	ctx context.Context, limiter string, threads int, permits int64, length, timeout, pause time.Duration,
) (hammering, error) {
	return ask[hammering](ctx, c, "hammer", limiter, threads, permits, length.Milliseconds(), timeout.Milliseconds(), pause.Milliseconds())
}

func TestDriverBlockedCall(t *testing.T) {
	t.Parallel()
	java, name := service{nil, sharedDriver(t).open(t, redistest.Shared(t).URL()), t}, redistest.Name(t)
	require.True(t, java.TrySetRate(name, rratelimiter.PerHour(1)))
	require.True(t, java.Try(name, 1))
	waiting, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- java.Acquire(waiting, name, 1) }()
	assert.False(t, java.Try(name, 1), "while another call waits")
	stop()
	require.ErrorIs(t, <-result, context.Canceled)
}

func TestDriverHammer(t *testing.T) {
	t.Parallel()
	java, name := service{nil, sharedDriver(t).open(t, redistest.Shared(t).URL()), t}, redistest.Name(t)
	h, err := java.java.Hammer(t.Context(), name, 2, 1, 50*time.Millisecond, 0, 0)
	require.NoError(t, err)
	assert.Zero(t, h.Granted)
	assert.Positive(t, h.Errors)
	assert.Contains(t, h.FirstError, "RateLimiter is not initialized")

	require.True(t, java.TrySetRate(name, rratelimiter.PerHour(10)))
	granted, denied := int64(0), int64(0)
	for denied == 0 {
		h, err = java.java.Hammer(t.Context(), name, 4, 2, 50*time.Millisecond, 0, 0)
		require.NoError(t, err)
		assert.Zero(t, h.Errors, h.FirstError)
		granted, denied = granted+h.Granted, denied+h.Denied
	}
	assert.EqualValues(t, 5, granted, "grants of 2 of 10 permits")
}

func TestDriverJVMEnds(t *testing.T) {
	t.Parallel()
	d := startDriver(t, *redissonVersion)
	d.Kill()
	_, err := javadriver.Call[string](t.Context(), d.Process, "version")
	assert.ErrorContains(t, err, "signal: killed")
}
