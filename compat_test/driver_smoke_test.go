package compat_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redissondriver"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestDriverPermits(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	java := sharedDriver(t).open(t, redistest.Shared(t).URL())
	name := redistest.Name(t)

	cfg := rratelimiter.Config{Rate: 5, Interval: time.Hour}
	set, err := java.TrySetRate(ctx, name, cfg)
	require.NoError(t, err)
	assert.True(t, set)
	set, err = java.TrySetRate(ctx, name, cfg)
	require.NoError(t, err)
	assert.False(t, set)
	got, err := java.Config(ctx, name)
	require.NoError(t, err)
	assert.Equal(t, cfg, got)

	for _, step := range []struct {
		permits   int64
		granted   bool
		available int64
	}{{2, true, 3}, {4, false, 3}, {3, true, 0}} {
		granted, err := java.TryAcquireNow(ctx, name, step.permits)
		require.NoError(t, err)
		assert.Equal(t, step.granted, granted, "tryAcquire(%d)", step.permits)
		available, err := java.AvailablePermits(ctx, name)
		require.NoError(t, err)
		assert.Equal(t, step.available, available)
	}
	granted, err := java.TryAcquire(ctx, name, 1, 20*time.Millisecond)
	require.NoError(t, err)
	assert.False(t, granted)
	requireSupported(t, java.Release(ctx, name, 3))
	require.NoError(t, java.Acquire(ctx, name, 1))
	granted, err = java.TryAcquire(ctx, name, 2, time.Minute)
	require.NoError(t, err)
	assert.True(t, granted)
}

func TestDriverRates(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	java := sharedDriver(t).open(t, redistest.Shared(t).URL())
	name := redistest.Name(t)

	requireSupported(t, java.SetRate(ctx, name, rratelimiter.PerHour(10)))
	require.NoError(t, java.Acquire(ctx, name, 4))
	requireSupported(t, java.SetRateArgs(ctx, name, rratelimiter.PerHour(20), true))
	available, err := java.AvailablePermits(ctx, name)
	require.NoError(t, err)
	assert.EqualValues(t, 16, available, "with the state kept")
	updated, err := java.UpdateRate(ctx, name, rratelimiter.PerHour(30), false)
	require.NoError(t, err)
	assert.True(t, updated)
	available, err = java.AvailablePermits(ctx, name)
	require.NoError(t, err)
	assert.EqualValues(t, 30, available, "with the state cleared")
}

func TestDriverExistence(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	java := sharedDriver(t).open(t, redistest.Shared(t).URL())
	name := redistest.Name(t)

	set, err := java.TrySetRate(ctx, name, rratelimiter.PerHour(10))
	require.NoError(t, err)
	assert.True(t, set)
	exists, err := java.Exists(ctx, name)
	require.NoError(t, err)
	assert.True(t, exists)
	deleted, err := java.Delete(ctx, name)
	require.NoError(t, err)
	assert.True(t, deleted)
	exists, err = java.Exists(ctx, name)
	require.NoError(t, err)
	assert.False(t, exists)
	updated, err := java.UpdateRate(ctx, name, rratelimiter.PerHour(10), false)
	requireSupported(t, err)
	assert.False(t, updated, "without a limiter")
}

func TestDriverExpiry(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	java := sharedDriver(t).open(t, redistest.Shared(t).URL())
	name := redistest.Name(t)
	ttlIs := func(want time.Duration) {
		t.Helper()
		ttl, err := java.TTL(ctx, name)
		require.NoError(t, err)
		assert.InDelta(t, want, ttl, float64(time.Minute))
	}
	ok := func(ok bool, err error) {
		t.Helper()
		require.NoError(t, err)
		require.True(t, ok)
	}

	ttl, err := java.TTL(ctx, name)
	requireSupported(t, err)
	assert.EqualValues(t, -2, ttl)
	ok(java.TrySetRate(ctx, name, rratelimiter.PerSecond(1)))
	ttl, err = java.TTL(ctx, name)
	require.NoError(t, err)
	assert.EqualValues(t, -1, ttl)

	ok(java.Expire(ctx, name, 2*time.Hour))
	ttlIs(2 * time.Hour)
	ok(java.ExpireAt(ctx, name, time.Now().Add(3*time.Hour)))
	ttlIs(3 * time.Hour)
	ok(java.ClearExpire(ctx, name))
	ttl, err = java.TTL(ctx, name)
	require.NoError(t, err)
	assert.EqualValues(t, -1, ttl)

	cfg := rratelimiter.PerSecond(2)
	cfg.KeepAlive = 4 * time.Hour
	requireSupported(t, java.SetRate(ctx, name, cfg))
	require.NoError(t, java.Acquire(ctx, name, 1))
	ttlIs(4 * time.Hour)
	cfg.KeepAlive = 5 * time.Hour
	requireSupported(t, java.SetRateArgs(ctx, name, cfg, true))
	ttlIs(5 * time.Hour)
}

func TestDriverErrors(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	java := sharedDriver(t).open(t, redistest.Shared(t).URL())

	_, err := java.TryAcquireNow(ctx, redistest.Name(t), 1)
	var thrown *redissondriver.ThrownError
	require.ErrorAs(t, err, &thrown)
	assert.Equal(t, "RedisException", thrown.Class)
	assert.Contains(t, thrown.Message, "RateLimiter is not initialized")

	err = java.Release(ctx, redistest.Name(t), -1)
	skipUnsupported(t, err)
	require.ErrorAs(t, err, &thrown)
	assert.Equal(t, "IllegalArgumentException", thrown.Class)
}

func TestDriverNames(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	java := sharedDriver(t).open(t, redistest.Shared(t).URL())

	rdb := redistest.Redis(t)
	for _, suffix := range []string{" b", "50%+1", "{x}", "ü限", "\nbreak", "\"'\\"} {
		name := redistest.Name(t) + suffix
		set, err := java.TrySetRate(ctx, name, rratelimiter.PerSecond(1))
		require.NoError(t, err)
		assert.True(t, set, name)
		held, err := rdb.Exists(ctx, name).Result()
		require.NoError(t, err)
		assert.EqualValues(t, 1, held, "keys named %q", name)
		deleted, err := java.Delete(ctx, name)
		require.NoError(t, err)
		assert.True(t, deleted, name)
	}
}

func TestDriverBlockedCall(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	java := sharedDriver(t).open(t, redistest.Shared(t).URL())
	name := redistest.Name(t)
	_, err := java.TrySetRate(ctx, name, rratelimiter.PerHour(1))
	require.NoError(t, err)
	require.NoError(t, java.Acquire(ctx, name, 1))

	waiting, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- java.Acquire(waiting, name, 1) }()
	granted, err := java.TryAcquireNow(ctx, name, 1)
	require.NoError(t, err)
	assert.False(t, granted, "while another call waits")
	stop()
	require.ErrorIs(t, <-result, context.Canceled)
}

func TestDriverPerClient(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	driver, url := sharedDriver(t), redistest.Shared(t).URL()
	one, two := driver.open(t, url), driver.open(t, url)
	assert.NotEqual(t, one.ID, two.ID)
	name := redistest.Name(t)

	cfg := rratelimiter.PerHour(3)
	cfg.Type = rratelimiter.PerClient
	_, err := one.TrySetRate(ctx, name, cfg)
	require.NoError(t, err)
	require.NoError(t, one.Acquire(ctx, name, 1))
	require.NoError(t, two.Acquire(ctx, name, 2))
	got, err := two.Config(ctx, name)
	require.NoError(t, err)
	assert.Equal(t, cfg, got)
	for java, want := range map[*javaClient]int64{one: 2, two: 1} {
		available, err := java.AvailablePermits(ctx, name)
		require.NoError(t, err)
		assert.Equal(t, want, available)
	}
}

func TestDriverHammer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	java := sharedDriver(t).open(t, redistest.Shared(t).URL())
	name := redistest.Name(t)

	h, err := java.Hammer(ctx, name, 2, 1, 50*time.Millisecond, 0, 0)
	require.NoError(t, err)
	assert.Zero(t, h.Granted)
	assert.Positive(t, h.Errors)
	assert.Contains(t, h.FirstError, "RateLimiter is not initialized")

	_, err = java.TrySetRate(ctx, name, rratelimiter.PerHour(10))
	require.NoError(t, err)
	begin := time.Now()
	h, err = java.Hammer(ctx, name, 4, 2, 300*time.Millisecond, 0, 0)
	require.NoError(t, err)
	assert.EqualValues(t, 5, h.Granted, "grants of 2 of 10 permits")
	assert.Positive(t, h.Denied)
	assert.Zero(t, h.Errors, h.FirstError)
	require.Len(t, h.Grants, 5)
	for _, at := range h.Grants {
		assert.WithinRange(t, at, begin.Add(-time.Millisecond), time.Now())
	}
}

// skipUnsupported ends the test where an older release lacks the operation.
func skipUnsupported(t testing.TB, err error) {
	t.Helper()
	if *redissonVersion != newestRedisson && errors.Is(err, redissondriver.ErrUnsupported) {
		t.Skip(err)
	}
}

func requireSupported(t testing.TB, err error) {
	t.Helper()
	skipUnsupported(t, err)
	require.NoError(t, err)
}

func TestDriverJVMEnds(t *testing.T) {
	t.Parallel()
	d := startDriver(t, *redissonVersion)
	d.Kill()
	_, err := d.Call(t.Context(), "version")
	assert.ErrorContains(t, err, "signal: killed")
}
