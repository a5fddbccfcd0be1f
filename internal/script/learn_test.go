package script_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// hungCluster never finds out which master has a key.
type hungCluster struct{ script.Redis }

func (hungCluster) MasterForKey(context.Context, string) (*redis.Client, error) {
	time.Sleep(time.Hour)
	return nil, redis.ErrClosed
}

// Callers with little time each wait together as long as one who has time.
func TestLearningHoldsUpCallersWithLittleTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := script.NewConn(hungCluster{}, script.DefaultTimeout)
		start := time.Now()
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			assert.Nil(t, conn.Master(ctx, "key"))
			cancel()
		}
		assert.LessOrEqual(t, time.Since(start), 200*time.Millisecond)
		time.Sleep(time.Hour)
	})
}
