package compat_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// service is a program that uses limiters, in either language.
type service interface {
	TrySetRate(limiter string, cfg rratelimiter.Config) bool
	SetRate(limiter string, cfg rratelimiter.Config)
	KeepState(limiter string, cfg rratelimiter.Config)
	UpdateRate(limiter string, cfg rratelimiter.Config, keep bool) bool
	Try(limiter string, permits int64) bool
	Wait(limiter string, permits int64, timeout time.Duration) bool
	Release(limiter string, permits int64)
	Available(limiter string) int64
	Rate(limiter string) (rate int64, interval time.Duration)
	Expire(limiter string, ttl time.Duration) bool
	TTL(limiter string) time.Duration
	Exists(limiter string) bool
	Delete(limiter string) bool
}

type goService struct {
	t testing.TB
	*rratelimiter.Client
}

// newGo returns a Go service that uses rdb.
func newGo(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.Option) goService {
	t.Helper()
	client := rratelimiter.New(rdb, opts...)
	t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
	return goService{t, client}
}

// in returns the service for use in a subtest.
func (s goService) in(t testing.TB) goService { return goService{t, s.Client} }

func (s goService) TrySetRate(limiter string, cfg rratelimiter.Config) bool {
	s.t.Helper()
	ok, err := s.RateLimiter(limiter).TrySetRate(s.t.Context(), cfg)
	require.NoError(s.t, err)
	return ok
}

func (s goService) SetRate(limiter string, cfg rratelimiter.Config) {
	s.t.Helper()
	require.NoError(s.t, s.RateLimiter(limiter).SetRate(s.t.Context(), cfg))
}

func (s goService) KeepState(limiter string, cfg rratelimiter.Config) {
	s.t.Helper()
	require.NoError(s.t, s.RateLimiter(limiter).SetRate(s.t.Context(), cfg, rratelimiter.KeepState()))
}

func (s goService) UpdateRate(limiter string, cfg rratelimiter.Config, keep bool) bool {
	s.t.Helper()
	ok, err := s.RateLimiter(limiter).UpdateRate(s.t.Context(), cfg, keepState(keep)...)
	require.NoError(s.t, err)
	return ok
}

func (s goService) Try(limiter string, permits int64) bool {
	s.t.Helper()
	return s.Wait(limiter, permits, 0)
}

func (s goService) Wait(limiter string, permits int64, timeout time.Duration) bool {
	s.t.Helper()
	ok, err := s.RateLimiter(limiter).TryAcquire(s.t.Context(), permits, timeout)
	require.NoError(s.t, err)
	return ok
}

func (s goService) Release(limiter string, permits int64) {
	s.t.Helper()
	require.NoError(s.t, s.RateLimiter(limiter).Release(s.t.Context(), permits))
}

func (s goService) Available(limiter string) int64 {
	s.t.Helper()
	n, err := s.RateLimiter(limiter).AvailablePermits(s.t.Context())
	require.NoError(s.t, err)
	return n
}

func (s goService) Rate(limiter string) (int64, time.Duration) {
	s.t.Helper()
	cfg, err := s.RateLimiter(limiter).Config(s.t.Context())
	require.NoError(s.t, err)
	return cfg.Rate, cfg.Interval
}

func (s goService) Expire(limiter string, ttl time.Duration) bool {
	s.t.Helper()
	ok, err := s.RateLimiter(limiter).Expire(s.t.Context(), ttl)
	require.NoError(s.t, err)
	return ok
}

func (s goService) TTL(limiter string) time.Duration {
	s.t.Helper()
	ttl, err := model.TTL(s.RateLimiter(limiter).TTL(s.t.Context()))
	require.NoError(s.t, err)
	return ttl
}

func (s goService) Exists(limiter string) bool {
	s.t.Helper()
	ok, err := s.RateLimiter(limiter).Exists(s.t.Context())
	require.NoError(s.t, err)
	return ok
}

func (s goService) Delete(limiter string) bool {
	s.t.Helper()
	ok, err := s.RateLimiter(limiter).Delete(s.t.Context())
	require.NoError(s.t, err)
	return ok
}

type javaService struct {
	t testing.TB
	*javaClient
}

// newJava returns a Java service that uses the server at url. The module shares
// limiters with Redisson from 3.35 on.
func newJava(t testing.TB, url string) javaService {
	t.Helper()
	driver := sharedDriver(t)
	requireRelease(t, 3, 35)
	return javaService{t, driver.open(t, url)}
}

// in returns the service for use in a subtest.
func (s javaService) in(t testing.TB) javaService { return javaService{t, s.javaClient} }

func (s javaService) TrySetRate(limiter string, cfg rratelimiter.Config) bool {
	s.t.Helper()
	ok, err := s.javaClient.TrySetRate(s.t.Context(), limiter, cfg)
	requireSupported(s.t, err)
	return ok
}

func (s javaService) SetRate(limiter string, cfg rratelimiter.Config) {
	s.t.Helper()
	requireSupported(s.t, s.javaClient.SetRate(s.t.Context(), limiter, cfg))
}

func (s javaService) KeepState(limiter string, cfg rratelimiter.Config) {
	s.t.Helper()
	requireSupported(s.t, s.SetRateArgs(s.t.Context(), limiter, cfg, true))
}

func (s javaService) UpdateRate(limiter string, cfg rratelimiter.Config, keep bool) bool {
	s.t.Helper()
	ok, err := s.javaClient.UpdateRate(s.t.Context(), limiter, cfg, keep)
	requireSupported(s.t, err)
	return ok
}

func (s javaService) Try(limiter string, permits int64) bool {
	s.t.Helper()
	ok, err := s.TryAcquireNow(s.t.Context(), limiter, permits)
	require.NoError(s.t, err)
	return ok
}

func (s javaService) Wait(limiter string, permits int64, timeout time.Duration) bool {
	s.t.Helper()
	ok, err := s.TryAcquire(s.t.Context(), limiter, permits, timeout)
	require.NoError(s.t, err)
	return ok
}

func (s javaService) Release(limiter string, permits int64) {
	s.t.Helper()
	requireSupported(s.t, s.javaClient.Release(s.t.Context(), limiter, permits))
}

func (s javaService) Available(limiter string) int64 {
	s.t.Helper()
	n, err := s.AvailablePermits(s.t.Context(), limiter)
	require.NoError(s.t, err)
	return n
}

func (s javaService) Rate(limiter string) (int64, time.Duration) {
	s.t.Helper()
	cfg, err := s.Config(s.t.Context(), limiter)
	require.NoError(s.t, err)
	return cfg.Rate, cfg.Interval
}

func (s javaService) Expire(limiter string, ttl time.Duration) bool {
	s.t.Helper()
	ok, err := s.javaClient.Expire(s.t.Context(), limiter, ttl)
	require.NoError(s.t, err)
	return ok
}

func (s javaService) TTL(limiter string) time.Duration {
	s.t.Helper()
	ttl, err := s.javaClient.TTL(s.t.Context(), limiter)
	require.NoError(s.t, err)
	return ttl
}

func (s javaService) Exists(limiter string) bool {
	s.t.Helper()
	ok, err := s.javaClient.Exists(s.t.Context(), limiter)
	require.NoError(s.t, err)
	return ok
}

func (s javaService) Delete(limiter string) bool {
	s.t.Helper()
	ok, err := s.javaClient.Delete(s.t.Context(), limiter)
	require.NoError(s.t, err)
	return ok
}

// requireRelease skips the test where the release of Redisson is an older one.
func requireRelease(t testing.TB, major, minor int) {
	t.Helper()
	var is [2]int
	for i, text := range strings.SplitN(*redissonVersion, ".", 3)[:2] {
		for _, digit := range text {
			is[i] = 10*is[i] + int(digit-'0')
		}
	}
	if is[0] < major || is[0] == major && is[1] < minor {
		t.Skipf("Redisson %s is older than %d.%d", *redissonVersion, major, minor)
	}
}

// passTime lets time pass for the limiter: what Redis holds of it, also for the
// clients of these ids, is moved back in time.
func passTime(t testing.TB, rdb *redis.Client, limiter string, d time.Duration, ids ...string) {
	t.Helper()
	set := layout.KeysOf(limiter, "")
	all := []string{set.Config, set.Value, set.Permits}
	for _, id := range ids {
		set := layout.KeysOf(limiter, id)
		all = append(all, set.ClientValue, set.ClientPermits)
	}
	require.NoError(t, moveBack.Run(t.Context(), rdb, all, d.Milliseconds()).Err())
}

// stored returns the value and the permits of each member; the value is nil
// where there is none.
func stored(t testing.TB, rdb *redis.Client, valueKey, permitsKey string) (value *int64, permits []int64) {
	t.Helper()
	n, err := rdb.Get(t.Context(), valueKey).Int64()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
		value = &n
	}
	members, err := rdb.ZRange(t.Context(), permitsKey, 0, -1).Result()
	require.NoError(t, err)
	for _, text := range members {
		member, err := codec.Parse(text)
		require.NoError(t, err)
		permits = append(permits, int64(member.Permits))
	}
	return value, permits
}

// TestGoAndJavaShareALimiter is what the module is for: whatever one service
// does, the others see at once.
func TestGoAndJavaShareALimiter(t *testing.T) {
	t.Parallel()
	rdb, url := redistest.Redis(t), redistest.Shared(t).URL()
	java, goes := newJava(t, url), newGo(t, rdb)
	all := []service{java, newJava(t, url), goes, newGo(t, rdb)}
	name := redistest.Name(t)
	free := func(want int64) {
		t.Helper()
		for i, s := range all {
			require.Equal(t, want, s.Available(name), "service %d", i)
		}
	}
	rateIs := func(rate int64, interval time.Duration) {
		t.Helper()
		for i, s := range all {
			gotRate, gotInterval := s.Rate(name)
			require.Equal(t, rate, gotRate, "service %d", i)
			require.Equal(t, interval, gotInterval, "service %d", i)
		}
	}

	require.True(t, java.TrySetRate(name, rratelimiter.PerMinute(10)))
	for _, s := range all {
		require.False(t, s.TrySetRate(name, rratelimiter.PerMinute(99)))
	}
	rateIs(10, time.Minute)
	free(10)

	for left := int64(10); left > 0; {
		for _, s := range all {
			if left > 0 {
				require.True(t, s.Try(name, 1))
				left--
				free(left)
			}
		}
	}
	for _, s := range all {
		require.False(t, s.Try(name, 1))
	}
	passTime(t, rdb, name, time.Minute)
	free(10)

	// What was not taken by the one can be taken by the other, no more.
	require.True(t, goes.Try(name, 6))
	require.False(t, java.Try(name, 5))
	require.True(t, java.Try(name, 4))
	require.False(t, goes.Try(name, 1))

	goes.Release(name, 3)
	free(3)
	require.True(t, java.Try(name, 3))
	java.Release(name, 2)
	free(2)
	require.True(t, goes.Try(name, 2))
	require.False(t, java.Try(name, 1))

	java.SetRate(name, rratelimiter.PerHour(20))
	rateIs(20, time.Hour)
	free(20)
	require.True(t, goes.Try(name, 12))
	free(8)
	goes.SetRate(name, rratelimiter.PerMinute(8))
	rateIs(8, time.Minute)
	free(8)
	require.True(t, java.Try(name, 5))
	free(3)

	// The permits in use stay counted.
	goes.KeepState(name, rratelimiter.PerMinute(10))
	free(5)
	require.True(t, goes.Try(name, 1))
	java.KeepState(name, rratelimiter.PerMinute(12))
	free(6)
	require.True(t, goes.UpdateRate(name, rratelimiter.PerMinute(9), true))
	free(3)
	require.True(t, java.UpdateRate(name, rratelimiter.PerMinute(7), true))
	rateIs(7, time.Minute)
	free(1)
	require.True(t, java.UpdateRate(name, rratelimiter.PerMinute(6), false))
	free(6)

	for i, s := range all {
		require.True(t, s.Expire(name, time.Duration(i+1)*time.Hour))
		for _, other := range all {
			require.InDelta(t, time.Duration(i+1)*time.Hour, other.TTL(name), float64(time.Minute))
		}
	}
	require.True(t, goes.Delete(name))
	for _, s := range all {
		require.False(t, s.Exists(name))
	}
	require.True(t, goes.TrySetRate(name, rratelimiter.PerMinute(2)))
	free(2)
	require.True(t, java.Delete(name))
	for _, s := range all {
		require.False(t, s.UpdateRate(name, rratelimiter.PerMinute(10), true))
	}
}

// TestEachClientHasItsOwnPermits: a limiter of type PER_CLIENT, for services of
// both languages.
func TestEachClientHasItsOwnPermits(t *testing.T) {
	t.Parallel()
	rdb, url := redistest.Redis(t), redistest.Shared(t).URL()
	java, goes := newJava(t, url), newGo(t, rdb)
	all := []service{java, newJava(t, url), goes, newGo(t, rdb)}
	name := redistest.Name(t)
	cfg := rratelimiter.PerHour(9)
	cfg.Type = rratelimiter.PerClient
	require.True(t, goes.TrySetRate(name, cfg))

	for i, s := range all {
		require.True(t, s.Try(name, int64(i+1)))
	}
	for i, s := range all {
		require.EqualValues(t, 9-i-1, s.Available(name))
		require.False(t, s.Try(name, 9))
	}
	goes.Release(name, 3)
	java.Release(name, 1)
	for i, want := range []int64{9, 7, 9, 5} {
		require.Equal(t, want, all[i].Available(name))
	}
	held, err := rdb.Exists(t.Context(), layout.KeysOf(name, "").Value, layout.KeysOf(name, "").Permits).Result()
	require.NoError(t, err)
	assert.Zero(t, held, "shared keys of a PER_CLIENT limiter")

	// A new rate of another type is for all together.
	java.SetRate(name, rratelimiter.PerHour(4))
	require.True(t, goes.Try(name, 3))
	for _, s := range all {
		require.EqualValues(t, 1, s.Available(name))
	}
}

// TestServicesOfOneClientID: Go services that are given one id have their
// permits of PER_CLIENT limiters together, Java beside them.
func TestServicesOfOneClientID(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	java := newJava(t, redistest.Shared(t).URL())
	id := rratelimiter.WithClientID(goID)
	first, second, other := newGo(t, rdb, id), newGo(t, rdb, id), newGo(t, rdb)
	name := redistest.Name(t)
	require.True(t, java.TrySetRate(name, perClient(rratelimiter.PerMinute(5))))
	free := func(want int64) {
		t.Helper()
		require.Equal(t, want, first.Available(name), "the first")
		require.Equal(t, want, second.Available(name), "the second")
		require.EqualValues(t, 5, other.Available(name), "of another id")
		require.EqualValues(t, 3, java.Available(name), "Java")
	}
	require.True(t, java.Try(name, 2))

	require.True(t, first.Try(name, 1))
	free(4)
	require.True(t, second.Try(name, 3))
	free(1)
	require.False(t, first.Try(name, 2))
	require.False(t, second.Try(name, 2))
	first.Release(name, 2)
	free(3)
	passTime(t, rdb, name, 50*time.Second, goID)
	require.True(t, second.Try(name, 3))
	passTime(t, rdb, name, 10*time.Second, goID)
	free(2)
	passTime(t, rdb, name, 50*time.Second, goID)
	free(5)
}
