package servers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
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

// downAfter is when Sentinels take a master for dead.
const downAfter = 3 * time.Second // a busy machine stalls

type server = redistest.Server

// Servers change places while callers take permits. The new master grants again the permits that it does not know of.
func TestFailoverWhileInUse(t *testing.T) {
	t.Parallel()
	durable := []rratelimiter.Option{rratelimiter.WithReplicas(1, 100*time.Millisecond)}
	failOver := func(t *testing.T, s *redistest.Sentinel, _ *server) { s.Failover(t) }
	for scenario, test := range map[string]struct {
		exact     bool // no write is lost
		opts      []rratelimiter.Option
		sentinels func(t *testing.T, s *redistest.Sentinel, master *server)
		cluster   func(t *testing.T, c *redistest.Cluster, master, replica *server)
	}{
		"sentinel: writes paused, then SENTINEL FAILOVER":  {exact: true, sentinels: failOverPaused},
		"sentinel: SENTINEL FAILOVER":                      {sentinels: failOver},
		"sentinel: SENTINEL FAILOVER, WithReplicas":        {exact: true, opts: durable, sentinels: failOver},
		"network parted, then master killed":               {},
		"network parted, then master killed, WithReplicas": {exact: true, opts: durable},
		"sentinel: master killed": {sentinels: func(t *testing.T, s *redistest.Sentinel, master *server) {
			master.Kill()
			s.AwaitMaster(t, master)
		}},
		"sentinel: master hangs": {sentinels: func(t *testing.T, s *redistest.Sentinel, master *server) {
			master.Freeze(t)
			s.AwaitMaster(t, master)
			master.Thaw(t)
		}},
		"cluster: replica takes over in agreement": {exact: true, cluster: func(t *testing.T, c *redistest.Cluster, _, replica *server) {
			c.Failover(t, replica, false)
		}},
		"cluster: master killed, replica takes over": {cluster: func(t *testing.T, c *redistest.Cluster, master, replica *server) {
			master.Kill()
			c.Failover(t, replica, true)
		}},
	} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			prefix := "{" + redistest.Name(t) + "}"
			var rdb redistest.Client
			var replace func()
			switch {
			case test.cluster != nil:
				c := redistest.StartCluster(t, 3, 1)
				master, replicas := c.Owner(t, c.Slot(t, prefix))
				rdb, replace = c.Client(t, nil), func() { test.cluster(t, c, master, replicas[0]) }
			case test.sentinels != nil:
				s := redistest.StartSentinel(t, 1, downAfter)
				rdb = s.Client(t, &redistest.Options{ReadTimeout: time.Second})
				replace = func() { test.sentinels(t, s, s.Master(t)) }
			default:
				r := startReplica(t)
				rdb, replace = r.client(t), func() {
					close(r.silent)
					time.Sleep(300 * time.Millisecond)
					r.takeOver(t)
				}
			}
			l := startLoad(t, rdb, prefix, test.opts...)
			began := time.Now()
			replace()
			replaced := time.Since(began)
			if test.cluster != nil || test.sentinels != nil { // else there is no replica any more
				l.awaitGrants(t, 100)
			}
			lost := l.lost(t, rdb)
			t.Logf("replaced after %v; errors: %v", replaced, l.failed)
			noteResult(t, "failover", scenario, len(l.granted), lost, lost, l.gap)
			if test.exact {
				assert.Zero(t, lost)
			}
		})
	}
}

// failOverPaused has a Sentinel replace the master once that takes no more writes and the replica has all.
func failOverPaused(t *testing.T, s *redistest.Sentinel, master *redistest.Server) {
	t.Helper()
	name, addrs := s.Watch()
	sentinel, admin := redistest.NewClient(addrs[0], nil), master.Client(t, nil)
	defer func() { assert.NoError(t, sentinel.Close()) }()
	s.AwaitOrder(t)
	require.NoError(t, admin.Do(t.Context(), "CLIENT", "PAUSE", "60000", "WRITE").Err())
	awaitReplicated(t, admin)
	require.Eventually(t, func() bool {
		err := sentinel.Do(t.Context(), "SENTINEL", "FAILOVER", name).Err()
		return err == nil || redis.HasErrorPrefix(err, "INPROG")
	}, time.Minute, 50*time.Millisecond)
	s.AwaitMaster(t, master)
}

// figure returns a number that a server says of itself, -1 if it doesn't.
func figure(t testing.TB, rdb redistest.Client, section, name string) int {
	t.Helper()
	found := regexp.MustCompile(name + `(\d+)`).FindStringSubmatch(rdb.Info(t.Context(), section).Val())
	if found == nil {
		return -1
	}
	return limitertest.Must(strconv.Atoi(found[1]))(t)
}

// awaitReplicated waits until the replica has all that was written to its master before.
func awaitReplicated(t testing.TB, master redistest.Client) {
	t.Helper()
	written := figure(t, master, "replication", "master_repl_offset:")
	require.GreaterOrEqual(t, written, 0)
	require.Eventually(t, func() bool { return figure(t, master, "replication", ",offset=") >= written }, time.Minute, time.Millisecond)
}

// awaitReplication waits until a server says so of its replication.
func awaitReplication(t testing.TB, server *redistest.Server, words ...string) {
	t.Helper()
	rdb := server.Client(t, nil)
	require.Eventually(t, func() bool {
		info := rdb.Info(t.Context(), "replication").Val()
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(info, word) })
	}, time.Minute, 10*time.Millisecond)
}

// A doomed limiter is used until its master is lost.
type doomed struct {
	*rratelimiter.RateLimiter

	scenario   string
	cfg        rratelimiter.Config
	kept, lost int64 // granted before the replica was cut off, and after
	opts       []rratelimiter.Option
}

// The master dies with writes that no replica got. Their grants are granted again, and nothing else goes wrong.
func TestFailover_ThatLosesWrites(t *testing.T) {
	t.Parallel()
	r := startReplica(t)
	rdb := r.client(t)
	hundred := limitertest.Every(100, time.Hour)
	limiters := []*doomed{
		{scenario: "last 50 permits lost", cfg: hundred, kept: 40, lost: 50},
		{scenario: "all grants lost", cfg: hundred, kept: 0, lost: 100},
		{scenario: "last 50 permits lost, per client", cfg: limitertest.PerClient(100, time.Hour), kept: 40, lost: 50},
		{scenario: "last 50 permits lost, 3.15.5", cfg: hundred, kept: 40, lost: 50, opts: []rratelimiter.Option{
			rratelimiter.WithRedissonVersion("3.15.5"),
		}},
	}
	for _, l := range limiters {
		l.RateLimiter = limitertest.NewClient(t, rdb, l.opts...).RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, l.RateLimiter, l.cfg)
		if l.kept > 0 {
			limitertest.MustAcquire(t, l.RateLimiter, l.kept)
		}
	}
	released, changed := limitertest.NewLimiter(t, rdb, hundred), limitertest.NewLimiter(t, rdb, hundred)
	limitertest.MustAcquire(t, released, 60)
	limitertest.MustAcquire(t, changed, 10)
	checkWaiters := startWaiters(t, rdb)
	awaitReplicated(t, r.master.Client(t, nil))
	close(r.silent)
	for _, l := range limiters {
		limitertest.MustAcquire(t, l.RateLimiter, l.lost/2+1)
		if rest := l.lost - l.lost/2 - 1; rest > 0 {
			limitertest.MustAcquire(t, l.RateLimiter, rest)
		}
	}
	require.NoError(t, released.Release(t.Context(), 50))
	require.NoError(t, changed.SetRate(t.Context(), limitertest.Every(20, time.Hour)))
	made, byDefault := limitertest.NewLimiter(t, rdb, hundred), limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(hundred))
	limitertest.MustAcquire(t, made, 30)
	limitertest.MustAcquire(t, byDefault, 30)
	began := time.Now()
	r.takeOver(t)
	afterFailover(t, limiters[0].RateLimiter)
	again := time.Since(began)
	for _, l := range limiters {
		left := limitertest.Available(t, l.RateLimiter)
		limitertest.MustAcquire(t, l.RateLimiter, left)
		limitertest.MustRefuse(t, l.RateLimiter, 1)
		over := l.kept + l.lost + left - l.cfg.Rate
		assert.Equal(t, l.lost, over, l.scenario)
		noteResult(t, "failover", l.scenario, l.cfg.Rate, over, l.lost, again)
	}
	assert.EqualValues(t, 40, limitertest.Available(t, released), "a release that was lost: back after the interval")
	assert.EqualValues(t, 90, limitertest.Available(t, changed), "a rate that was lost")
	require.ErrorIs(t, limitertest.Second(made.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrNotInitialized)
	assert.Equal(t, 100, limitertest.Grants(t, byDefault, 101), "a limiter that was lost is made again")
	for _, l := range []*rratelimiter.RateLimiter{limiters[0].RateLimiter, byDefault} {
		free, stored := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
		assert.True(t, stored)
		assert.EqualValues(t, 100, free+limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
	}
	checkWaiters()
}

// startWaiters starts callers that wait for the permits of a short interval. The function it returns waits until each
// of them is granted permits again, and ends them.
func startWaiters(t *testing.T, rdb redistest.Client) (check func()) {
	t.Helper()
	l := limitertest.NewLimiter(t, rdb, limitertest.Every(3, 300*time.Millisecond))
	var callers crew
	var granted [5]atomic.Int64
	callers.start(t, len(granted), func(ctx context.Context, i int) {
		if err := l.Acquire(ctx, 1); err == nil {
			granted[i].Add(1)
		} else if ctx.Err() == nil {
			assert.True(t, transient(err), err)
		}
	})
	return func() {
		for i := range granted {
			before := granted[i].Load()
			assert.Eventually(t, func() bool { return granted[i].Load() > before+1 }, time.Minute, 10*time.Millisecond, "a waiter is stuck")
		}
		callers.end()
	}
}

type replica struct {
	master, server *redistest.Server
	serving        atomic.Pointer[redistest.Server]
	silent         chan struct{} // closed: nothing comes through the link any more, and neither side knows
}

// startReplica starts a master with these arguments and a replica of it, and waits until
// that has confirmed a write: one that is online may take a second to begin with that.
func startReplica(t *testing.T, args ...string) *replica {
	t.Helper()
	r := &replica{master: redistest.StartRedis(t, args...), server: redistest.StartRedis(t), silent: make(chan struct{})}
	r.serving.Store(r.master)
	follow(t, r.master, r.server, r.link(t))
	return r
}

// follow makes a server the replica of another, which it reaches at addr.
func follow(t testing.TB, master, replica *redistest.Server, addr string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	require.NoError(t, replica.Client(t, nil).ReplicaOf(t.Context(), host, port).Err())
	awaitReplication(t, master, "state=online", "lag=0")
	rdb := master.Client(t, nil)
	require.NoError(t, rdb.Set(t.Context(), "marker", "", 0).Err())
	awaitReplicated(t, rdb)
}

// link returns the address at which the replica reaches its master.
func (r *replica) link(t *testing.T) string {
	t.Helper()
	listener := limitertest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	relay := func(to, from net.Conn) {
		defer func() { _, _ = to.Close(), from.Close() }()
		_, _ = io.Copy(muted{to, r.silent}, from)
	}
	go func() {
		for {
			down, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", r.master.Addr())
			if err != nil {
				_ = down.Close()
				return
			}
			go relay(up, down)
			go relay(down, up)
		}
	}()
	return listener.Addr().String()
}

type muted struct {
	io.Writer
	silent <-chan struct{}
}

func (m muted) Write(p []byte) (int, error) {
	select {
	case <-m.silent:
		return len(p), nil
	default:
		return m.Writer.Write(p)
	}
}

// client returns a client of the server that serves at the time.
func (r *replica) client(t *testing.T) redistest.Client {
	t.Helper()
	return r.master.Client(t, &redistest.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", r.serving.Load().Addr())
	}})
}

func (r *replica) takeOver(t *testing.T) {
	t.Helper()
	r.master.Kill()
	require.NoError(t, r.server.Client(t, nil).ReplicaOf(t.Context(), "NO", "ONE").Err())
	r.serving.Store(r.server)
}

// afterFailover waits for the first call that meets the new master.
func afterFailover(t *testing.T, l *rratelimiter.RateLimiter) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := l.Config(t.Context())
		return err == nil
	}, time.Minute, 10*time.Millisecond)
}

// With min-replicas-to-write a master that has lost its replica grants for some seconds more, and then nothing that a failover
// could lose. Redis 6 does not ask for replicas if a script writes.
func TestMinReplicasBoundWhatAFailoverLoses(t *testing.T) {
	t.Parallel()
	const rate = 100_000
	r := startReplica(t, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")
	rdb := r.client(t)
	l := limitertest.NewHandle(t, rdb)
	works := func(call func() error) { // now and then a busy machine's replica lags by a second
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NoError(c, call()) }, time.Minute, time.Millisecond)
	}
	works(func() error { return l.SetRate(t.Context(), limitertest.Every(rate, time.Hour)) })
	works(func() error { return l.Acquire(t.Context(), 10) })
	awaitReplicated(t, r.master.Client(t, nil))
	asks := !strings.Contains(rdb.Info(t.Context(), "server").Val(), "redis_version:6.")
	close(r.silent)
	var err error
	over, took := int64(0), time.Duration(0)
	// Until the master refuses for lack of replicas, or it has granted 100 without asking for them.
	for began := time.Now(); kindOf(err) != "NOREPLICAS" && took < time.Minute && (asks || over < 100); took = time.Since(began) {
		var ok bool
		if ok, err = l.TryAcquire(t.Context(), 1, 0); ok {
			over++
		}
		time.Sleep(time.Millisecond)
	}
	for i := 0; asks && i < 6; i++ {
		assert.Equal(t, "NOREPLICAS", kindOf(err))
		err = limitertest.Granted(l.TryAcquire(t.Context(), 1, 0))
	}
	r.takeOver(t)
	afterFailover(t, l)
	assert.EqualValues(t, rate-10, limitertest.Available(t, l))
	assert.LessOrEqual(t, over, int64(rate))
	scenario := "min-replicas-max-lag 1, network parted"
	if !asks {
		scenario += ", Redis 6"
	}
	noteResult(t, "failover", scenario, rate, over, over, took)
}

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

// A load is callers who each take one permit of a limiter of their own, so that each grant can be looked for.
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
	var known *redis.IntCmd
	require.Eventually(t, func() bool { // for a second after dials that failed go-redis may refuse to dial
		known = rdb.Exists(t.Context(), l.granted...)
		return known.Err() == nil
	}, time.Minute, 10*time.Millisecond)
	return len(l.granted) - int(known.Val())
}

// transient reports whether an error says that a call did not run, or perhaps did, as callers must expect while servers change places.
func transient(err error) bool {
	switch kindOf(err) {
	case "UnknownOutcome", "NotReplicated", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "dial", "pool", "Unavailable":
		return true
	}
	return false
}

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

// noteResult logs a line of a table of results, and keeps it if results are kept. Durations are in seconds.
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
