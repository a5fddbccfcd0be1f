package servers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestACLOfOneLimiter(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"orders", "{shop}orders"} {
		limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
			server := redistest.StartRedis(t)
			admin := server.Client(t, nil)
			rdb := redistest.AddUser(t, server, nil, redistest.LeastCommands, redistest.KeysOf(name), redistest.KeysOf(limitertest.Besides(name)))
			cfg := rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour}
			for op, call := range limitertest.Operations {
				l := limitertest.NewClient(t, rdb).RateLimiter(name)
				require.NoError(t, l.SetRate(t.Context(), cfg))
				limitertest.MustAcquire(t, l, 3)
				require.NoError(t, call(t.Context(), l), op)
				require.NoError(t, admin.FlushAll(t.Context()).Err())
			}
			for _, entry := range limitertest.Must(admin.Do(t.Context(), "ACL", "LOG").Slice())(t) {
				// go-redis introduces itself, and works without it.
				assert.Contains(t, []any{"client", "client|setinfo", "client|maint_notifications"}, entry.(map[any]any)["object"])
			}
			other := limitertest.NewClient(t, rdb).RateLimiter(name + "x")
			require.ErrorContains(t, limitertest.Second(other.TrySetRate(t.Context(), cfg)), "NOPERM")
			assert.Empty(t, limitertest.ReadState(t, admin, name+"x"))
		})
	}
}

func TestACLOnSeveralServers(t *testing.T) {
	t.Parallel()
	rules := redistest.LeastCommands + " " + redistest.KeysWithPrefix("shop:")
	limitertest.Each(t, map[string]func(t *testing.T) rratelimiter.Redis{
		"cluster": func(t *testing.T) rratelimiter.Redis {
			return redistest.AddUser(t, redistest.StartCluster(t, 3, 0), nil, rules, redistest.ClusterCommands)
		},
		"ring": func(t *testing.T) rratelimiter.Redis {
			// With a heartbeat, unlike the client of a test.
			opt := &redistest.Options{HeartbeatFrequency: 10 * time.Millisecond}
			return redistest.AddUser(t, redistest.StartRing(t, 3), opt, rules, redistest.RingCommands)
		},
		"sentinel": func(t *testing.T) rratelimiter.Redis {
			return redistest.AddUser(t, redistest.StartSentinel(t, 1, 30*time.Second), nil, rules)
		},
	}, func(t *testing.T, connect func(t *testing.T) rratelimiter.Redis) {
		client := limitertest.NewClient(t, connect(t))
		for i := range 20 {
			l := client.RateLimiter("shop:" + strconv.Itoa(i))
			for op, call := range limitertest.Operations {
				require.NoError(t, l.SetRate(t.Context(), limitertest.Every(10, time.Hour)))
				limitertest.MustAcquire(t, l, 3)
				require.NoError(t, call(t.Context(), l), op)
			}
		}
	})
}

// A client of one node is refused what other nodes have, at once and whatever its policy, by single calls and by those that share one.
func TestClusterRefusesAClientOfOneNode(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	node := cluster.Nodes()[0]
	client := limitertest.NewClient(t, node.Client(t, nil), rratelimiter.WithFailure(limit.FailOpen()))
	here, elsewhere := 0, 0
	for i := range 30 {
		name := fmt.Sprint("orders", i)
		l := client.RateLimiter(name, rratelimiter.WithDefault(limitertest.Hourly(1)))
		granted, err := l.TryAcquire(t.Context(), 1, time.Minute)
		if owner, _ := cluster.Owner(t, cluster.Slot(t, name)); owner == node {
			here++
			require.NoError(t, err)
			continue
		}
		elsewhere++
		assert.False(t, granted)
		require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
		require.NotErrorIs(t, err, rratelimiter.ErrUnavailable)
		require.ErrorContains(t, err, "redis.NewClusterClient")
	}
	assert.Positive(t, here)
	assert.Positive(t, elsewhere)
	limitertest.Together(30, func(i int) {
		l := client.RateLimiter(fmt.Sprint("sales", i), rratelimiter.WithDefault(limitertest.Hourly(1)))
		if _, err := l.TryAcquire(t.Context(), 1, 0); err != nil {
			assert.ErrorIs(t, err, rratelimiter.ErrUnsupported)
		}
	})
}

func TestCluster_ServesNamesWhoseKeysShareASlot(t *testing.T) {
	t.Parallel()
	node := redistest.StartCluster(t, 1, 0)
	cluster := node.Client(t, &redistest.Options{ReadOnly: true})
	for what, rdb := range map[string]rratelimiter.Redis{"cluster client": cluster, "plain client": node.Nodes()[0].Client(t, nil)} {
		client := limitertest.NewClient(t, rdb)
		for _, name := range []string{"foo}bar", "a}", "a{b", "{}x", "x{}"} {
			l := limitertest.ByDefault(client, name, rratelimiter.PerSecond(1))
			for _, op := range []string{"TrySetRate", "TryAcquire", "Config", "Delete"} {
				err := limitertest.Operations[op](t.Context(), l)
				require.ErrorIs(t, err, rratelimiter.ErrUnsupported, "%s %s %s", what, name, op)
				assert.ErrorContains(t, err, "hash tag")
				assert.ErrorContains(t, err, name)
			}
		}
	}
	assert.Empty(t, redistest.Keys(t, cluster, "*"), "nothing was written")
	for _, name := range []string{"orders", "a{b}c", "{{a}}", "orders:with:colons"} {
		l := limitertest.ByDefault(limitertest.NewClient(t, cluster), name, limitertest.Hourly(3))
		assert.Equal(t, 3, limitertest.Grants(t, l, 4), name)
		require.ErrorIs(t, l.Rename(t.Context(), "elsewhere"), rratelimiter.ErrUnsupported)
	}
}

// The probe of a server with a breaker is refused whenever grants are, whatever a key holds: such a server is away, and has not
// run what it was asked. The probe changes nothing, and needs only rights that decisions need.
func TestProbe_IsRefusedWheneverGrantsAre(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, limitertest.Rows(redistest.Versions()...), func(t *testing.T, version redistest.Version) {
		s, ctx := redistest.StartServer(t, version, "--dbfilename", "dump"), t.Context()
		rdb := s.Client(t, nil)
		l := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(5*time.Second)).RateLimiter("orders")
		limitertest.MustTrySetRate(t, l, limitertest.Every(1000, time.Hour))
		require.NoError(t, rdb.Set(ctx, "string", 7, time.Hour).Err())
		require.NoError(t, rdb.ZAdd(ctx, "log", redis.Z{Score: 1, Member: "m"}).Err())
		probe := newProbe(t, s)
		require.NoError(t, rdb.ConfigSet(ctx, "save", "3600 1000").Err())
		held := func() []string {
			_, rest, found := strings.Cut(rdb.Info(ctx, "persistence").Val(), "rdb_changes_since_last_save:")
			require.True(t, found)
			changes, _, _ := strings.Cut(rest, "\r")
			all := []string{changes}
			for _, key := range rdb.Keys(ctx, "*").Val() {
				all = append(all, key+rdb.Dump(ctx, key).Val())
			}
			return all
		}
		before := held()
		probe(true, "works")
		assert.ElementsMatch(t, before, held())
		for code, change := range refusals(t, rdb) {
			change(true)
			var err error
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				_, err = l.Take(ctx, 1)
				if version != redistest.Redis62 || code != "NOREPLICAS" { // it lets scripts write
					assert.ErrorContains(c, err, code, code)
					assert.ErrorIs(c, err, limit.ErrUnavailable)
					assert.NotErrorIs(c, err, limit.ErrUnknownOutcome)
				}
			}, time.Minute, time.Millisecond)
			probe(err == nil, code)
			change(false)
			probe(true, "again, after "+code)
		}
	})
}

// newProbe returns a function that compares what the probes of all keys answer.
func newProbe(t *testing.T, s *redistest.Server) func(want bool, why string) {
	t.Helper()
	conns := map[string]*script.Conn{
		"SET":  script.NewConn(redistest.AddUser(t, s, nil, "~*", "+eval +evalsha +get +set +pttl +incrby +pexpire"), 5*time.Second),
		"ZADD": script.NewConn(redistest.AddUser(t, s, nil, "~*", "+eval +evalsha +zadd +zcard +pttl +pexpire"), 5*time.Second),
	}
	return func(want bool, why string) {
		t.Helper()
		var wg sync.WaitGroup
		for _, key := range []string{"none", "string", "log", "orders"} {
			for write, conn := range conns {
				wg.Go(func() {
					assert.Equal(t, want, lane.New(conn, nil).Answers(script.KeysOf(key), write), "%s: %s of %s", why, write, key)
				})
			}
		}
		wg.Wait()
	}
}

// refusals make a server refuse writes, by the error's word, and end that.
func refusals(t *testing.T, rdb redistest.Client) map[string]func(refuses bool) {
	t.Helper()
	ctx := t.Context()
	setting := func(name string) func(bool) {
		return func(refuses bool) {
			require.NoError(t, rdb.ConfigSet(ctx, name, map[bool]string{true: "1", false: "0"}[refuses]).Err())
		}
	}
	blocker := filepath.Join(rdb.ConfigGet(ctx, "dir").Val()["dir"], "dump")
	return map[string]func(bool){
		"OOM": setting("maxmemory"), "NOREPLICAS": setting("min-replicas-to-write"),
		"READONLY": func(refuses bool) {
			master := map[bool][2]string{true: {"127.0.0.1", "1"}, false: {"NO", "ONE"}}[refuses]
			require.NoError(t, rdb.ReplicaOf(ctx, master[0], master[1]).Err())
		},
		"MISCONF": func(refuses bool) {
			saved := "ok"
			if refuses {
				require.NoError(t, os.Mkdir(blocker, 0o700))
				saved = "err"
			} else {
				require.NoError(t, os.Remove(blocker))
			}
			require.Eventually(t, func() bool {
				_ = rdb.BgSave(ctx).Err()
				return strings.Contains(rdb.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:"+saved)
			}, time.Minute, 20*time.Millisecond)
		},
	}
}

func otherMasters(t *testing.T, c *redistest.Cluster, slot, masters int) []*redistest.Server {
	t.Helper()
	owner, _ := c.Owner(t, slot)
	return slices.DeleteFunc(c.Nodes()[:masters], func(s *redistest.Server) bool { return s == owner })
}

// Of the five keys of a limiter, those that it does not use are missing, so a
// server runs none of its scripts from the first step of the move to the last.
func TestResharding_CallDuringMoveChangesNothing(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		cluster := redistest.StartCluster(t, 3, 0)
		rdb := cluster.Client(t, nil)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(5*time.Second)) // of those that are refused
		l := client.RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, l, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
		limitertest.MustAcquire(t, l, 3)
		before := limitertest.ReadState(t, rdb, l.Name())
		slot := cluster.Slot(t, l.Name())
		move := cluster.StartMove(t, slot, otherMasters(t, cluster, slot, 3)[0])
		refused := func(stage string) {
			var wg sync.WaitGroup
			for _, name := range []string{"TryAcquire", "Acquire", "Take", "Release", "AvailablePermits", "Config", "Delete"} {
				wg.Go(func() {
					err := limitertest.Operations[name](t.Context(), l)
					assert.ErrorIs(t, err, rratelimiter.ErrUnavailable, "%s, %s", name, stage)
				})
			}
			wg.Wait()
		}
		refused("no key has moved")
		for key := range before {
			move.MoveKeys(t, key)
			if key == l.Name() {
				refused("with " + key)
			}
		}
		move.Finish(t)
		// A request whose caller was answered may still be repeated: what it takes goes back.
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.Equal(c, before, limitertest.ReadState(t, rdb, l.Name()))
		}, time.Minute, 10*time.Millisecond)
		require.Eventually(t, func() bool {
			ok, err := l.TryAcquire(t.Context(), 7, 0)
			return ok && err == nil
		}, time.Minute, 10*time.Millisecond)
		limitertest.MustRefuse(t, l, 1)
	})
}

// A script that removes a set which has run out can't make it again while the slot moves: the
// server says that the key is elsewhere, and ends the script there.
func TestResharding_SetRunsOutDuringMove(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	rdb := cluster.Client(t, nil)
	l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
	for range 10 { // all but the first go without the keys that the limiter does not use
		limitertest.MustAcquire(t, l, 1)
	}
	permits := limitertest.KeysOf(l).Permits
	for _, member := range rdb.ZRange(t.Context(), permits, 0, -1).Val() {
		require.NoError(t, rdb.ZAddXX(t.Context(), permits, redis.Z{Score: 1, Member: member}).Err())
	}
	slot := cluster.Slot(t, l.Name())
	move := cluster.StartMove(t, slot, otherMasters(t, cluster, slot, 3)[0])
	granted := make(chan error, 1)
	go func() { granted <- l.Acquire(t.Context(), 3) }()
	require.Eventually(t, func() bool { return rdb.Exists(t.Context(), permits).Val() == 0 }, time.Minute, time.Millisecond)
	move.MoveKeys(t)
	move.Finish(t)
	require.NoError(t, <-granted)
	limitertest.MustAcquire(t, l, 7)
	limitertest.MustRefuse(t, l, 1)
}
