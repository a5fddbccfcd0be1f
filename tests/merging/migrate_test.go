package merging_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Members that another Client merges between two pages of Migrate hide none of an old layout.
func TestMigrate_WhileOthersMerge(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	l := limitertest.NewLimiter(t, rdb, limitertest.Every(10_000, interval))
	limitertest.MustAcquire(t, l, 1)
	keys := limitertest.KeysOf(l)
	add := func(ids *redisson.Identities, n int, ago time.Duration) (all []byte) {
		for range n {
			m := ids.Next(nil, 1)
			redisson.SetPermits(m, 1)
			all = append(all, m...)
			require.NoError(t, rdb.Do(t.Context(), "zadd", keys.Permits, time.Now().Add(-ago).UnixMilli(), m).Err())
			require.NoError(t, rdb.Decr(t.Context(), keys.Value).Err())
		}
		return all
	}
	add(redisson.NewIdentities(codec.LayoutC), 300, 10*time.Hour)
	ids := redisson.NewIdentities(codec.LayoutD2)
	fresh := add(ids, 16, 0)
	all, token := redisson.KeysOf(l.Name(), "id").List(), ""
	for page := 0; ; page++ {
		reply, err := rdb.Eval(t.Context(), lua.Migrate.Source, all, ids.Next(nil, 256), token).Result()
		require.NoError(t, err)
		words, more := reply.([]any)
		if !more {
			assert.EqualValues(t, 300, reply)
			break
		}
		if token = words[1].(string); page == 0 {
			merged := ids.Next(nil, 1)
			redisson.SetPermits(merged, 16)
			require.NoError(t, rdb.Eval(t.Context(), lua.Merge.Source, all, 128, append(merged, fresh...)).Err())
			require.EqualValues(t, 302, rdb.ZCard(t.Context(), keys.Permits).Val())
		}
	}
	for _, m := range rdb.ZRange(t.Context(), keys.Permits, 0, -1).Val() {
		assert.Len(t, m, 21)
	}
}
