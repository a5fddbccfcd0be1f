package fixedwindow_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// The tests of this file are each named after something that the articles'
// scripts do wrong.

func tenAMinute(rdb redis.UniversalClient) *fixedwindow.Limiter {
	return fixedwindow.New(rdb, fixedwindow.Config{Limit: 10, Window: time.Minute})
}

// A value that somebody wrote by hand, or whose writer crashed before EXPIRE, such as
// a counter's, refuses for ever.
func TestFaultValueWithoutTTL(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stored  string
		granted bool
		left    int64
	}{
		"one taken":       {"1", true, 8},
		"room left":       {"4", true, 5},
		"full":            {"10", false, 0},
		"above the limit": {"5000", false, 0},
		"nothing taken":   {"0", true, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := tenAMinute(rdb)
				require.NoError(t, rdb.Set(t.Context(), "key", tc.stored, 0).Err())
				d := limittest.Take(t, l, "key", 1)
				assert.Equal(t, tc.granted, d.Granted)
				assert.Equal(t, tc.left, d.Remaining)
				assert.Equal(t, time.Minute, d.ResetAfter)
				assert.Equal(t, time.Minute, rdb.PTTL(t.Context(), "key").Val())
				time.Sleep(time.Minute)
				assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
			})
		})
	}
}

// The counter counts what it refuses, so that the count has no bound.
func TestFaultCountGrowsWhileRefused(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l, ctx := tenAMinute(rdb), t.Context()
		assert.Equal(t, 10, limittest.Grants(t, l, "key", 100))
		assert.Equal(t, "10", rdb.Get(ctx, "key").Val())
		assert.False(t, limittest.Take(t, l, "key", 7).Granted)
		assert.Equal(t, "10", rdb.Get(ctx, "key").Val())

		// Theirs has gone beyond the limit: full, until the window ends.
		counter := articles.Counter{Redis: rdb, Key: "key", Limit: 10, Seconds: 60}
		for range 50 {
			answer, err := counter.Take(ctx)
			require.NoError(t, err)
			require.EqualValues(t, -1, answer)
		}
		time.Sleep(20 * time.Second)
		assert.Equal(t, limit.Decision{Limit: 10, RetryAfter: 40 * time.Second, ResetAfter: 40 * time.Second},
			limittest.Take(t, l, "key", 1))
		time.Sleep(40 * time.Second)
		assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
	})
}

// A window belongs to those who opened it: its end stays where it is, unless it is
// further away than a window of ours can end. By a clock that has gone back it may
// be by any time.
func TestWindowOfAnotherLength(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]time.Duration{
		30 * time.Second: 30 * time.Second,
		time.Minute:      time.Minute,
		90 * time.Second: time.Minute,
		time.Hour:        time.Minute,
	} {
		for name, count := range map[string]int{"granted": 9, "refused": 10} {
			t.Run(name+" "+left.String(), func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					require.NoError(t, rdb.Set(t.Context(), "key", count, left).Err())
					l := tenAMinute(rdb)
					d := limittest.Take(t, l, "key", 1)
					assert.Equal(t, count < 10, d.Granted)
					assert.Equal(t, want, d.ResetAfter)
					assert.Equal(t, want, rdb.PTTL(t.Context(), "key").Val())
					time.Sleep(want)
					assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
				})
			})
		}
	}
}

func TestInvalidConfig(t *testing.T) {
	t.Parallel()
	for text, cfg := range map[string]fixedwindow.Config{
		"limit 0":       {Window: time.Second},
		"limit -1":      {Limit: -1, Window: time.Second},
		"limit 9007":    {Limit: fixedwindow.MaxLimit + 1, Window: time.Second},
		"window 0s":     {Limit: 1},
		"window -1s":    {Limit: 1, Window: -time.Second},
		"window 1µs":    {Limit: 1, Window: time.Microsecond},
		"window 1.0005": {Limit: 1, Window: time.Second + 500*time.Microsecond},
	} {
		limittest.RequireRefused(t, fixedwindow.New(limittest.Unreachable(t), cfg), "orders", 1, limit.ErrInvalidConfig, text, `"orders"`)
	}
}
