package lua

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// The list holds the attempts that a repeat decided last, each of them whole:
// their late copies take nothing.
func TestTheLastThirtyOneAttemptsAreNoted(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for layout, noted := range map[codec.Layout]int{codec.LayoutD2: 31, codec.LayoutD1: 46, codec.LayoutC: 32, codec.LayoutB: 66} {
			name := redistest.Name(t)
			all := redisson.KeysOf(name, "id").List()
			require.NoError(t, rdb.HSet(t.Context(), name, "rate", 1000, "interval", 3600000, "type", 0).Err())
			const attempts = 70
			ids := make([]string, attempts)
			for i := range ids {
				ids[i] = memberOf(t, layout, i)
				require.NoError(t, rdb.Eval(t.Context(), Acquire.Source, all, ids[i], 1, "", "", 0).Err())
			}
			list, err := rdb.HGet(t.Context(), name, "answered").Result()
			require.NoError(t, err)
			assert.Equal(t, noted, strings.Count(list, ":"), "layout %v", layout)
			assert.Regexp(t, `^(\d{13}:([0-9a-f]{2})+;)+$`, list, "layout %v", layout)
			require.NoError(t, rdb.Del(t.Context(), all[1:]...).Err(), "so that late copies could be granted")
			for i, id := range ids {
				err := rdb.Eval(t.Context(), Acquire.Source, all, id, 1).Err()
				assert.Equal(t, i >= attempts-noted, redis.HasErrorPrefix(err, "LATE"), "layout %v, attempt %d: %v", layout, i, err)
			}
		}
	})
}

// memberOf returns a member for one permit, with an id of its own.
func memberOf(t *testing.T, layout codec.Layout, n int) string {
	t.Helper()
	sizes := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}
	id := []byte(fmt.Sprintf("%0*d", sizes[layout], n))
	m, err := codec.Append(nil, layout, id, 1)
	require.NoError(t, err)
	return string(m)
}
