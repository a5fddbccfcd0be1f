package compat_test

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// javaClient is a RedissonClient of a javaDriver: one Java service.
type javaClient struct {
	// ID is the id that stands in the client's own keys of PER_CLIENT limiters.
	ID string

	driver *javaDriver
	name   string
	closed atomic.Bool
}

var lastClient atomic.Int64

// open returns a new RedissonClient of the server at url, redis://host:port or
// redis://host:port/database; the end of the test closes it.
func (d *javaDriver) open(t testing.TB, url string) *javaClient {
	t.Helper()
	return d.openArgs(t, url)
}

// openMapped is open for a client whose NameMapper puts prefix before all names.
func (d *javaDriver) openMapped(t testing.TB, url, prefix string) *javaClient {
	t.Helper()
	return d.openArgs(t, url, prefix)
}

// openCodec is open for a client with the codec of this class, and with Redisson's
// useScriptCache on or off.
func (d *javaDriver) openCodec(t testing.TB, url, codec string, scriptCache bool) *javaClient {
	t.Helper()
	return d.openBy(t, "openCodec", url, codec, scriptCache)
}

func (d *javaDriver) openArgs(t testing.TB, args ...any) *javaClient {
	t.Helper()
	return d.openBy(t, "open", args...)
}

func (d *javaDriver) openBy(t testing.TB, op string, args ...any) *javaClient {
	t.Helper()
	c := &javaClient{driver: d, name: fmt.Sprint("c", lastClient.Add(1))}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	id, err := d.Call(ctx, op, append([]any{c.name}, args...)...)
	skipUnsupported(t, err)
	if err != nil {
		t.Fatalf("%v\nstderr of the JVM:\n%s", err, d.Stderr())
	}
	c.ID = id
	t.Cleanup(func() {
		if t.Failed() {
			if text := d.Stderr(); text != "" {
				t.Logf("stderr of the JVM, of all tests:\n%s", text)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("closing client %s: %v", c.name, err)
		}
	})
	return c
}

// Close shuts the client down. Redisson never answers the acquires that wait
// in it: end those by their ctx. A second Close does nothing.
func (c *javaClient) Close(ctx context.Context) error {
	if c.closed.Swap(true) {
		return nil
	}
	_, err := c.driver.Call(ctx, "close", c.name)
	return err
}

func (c *javaClient) call(ctx context.Context, op, limiter string, args ...any) (string, error) {
	return c.driver.Call(ctx, op, append([]any{c.name, limiter}, args...)...)
}

func (c *javaClient) callBool(ctx context.Context, op, limiter string, args ...any) (bool, error) {
	s, err := c.call(ctx, op, limiter, args...)
	if err != nil {
		return false, err
	}
	return strconv.ParseBool(s)
}

func (c *javaClient) callInt(ctx context.Context, op, limiter string, args ...any) (int64, error) {
	s, err := c.call(ctx, op, limiter, args...)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(s, 10, 64)
}

func configArgs(cfg rratelimiter.Config, more ...any) []any {
	args := []any{cfg.Type, cfg.Rate, cfg.Interval.Milliseconds(), cfg.KeepAlive.Milliseconds()}
	return append(args, more...)
}

// TrySetRate calls the form with a keep-alive time where cfg has one.
func (c *javaClient) TrySetRate(ctx context.Context, limiter string, cfg rratelimiter.Config) (bool, error) {
	return c.callBool(ctx, "trySetRate", limiter, configArgs(cfg)...)
}

// SetRate calls the form with a keep-alive time where cfg has one.
func (c *javaClient) SetRate(ctx context.Context, limiter string, cfg rratelimiter.Config) error {
	_, err := c.call(ctx, "setRate", limiter, configArgs(cfg)...)
	return err
}

// SetRateArgs calls setRate(RateLimiterArgs).
func (c *javaClient) SetRateArgs(ctx context.Context, limiter string, cfg rratelimiter.Config, keepState bool) error {
	_, err := c.call(ctx, "setRateArgs", limiter, configArgs(cfg, keepState)...)
	return err
}

// UpdateRate calls updateRate(RateLimiterArgs).
func (c *javaClient) UpdateRate(ctx context.Context, limiter string, cfg rratelimiter.Config, keepState bool) (bool, error) {
	return c.callBool(ctx, "updateRate", limiter, configArgs(cfg, keepState)...)
}

// TryAcquireNow calls tryAcquire(permits), which has no timeout.
func (c *javaClient) TryAcquireNow(ctx context.Context, limiter string, permits int64) (bool, error) {
	return c.callBool(ctx, "tryAcquire", limiter, permits)
}

// TryAcquire calls tryAcquire(permits, timeout), the timeout in milliseconds.
func (c *javaClient) TryAcquire(ctx context.Context, limiter string, permits int64, timeout time.Duration) (bool, error) {
	return c.callBool(ctx, "tryAcquire", limiter, permits, timeout.Milliseconds())
}

func (c *javaClient) Acquire(ctx context.Context, limiter string, permits int64) error {
	_, err := c.call(ctx, "acquire", limiter, permits)
	return err
}

func (c *javaClient) Release(ctx context.Context, limiter string, permits int64) error {
	_, err := c.call(ctx, "release", limiter, permits)
	return err
}

func (c *javaClient) AvailablePermits(ctx context.Context, limiter string) (int64, error) {
	return c.callInt(ctx, "availablePermits", limiter)
}

// Config returns what getConfig does: all but the keep-alive time.
func (c *javaClient) Config(ctx context.Context, limiter string) (rratelimiter.Config, error) {
	answer, err := c.call(ctx, "getConfig", limiter)
	if err != nil {
		return rratelimiter.Config{}, err
	}
	var (
		cfg      rratelimiter.Config
		typ      string
		interval int64
	)
	if _, err := fmt.Sscan(answer, &typ, &cfg.Rate, &interval); err != nil {
		return rratelimiter.Config{}, fmt.Errorf("redisson getConfig: answer %q: %w", answer, err)
	}
	if typ == rratelimiter.PerClient.String() {
		cfg.Type = rratelimiter.PerClient
	}
	cfg.Interval = time.Duration(interval) * time.Millisecond
	return cfg, nil
}

func (c *javaClient) Expire(ctx context.Context, limiter string, ttl time.Duration) (bool, error) {
	return c.callBool(ctx, "expire", limiter, ttl.Milliseconds())
}

func (c *javaClient) ExpireAt(ctx context.Context, limiter string, at time.Time) (bool, error) {
	return c.callBool(ctx, "expireAt", limiter, at.UnixMilli())
}

func (c *javaClient) ClearExpire(ctx context.Context, limiter string) (bool, error) {
	return c.callBool(ctx, "clearExpire", limiter)
}

// TTL returns remainTimeToLive as go-redis would: -1 for no expiry, -2 for no
// limiter.
func (c *javaClient) TTL(ctx context.Context, limiter string) (time.Duration, error) {
	ms, err := c.callInt(ctx, "ttl", limiter)
	if err != nil || ms < 0 {
		return time.Duration(ms), err
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (c *javaClient) Exists(ctx context.Context, limiter string) (bool, error) {
	return c.callBool(ctx, "isExists", limiter)
}

func (c *javaClient) Delete(ctx context.Context, limiter string) (bool, error) {
	return c.callBool(ctx, "delete", limiter)
}

func (c *javaClient) Unlink(ctx context.Context, limiter string) (bool, error) {
	return c.callBool(ctx, "unlink", limiter)
}

func (c *javaClient) Rename(ctx context.Context, limiter, newName string) error {
	_, err := c.call(ctx, "rename", limiter, newName)
	return err
}

// hammering is what came of javaClient.Hammer.
type hammering struct {
	Granted, Denied, Errors int64
	FirstError              string      // empty where there was none
	Grants                  []time.Time // when each grant had come back to Java, ascending
}

// Hammer has this many threads call tryAcquire(permits, timeout) with a pause
// after each call, the last call of each beginning before the time is up.
func (c *javaClient) Hammer(ctx context.Context, limiter string, threads int, permits int64, length, timeout, pause time.Duration) (*hammering, error) {
	answer, err := c.call(ctx, "hammer", limiter, threads, permits, length.Milliseconds(), timeout.Milliseconds(), pause.Milliseconds())
	if err != nil {
		return nil, err
	}
	words := strings.Split(answer, " ")
	if len(words) != 5 {
		return nil, fmt.Errorf("redisson hammer: answer %q", answer)
	}
	h := new(hammering)
	for i, n := range []*int64{&h.Granted, &h.Denied, &h.Errors} {
		if *n, err = strconv.ParseInt(words[i], 10, 64); err != nil {
			return nil, fmt.Errorf("redisson hammer: answer %q: %w", answer, err)
		}
	}
	if h.FirstError, err = url.QueryUnescape(words[3]); err != nil {
		return nil, fmt.Errorf("redisson hammer: answer %q: %w", answer, err)
	}
	if words[4] == "" {
		return h, nil
	}
	for s := range strings.SplitSeq(words[4], ",") {
		ns, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("redisson hammer: grant time: %w", err)
		}
		h.Grants = append(h.Grants, time.Unix(0, ns))
	}
	return h, nil
}
