package redisson_test

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// newOldLimiter returns a limiter of that rate, shared with a Redisson release.
func newOldLimiter(t testing.TB, rdb rratelimiter.Redis, version string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
	t.Helper()
	l := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)).RateLimiter(redistest.Name(t))
	limitertest.MustTrySetRate(t, l, cfg)
	return l
}

// members returns the members of the permits set, in its order.
func members(t testing.TB, rdb redis.UniversalClient, key string) []codec.Member {
	t.Helper()
	texts, err := rdb.ZRange(t.Context(), key, 0, -1).Result()
	require.NoError(t, err)
	all := make([]codec.Member, len(texts))
	for i, text := range texts {
		all[i], err = codec.Parse(text)
		require.NoError(t, err)
	}
	return all
}

func TestWithRedissonVersionRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, version := range []string{
		"", "3", "3.15", "3.15.5.1", "v3.15.5", "3.15.05", "3.15.-5", "3.15.5-SNAPSHOT", " 3.15.5",
		"2.15.2", "3.11.6", "3.15.7", "3.53.0", "4.8.0", "5.0.0", "99999999999999999999.0.0",
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			// Redis is not there: nothing may reach it.
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			t.Cleanup(func() { _ = rdb.Close() })
			l := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)).RateLimiter("orders")
			_, err := l.TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			assert.ErrorContains(t, err, "3.12.0 to 4.7.0")
			_, err = l.TrySetRate(t.Context(), rratelimiter.PerSecond(1))
			require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
		})
	}
}

func TestMembersAreThoseOfTheOldestRedisson(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]codec.Layout{
		"3.13.3": codec.LayoutB, "3.13.6": codec.LayoutB, "3.15.5": codec.LayoutB, "3.16.3": codec.LayoutB,
		"3.16.4": codec.LayoutC, "3.16.8": codec.LayoutC,
		"3.17.0": codec.LayoutD1, "3.20.1": codec.LayoutD1,
		"3.21.0": codec.LayoutD2, "3.34.1": codec.LayoutD2, "3.35.0": codec.LayoutD2, "4.7.0": codec.LayoutD2,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := newOldLimiter(t, rdb, version, limitertest.Every(10, time.Minute))
				limitertest.MustAcquire(t, l, 3)
				time.Sleep(time.Second)
				limitertest.MustAcquire(t, l, 4)
				time.Sleep(time.Second)
				require.NoError(t, l.Release(t.Context(), 2))

				var permits []uint32
				ids := map[string]bool{}
				for _, m := range members(t, rdb, limitertest.KeysOf(l).Permits) {
					assert.Equal(t, want, m.Layout)
					permits = append(permits, m.Permits)
					ids[string(m.ID)] = true
				}
				assert.Equal(t, []uint32{3, 2}, permits)
				assert.Len(t, ids, 2)
				assert.EqualValues(t, 5, limitertest.Available(t, l))
				time.Sleep(time.Minute)
				assert.EqualValues(t, 10, limitertest.Available(t, l))
			})
		})
	}
}

// Redissons that read layout D take one of layout C for theirs, and find the
// permits where theirs have them.
func TestMembersOfLayoutCReadTheSameInLayoutD(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := newOldLimiter(t, rdb, "3.16.8", limitertest.Every(500, time.Hour))
		check := func(want int64) {
			for _, text := range rdb.ZRange(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Val() {
				m, err := codec.Parse(text[:13])
				require.NoError(t, err)
				assert.Equal(t, codec.LayoutD1, m.Layout)
				assert.EqualValues(t, want, m.Permits)
			}
		}
		limitertest.MustAcquire(t, l, 300)
		check(300)
		require.NoError(t, l.Release(t.Context(), 40))
		check(260)
	})
}

// Redisson before 3.35 counts members where it should count permits.
func TestRequestsShareNoMemberBesideRedissonBefore335(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.15.5", "3.16.8", "3.20.1", "3.27.2", "3.34.1"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
				const callers, rate = 400, 700
				l := newOldLimiter(t, rdb, version, limitertest.Every(rate, time.Hour))
				var mu sync.Mutex
				granted, sum := 0, int64(0)
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						permits := int64(1 + i%3)
						ok, err := l.TryAcquire(t.Context(), permits, 0)
						assert.NoError(t, err)
						if ok {
							mu.Lock()
							defer mu.Unlock()
							granted++
							sum += permits
						}
					})
				}
				wg.Wait()
				assert.EqualValues(t, rate, sum)
				assert.Len(t, members(t, rdb, limitertest.KeysOf(l).Permits), granted)
				assert.Equal(t, sum, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
				assert.Zero(t, limitertest.Available(t, l))
			})
		})
	}
}

// What has run out does not wait beside these releases, which must sweep it all
// at once.
func TestNothingThatRanOutStaysBesideRedissonBefore335(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for _, version := range []string{"3.13.6", "3.20.1", "3.27.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := newOldLimiter(t, rdb, version, limitertest.Every(5000, time.Minute))
				for range 600 { // more than one call drops
					limitertest.MustAcquire(t, l, 1)
				}
				time.Sleep(30 * time.Second)
				limitertest.MustAcquire(t, l, 7)
				time.Sleep(31 * time.Second)
				limitertest.MustAcquire(t, l, 9)
				assert.Len(t, members(t, rdb, limitertest.KeysOf(l).Permits), 2)
				value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
				assert.EqualValues(t, 5000-7-9, value)
			})
		})
	}
}
