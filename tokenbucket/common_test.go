package tokenbucket_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(rdb redis.UniversalClient, permits int64, window time.Duration) limit.Returner {
			return tokenbucket.New(rdb, tokenbucket.Config{Capacity: permits, Refill: permits, Interval: window})
		},
		Keys: func(key string) []string { return []string{key, key + "_time"} },
		Type: "string",
	})
}
