package slidinglog_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// The tests of this file are each named after something that the articles'
// scripts do wrong.

func threeAMinute(rdb redis.UniversalClient) *slidinglog.Limiter {
	return slidinglog.New(rdb, slidinglog.Config{Limit: 3, Window: time.Minute})
}

// A log that one variant of the script writes stays for ever.
func TestFaultNoTTL(t *testing.T) {
	t.Parallel()
	for name, rows := range map[string]int{"granted": 2, "refused": 3, "refused, above the limit": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l, ctx := threeAMinute(rdb), t.Context()
				for range rows {
					row := redis.Z{Score: float64(time.Now().UnixMilli()), Member: time.Now().String()}
					require.NoError(t, rdb.ZAdd(ctx, "key", row).Err())
					time.Sleep(time.Second)
				}
				require.Equal(t, time.Duration(-1), rdb.PTTL(ctx, "key").Val())
				assert.Equal(t, rows < 3, limittest.Take(t, l, "key", 1).Granted)
				assert.Equal(t, time.Minute, rdb.PTTL(ctx, "key").Val())
				time.Sleep(time.Minute + time.Millisecond)
				assert.Zero(t, rdb.Exists(ctx, "key").Val())
			})
		})
	}
}

// A refusal leaves the time to live alone that a grant has given: the log does
// not stay for as long as somebody asks.
func TestRefusalsDoNotKeepALog(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := threeAMinute(rdb)
		assert.True(t, limittest.Take(t, l, "key", 3).Granted)
		for range 10 {
			time.Sleep(5 * time.Second)
			assert.False(t, limittest.Take(t, l, "key", 1).Granted)
		}
		assert.Equal(t, 10*time.Second, rdb.PTTL(t.Context(), "key").Val())
	})
}

// Where the timestamp is the member, the requests of one millisecond count once.
func TestFaultRequestsOfOneMillisecond(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l, other := threeAMinute(rdb), threeAMinute(rdb)
		assert.True(t, limittest.Take(t, l, "key", 1).Granted)
		assert.True(t, limittest.Take(t, other, "key", 1).Granted)
		assert.True(t, limittest.Take(t, l, "key", 1).Granted)
		assert.False(t, limittest.Take(t, other, "key", 1).Granted)
		assert.EqualValues(t, 3, rdb.ZCard(t.Context(), "key").Val())

		assert.True(t, limittest.Take(t, l, "several", 3).Granted)
		assert.False(t, limittest.Take(t, l, "several", 1).Granted)
		assert.EqualValues(t, 3, rdb.ZCard(t.Context(), "several").Val(), "a row for each, as all who share the log count them")
	})
}

// Rows that a caller with a fast clock wrote are in use, for a window from the
// first call on that finds them.
func TestRowsOfAFastClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Second, 30 * time.Second, time.Hour} {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := threeAMinute(rdb)
			article := articles.SlidingLog{
				Redis: rdb, Key: "key", Threshold: 3, Seconds: 60, Now: func() time.Time { return time.Now().Add(ahead) },
			}
			for range 3 {
				answer, err := article.Take(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 1, answer)
			}
			time.Sleep(time.Millisecond)
			d := limittest.Take(t, l, "key", 1)
			assert.False(t, d.Granted)
			assert.Zero(t, d.Remaining)
			assert.Equal(t, time.Minute, d.RetryAfter, "they count from now on")
			assert.Equal(t, time.Minute, d.ResetAfter)
			time.Sleep(d.RetryAfter)
			assert.True(t, limittest.Take(t, l, "key", 3).Granted)
		})
	}
}

func TestInvalidConfig(t *testing.T) {
	t.Parallel()
	for text, cfg := range map[string]slidinglog.Config{
		"limit 0":                 {Window: time.Second},
		"limit -1":                {Limit: -1, Window: time.Second, Thresholds: "thresholds"},
		"limit 9007":              {Limit: slidinglog.MaxLimit + 1, Window: time.Second},
		"window 0s":               {Limit: 1},
		"window -1s":              {Limit: 1, Window: -time.Second},
		"window 1µs":              {Limit: 1, Window: time.Microsecond},
		"window 1.0005s is not a": {Limit: 1, Window: time.Second + 500*time.Microsecond},
	} {
		limittest.RequireRefused(t, slidinglog.New(limittest.Unreachable(t), cfg), "orders", 1, limit.ErrInvalidConfig, text, `"orders"`)
	}
	l := threeAMinute(limittest.Unreachable(t))
	limittest.RequireRefused(t, l, "orders", slidinglog.MaxPermits+1, limit.ErrInvalidPermits, `"orders"`)
}
