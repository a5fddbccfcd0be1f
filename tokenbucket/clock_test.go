package tokenbucket_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// After a clock has gone back the refills go on, also where somebody takes what is
// there all the time.
func TestRefillsGoOnByAClockSetBack(t *testing.T) {
	t.Parallel()
	for _, back := range []time.Duration{time.Second, 15 * time.Second, time.Hour} {
		t.Run(back.String(), func(t *testing.T) {
			t.Parallel()
			redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
				l := threeInTenSeconds(rdb)
				require.True(t, limittest.Take(t, l, "key", 9).Granted)
				step(-back)
				assert.True(t, limittest.Take(t, l, "key", 1).Granted)
				assert.Equal(t, strconv.FormatInt(rdb.Time(t.Context()).Val().Unix(), 10), rdb.Get(t.Context(), "key_time").Val())
				for range 12 {
					time.Sleep(10 * time.Second)
					d := limittest.Take(t, l, "key", 3)
					assert.True(t, d.Granted)
					assert.Zero(t, d.Remaining)
					assert.Equal(t, 40*time.Second, d.ResetAfter)
					requireTTLs(t, rdb, "key", d)
				}
			})
		})
	}
}

// A service whose clock is ahead finds the time that it wrote: ours would have it
// refill anew after each visit. Neither do we set it back while the server's clock
// goes on, nor more than once when that has gone back.
func TestTimeOfAFastClockStays(t *testing.T) {
	t.Parallel()
	redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
		l := threeInTenSeconds(rdb)
		article := articles.TokenBucket{
			Redis: rdb, Key: "key", Capacity: 10, Refill: 3, Seconds: 10, Cost: 1,
			Now: func() time.Time { return time.Now().Add(25 * time.Second) },
		}
		play := func() (granted int64) {
			for range 20 {
				left, err := article.Take(t.Context())
				require.NoError(t, err)
				if left >= 0 {
					granted++
				}
				if limittest.Take(t, l, "key", 1).Granted {
					granted++
				}
			}
			return granted
		}
		assert.Equal(t, int64(10), play())
		step(-2 * time.Second)
		assert.LessOrEqual(t, play(), int64(10))
		assert.Zero(t, play())
	})
}

// What is given back late is less what the bucket was refilled with since, however
// far the clock has gone back.
func TestGivingBackAfterRefillsAndAStep(t *testing.T) {
	t.Parallel()
	for name, visit := range map[string]bool{"nobody came by": false, "others came by": true} {
		for _, back := range []time.Duration{time.Second, 3 * time.Second, 5 * time.Second, time.Hour} {
			t.Run(name+" "+back.String(), func(t *testing.T) {
				t.Parallel()
				redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
					l := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second})
					_, giveBack, err := l.TakeReturnable(t.Context(), "key", 10)
					require.NoError(t, err)
					time.Sleep(5 * time.Second)
					require.True(t, limittest.Take(t, l, "key", 5).Granted)
					step(-back)
					if visit {
						require.False(t, limittest.Take(t, l, "key", 1).Granted)
					}
					require.NoError(t, giveBack(t.Context()))
					d := limittest.Take(t, l, "key", 10)
					assert.LessOrEqual(t, d.Remaining, int64(5), "5 of the 10 have come back by themselves")
					requireTTLs(t, rdb, "key", d)
					assert.Equal(t, 10*time.Second, rdb.PTTL(t.Context(), "key").Val())
				})
			})
		}
	}
}

// A debt that takes longer to pay back than any clock counts is one all the same.
func TestDebtWithoutEnd(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		key, ctx := limittest.Key(t), t.Context()
		require.NoError(t, rdb.Set(ctx, key, -int64(tokenbucket.MaxTokens), time.Hour).Err())
		require.NoError(t, rdb.Set(ctx, key+"_time", time.Now().Unix(), time.Hour).Err())
		l := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 1, Refill: 1, Interval: 24 * time.Hour})
		for range 2 {
			d := limittest.Take(t, l, key, 1)
			assert.False(t, d.Granted)
			assert.Equal(t, math.MaxInt64*time.Nanosecond/1e6*1e6, d.RetryAfter)
			assert.Positive(t, rdb.PTTL(ctx, key).Val())
		}
	})
}
