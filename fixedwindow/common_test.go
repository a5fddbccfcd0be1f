package fixedwindow_test

import (
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(rdb redis.UniversalClient, permits int64, window time.Duration) limittest.Limiter {
			return fixedwindow.New(rdb, fixedwindow.Config{Limit: permits, Window: window})
		},
		Keys: func(key string) []string { return []string{key} },
		Type: "string",
		Corrupt: []string{
			"", "abc", "-1", "1.5", "1e3", " 3", "3 ", "9007199254740992", "99999999999999999999", "0x1", "\x00",
		},
		Shortest: []time.Duration{time.Millisecond, 3 * time.Millisecond, 250 * time.Millisecond, 1750 * time.Millisecond},
		Longest:  math.MaxInt64 * time.Nanosecond / 1e6 * 1e6,
		Most:     fixedwindow.MaxLimit,
		AtEdge:   19,
		Articles: func(rdb redis.Cmdable, key string, permits int64) []limittest.Rule {
			return []limittest.Rule{
				articles.FixedWindow{Redis: rdb, Key: key, Limit: permits, Seconds: 3600}.Eval,
				articles.Counter{Redis: rdb, Key: key, Limit: permits, Seconds: 3600}.Eval,
			}
		},
	})
}
