package compat_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
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

// newJava returns a Java service that uses the server at url. The module shares
// limiters with Redisson from 3.35 on.
func newJava(t testing.TB, url string) service {
	t.Helper()
	driver := sharedDriver(t)
	requireRelease(t, "3.35.0")
	return service{nil, driver.open(t, url), t}
}

// newBoth returns a Java and a Go service that use the shared server.
func newBoth(t testing.TB, opts ...rratelimiter.Option) (java, goes service, rdb redistest.Client) {
	t.Helper()
	java, rdb = newJava(t, redistest.Shared(t).URL()), redistest.Redis(t)
	return java, newGo(t, rdb, opts...), rdb
}

// in returns the service for use in a subtest.
func (s service) in(t testing.TB) service { return service{s.Client, s.java, t} }

// done ends the test on an error.
func (s service) done(err error) {
	skipUnsupported(s.t, err)
	require.NoError(s.t, err)
}

func (s service) ok(ok bool, err error) bool {
	s.done(err)
	return ok
}

func (s service) TrySetRate(limiter string, cfg rratelimiter.Config) bool {
	if s.java != nil {
		return s.ok(ask[bool](s.t.Context(), s.java, "trySetRate", limiter, rateArgs(cfg)...))
	}
	return s.ok(s.RateLimiter(limiter).TrySetRate(s.t.Context(), cfg))
}

func (s service) SetRate(limiter string, cfg rratelimiter.Config) {
	if s.java != nil {
		s.done(limitertest.Second(ask[any](s.t.Context(), s.java, "setRate", limiter, rateArgs(cfg)...)))
	} else {
		s.done(s.RateLimiter(limiter).SetRate(s.t.Context(), cfg))
	}
}

func (s service) KeepState(limiter string, cfg rratelimiter.Config) {
	if s.java != nil {
		s.done(limitertest.Second(ask[any](s.t.Context(), s.java, "setRateArgs", limiter, rateArgs(cfg, true)...)))
	} else {
		s.done(s.RateLimiter(limiter).SetRate(s.t.Context(), cfg, rratelimiter.KeepState()))
	}
}

// take asks once.
func (s service) take(ctx context.Context, limiter string, permits int64) (bool, error) {
	if s.java != nil {
		return ask[bool](ctx, s.java, "tryAcquire", limiter, permits)
	}
	return s.RateLimiter(limiter).TryAcquire(ctx, permits, 0)
}

func (s service) Try(limiter string, permits int64) bool {
	return s.ok(s.take(s.t.Context(), limiter, permits))
}

func (s service) Wait(limiter string, permits int64, timeout time.Duration) bool {
	if s.java != nil {
		return s.ok(ask[bool](s.t.Context(), s.java, "tryAcquire", limiter, permits, timeout.Milliseconds()))
	}
	return s.ok(s.RateLimiter(limiter).TryAcquire(s.t.Context(), permits, timeout))
}

func (s service) Acquire(ctx context.Context, limiter string, permits int64) error {
	if s.java != nil {
		return limitertest.Second(ask[any](ctx, s.java, "acquire", limiter, permits))
	}
	return s.RateLimiter(limiter).Acquire(ctx, permits)
}

func (s service) Release(limiter string, permits int64) {
	if s.java != nil {
		s.done(limitertest.Second(ask[any](s.t.Context(), s.java, "release", limiter, permits)))
	} else {
		s.done(s.RateLimiter(limiter).Release(s.t.Context(), permits))
	}
}

func (s service) Available(limiter string) (n int64) {
	var err error
	if s.java != nil {
		n, err = ask[int64](s.t.Context(), s.java, "availablePermits", limiter)
	} else {
		n, err = s.RateLimiter(limiter).AvailablePermits(s.t.Context())
	}
	s.done(err)
	return n
}

func (s service) Config(limiter string) (cfg rratelimiter.Config) {
	var err error
	if s.java != nil {
		cfg, err = ask[rratelimiter.Config](s.t.Context(), s.java, "getConfig", limiter)
	} else {
		cfg, err = s.RateLimiter(limiter).Config(s.t.Context())
	}
	s.done(err)
	return cfg
}

func (s service) Expire(limiter string, ttl time.Duration) bool {
	if s.java != nil {
		return s.ok(ask[bool](s.t.Context(), s.java, "expire", limiter, ttl.Milliseconds()))
	}
	return s.ok(s.RateLimiter(limiter).Expire(s.t.Context(), ttl))
}

// TTL is -1 if there is no end.
func (s service) TTL(limiter string) (ttl time.Duration) {
	var err error
	expires := true
	if s.java != nil {
		ttl, err = javaTTL(s.t.Context(), s.java, limiter)
	} else {
		ttl, expires, err = s.RateLimiter(limiter).TTL(s.t.Context())
	}
	if s.done(err); !expires {
		return -1
	}
	return ttl
}

func (s service) Exists(limiter string) bool {
	if s.java != nil {
		return s.ok(ask[bool](s.t.Context(), s.java, "isExists", limiter))
	}
	return s.ok(s.RateLimiter(limiter).Exists(s.t.Context()))
}

func (s service) Delete(limiter string) bool {
	if s.java != nil {
		return s.ok(ask[bool](s.t.Context(), s.java, "delete", limiter))
	}
	return s.ok(s.RateLimiter(limiter).Delete(s.t.Context()))
}

// unlink calls Redisson's unlink.
func (s service) unlink(limiter string) bool {
	return s.ok(ask[bool](s.t.Context(), s.java, "unlink", limiter))
}

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

// stored returns the value and the permits of each member.
func stored(t testing.TB, rdb redistest.Client, valueKey, permitsKey string) (value int64, permits []int64) {
	t.Helper()
	value, err := rdb.Get(t.Context(), valueKey).Int64()
	require.NoError(t, err)
	members, err := rdb.ZRange(t.Context(), permitsKey, 0, -1).Result()
	require.NoError(t, err)
	for _, text := range members {
		member, err := codec.Parse(text)
		require.NoError(t, err)
		permits = append(permits, int64(member.Permits))
	}
	return value, permits
}

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

// javaTTL returns remainTimeToLive as go-redis would: -1 for no expiry, -2 for no limiter.
func javaTTL(ctx context.Context, c *javaClient, limiter string) (time.Duration, error) {
	ms, err := ask[int64](ctx, c, "ttl", limiter)
	if err != nil || ms < 0 {
		return time.Duration(ms), err
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// hammering is the result of javaClient.Hammer.
type hammering struct {
	Granted, Denied, Errors int64
	FirstError              string // empty if there was none
}

// Hammer makes this many threads call tryAcquire(permits, timeout) with a pause
// after each call, the last call of each beginning before the time is up.
func (c *javaClient) Hammer(
	ctx context.Context, limiter string, threads int, permits int64, length, timeout, pause time.Duration,
) (hammering, error) {
	return ask[hammering](ctx, c, "hammer", limiter, threads, permits, length.Milliseconds(), timeout.Milliseconds(), pause.Milliseconds())
}

func TestDriverJVMEnds(t *testing.T) {
	t.Parallel()
	d := startDriver(t, *redissonVersion)
	d.Kill()
	assert.ErrorContains(t, limitertest.Second(javadriver.Call[string](t.Context(), d.Process, "version")), "signal: killed")
}
