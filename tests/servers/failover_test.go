package servers_test

import (
	"context"
	"net"
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
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// downAfter is when Sentinels take a master for dead.
const downAfter = time.Second

// replicated waits until the replica has all that was written to its master
// before.
func replicated(t *testing.T, master *redis.Client) {
	t.Helper()
	offset := func(name string) int64 {
		info, err := master.Info(t.Context(), "replication").Result()
		require.NoError(t, err)
		_, rest, ok := strings.Cut(info, name)
		if !ok {
			return -1
		}
		digits := rest[:strings.IndexFunc(rest+"\r", func(r rune) bool { return r < '0' || r > '9' })]
		n, err := strconv.ParseInt(digits, 10, 64)
		require.NoError(t, err)
		return n
	}
	written := offset("master_repl_offset:")
	require.Eventually(t, func() bool { return offset(",offset=") >= written }, 30*time.Second, time.Millisecond)
}

// failOver has a Sentinel replace the master, as SENTINEL FAILOVER does, once
// ready is called.
func failOver(t *testing.T, s *redistest.Sentinel, master *redistest.Server, ready func()) {
	t.Helper()
	hello := master.Client(t, nil).Subscribe(t.Context(), "__sentinel__:hello")
	defer func() { assert.NoError(t, hello.Close()) }()
	message, err := hello.ReceiveMessage(t.Context())
	require.NoError(t, err)
	// ip, port, run id, epoch, the master's name and more.
	fields := strings.Split(message.Payload, ",")
	sentinel := redis.NewClient(&redis.Options{Addr: net.JoinHostPort(fields[0], fields[1])})
	defer func() { assert.NoError(t, sentinel.Close()) }()
	ready()
	require.Eventually(t, func() bool {
		err := sentinel.Do(t.Context(), "SENTINEL", "FAILOVER", fields[4]).Err()
		return err == nil || redis.HasErrorPrefix(err, "INPROG")
	}, 30*time.Second, 50*time.Millisecond)
	s.AwaitMaster(t, master)
}

// Sentinels replace the master while two Clients use a limiter.
func TestSentinelFailoverWhileInUse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		scenario string
		exact    bool // no write is lost
		replace  func(t *testing.T, s *redistest.Sentinel, master *redistest.Server)
	}{
		{"sentinel: writes paused, then SENTINEL FAILOVER", true, func(t *testing.T, s *redistest.Sentinel, master *redistest.Server) {
			t.Helper()
			admin := master.Client(t, nil)
			failOver(t, s, master, func() {
				require.NoError(t, admin.Do(t.Context(), "CLIENT", "PAUSE", "60000", "WRITE").Err())
				replicated(t, admin)
			})
		}},
		{"sentinel: SENTINEL FAILOVER", false, func(t *testing.T, s *redistest.Sentinel, master *redistest.Server) {
			t.Helper()
			failOver(t, s, master, func() {})
		}},
		{"sentinel: master killed", false, func(t *testing.T, s *redistest.Sentinel, master *redistest.Server) {
			t.Helper()
			master.Kill()
			s.AwaitMaster(t, master)
		}},
		{"sentinel: master hangs", false, func(t *testing.T, s *redistest.Sentinel, master *redistest.Server) {
			t.Helper()
			master.Freeze(t)
			s.AwaitMaster(t, master)
			master.Thaw(t)
		}},
	} {
		t.Run(test.scenario, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartSentinel(t, 1, downAfter)
			name := redistest.Name(t)
			opt := &redis.FailoverOptions{ReadTimeout: time.Second}
			cfg := limitertest.Every(manyPermits, time.Hour)
			if test.exact {
				cfg = limitertest.Every(60, time.Hour)
			}
			var parties []*party
			for range 2 {
				parties = append(parties, gather(t, s.Client(t, opt), name, cfg, &party{keeps: !test.exact, expects: transient}))
			}
			parties[0].awaitGood(t)
			began := time.Now()
			test.replace(t, s, s.Master(t))
			replaced := time.Since(began)
			for _, p := range parties {
				p.awaitGood(t)
			}
			lost := settleUp(t, test.scenario, s.Client(t, opt), cfg, parties)
			t.Logf("replaced after %v", replaced)
			if test.exact {
				assert.Zero(t, lost)
			}
		})
	}
}

// The master dies with writes that no replica got. What was granted by them is
// granted again, and nothing else goes wrong.
func TestAFailoverThatLosesWrites(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1, downAfter)
	rdb := s.Client(t, nil)
	master := s.Master(t)

	type limiter struct {
		*rratelimiter.RateLimiter
		scenario   string
		rate       int64
		kept, lost int64 // granted before the replica was cut off, and after
	}
	var limiters []*limiter
	add := func(scenario string, cfg rratelimiter.Config, kept, lost int64, opts ...rratelimiter.Option) {
		l := limitertest.NewClient(t, rdb, opts...).RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, l, cfg)
		if kept > 0 {
			limitertest.MustAcquire(t, l, kept)
		}
		limiters = append(limiters, &limiter{l, scenario, cfg.Rate, kept, lost})
	}
	add("last grant lost", limitertest.Every(100, time.Hour), 40, 1)
	add("last 50 permits lost", limitertest.Every(100, time.Hour), 40, 50)
	add("all grants lost", limitertest.Every(100, time.Hour), 0, 100)
	add("last 500 permits lost", limitertest.Every(1000, time.Hour), 500, 500)
	add("last 50 permits lost, per client", limitertest.PerClient(100, time.Hour), 40, 50)
	add("last 50 permits lost, 3.15.5", limitertest.Every(100, time.Hour), 40, 50, rratelimiter.WithRedissonVersion("3.15.5"))
	released := limitertest.NewLimiter(t, rdb, limitertest.Every(100, time.Hour))
	limitertest.MustAcquire(t, released, 60)
	changed := limitertest.NewLimiter(t, rdb, limitertest.Every(100, time.Hour))
	limitertest.MustAcquire(t, changed, 10)

	w := startWaiters(t, s)
	replicated(t, master.Client(t, nil))
	s.CutReplication(t)

	for _, l := range limiters {
		limitertest.MustAcquire(t, l.RateLimiter, l.lost/2+1)
		if rest := l.lost - l.lost/2 - 1; rest > 0 {
			limitertest.MustAcquire(t, l.RateLimiter, rest)
		}
	}
	require.NoError(t, released.Release(t.Context(), 50))
	require.NoError(t, changed.SetRate(t.Context(), limitertest.Every(20, time.Hour)))
	made := limitertest.NewLimiter(t, rdb, limitertest.Every(100, time.Hour))
	limitertest.MustAcquire(t, made, 30)
	byDefault := limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
	limitertest.MustAcquire(t, byDefault, 30)

	began := time.Now()
	master.Kill()
	s.AwaitMaster(t, master)
	var err error
	require.Eventually(t, func() bool {
		_, err = limiters[0].AvailablePermits(t.Context())
		return err == nil || !assert.True(t, transient(err), err)
	}, 60*time.Second, 10*time.Millisecond)
	require.NoError(t, err)
	again := time.Since(began)

	for _, l := range limiters {
		left := limitertest.Available(t, l.RateLimiter)
		limitertest.MustAcquire(t, l.RateLimiter, left)
		limitertest.MustRefuse(t, l.RateLimiter, 1)
		over := l.kept + l.lost + left - l.rate
		assert.Equal(t, l.lost, over, l.scenario)
		noteResult(t, "failover", "sentinel: "+l.scenario, l.rate, over, l.lost, again)
	}
	assert.EqualValues(t, 40, limitertest.Available(t, released), "a release that was lost: back after the interval")
	assert.EqualValues(t, 90, limitertest.Available(t, changed), "a rate that was lost")
	_, err = made.TryAcquire(t.Context(), 1, 0)
	require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
	assert.Equal(t, 100, limitertest.Grants(t, byDefault, 101), "a limiter that was lost is made anew")
	for _, l := range []*rratelimiter.RateLimiter{limiters[1].RateLimiter, byDefault} {
		free, stored := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
		assert.True(t, stored)
		assert.EqualValues(t, 100, free+limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
	}
	w.check(t)
}

// waiters are callers that wait for the permits of a short interval.
type waiters struct {
	granted [5]atomic.Int64
	failed  atomic.Int64
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

func startWaiters(t *testing.T, s *redistest.Sentinel) *waiters {
	t.Helper()
	l := limitertest.NewLimiter(t, s.Client(t, nil), limitertest.Every(3, 300*time.Millisecond))
	ctx, cancel := context.WithCancel(t.Context())
	w := &waiters{stop: cancel}
	for i := range w.granted {
		w.wg.Go(func() {
			for ctx.Err() == nil {
				switch err := l.Acquire(ctx, 1); {
				case err == nil:
					w.granted[i].Add(1)
				case ctx.Err() != nil:
				case assert.True(t, transient(err), err):
					w.failed.Add(1)
					time.Sleep(10 * time.Millisecond)
				default:
					return
				}
			}
		})
	}
	return w
}

// check waits until each of them is granted permits again.
func (w *waiters) check(t *testing.T) {
	t.Helper()
	for i := range w.granted {
		before := w.granted[i].Load()
		assert.Eventually(t, func() bool { return w.granted[i].Load() > before+1 }, 60*time.Second, 10*time.Millisecond, "a waiter is stuck")
	}
	w.stop()
	w.wg.Wait()
	t.Logf("%d calls of waiters failed", w.failed.Load())
}

// A replica has a master that it reaches over a link, and can take its place.
type replica struct {
	master, server *redistest.Server
	serving        atomic.Pointer[redistest.Server]
	silent         chan struct{} // closed: nothing comes through the link any more, and nobody is told
}

// startReplica starts a master with these arguments and a replica of it.
func startReplica(t *testing.T, args ...string) *replica {
	t.Helper()
	r := &replica{master: redistest.StartRedis(t, args...), server: redistest.StartRedis(t), silent: make(chan struct{})}
	r.serving.Store(r.master)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	relay := func(to, from net.Conn) {
		defer func() { _, _ = to.Close(), from.Close() }()
		piece := make([]byte, 64<<10)
		for {
			n, err := from.Read(piece)
			if err != nil {
				return
			}
			select {
			case <-r.silent:
				<-ended
				return
			default:
			}
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
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
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, r.server.Client(t, nil).ReplicaOf(t.Context(), host, port).Err())
	require.Eventually(t, func() bool {
		info, err := r.master.Client(t, nil).Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "state=online") && strings.Contains(info, "lag=0")
	}, 30*time.Second, 10*time.Millisecond)
	awaitFirstAck(t, r.master)
	return r
}

// awaitFirstAck waits until a replica has confirmed a write: one that is online may take
// a second to begin with that.
func awaitFirstAck(t *testing.T, master *redistest.Server) {
	t.Helper()
	rdb := master.Client(t, nil)
	require.NoError(t, rdb.Set(t.Context(), "marker", "", 0).Err())
	replicated(t, rdb)
}

// Client returns a client of whichever server serves.
func (r *replica) client(t *testing.T) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", r.serving.Load().Addr())
	}})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	return rdb
}

// takeOver kills the master and lets the replica serve.
func (r *replica) takeOver(t *testing.T) {
	t.Helper()
	r.master.Kill()
	require.NoError(t, r.server.Client(t, nil).ReplicaOf(t.Context(), "NO", "ONE").Err())
	r.serving.Store(r.server)
}

// afterFailover is try for the first call that meets the new master.
func afterFailover(t *testing.T, l *rratelimiter.RateLimiter) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := l.Config(t.Context())
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
}

// An application that writes and waits on one connection, opened before, learns
// whether a grant is on the replica: replication keeps the order of all writes.
func TestWaitTellsWhetherAGrantIsOnTheReplica(t *testing.T) {
	t.Parallel()
	r := startReplica(t)
	rdb := r.client(t)
	l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
	conn := rdb.Conn()
	defer func() { assert.NoError(t, conn.Close()) }()
	safe := func(patience time.Duration) bool {
		require.NoError(t, conn.Set(t.Context(), "marker", "", 0).Err())
		n, err := conn.Wait(t.Context(), 1, patience).Result()
		require.NoError(t, err)
		return n >= 1
	}
	require.True(t, safe(30*time.Second))
	limitertest.MustAcquire(t, l, 3)
	require.True(t, safe(30*time.Second))
	close(r.silent)
	limitertest.MustAcquire(t, l, 4)
	require.False(t, safe(300*time.Millisecond))
	r.takeOver(t)
	afterFailover(t, l)
	require.Error(t, conn.Set(t.Context(), "marker", "", 0).Err(), "it never goes to another server")
	assert.EqualValues(t, 7, limitertest.Available(t, l), "the permits that were waited for are in use, and only these")
}

// With min-replicas-to-write a master that has lost its replica grants for some
// seconds more, and then nothing that a failover could lose. Redis 6 does not ask
// for replicas where a script writes.
func TestMinReplicasBoundWhatAFailoverLoses(t *testing.T) {
	t.Parallel()
	const rate = 100_000
	for _, test := range []struct {
		scenario string
		part     func(t *testing.T, r *replica)
	}{
		{"min-replicas-max-lag 1, network parted", func(_ *testing.T, r *replica) { close(r.silent) }},
		{"min-replicas-max-lag 1, replica gone", func(t *testing.T, r *replica) {
			t.Helper()
			require.NoError(t, r.server.Client(t, nil).ReplicaOf(t.Context(), "NO", "ONE").Err())
			require.Eventually(t, func() bool {
				info, err := r.master.Client(t, nil).Info(t.Context(), "replication").Result()
				return err == nil && strings.Contains(info, "connected_slaves:0")
			}, 30*time.Second, time.Millisecond)
		}},
	} {
		t.Run(test.scenario, func(t *testing.T) {
			t.Parallel()
			r := startReplica(t, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")
			rdb := r.client(t)
			l := limitertest.NewHandle(t, rdb)
			works := func(call func() error) { // now and then a busy machine's replica lags by a second
				t.Helper()
				require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NoError(c, call()) }, time.Minute, time.Millisecond)
			}
			works(func() error { return l.SetRate(t.Context(), limitertest.Every(rate, time.Hour)) })
			works(func() error { return l.Acquire(t.Context(), 10) })
			replicated(t, r.master.Client(t, nil))
			info, err := rdb.Info(t.Context(), "server").Result()
			require.NoError(t, err)
			scenario, asks := test.scenario, !strings.Contains(info, "redis_version:6.")
			if !asks {
				scenario += ", Redis 6"
			}

			test.part(t, r)
			began, over := time.Now(), int64(0)
			for kindOf(err) != "NOREPLICAS" && time.Since(began) < 30*time.Second {
				var ok bool
				if ok, err = l.TryAcquire(t.Context(), 1, 0); ok {
					over++
				}
				if !asks && over == 100 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			took := time.Since(began)
			if asks {
				assert.Equal(t, "NOREPLICAS", kindOf(err))
				for range 5 {
					ok, err := l.TryAcquire(t.Context(), 1, 0)
					assert.False(t, ok)
					assert.Equal(t, "NOREPLICAS", kindOf(err))
				}
			}
			r.takeOver(t)
			afterFailover(t, l)
			assert.EqualValues(t, rate-10, limitertest.Available(t, l))
			assert.LessOrEqual(t, over, int64(rate))
			noteResult(t, "failover", scenario, rate, over, over, took)
		})
	}
}
