package slidinglog_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func threeAMinuteOr(rdb redis.UniversalClient, hash string) *slidinglog.Limiter {
	return slidinglog.New(rdb, slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: hash})
}

// Wherever the log and its threshold are, a change of the one counts for the
// other's next decision.
func TestThresholdsOnSeveralServers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) redis.UniversalClient{
		"cluster": func(t *testing.T) redis.UniversalClient { return redistest.StartCluster(t, 3, 0).Client(t, nil) },
		"ring": func(t *testing.T) redis.UniversalClient {
			// The shards are one server: it is the client that parts the keys.
			addr := redistest.Shared(t).Addr()
			ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": addr, "two": addr}})
			t.Cleanup(func() { assert.NoError(t, ring.Close()) })
			return ring
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, ctx := start(t), t.Context()
			hash := redistest.Name(t)
			l, other := threeAMinuteOr(rdb, hash), threeAMinuteOr(rdb, hash)
			for _, suffix := range []string{"ann:/orders", "bob:/orders", "cid:/users", "dan:/", "{" + hash + "}:near"} {
				key := redistest.Name(t) + suffix
				require.NoError(t, rdb.HSet(ctx, hash, key, 2).Err())
				assert.Equal(t, 2, limittest.Grants(t, l, key, 4), key)
				require.NoError(t, other.SetThreshold(ctx, key, 6))
				d := limittest.Take(t, l, key, 1)
				assert.True(t, d.Granted, key)
				assert.Equal(t, int64(6), d.Limit)
				assert.Equal(t, int64(3), d.Remaining)
				require.NoError(t, rdb.HSet(ctx, hash, key, 3).Err())
				assert.False(t, limittest.Take(t, l, key, 1).Granted, key)
				assert.False(t, limittest.Take(t, other, key, 1).Granted, key)
				assert.EqualValues(t, 3, rdb.ZCard(ctx, key).Val(), "refusals leave nothing")
				require.NoError(t, rdb.HSet(ctx, hash, key, 5).Err())
				assert.Equal(t, 2, limittest.Grants(t, other, key, 4), key)
				require.NoError(t, l.ResetThreshold(ctx, key))
				d = limittest.Take(t, l, key, 1)
				assert.False(t, d.Granted)
				assert.Equal(t, int64(3), d.Limit)
			}
		})
	}
}

// A cluster client may send what only reads to any node. Replicas lag behind, and
// the pages of a scan must be of one server.
func TestThresholdsAreReadFromTheirMaster(t *testing.T) {
	t.Parallel()
	rdb, ctx := redistest.StartCluster(t, 3, 1).Client(t, &redis.ClusterOptions{RouteRandomly: true}), t.Context()
	hash := redistest.Name(t)
	l := threeAMinuteOr(rdb, hash)
	const count = 2000
	pipe := rdb.Pipeline()
	for i := range count {
		pipe.HSet(ctx, hash, strconv.Itoa(i), i)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	all, err := l.Thresholds(ctx)
	require.NoError(t, err)
	assert.Len(t, all, count)
	for i := range int64(200) {
		require.NoError(t, l.SetThreshold(ctx, "ann", i))
		threshold, err := l.Threshold(ctx, "ann")
		require.NoError(t, err)
		assert.Equal(t, i, threshold)
		assert.Equal(t, i, limittest.Take(t, l, "ann", 1).Limit)
	}
}

// apart is a limiter on a cluster of two nodes that a log and its thresholds are
// spread over; both are one server, each behind a proxy of its own.
type apart struct {
	*slidinglog.Limiter

	key, hash    string
	logs, hashes *redistest.Proxy
	direct       *redis.Client
}

func newApart(t *testing.T) apart {
	t.Helper()
	addr := redistest.Shared(t).Addr()
	a := apart{
		// Of the slots 2326 and 13016.
		key: "{ann}" + redistest.Name(t), hash: "{dan}" + redistest.Name(t),
		logs: redistest.StartProxy(t, addr), hashes: redistest.StartProxy(t, addr),
		direct: redistest.Redis(t),
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ReadTimeout: 300 * time.Millisecond,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: a.logs.Addr()}}},
				{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: a.hashes.Addr()}}},
			}, nil
		},
	})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	a.Limiter = threeAMinuteOr(rdb, a.hash)
	return a
}

// A threshold that is read ahead of the decision goes in the same pipeline.
func TestThresholdApartIsReadAhead(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	require.NoError(t, a.direct.HSet(t.Context(), a.hash, a.key, 40).Err())
	limittest.Take(t, a, a.key, 1)
	before := a.logs.Requests() + a.hashes.Requests()
	for range 10 {
		assert.True(t, limittest.Take(t, a, a.key, 1).Granted)
	}
	assert.LessOrEqual(t, a.logs.Requests()+a.hashes.Requests()-before, 20, "a script call and an HGET each")
}

// Answers that are lost on the way to either node leave the decision right, and
// its permits taken once.
func TestAnswersLostOfALogAndItsThreshold(t *testing.T) {
	t.Parallel()
	a, ctx := newApart(t), t.Context()
	require.NoError(t, a.direct.HSet(ctx, a.hash, a.key, 100).Err())
	taken := int64(0)
	take := func(n int64) {
		t.Helper()
		d := limittest.Take(t, a, a.key, n)
		assert.True(t, d.Granted)
		taken += n
		a.logs.Settle(t)
		a.hashes.Settle(t)
		assert.Equal(t, 100-taken, d.Remaining)
		assert.Equal(t, taken, a.direct.ZCard(ctx, a.key).Val())
	}
	take(1)
	for _, fault := range []redistest.Action{redistest.DropAnswer, redistest.Cut, redistest.Swallow} {
		a.logs.OnCommand(redistest.Nth(1, "evalsha", fault))
		take(2)
		a.hashes.OnCommand(redistest.Nth(1, "hget", fault))
		take(3)
		a.logs.OnCommand(redistest.Nth(1, "evalsha", fault))
		a.hashes.OnCommand(redistest.Nth(1, "hget", fault))
		take(4)
	}
	require.NoError(t, a.direct.HSet(ctx, a.hash, a.key, 200).Err())
	a.logs.OnCommand(redistest.Nth(1, "evalsha", redistest.DropAnswer))
	d := limittest.Take(t, a, a.key, 5)
	assert.True(t, d.Granted)
	assert.Equal(t, int64(200), d.Limit)
	assert.Equal(t, taken+5, a.direct.ZCard(ctx, a.key).Val())
}
