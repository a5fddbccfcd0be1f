package tokenbucket_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// keysOf returns the keys of a bucket.
func keysOf(key string) []string { return []string{key, key + "_time"} }

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(rdb redis.UniversalClient, permits int64, window time.Duration) limittest.Limiter {
			return tokenbucket.New(rdb, tokenbucket.Config{Capacity: permits, Refill: permits, Interval: window})
		},
		Keys:     keysOf,
		Type:     "string",
		Fields:   []string{"tokens", "time"},
		Corrupt:  []string{"", "abc", "1.5", "1e3", " 3", "3 ", "9007199254740992", "99999999999999999999", "0x1", "--1"},
		Shortest: []time.Duration{time.Second},
		Most:     tokenbucket.MaxTokens,
		AtEdge:   19,
		Articles: func(rdb redis.Cmdable, key string, permits int64) []limittest.Rule {
			article := articles.TokenBucket{Redis: rdb, Key: key, Capacity: permits, Refill: 1, Seconds: 3600, Cost: 1, Now: time.Now}
			return []limittest.Rule{func(ctx context.Context) (int64, error) {
				left, err := article.Eval(ctx)
				return left + 1, err
			}}
		},
	})
}

// Who chooses the second key of another gets none, and does no harm.
func TestKeyOfAnother(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 2, Refill: 1, Interval: time.Minute})
		for key, other := range map[string]string{"ann_time": "ann", "{bob}_time": "{bob}", "_time_time": "_time"} {
			limittest.RequireRefused(t, l, key, 1, limit.ErrInvalidConfig, strconv.Quote(key), strconv.Quote(other), "hash tag")
			assert.Equal(t, 2, limittest.Grants(t, l, other, 3))
		}
		for _, key := range []string{"{ann_time}", "ann_time%", "time", "_times"} {
			assert.Equal(t, 2, limittest.Grants(t, l, key, 3), key)
		}
	})
}
