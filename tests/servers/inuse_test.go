package servers_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
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

// A party is callers that share one Client: they take, wait, go away and
// release, until they are stopped, and keep account of the answers. Its
// limiter's interval is long, so nothing comes back by itself.
type party struct {
	crew
	manner

	client   *rratelimiter.Client
	limiter  *rratelimiter.RateLimiter
	keys     redisson.Keys
	recorder limitertest.Recorder

	mu      sync.Mutex
	calls   int
	held    int64 // permits granted and not released
	perhaps int64 // permits that may be in use besides: of callers that left, or that got no answer
	failed  map[string]int
	good    int       // calls that Redis answered, without an error
	goodAt  time.Time // the last of them
	gap     time.Duration
}

// A manner is how the callers of a party behave.
type manner struct {
	leaves   bool             // some callers go away
	keeps    bool             // they don't release
	unmarked bool             // a Release may take what another Client was granted
	expects  func(error) bool // errors that they must put up with
}

// parties are two that use one limiter.
type parties [2]*party

// gather starts two parties, each with a Client of its own.
func gather(
	t *testing.T, connect func() redistest.Client, name string, cfg rratelimiter.Config, like manner, opts ...rratelimiter.Option,
) parties {
	t.Helper()
	var all parties
	for i := range all {
		id := redistest.Name(t)
		c := &party{manner: like, failed: map[string]int{}, goodAt: time.Now()}
		opts := append(slices.Clip(opts), rratelimiter.WithClientID(id), rratelimiter.WithObserver(&c.recorder))
		c.client = limitertest.NewClient(t, connect(), opts...)
		c.limiter, c.keys = c.client.RateLimiter(name), redisson.KeysOf(name, id)
		require.NoError(t, limitertest.Second(c.limiter.TrySetRate(t.Context(), cfg)))
		c.start(t, 4, func(context.Context, int) { c.call(t) })
		all[i] = c
	}
	all[0].awaitGood(t)
	return all
}

// call makes one random call.
func (c *party) call(t *testing.T) {
	t.Helper()
	ctx, o := t.Context(), op.Op{Name: op.Try, Permits: 1 + rand.Int64N(3)}
	switch what := rand.IntN(7); {
	case what < 3 && !c.keeps && c.put(o.Permits):
		o.Name = op.Release
	case what == 3:
		o.Timeout = time.Duration(rand.IntN(60)) * time.Millisecond
	case what == 4 && c.leaves:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(60))*time.Millisecond)
		defer cancel()
		o.Name = op.Acquire
	case what == 5:
		o.Name = op.Take
	}
	a := o.Do(ctx, op.On(c.limiter))
	unknown := errors.Is(a.Err, rratelimiter.ErrUnknownOutcome)
	switch {
	// What it is granted late goes back, unless another Client's Release takes it for its own.
	case o.Name == op.Acquire && errors.Is(a.Err, context.DeadlineExceeded),
		o.Timeout > 0 && (unknown || c.unmarked && !a.OK && a.Err == nil):
		c.add(0, o.Permits)
		return
	case unknown:
		c.add(0, o.Permits)
	case a.OK != (o.Name == op.Release): // else they are held still, or no more
		c.add(o.Permits, 0)
	}
	c.done(t, a.Err, a.OK || o.Timeout == 0) // else its time was over, perhaps before anybody was asked
}

func (c *party) add(held, perhaps int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held += held
	c.perhaps += perhaps
}

// put takes permits to release out of those held.
func (c *party) put(permits int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held < permits {
		return false
	}
	c.held -= permits
	return true
}

// done records how a call ended.
func (c *party) done(t *testing.T, err error, answered bool) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	switch {
	case err != nil && t.Context().Err() != nil: // the test has failed
	case err != nil:
		c.failed[kindOf(err)]++
		assert.True(t, c.expects(err), "a caller got: %v", err)
	case answered:
		c.good++
		c.gap = max(c.gap, time.Since(c.goodAt))
		c.goodAt = time.Now()
	}
}

func (c *party) count() (calls, good int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls, c.good
}

// linger lets the party make some calls, or pass some time if they hang.
func (c *party) linger() {
	before, _ := c.count()
	for range 40 {
		time.Sleep(5 * time.Millisecond)
		if calls, _ := c.count(); calls >= before+8 {
			return
		}
	}
}

// awaitGood waits until some more calls went well.
func (c *party) awaitGood(t *testing.T) {
	t.Helper()
	_, before := c.count()
	require.Eventually(t, func() bool {
		_, good := c.count()
		return good >= before+20
	}, 90*time.Second, 10*time.Millisecond, "the callers don't come back to work")
}

func (all parties) awaitGood(t *testing.T) {
	t.Helper()
	for _, c := range all {
		c.awaitGood(t)
	}
}

// outcome is the result of two parties' calls.
type outcome struct {
	calls      int
	failed     map[string]int
	gap        time.Duration // the longest without an answer
	perhaps    int64
	lost, idle int64 // permits that callers hold and Redis does not know, and the other way round
}

// settle stops the parties, so that nothing is under way any more, and compares what Redis
// holds with the answers: free and in use make up the rate, and in use is what they hold,
// except for lost permits.
func (all parties) settle(t *testing.T, rdb redistest.Client, cfg rratelimiter.Config) outcome {
	t.Helper()
	for _, c := range all {
		c.end()
		require.NoError(t, c.client.Close(t.Context()))
		for _, e := range c.recorder.Events() {
			if e.Kind == limit.PermitsGivenUp {
				c.add(0, e.Permits) // could not be given back, so may be in use
			}
		}
	}
	of := outcome{failed: map[string]int{}}
	inUse, held := int64(0), int64(0)
	for i, c := range all {
		of.calls += c.calls
		of.gap = max(of.gap, c.gap)
		of.perhaps += c.perhaps
		held += c.held
		for kind, n := range c.failed {
			of.failed[kind] += n
		}
		value, permits := c.keys.Value, c.keys.Permits
		if cfg.Type == rratelimiter.PerClient {
			value, permits = c.keys.ClientValue, c.keys.ClientPermits
		} else if i > 0 {
			continue
		}
		free, stored := limitertest.StoredValue(t, rdb, value)
		if !stored {
			free = cfg.Rate
		}
		here := limitertest.InUse(t, rdb, permits)
		require.Equal(t, cfg.Rate, free+here, "free and in use")
		inUse += here
	}
	require.LessOrEqual(t, inUse, held+of.perhaps, "permits in use that no one took")
	of.lost, of.idle = max(0, held-inUse), max(0, inUse-held)
	return of
}

// transient reports whether an error says that a call did not run, or perhaps
// did, as callers must expect while servers change places.
func transient(err error) bool {
	switch kindOf(err) {
	case "UnknownOutcome", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "dial", "pool", "Unavailable":
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

// A limiter's slot moves to and fro while two Clients use it. For a time some
// of its keys are here and some there: calls are then refused unrun, TRYAGAIN.
// No permit is lost, and none is granted twice.
func TestReshardingWhileInUse(t *testing.T) {
	t.Parallel()
	const moves = 4
	cluster := redistest.StartCluster(t, 3, 0)
	taken := map[int]bool{}
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
			connect := func() redistest.Client { return cluster.Client(t, nil) }
			all := gather(t, connect, name, test.cfg, test.like, test.opts...)
			longest := time.Duration(0)
			for i := range moves {
				began := time.Now()
				moveInSteps(t, cluster, name, i, all)
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

// moveInSteps moves the slot of a limiter key by key, in any order.
func moveInSteps(t *testing.T, cluster *redistest.Cluster, name string, i int, all parties) {
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
		move.MoveKeys(t, key)
		all[0].linger()
	}
	move.Finish(t)
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
