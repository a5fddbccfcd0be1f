package slidinglog_test

import (
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(rdb redis.UniversalClient, permits int64, window time.Duration) limittest.Limiter {
			return slidinglog.New(rdb, slidinglog.Config{Limit: permits, Window: window})
		},
		Keys:     func(key string) []string { return []string{key} },
		Type:     "zset",
		Once:     true,
		Shortest: []time.Duration{time.Millisecond, 3 * time.Millisecond, 250 * time.Millisecond, 1750 * time.Millisecond},
		Longest:  math.MaxInt64 * time.Nanosecond / 1e6 * 1e6,
		AtEdge:   10,
		Articles: func(rdb redis.Cmdable, key string, permits int64) []limittest.Rule {
			return []limittest.Rule{articles.SlidingLog{Redis: rdb, Key: key, Threshold: permits, Seconds: 3600, Now: time.Now}.Eval}
		},
	})
}
