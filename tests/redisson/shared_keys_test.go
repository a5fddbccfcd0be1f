package redisson_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A handle that knows its limiter to be shared passes fewer keys. Others may
// change the type at any time.
func TestTypeChangesUnderAHandle(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		name := redistest.Name(t)
		const id = "id"
		l := limitertest.NewClient(t, rdb, rratelimiter.WithClientID(id)).RateLimiter(name)
		other := limitertest.NewClient(t, rdb, rratelimiter.WithClientID(id)).RateLimiter(name)
		keys := redisson.KeysOf(name, id)
		for _, kind := range []rratelimiter.RateType{
			rratelimiter.Overall, rratelimiter.PerClient, rratelimiter.PerClient, rratelimiter.Overall, rratelimiter.PerClient,
		} {
			require.NoError(t, other.SetRate(t.Context(), rratelimiter.Config{Type: kind, Rate: 3, Interval: time.Hour}))
			for range 3 {
				limitertest.MustAcquire(t, l, 1)
			}
			limitertest.MustRefuse(t, l, 1)
			limitertest.MustRefuse(t, l, 1)
			permits, others := keys.Permits, keys.ClientPermits
			if kind == rratelimiter.PerClient {
				permits, others = others, permits
			}
			assert.EqualValues(t, 3, limitertest.InUse(t, rdb, permits), kind)
			assert.Zero(t, rdb.Exists(t.Context(), others).Val(), kind)
		}
	})
}
