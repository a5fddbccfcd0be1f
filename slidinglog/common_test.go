package slidinglog_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(rdb redis.UniversalClient, permits int64, window time.Duration) limit.Returner {
			return slidinglog.New(rdb, slidinglog.Config{Limit: permits, Window: window})
		},
		Keys: func(key string) []string { return []string{key} },
		Type: "zset",
		Once: true,
	})
}
