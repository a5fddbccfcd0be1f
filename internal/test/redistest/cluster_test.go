package redistest_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	rdb := c.Client(t, nil)
	require.Len(t, c.Addrs(), 6)
	seen := map[*redistest.Server]bool{}
	for i := range 100 {
		key := strconv.Itoa(i)
		require.NoError(t, rdb.Set(t.Context(), key, "value", 0).Err())
		master, replicas := c.Owner(t, c.Slot(t, key))
		require.Len(t, replicas, 1)
		seen[master] = true
	}
	assert.Len(t, seen, 3)

	var others []*redistest.Server
	key := "{moving}1"
	require.NoError(t, rdb.Set(t.Context(), key, "value", 0).Err())
	slot := c.Slot(t, key)
	master, _ := c.Owner(t, slot)
	for s := range seen {
		if s != master {
			others = append(others, s)
		}
	}
	move := c.StartMove(t, slot, others[0])
	assert.Equal(t, "value", rdb.Get(t.Context(), key).Val(), "still here")
	require.ErrorContains(t, rdb.MGet(t.Context(), key, "{moving}2").Err(), "TRYAGAIN", "one here, one perhaps there")
	move.MoveKeys(t, key)
	assert.Equal(t, "value", rdb.Get(t.Context(), key).Val(), "asked for there")
	move.Finish(t)
	require.NoError(t, rdb.Set(t.Context(), "{moving}2", "value", 0).Err())
	assert.Equal(t, []any{"value", "value"}, rdb.MGet(t.Context(), key, "{moving}2").Val())

	move = c.StartMove(t, slot, others[1])
	move.MoveKeys(t)
	move.Finish(t)
	assert.Equal(t, []any{"value", "value"}, rdb.MGet(t.Context(), key, "{moving}2").Val())

	for _, takeover := range []bool{false, true} {
		_, replicas := c.Owner(t, slot)
		require.NoError(t, rdb.Set(t.Context(), key, strconv.FormatBool(takeover), 0).Err())
		c.Failover(t, replicas[0], takeover)
		now, _ := c.Owner(t, slot)
		assert.Same(t, replicas[0], now)
	}
	require.NoError(t, rdb.Get(t.Context(), key).Err())
}
