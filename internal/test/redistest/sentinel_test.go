package redistest_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestSentinelReplacesAMasterThatDied(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2, time.Second)
	rdb := s.Client(t, nil)
	require.NoError(t, rdb.Set(t.Context(), "kept", "value", 0).Err())
	require.NoError(t, rdb.Do(t.Context(), "WAIT", 2, 10_000).Err())
	master := s.Master(t)
	require.Len(t, s.Replicas(t), 2)

	s.CutReplication(t)
	require.NoError(t, rdb.Set(t.Context(), "lost", "value", 0).Err())
	master.Kill()
	next := s.AwaitMaster(t, master)
	assert.NotSame(t, master, next)
	assert.Len(t, s.Replicas(t), 1)
	require.Eventually(t, func() bool {
		return rdb.Set(t.Context(), "later", "value", 0).Err() == nil
	}, 20*time.Second, 50*time.Millisecond)
	assert.Equal(t, "value", rdb.Get(t.Context(), "kept").Val())
	require.ErrorIs(t, rdb.Get(t.Context(), "lost").Err(), redis.Nil)
	assert.Equal(t, "value", next.Client(t, nil).Get(t.Context(), "later").Val())
}

func TestSentinelReplacesAMasterThatHangs(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1, time.Second)
	rdb := s.Client(t, &redis.FailoverOptions{ReadTimeout: time.Second})
	require.NoError(t, rdb.Set(t.Context(), "key", "value", 0).Err())
	master := s.Master(t)
	master.Freeze(t)
	next := s.AwaitMaster(t, master)
	assert.Same(t, next, s.Master(t))
	master.Thaw(t)
	assert.Equal(t, "value", master.Client(t, nil).Get(t.Context(), "key").Val())
	require.Eventually(t, func() bool {
		return rdb.Set(t.Context(), "key", "new", 0).Err() == nil && next.Client(t, nil).Get(t.Context(), "key").Val() == "new"
	}, 20*time.Second, 50*time.Millisecond)
}

func TestSentinelReplacesAMasterOnRequest(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1, time.Second)
	old := s.Master(t)
	next := s.Failover(t)
	assert.NotSame(t, old, next)
	assert.Same(t, next, s.Master(t))
	assert.Same(t, old, s.Failover(t), "once it was in order")
	assert.Same(t, old, s.AwaitOrder(t))
	role, err := next.Client(t, nil).Do(t.Context(), "ROLE").Slice()
	require.NoError(t, err)
	assert.Equal(t, "slave", role[0], "in step with the one before")
	assert.Equal(t, "connected", role[3])
}
