package redistest_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestTopology tests the topology that the environment names. scripts/matrix.sh
// also learns by it whether there is such a thing on a server.
func TestTopology(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	name := redistest.Name(t)
	want := make([]string, 30)
	for i := range want {
		want[i] = name + ":" + strconv.Itoa(10+i)
		require.NoError(t, rdb.Set(t.Context(), want[i], i, 0).Err())
	}
	assert.Equal(t, want, redistest.Keys(t, rdb, name+"*"))
	assert.Equal(t, "7", rdb.Get(t.Context(), want[7]).Val())

	cmd := redis.NewCmd(t.Context(), "get", want[7])
	require.NoError(t, rdb.Process(t.Context(), cmd))
	assert.Equal(t, "7", cmd.Val())

	hash := redis.NewCmd(t.Context(), "hgetall", name)
	err := rdb.Process(t.Context(), hash)
	switch redistest.CurrentTopology(t) {
	case redistest.ACL, redistest.TLSWithACL:
		require.ErrorContains(t, err, "NOPERM")
		other := redis.NewCmd(t.Context(), "get", "TestTopolog")
		require.ErrorContains(t, rdb.Process(t.Context(), other), "NOPERM")
	case redistest.RESP2:
		assert.IsType(t, []any{}, hash.Val(), "there are no maps")
	default:
		assert.IsType(t, map[any]any{}, hash.Val())
	}
	switch redistest.CurrentTopology(t) {
	case redistest.Clustered:
		assert.IsType(t, (*redis.ClusterClient)(nil), rdb)
	case redistest.RingOfMany:
		assert.IsType(t, (*redis.Ring)(nil), rdb)
	}
}

// TestTopologies runs TestTopology as each of them.
func TestTopologies(t *testing.T) {
	t.Parallel()
	if os.Getenv("RRL_TOPOLOGY") != "" {
		return
	}
	redistest.Shared(t)
	for _, topology := range redistest.Topologies() {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			server := os.Getenv("RRL_REDIS_SERVER")
			if topology == redistest.TLS || topology == redistest.TLSWithACL {
				s := redistest.StartTLS(t)
				server = s.Binary()
			}
			cmd := asChild(t, "TestTopology", "RRL_TOPOLOGY="+string(topology), "RRL_REDIS_SERVER="+server)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), "--- PASS: TestTopology")
		})
	}
}

func TestUnknownTopology(t *testing.T) {
	t.Parallel()
	out, err := asChild(t, "TestTopology", "RRL_TOPOLOGY=moon").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), `RRL_TOPOLOGY is "moon" and should be one of [single resp2 tls acl tls-acl sentinel cluster ring]`)
}

func TestKeysGoWithTheirTest(t *testing.T) {
	t.Parallel()
	name := redistest.Name(t)
	t.Run("a", func(t *testing.T) {
		rdb := redistest.Client(t)
		for _, key := range []string{redistest.Name(t), "{" + redistest.Name(t) + "}:value", "prefix:" + redistest.Name(t)} {
			require.NoError(t, rdb.Set(t.Context(), key, 1, 0).Err())
		}
		require.NoError(t, rdb.Set(t.Context(), name, 1, 0).Err())
	})
	rdb := redistest.Client(t)
	assert.Equal(t, []string{name}, redistest.Keys(t, rdb, "*"+t.Name()+"*"), "its own go later")
}

func TestServerOfEachRelease(t *testing.T) {
	t.Parallel()
	for _, v := range redistest.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			s := redistest.StartServer(t, v, "--maxmemory", "7mb")
			rdb := s.Client(t, nil)
			info, err := rdb.Info(t.Context(), "server").Result()
			require.NoError(t, err)
			kind, release, _ := strings.Cut(string(v), "-")
			assert.Contains(t, info, kind+"_version:"+release+".")
			assert.Equal(t, "7340032", rdb.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"])
		})
	}
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
