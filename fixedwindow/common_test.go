package fixedwindow_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(rdb redis.UniversalClient, permits int64, window time.Duration) limit.Returner {
			return fixedwindow.New(rdb, fixedwindow.Config{Limit: permits, Window: window})
		},
		Keys: func(key string) []string { return []string{key} },
		Type: "string",
	})
}
