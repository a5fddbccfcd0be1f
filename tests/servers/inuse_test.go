package servers_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A crew is goroutines that call, one call after another, until they are stopped.
type crew struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
}

func (c *crew) start(t *testing.T, size int, call func(ctx context.Context, i int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c.stop = cancel
	t.Cleanup(c.end)
	for i := range size {
		c.wg.Go(func() {
			for ctx.Err() == nil {
				call(ctx, i)
				time.Sleep(time.Millisecond)
			}
		})
	}
}

func (c *crew) end() {
	c.stop()
	c.wg.Wait()
}

// A load is callers who each take one permit of a limiter of their own, so that each grant
// can be looked for.
type load struct {
	crew

	keyed  *rratelimiter.KeyedLimiter
	prefix string
	keys   atomic.Int64

	mu      sync.Mutex
	granted []string // the keys of their permits in Redis
	failed  map[string]int
	goodAt  time.Time     // the last grant
	gap     time.Duration // the longest without one
}

// startLoad starts callers of limiters in one slot of a cluster.
func startLoad(t *testing.T, rdb redistest.Client, prefix string, opts ...rratelimiter.Option) *load {
	t.Helper()
	keyed := limitertest.NewClient(t, rdb, opts...).Keyed(prefix, limitertest.Every(1, time.Hour))
	l := &load{keyed: keyed, prefix: prefix, failed: map[string]int{}, goodAt: time.Now()}
	l.start(t, 8, func(context.Context, int) { l.call(t) })
	l.awaitGrants(t, 200)
	return l
}

func (l *load) call(t *testing.T) {
	t.Helper()
	key := strconv.FormatInt(l.keys.Add(1), 10)
	ok, err := l.keyed.TryAcquire(t.Context(), key, 1, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ok:
		l.granted = append(l.granted, redisson.KeysOf(l.prefix+key, "").Permits)
		l.gap = max(l.gap, time.Since(l.goodAt))
		l.goodAt = time.Now()
	case t.Context().Err() == nil: // else the test has failed
		assert.True(t, transient(err), "a caller got: %v", err)
		l.failed[kindOf(err)]++
	}
}

// awaitGrants waits for that many from now on.
func (l *load) awaitGrants(t *testing.T, n int) {
	t.Helper()
	granted := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.granted)
	}
	want := granted() + n
	require.Eventually(t, func() bool { return granted() >= want }, 90*time.Second, time.Millisecond, "the callers don't come back to work")
}

// lost ends the callers and returns how many grants the server does not know, all of which it would grant again.
func (l *load) lost(t *testing.T, rdb redistest.Client) int {
	t.Helper()
	l.end()
	found, err := rdb.Exists(t.Context(), l.granted...).Result()
	require.NoError(t, err)
	return len(l.granted) - int(found)
}

// transient reports whether an error says that a call did not run, or perhaps
// did, as callers must expect while servers change places.
func transient(err error) bool {
	switch kindOf(err) {
	case "UnknownOutcome", "NotReplicated", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "dial", "pool", "Unavailable":
		return true
	}
	return false
}

// undecided is for callers whose timeout ends while a slot moves, or a busy machine doesn't
// answer.
func undecided(err error) bool { return errors.Is(err, rratelimiter.ErrUnavailable) }

// kindOf is a word for an error, "" for none.
func kindOf(err error) string {
	answer, isAnswer := errors.AsType[redis.Error](err)
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, rratelimiter.ErrUnknownOutcome):
		return "UnknownOutcome"
	case errors.Is(err, rratelimiter.ErrNotReplicated):
		return "NotReplicated"
	case isAnswer:
		word, _, _ := strings.Cut(answer.Error(), " ")
		return word
	case isOp && op.Op == "dial":
		return "dial"
	case errors.Is(err, redis.ErrPoolTimeout):
		return "pool"
	case errors.Is(err, rratelimiter.ErrUnavailable):
		return "Unavailable"
	}
	return err.Error()
}

// noteResult logs a line of a table of results, and keeps it if results are
// kept. Durations are in seconds.
func noteResult(t *testing.T, table string, columns ...any) {
	t.Helper()
	for i, column := range columns {
		if d, ok := column.(time.Duration); ok {
			columns[i] = fmt.Sprintf("%.3f", d.Seconds())
		}
	}
	t.Log(append([]any{table}, columns...)...)
	redistest.Record(t, table, columns...)
}

// otherMasters returns the masters that do not serve the slot.
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
					assert.True(t, undecided(err), "%s, %s: %v", name, stage, err)
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
