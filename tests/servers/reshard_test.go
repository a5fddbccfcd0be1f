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
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A party is callers that share one Client: they take, wait, go away and
// release, until they are stopped, and keep account of what they were told. Its
// limiter's interval is long, so nothing comes back by itself.
type party struct {
	client   *rratelimiter.Client
	limiter  *rratelimiter.RateLimiter
	keys     redisson.Keys
	leaves   bool // some callers go away
	keeps    bool // nobody releases
	unmarked bool // a Release may take what another Client was granted
	told     limitertest.Recorder
	expects  func(error) bool // errors that callers must put up with
	stopped  chan struct{}
	once     sync.Once
	wg       sync.WaitGroup

	mu      sync.Mutex
	calls   int
	granted int64 // permits
	held    int64 // permits granted and not released
	perhaps int64 // permits that may be in use besides: of callers that left, or that got no answer
	failed  map[string]int
	good    int       // calls that Redis answered, without an error
	goodAt  time.Time // the last of them
	gap     time.Duration
}

const callersOfAParty = 4

// gather starts a party of its own Client.
func gather(t *testing.T, rdb rratelimiter.Redis, name string, cfg rratelimiter.Config, c *party, opts ...rratelimiter.Option) *party {
	t.Helper()
	id := redistest.Name(t)
	c.client = limitertest.NewClient(t, rdb, append(opts, rratelimiter.WithClientID(id), rratelimiter.WithObserver(&c.told))...)
	c.limiter = c.client.RateLimiter(name)
	c.keys = redisson.KeysOf(name, id)
	_, err := c.limiter.TrySetRate(t.Context(), cfg)
	require.NoError(t, err)
	c.stopped, c.failed, c.goodAt = make(chan struct{}), map[string]int{}, time.Now()
	t.Cleanup(c.end)
	for range callersOfAParty {
		draw := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
		c.wg.Go(func() {
			for {
				select {
				case <-c.stopped:
					return
				case <-time.After(time.Millisecond):
				}
				c.call(t, draw)
			}
		})
	}
	return c
}

// Go makes one random call.
func (c *party) call(t *testing.T, draw *rand.Rand) {
	ctx := t.Context()
	permits := 1 + draw.Int64N(3)
	var (
		ok, left bool
		answered = true
		err      error
	)
	switch what := draw.IntN(7); {
	case what < 3 && !c.keeps && c.put(permits):
		err = c.limiter.Release(ctx, permits)
		c.done(t, err, true)
		switch {
		case errors.Is(err, rratelimiter.ErrUnknownOutcome):
			c.add(0, permits)
		case err != nil:
			c.add(permits, 0)
		}
		return
	case what == 3:
		ok, err = c.limiter.TryAcquire(ctx, permits, time.Duration(draw.IntN(60))*time.Millisecond)
		answered = ok // else its time was over, perhaps before anybody was asked
		// What it is granted late goes back, unless another Client's Release takes it for its own.
		left = errors.Is(err, rratelimiter.ErrUnknownOutcome) || c.unmarked && !ok && err == nil
	case what == 4 && c.leaves:
		ctx, cancel := context.WithTimeout(ctx, time.Duration(draw.IntN(60))*time.Millisecond)
		defer cancel()
		err = c.limiter.Acquire(ctx, permits)
		ok = err == nil
		left = errors.Is(err, context.DeadlineExceeded)
	case what == 5:
		var d limit.Decision
		d, err = c.limiter.Take(ctx, permits)
		ok = d.Granted
	default:
		ok, err = c.limiter.TryAcquire(ctx, permits, 0)
	}
	switch {
	case left:
		c.add(0, permits)
		return
	case errors.Is(err, rratelimiter.ErrUnknownOutcome):
		c.add(0, permits)
	case ok:
		c.add(permits, 0)
		c.mu.Lock()
		c.granted += permits
		c.mu.Unlock()
	}
	c.done(t, err, answered)
}

func (c *party) add(held, perhaps int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held += held
	c.perhaps += perhaps
}

// put takes permits that are to be released out of what is held.
func (c *party) put(permits int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held < permits {
		return false
	}
	c.held -= permits
	return true
}

// done notes how a call ended.
func (c *party) done(t *testing.T, err error, answered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	switch {
	case err != nil && t.Context().Err() != nil: // the test has failed
	case err != nil:
		c.failed[kindOf(err)]++
		if !c.expects(err) {
			t.Errorf("a caller got: %v", err)
		}
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

// linger lets the party make some calls, or pass some time where they hang.
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

// stop ends the party and its Client, so that nothing is under way any more. What the
// Client has told it could not give back may be in use.
func (c *party) stop(t *testing.T) {
	t.Helper()
	c.end()
	require.NoError(t, c.client.Close(t.Context()))
	for _, e := range c.told.Events() {
		if e.Kind == limit.PermitsGivenUp {
			c.add(0, e.Permits)
		}
	}
}

func (c *party) end() {
	c.once.Do(func() { close(c.stopped) })
	c.wg.Wait()
}

// transient tells whether an error says that a call did not run, or perhaps
// did, as callers must expect while servers change places.
func transient(err error) bool {
	switch kindOf(err) {
	case "UnknownOutcome", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "dial", "pool", "Unavailable":
		return true
	}
	return false
}

// undecided is for callers whose timeout ends while a slot moves, or a busy machine answers
// nobody.
func undecided(err error) bool { return errors.Is(err, rratelimiter.ErrUnavailable) }

// kindOf is a word for an error, "" for none.
func kindOf(err error) string {
	if err == nil {
		return ""
	}
	if errors.Is(err, rratelimiter.ErrUnknownOutcome) {
		return "UnknownOutcome"
	}
	if errors.Is(err, rratelimiter.ErrNotReplicated) {
		return "NotReplicated"
	}
	if answer, ok := errors.AsType[redis.Error](err); ok {
		word, _, _ := strings.Cut(answer.Error(), " ")
		return word
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return "dial"
	}
	if errors.Is(err, redis.ErrPoolTimeout) {
		return "pool"
	}
	if errors.Is(err, rratelimiter.ErrUnavailable) {
		return "Unavailable"
	}
	return err.Error()
}

// account compares what Redis holds with what the parties were told: free and in
// use make up the rate, and in use is what they hold, save for lost permits that
// are in use by nobody that Redis knows.
func account(t *testing.T, rdb redis.UniversalClient, cfg rratelimiter.Config, parties []*party) (lost, idle int64) {
	t.Helper()
	var inUse, held, perhaps int64
	for i, c := range parties {
		held, perhaps = held+c.held, perhaps+c.perhaps
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
	require.LessOrEqual(t, inUse, held+perhaps, "permits in use that nobody took")
	return max(0, held-inUse), max(0, inUse-held)
}

// noteResult logs a line of a table of results, and keeps it where results are
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
	const rate, moves = 60, 4
	cluster := redistest.StartCluster(t, 3, 0)
	// Two masters that each move a key to the other would wait for one another.
	var moving sync.Mutex
	taken := map[int]bool{}
	for _, test := range []struct {
		scenario string
		cfg      rratelimiter.Config
		leaves   bool
		opts     []rratelimiter.Option
	}{
		{scenario: "overall", cfg: limitertest.Every(rate, time.Hour)},
		{scenario: "callers leave", cfg: limitertest.Every(rate, time.Hour), leaves: true},
		{scenario: "per client", cfg: limitertest.PerClient(rate, time.Hour)},
		{scenario: "3.15.5", cfg: limitertest.Every(rate, time.Hour), opts: []rratelimiter.Option{rratelimiter.WithRedissonVersion("3.15.5")}},
	} {
		name := redistest.Name(t)
		for taken[cluster.Slot(t, name)] {
			name = redistest.Name(t)
		}
		slot := cluster.Slot(t, name)
		taken[slot] = true
		t.Run(test.scenario, func(t *testing.T) {
			t.Parallel()
			var parties []*party
			for range 2 {
				rdb := cluster.Client(t, nil)
				p := &party{leaves: test.leaves, unmarked: len(test.opts) > 0, expects: undecided}
				parties = append(parties, gather(t, rdb, name, test.cfg, p, test.opts...))
			}
			parties[0].awaitGood(t)
			longest := time.Duration(0)
			for i := range moves {
				others := otherMasters(t, cluster, slot, 3)
				began := time.Now()
				move := cluster.StartMove(t, slot, others[i%2])
				parties[0].linger()
				all := []string{parties[0].keys.Permits, parties[0].keys.Config, parties[0].keys.Value}
				for _, c := range parties {
					all = append(all, c.keys.ClientValue, c.keys.ClientPermits)
				}
				rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				for _, key := range all {
					moving.Lock()
					move.MoveKeys(t, key)
					moving.Unlock()
					parties[0].linger()
				}
				move.Finish(t)
				longest = max(longest, time.Since(began))
				for _, c := range parties {
					c.awaitGood(t)
				}
			}
			rdb := cluster.Client(t, nil)
			calls, again, gap, perhaps := 0, 0, time.Duration(0), int64(0)
			for _, c := range parties {
				c.stop(t)
				calls += c.calls
				again += c.failed["TRYAGAIN"]
				gap = max(gap, c.gap)
				perhaps += c.perhaps
			}
			lost, idle := account(t, rdb, test.cfg, parties)
			assert.Zero(t, lost, "permits that callers hold and Redis does not know")
			if !test.leaves {
				assert.LessOrEqual(t, idle, perhaps, "permits in use that no caller holds")
			}
			noteResult(t, "reshard", test.scenario, moves, calls, again, lost, idle, longest, gap)
		})
	}
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
			for what, call := range map[string]func() error{
				"TryAcquire":       func() error { _, err := l.TryAcquire(t.Context(), 1, 0); return err },
				"Acquire":          func() error { return l.Acquire(t.Context(), 1) },
				"Take":             func() error { _, err := l.Take(t.Context(), 1); return err },
				"Release":          func() error { return l.Release(t.Context(), 1) },
				"AvailablePermits": func() error { _, err := l.AvailablePermits(t.Context()); return err },
				"Config":           func() error { _, err := l.Config(t.Context()); return err },
				"Delete":           func() error { _, err := l.Delete(t.Context()); return err },
			} {
				wg.Go(func() {
					err := call()
					assert.True(t, undecided(err), "%s, %s: %v", what, stage, err)
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
		require.Eventually(t, func() bool { return limitertest.Try(t, l, 7) }, time.Minute, 10*time.Millisecond)
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
	permits := "{" + l.Name() + "}:permits"
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

// A replica becomes the master of a limiter's slot while two Clients use it.
func TestClusterFailoverWhileInUse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		scenario string
		cfg      rratelimiter.Config
		killed   bool
	}{
		{"cluster: replica takes over in agreement", limitertest.Every(60, time.Hour), false},
		{"cluster: master killed, replica takes over", limitertest.Every(manyPermits, time.Hour), true},
	} {
		t.Run(test.scenario, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t, 3, 1)
			name := redistest.Name(t)
			var parties []*party
			for range 2 {
				parties = append(parties, gather(t, cluster.Client(t, nil), name, test.cfg, &party{keeps: test.killed, expects: transient}))
			}
			parties[0].awaitGood(t)
			master, replicas := cluster.Owner(t, cluster.Slot(t, name))
			began := time.Now()
			if test.killed {
				master.Kill()
			}
			cluster.Failover(t, replicas[0], test.killed)
			takeover := time.Since(began)
			for _, c := range parties {
				c.awaitGood(t)
			}
			lost := settleUp(t, test.scenario, cluster.Client(t, nil), test.cfg, parties)
			t.Logf("taken over after %v", takeover)
			if !test.killed {
				assert.Zero(t, lost)
			}
		})
	}
}

// manyPermits are more than a party can use up, so that what a failover lost can
// be told from what is left: nobody is refused or releases.
const manyPermits = 1_000_000

// settleUp ends the parties after a failover and notes what came of it: permits
// that were granted and that the new master does not know, so that it grants
// them again, and the longest time that no call was answered.
func settleUp(t *testing.T, scenario string, rdb redis.UniversalClient, cfg rratelimiter.Config, parties []*party) (lost int64) {
	t.Helper()
	gap, failed := time.Duration(0), map[string]int{}
	for _, p := range parties {
		p.stop(t)
		gap = max(gap, p.gap)
		for kind, n := range p.failed {
			failed[kind] += n
		}
	}
	lost, _ = account(t, rdb, cfg, parties)
	t.Logf("errors: %v", failed)
	noteResult(t, "failover", scenario, cfg.Rate, lost, lost, gap)
	return lost
}
