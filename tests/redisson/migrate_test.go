package redisson_test

import (
	"fmt"
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
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestMigrateRewritesEveryLayout(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, rdb)
		l := client.RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, l, limitertest.Every(100, time.Minute))
		k := limitertest.KeysOf(l)
		now := time.Now().UnixMilli()
		scores := map[int64]uint32{}
		for i, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2, codec.LayoutB} {
			age, permits := int64(10_000*i), uint32(i+1)
			require.NoError(t, rdb.ZAdd(t.Context(), k.Permits, redis.Z{Score: float64(now - age), Member: limitertest.NewMember(t, layout, permits)}).Err())
			scores[now-age] = permits
		}
		require.NoError(t, rdb.Set(t.Context(), k.Value, 100-15, 0).Err())

		written, err := client.Migrate(t.Context(), l.Name())
		require.NoError(t, err)
		assert.EqualValues(t, 4, written)
		for _, z := range rdb.ZRangeWithScores(t.Context(), k.Permits, 0, -1).Val() {
			m, err := codec.Parse(z.Member.(string))
			require.NoError(t, err)
			assert.Equal(t, codec.LayoutD2, m.Layout)
			assert.Equal(t, scores[int64(z.Score)], m.Permits)
			delete(scores, int64(z.Score))
		}
		assert.Empty(t, scores, "members lost")
		assert.EqualValues(t, 85, limitertest.Available(t, l))
		time.Sleep(21 * time.Second)
		assert.EqualValues(t, 90, limitertest.Available(t, l))

		written, err = client.Migrate(t.Context(), l.Name())
		require.NoError(t, err)
		assert.Zero(t, written)
	})
}

// A window becomes members that run out when it would have ended.
func TestMigrateOfAWindow(t *testing.T) {
	t.Parallel()
	for _, rate := range []int64{10, 3 << 32} {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			old := newOldLimiter(t, rdb, windowed, limitertest.Every(rate, time.Minute))
			require.True(t, limitertest.AsRedisson3123(t, rdb, old, rate-3))
			time.Sleep(20 * time.Second)
			client := limitertest.NewClient(t, rdb)
			l := client.RateLimiter(old.Name())
			_, err := client.Migrate(t.Context(), l.Name())
			require.NoError(t, err)
			k := limitertest.KeysOf(l)
			assert.Equal(t, rate-3, limitertest.InUse(t, rdb, k.Permits))
			assert.EqualValues(t, -1, rdb.PTTL(t.Context(), k.Value).Val())
			assert.EqualValues(t, 3, limitertest.Available(t, l))
			limitertest.MustAcquire(t, l, 2)
			time.Sleep(39 * time.Second)
			assert.EqualValues(t, 1, limitertest.Available(t, l))
			time.Sleep(time.Second)
			assert.Equal(t, rate-2, limitertest.Available(t, l))
			time.Sleep(20 * time.Second)
			assert.Equal(t, rate, limitertest.Available(t, l))
		})
	}
}

func TestMigrateManyMembersWhileOthersTake(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const rate, before = 3000, 2000
		old := newOldLimiter(t, rdb, "3.16.8", limitertest.Every(rate, time.Hour))
		for range before / 100 {
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { limitertest.MustAcquire(t, old, 1) })
			}
			wg.Wait()
		}
		client := limitertest.NewClient(t, rdb)
		l := client.RateLimiter(old.Name())
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 200 {
				limitertest.MustAcquire(t, l, 1)
			}
		})
		written, err := client.Migrate(t.Context(), l.Name())
		require.NoError(t, err)
		wg.Wait()
		assert.EqualValues(t, before, written)
		assert.EqualValues(t, before+200, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
		assert.EqualValues(t, rate-before-200, limitertest.Available(t, l))
		for _, m := range members(t, rdb, limitertest.KeysOf(l).Permits) {
			assert.Equal(t, codec.LayoutD2, m.Layout)
		}
	})
}

func TestMigrateOutlivesLostAnswers(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(100), false)
	old := limitertest.NewClient(t, w.Redis, rratelimiter.WithRedissonVersion("3.15.5")).RateLimiter(w.Name())
	for range 20 {
		limitertest.MustAcquire(t, old, 3)
	}
	w.On(lua.Migrate, redistest.DropAnswer, redistest.Swallow, redistest.Late.When(w.Held))
	_, err := w.Client.Migrate(t.Context(), w.Name())
	require.NoError(t, err)
	w.CheckHeldSoon(t, 60, "migrated")
	w.LetGo()
	w.CheckHeld(t, 60, "a late request came")
	for _, m := range members(t, w.Redis, w.Keys.Permits) {
		assert.Equal(t, codec.LayoutD2, m.Layout)
	}
}

func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Minute))
		limitertest.MustAcquire(t, l, 3)
		limitertest.RequireUntouched(t, rdb, l.Name(), func() {
			for _, version := range []string{windowed, "3.15.5", "3.16.8"} {
				_, err := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)).Migrate(t.Context(), l.Name())
				require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
				assert.ErrorContains(t, err, version)
			}
			client := limitertest.NewClient(t, rdb)
			_, err := client.Migrate(t.Context(), "nobody")
			require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
			_, err = client.Migrate(t.Context(), "")
			require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
		})
		require.NoError(t, rdb.ZAdd(t.Context(), limitertest.KeysOf(l).Permits, redis.Z{Score: 1, Member: "junk"}).Err())
		limitertest.RequireUntouched(t, rdb, l.Name(), func() {
			_, err := limitertest.NewClient(t, rdb).Migrate(t.Context(), l.Name())
			require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
		})
	})
}

// What others took is theirs in the new layout too: a Release takes this Client's
// off first.
func TestMigrateMakesNobodysPermitsItsOwn(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"4.7.0", "3.20.1"} {
		for _, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1} {
			t.Run(fmt.Sprintf("%s, layout %v", version, layout), func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version))
					l := client.RateLimiter(redistest.Name(t))
					limitertest.MustTrySetRate(t, l, limitertest.Every(100, time.Hour))
					limitertest.MustAcquire(t, l, 3)
					time.Sleep(time.Second)
					for range 5 {
						row := redis.Z{Score: float64(limitertest.ServerNow(t, rdb)), Member: limitertest.NewMember(t, layout, 1)}
						require.NoError(t, rdb.ZAdd(t.Context(), limitertest.KeysOf(l).Permits, row).Err())
					}
					require.NoError(t, rdb.DecrBy(t.Context(), limitertest.KeysOf(l).Value, 5).Err())
					_, err := client.Migrate(t.Context(), l.Name())
					require.NoError(t, err)
					require.NoError(t, l.Release(t.Context(), 3))
					rows, err := rdb.ZRangeWithScores(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Result()
					require.NoError(t, err)
					assert.Len(t, rows, 5, "those of others")
					for _, row := range rows {
						assert.InDelta(t, limitertest.ServerNow(t, rdb), row.Score, 0)
						assert.Len(t, row.Member, 21)
					}
				})
			})
		}
	}
}
