package damage_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A lost value is rebuilt from a large set in several calls. Permits that are given
// back between them take their rows out of it; no other is left out for that.
func TestAValueIsRebuiltWhileOthersGiveBack(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		const rate = 100_000
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(rate, time.Hour))
		k := limitertest.KeysOf(l)
		limitertest.AddGrants(t, rdb, k.Permits, time.Minute, 600, 100)
		require.NoError(t, rdb.Set(t.Context(), k.Value, rate-600*100, 0).Err())
		others := limitertest.NewClient(t, rdb).Keyed("", limitertest.Every(rate, time.Hour))
		var undos []func(context.Context) error
		for range 20 {
			_, undo, err := others.TakeReturnable(t.Context(), l.Name(), 1)
			require.NoError(t, err)
			undos = append(undos, undo)
			time.Sleep(time.Millisecond)
		}
		limitertest.MustAcquire(t, l, 1)
		require.NoError(t, rdb.Del(t.Context(), k.Value).Err())

		calls := 0
		rdb.AddHook(limitertest.BeforeScript(lua.Acquire, func() {
			if calls++; calls == 2 {
				for _, undo := range undos {
					require.NoError(t, undo(t.Context()))
				}
			}
		}))
		limitertest.MustAcquire(t, l, 1)
		assert.GreaterOrEqual(t, calls, 3)
		assert.EqualValues(t, 600*100+2, limitertest.InUse(t, rdb, k.Permits))
		value, _ := limitertest.StoredValue(t, rdb, k.Value)
		assert.EqualValues(t, rate-600*100-2, value)
	})
}
