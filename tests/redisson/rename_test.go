package redisson_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestRenameToAKeyOfItsOwnIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewClient(t, rdb).RateLimiter("{x}")
		limitertest.MustTrySetRate(t, l, limitertest.Every(5, time.Hour))
		limitertest.MustAcquire(t, l, 1)
		limitertest.RequireUntouched(t, rdb, l.Name(), func() {
			require.ErrorIs(t, l.Rename(t.Context(), "{x}:value"), rratelimiter.ErrInvalidConfig)
			require.ErrorIs(t, l.Rename(t.Context(), "{x}:permits"), rratelimiter.ErrInvalidConfig)
		})
	})
}

// The shards of a Ring know nothing of each other.
func TestRenameOnARingStaysOnItsShard(t *testing.T) {
	t.Parallel()
	one, two := redistest.StartRedis(t), redistest.StartRedis(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Addr(), "two": two.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	client := limitertest.NewClient(t, ring)
	for i := range 20 {
		name := "{shop" + strconv.Itoa(i) + "}orders"
		l := client.RateLimiter(name)
		limitertest.MustTrySetRate(t, l, limitertest.Every(5, time.Hour))
		limitertest.MustAcquire(t, l, 2)
		require.ErrorIs(t, l.Rename(t.Context(), "sales"+strconv.Itoa(i)), rratelimiter.ErrUnsupported)
		require.NoError(t, l.Rename(t.Context(), strings.ReplaceAll(name, "orders", "sales")))
		assert.EqualValues(t, 3, limitertest.Available(t, client.RateLimiter(strings.ReplaceAll(name, "orders", "sales"))))
	}
}
