package servers_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// otherMasters returns the masters that do not serve the slot.
func otherMasters(t *testing.T, c *redistest.Cluster, slot, masters int) []*redistest.Server {
	t.Helper()
	owner, _ := c.Owner(t, slot)
	return slices.DeleteFunc(c.Nodes()[:masters], func(s *redistest.Server) bool { return s == owner })
}

// A limiter's slot moves to and fro while two Clients use it. For a time some
// of its keys are here and some there: calls are then refused unrun, TRYAGAIN.
// No permit is lost, and none is granted twice.
func TestReshardingWhileInUse(t *testing.T) {
	t.Parallel()
	const moves = 4
	cluster := redistest.StartCluster(t, 3, 0)
	taken := map[int]bool{}
	var moving sync.Mutex
	for scenario, test := range map[string]struct {
		cfg  rratelimiter.Config
		like manner
		opts []rratelimiter.Option
	}{
		"overall":       {cfg: limitertest.Every(60, time.Hour)},
		"callers leave": {cfg: limitertest.Every(60, time.Hour), like: manner{leaves: true}},
		"per client":    {cfg: limitertest.PerClient(60, time.Hour)},
		"3.15.5": {cfg: limitertest.Every(60, time.Hour), like: manner{unmarked: true}, opts: []rratelimiter.Option{
			rratelimiter.WithRedissonVersion("3.15.5"),
		}},
	} {
		name := redistest.Name(t)
		for taken[cluster.Slot(t, name)] {
			name = redistest.Name(t)
		}
		taken[cluster.Slot(t, name)] = true
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			test.like.expects = undecided
			connect := func() redis.UniversalClient { return cluster.Client(t, nil) }
			all := gather(t, connect, name, test.cfg, test.like, test.opts...)
			longest := time.Duration(0)
			for i := range moves {
				began := time.Now()
				moveInSteps(t, cluster, name, i, &moving, all)
				longest = max(longest, time.Since(began))
				all.awaitGood(t)
			}
			of := all.settle(t, connect(), test.cfg)
			assert.Zero(t, of.lost, "permits that callers hold and Redis does not know")
			if !test.like.leaves {
				assert.LessOrEqual(t, of.idle, of.perhaps, "permits in use that no caller holds")
			}
			noteResult(t, "reshard", scenario, moves, of.calls, of.failed["TRYAGAIN"], of.lost, of.idle, longest, of.gap)
		})
	}
}

// moveInSteps moves the slot of a limiter key by key, in any order. Two masters that each
// move a key to the other would wait for one another: moving keeps them apart.
func moveInSteps(t *testing.T, cluster *redistest.Cluster, name string, i int, moving *sync.Mutex, all parties) {
	t.Helper()
	slot := cluster.Slot(t, name)
	move := cluster.StartMove(t, slot, otherMasters(t, cluster, slot, 3)[i%2])
	all[0].linger()
	keys := []string{all[0].keys.Permits, all[0].keys.Config, all[0].keys.Value}
	for _, c := range all {
		keys = append(keys, c.keys.ClientValue, c.keys.ClientPermits)
	}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys {
		moving.Lock()
		move.MoveKeys(t, key)
		moving.Unlock()
		all[0].linger()
	}
	move.Finish(t)
}

// Of the five keys of a limiter, those that it does not use are missing, so a
// server runs none of its scripts from the first step of the move to the last.
func TestACallWhileItsSlotMovesChangesNothing(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		cluster := redistest.StartCluster(t, 3, 0)
		rdb := cluster.Client(t, nil)
		l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
		limitertest.MustAcquire(t, l, 3)
		before := limitertest.ReadState(t, rdb, l.Name())
		slot := cluster.Slot(t, l.Name())
		move := cluster.StartMove(t, slot, otherMasters(t, cluster, slot, 3)[0])
		refused := func(stage string) {
			var wg sync.WaitGroup
			for _, op := range []string{"TryAcquire", "Acquire", "Take", "Release", "AvailablePermits", "Config", "Delete"} {
				wg.Go(func() {
					err := limitertest.Operations[op](t.Context(), l)
					assert.True(t, undecided(err), "%s, %s: %v", op, stage, err)
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

// A script that removes a set which has run out can't make it anew while the slot moves:
// the server says that the key is elsewhere, and ends the script there.
func TestASetRunsOutWhileItsSlotMoves(t *testing.T) {
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
