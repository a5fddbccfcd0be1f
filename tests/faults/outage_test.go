package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// So do those of callers who have gone before a server that hangs, is away, or decides nothing, has told them so.
func TestDeadlinesOpenTheBreaker_WhileNothingIsDecided(t *testing.T) {
	t.Parallel()
	type row struct {
		lasts time.Duration // for how long go-redis tries again, or waits
		err   error
	}
	limitertest.Each(t, map[string]row{
		"hung":    {3 * time.Second, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}},
		"refused": {30 * time.Millisecond, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}},
		"loading": {30 * time.Millisecond, answered("LOADING Redis is loading the dataset in memory")},
		"memory":  {30 * time.Millisecond, answered("OOM command not allowed when used memory > 'maxmemory'.")},
	}, func(t *testing.T, why row) {
		eachOfKeys(t, 5, limit.FailOpen(), func(t *testing.T, s *scene, l limit.Returner) {
			limittest.Take(t, l, "ann", 5)
			s.rdb.AddHook(redistest.Hook(func(ctx context.Context, cmds []redis.Cmder, _ func() error) error {
				select {
				case <-ctx.Done():
				case <-time.After(why.lasts):
				}
				return redistest.Fail(cmds, why.err)
			}))
			for range 10 { // the ninth ends after 50 ms without a decision, and three make an outage
				start := time.Now()
				_, _ = takeWithin(t, l, "ann", 10*time.Millisecond)
				assert.LessOrEqual(t, time.Since(start), 10*time.Millisecond)
			}
			assert.True(t, atOnce(t, taking(t.Context(), l)))
		})
	})
}

func within[T any](t testing.TB, d time.Duration, call func(ctx context.Context) (T, error)) (T, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return call(ctx)
}

func takeWithin(t testing.TB, l limit.Limiter, key string, d time.Duration) (limit.Decision, error) {
	t.Helper()
	return within(t, d, func(ctx context.Context) (limit.Decision, error) { return l.Take(ctx, key, 1) })
}

// Callers with deadlines shorter than a round trip must not switch a limit off for
// others: the server works. So with one that is far away, from the first calls on.
func TestBreaker_ShortDeadlinesDoNotOpenIt(t *testing.T) {
	t.Parallel()
	type row struct {
		trip, hasty, pause, patient time.Duration
		calls                       int // of the patient caller
	}
	limitertest.Each(t, map[string]row{
		"near": {10 * time.Millisecond, 2 * time.Millisecond, 8 * time.Millisecond, 60 * time.Millisecond, 20},
		"far":  {120 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 50},
	}, func(t *testing.T, r row) {
		eachOfKeys(t, 3, limit.FailOpen(), func(t *testing.T, s *scene, l limit.Returner) {
			s.rdb.AddHook(redistest.BeforeCommands(func(...redis.Cmder) { time.Sleep(r.trip) }))
			var over atomic.Bool
			gone := limitertest.Go(func() {
				limitertest.Together(2, func(int) {
					for ; !over.Load(); time.Sleep(r.pause) {
						_, _ = takeWithin(t, l, "hasty", r.hasty)
					}
				})
			})
			granted := 0
			for range r.calls {
				d, err := takeWithin(t, l, "patient", time.Second)
				assert.NoError(t, err)
				if d.Granted {
					granted++
				}
				time.Sleep(r.patient)
			}
			over.Store(true)
			<-gone
			assert.Equal(t, 3, granted)
		})
	})
}

func (s *scene) refuse(text string, of func(sha any) bool) {
	s.rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if len(cmds) == 1 && cmds[0].Name() == "evalsha" && of(cmds[0].Args()[1]) {
			return redistest.Fail(cmds, answered(text))
		}
		return next()
	}))
}

// waits returns the share of its time that a caller spends waiting if it asks every 10 ms.
func waits(t *testing.T, l *rratelimiter.RateLimiter, lasting time.Duration) float64 {
	t.Helper()
	waited, start := time.Duration(0), time.Now()
	for time.Since(start) < lasting {
		before := time.Now()
		limitertest.MustAcquire(t, l, 1)
		waited += time.Since(before)
		time.Sleep(10 * time.Millisecond)
	}
	return float64(waited) / float64(time.Since(start))
}

// A hook of the Redis client's that panics ends no program, on whichever goroutine.
func TestHooksThatPanicDuringAnOutage(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, kinds, func(t *testing.T, opt redistest.Options) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &opt)
		hook := newHanging(rdb)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailLocal(1)))
		l := limitertest.ByDefault(client, "orders", limitertest.Every(50, time.Hour))
		hook.hang(true)
		require.Equal(t, 3, limitertest.Grants(t, l, 3))
		hook.hang(false)
		for _, script := range []*lua.Script{lua.Probe, lua.Config} {
			rdb.AddHook(limitertest.BeforeScript(script, func() { panic("a hook") }))
		}
		time.Sleep(5 * time.Second)
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(time.Minute)
	})
}

func TestDefectAFastClockDelaysOthersByMoreThanAnInterval(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"))
			l := limitertest.NewLimiterOf(t, client, redistest.Name(t), rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Second})
			peer := limitertest.Java{Redis: rdb, Name: l.Name(), ID: "id", Fast: time.Minute}
			require.True(t, limitertest.Must(peer.TryAcquire(t, 10))(t))
			assert.Equal(t, limit.Decision{Limit: 10, RetryAfter: time.Second, ResetAfter: time.Second}, limitertest.Take(t, l, 1))
			time.Sleep(time.Second)
			limitertest.MustAcquire(t, l, 10)
		})
	})
}

func TestDefectTheClientsClockDecides(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]time.Duration{"ahead": time.Minute, "behind": -time.Minute}, func(t *testing.T, ahead time.Duration) {
		rdb, m := redistest.Mini(t)
		server := time.Now().Add(ahead)
		m.SetTime(server)
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
		limitertest.MustAcquire(t, l, 10)
		members := limitertest.ReadState(t, rdb, l.Name())[limitertest.KeysOf(l).Permits].Members
		require.Len(t, members, 1)
		assert.InDelta(t, server.UnixMilli(), members[0].Score, 0)
		limitertest.MustRefuse(t, l, 1)
		m.SetTime(server.Add(999 * time.Millisecond))
		limitertest.MustRefuse(t, l, 1)
		m.SetTime(server.Add(time.Second))
		limitertest.MustAcquire(t, l, 10)
	})
}

// A proxy in front of servers that have changed places may keep a connection to the one that became a replica, and
// says so in its own words. go-redis gives up a connection only at Redis' words.
func TestReadOnly_InWordsOfAProxyIsMetOnceByAConnection(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, kinds, func(t *testing.T, opt redistest.Options) {
		_, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		l := limitertest.NewLimiter(t, proxy.Client(t, &opt), limitertest.Every(1000, time.Hour))
		var last, old, met atomic.Int64 // connections, and what those before the failover were answered
		proxy.OnCommand(func(c redistest.Command) redistest.Action {
			last.Store(max(last.Load(), int64(c.Conn)))
			if int64(c.Conn) > old.Load() || !strings.HasPrefix(c.Name(), "eval") {
				return redistest.Pass
			}
			met.Add(1)
			return redistest.Instead("eval", `return redis.error_reply("ERR READONLY You can't write against a read only replica.")`, "0")
		})
		together := func() { limitertest.Together(20, func(int) { limitertest.MustAcquire(t, l, 1) }) }
		for _, each := range []func(){func() { limitertest.MustAcquire(t, l, 1) }, together} {
			each()
			old.Store(last.Load())
			start := time.Now()
			each()
			assert.Less(t, time.Since(start), time.Second)
		}
		assert.Positive(t, met.Load())
		assert.LessOrEqual(t, met.Load(), 2*last.Load(), "a connection is left at its second such answer at the latest")
	})
}

// A policy does the same wherever it is set, by the Client or by what it opens; middleware has the other rows of this table.
func TestWithFailure_IsAlikeWhereverItIsSet(t *testing.T) {
	t.Parallel()
	rate := rratelimiter.PerHour(8)
	type opener func(c *rratelimiter.Client, own rratelimiter.LimiterOption) middlewaretest.Asking
	rows := map[string]opener{
		"Client": func(c *rratelimiter.Client, _ rratelimiter.LimiterOption) middlewaretest.Asking {
			l := limitertest.ByDefault(c, "orders", rate)
			return func(ctx context.Context) (bool, error) { return l.TryAcquire(ctx, 1, 0) }
		},
		"Client, waiting": func(c *rratelimiter.Client, _ rratelimiter.LimiterOption) middlewaretest.Asking {
			l := limitertest.ByDefault(c, "orders", rate)
			return func(ctx context.Context) (bool, error) { return l.TryAcquire(ctx, 1, 10*time.Millisecond) }
		},
		"Client, all": func(c *rratelimiter.Client, _ rratelimiter.LimiterOption) middlewaretest.Asking {
			a, b := limitertest.ByDefault(c, "{shop}a", rate), limitertest.ByDefault(c, "{shop}b", rate)
			return func(ctx context.Context) (bool, error) { return c.TryAcquireAll(ctx, 0, a.Claim(1), b.Claim(1)) }
		},
		"handle": func(c *rratelimiter.Client, own rratelimiter.LimiterOption) middlewaretest.Asking {
			l := c.RateLimiter("orders", rratelimiter.WithDefault(rate), own)
			return func(ctx context.Context) (bool, error) {
				d, err := l.Take(ctx, 1)
				return d.Granted, err
			}
		},
	}
	for name, open := range limitersOfKeys {
		rows[name] = func(c *rratelimiter.Client, own rratelimiter.LimiterOption) middlewaretest.Asking {
			l := open(c, 8, own)
			return func(ctx context.Context) (bool, error) { return taking(ctx, l)() }
		}
	}
	limitertest.Named(t, rows, func(t *testing.T, name string, open opener) {
		middlewaretest.Outages(t, middlewaretest.Guarded{
			Open: func(t *testing.T, rdb redistest.Client, how middlewaretest.Instead, _ func(error)) middlewaretest.Asking {
				t.Helper()
				policy := rratelimiter.WithFailure(*how.Failure)
				if strings.HasPrefix(name, "Client") {
					return open(limitertest.NewClient(t, rdb, policy), policy)
				}
				return open(limitertest.NewClient(t, rdb), policy)
			},
		})
	})
}

// hanging makes of a client's server one that hangs, while it is on: go-redis waits for its default timeouts, and can't be interrupted.
type hanging struct {
	on        atomic.Bool
	sent      atomic.Int64 // commands, while it was on
	now, most atomic.Int64 // round trips under way, and how many were at the same time
}

func newHanging(rdb redistest.Client) *hanging {
	h := &hanging{}
	rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if !h.on.Load() {
			return next()
		}
		h.sent.Add(int64(len(cmds)))
		raise(&h.most, h.now.Add(1))
		defer h.now.Add(-1)
		time.Sleep(3 * time.Second)
		return redistest.Fail(cmds, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded})
	}))
	return h
}

func (h *hanging) hang(on bool) { h.on.Store(on) }

// raise makes of the most there has been what is more.
func raise(most *atomic.Int64, to int64) {
	for was := most.Load(); to > was && !most.CompareAndSwap(was, to); was = most.Load() {
	}
}

type call func(ctx context.Context, key string) error

type question struct {
	name   string
	rdb    redistest.Client
	client *rratelimiter.Client
	ask    call
}

func (q *question) limiter(key string) *rratelimiter.RateLimiter {
	return limitertest.ByDefault(q.client, key, rratelimiter.PerHour(1000))
}

// questions are calls of all limiters, each of a key of its own. The sliding log's thresholds are at the key of that name.
func (q *question) questions(thresholds string) map[string]call {
	c, rdb, of := q.client, q.rdb, q.limiter
	log := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 1000, Window: time.Hour, Thresholds: thresholds})
	all := map[string]call{
		"TryAcquireAll": func(ctx context.Context, key string) error {
			return limitertest.Second(c.TryAcquireAll(ctx, 0, of(key+"1").Claim(1), of(key+"2").Claim(1)))
		},
		"Migrate": func(ctx context.Context, key string) error {
			return limitertest.Second(c.RateLimiter(key).Migrate(ctx))
		},
		"slidinglog, SetThreshold": func(ctx context.Context, key string) error { return log.SetThreshold(ctx, key, 5) },
		"slidinglog, Threshold":    func(ctx context.Context, key string) error { return limitertest.Second(log.Threshold(ctx, key)) },
	}
	for name, call := range limitertest.Operations {
		all[name] = func(ctx context.Context, key string) error { return call(ctx, of(key)) }
	}
	for name, l := range map[string]limit.Limiter{
		"Keyed":       c.Keyed("k:", limitertest.Every(1000, time.Hour)),
		"fixedwindow": fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 1000, Window: time.Hour}),
		"slidinglog":  log,
		"tokenbucket": tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 1000, Refill: 1, Interval: time.Second}),
	} {
		all[name] = func(ctx context.Context, key string) error { return limitertest.Second(l.Take(ctx, key+name, 1)) }
	}
	return all
}

func eachQuestion(t *testing.T, opt *redistest.Options, test func(t *testing.T, q *question)) {
	t.Helper()
	names := map[string]string{}
	for name := range (&question{client: rratelimiter.New(nil, limitertest.Patient())}).questions("") {
		names[name] = name
	}
	limitertest.Bubbles(t, names, func(t *testing.T, name string) {
		_, m := redistest.Mini(t)
		q := &question{name: name, rdb: redistest.MiniClient(t, m, opt)}
		q.client = limitertest.NewClient(t, q.rdb)
		q.ask = q.questions("thresholds")[name]
		test(t, q)
	})
}

// Whatever is asked of a server that hangs, and however many ask: each is answered within a call's time, or when its own is over,
// few round trips are under way, and nothing more is sent for those who have gone.
func TestHungServer_CallsEndInTime(t *testing.T) {
	t.Parallel()
	eachQuestion(t, &redistest.Options{PoolSize: 256}, func(t *testing.T, q *question) {
		hook := newHanging(q.rdb)
		limitertest.MustAcquire(t, q.limiter("other"), 1)
		hook.hang(true)
		limitertest.Together(300, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			ctx, within, want := t.Context(), 3*time.Second, rratelimiter.ErrUnavailable
			if i%3 > 0 {
				within, want = 500*time.Millisecond, context.DeadlineExceeded
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, within)
				defer cancel()
			}
			start := time.Now()
			assert.ErrorIs(t, q.ask(ctx, fmt.Sprintf("{key%d}", i)), want)
			assert.LessOrEqual(t, time.Since(start), within)
		})
		assert.LessOrEqual(t, hook.most.Load(), int64(3*64))
		time.Sleep(3*time.Second + 100*time.Millisecond)
		before := hook.sent.Load()
		time.Sleep(time.Minute)
		assert.Equal(t, before, hook.sent.Load(), "sent for callers who have gone")
		assert.Zero(t, hook.now.Load())
		hook.hang(false)
		start := time.Now()
		limitertest.MustAcquire(t, q.limiter("other"), 1)
		require.NoError(t, q.limiter("other").Release(t.Context(), 1))
		assert.Less(t, time.Since(start), 10*time.Millisecond)
		synctest.Wait() // a flight ends a moment after its callers have their answers
		limitertest.CheckIdle(t, q.client)
	})
}

// A gRPC client resets its stream when its deadline is over: the server sees a context canceled just before its own deadline.
func TestDeadlinesOpenTheBreaker_IfTheClientCancels(t *testing.T) {
	t.Parallel()
	eachOfKeys(t, 5, limit.FailOpen(), func(t *testing.T, s *scene, l limit.Returner) {
		limittest.Take(t, l, "ann", 5)
		cancels := func(after time.Duration) {
			for range 12 {
				_, _ = within(t, 10*time.Millisecond, func(ctx context.Context) (any, error) {
					ctx, cancel := context.WithCancel(ctx)
					time.AfterFunc(after, cancel)
					return l.Take(ctx, "ann", 1)
				})
			}
		}
		s.hook.hang(true)
		cancels(2 * time.Millisecond) // which says nothing
		start := time.Now()
		_, _ = takeWithin(t, l, "ann", 2*time.Second)
		require.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond)
		s.recover()
		limittest.Take(t, l, "ann", 1)
		s.hook.hang(true)
		cancels(9 * time.Millisecond)
		assert.True(t, atOnce(t, taking(t.Context(), l)))
	})
}

// Those who wait in line when it is to be asked for the first, and their server hangs, are all answered within a call's time.
func TestHungServer_LineEndsInTime(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]int{"one limiter": 1, "two": 2}, func(t *testing.T, n int) {
		observed(t, func(t *testing.T, s *scene) {
			time.AfterFunc(30*time.Minute, func() { s.hook.hang(true) })
			limitertest.Together(2, func(i int) {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				l := s.limiter(fmt.Sprint("{a}orders", i), 10)
				claims := []rratelimiter.Claim{l.Claim(1), s.limiter("{a}others", 1000).Claim(1)}[:n]
				limitertest.MustAcquire(t, l, 10)
				start := time.Now()
				limitertest.Together(20, func(int) {
					_, err := s.client.TryAcquireAll(t.Context(), 2*time.Hour, claims...)
					assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
					assert.LessOrEqual(t, time.Since(start), time.Hour+3*time.Second+10*time.Millisecond)
				})
			})
		})
	})
}

// A server that hung and answers again is soon asked, whatever the question, though
// go-redis still waits on the connections of before. Once it has answered all go through.
func TestHungServer_IsAskedWhenItAnswersAgain(t *testing.T) {
	t.Parallel()
	const probePace = time.Second / 3 // how often a server that answers no call is asked
	limitertest.Each(t, map[string]time.Duration{"soon": 200 * time.Millisecond, "late": 2500 * time.Millisecond}, func(t *testing.T, d time.Duration) {
		eachQuestion(t, &redistest.Options{PoolSize: 256}, func(t *testing.T, q *question) {
			hook := newHanging(q.rdb)
			hook.hang(true)
			for i := range 40 { // within 100 ms
				go func() { _ = q.ask(context.Background(), fmt.Sprintf("{key%d}", i)) }()
				time.Sleep(100 * time.Millisecond / 40)
			}
			time.Sleep(d - 100*time.Millisecond)
			hook.hang(false)
			start := time.Now()
			require.NotErrorIs(t, q.ask(t.Context(), "{new}"), rratelimiter.ErrUnavailable)
			assert.LessOrEqual(t, time.Since(start), probePace+10*time.Millisecond)
			start = time.Now()
			limitertest.Together(20, func(i int) {
				assert.NotErrorIs(t, q.ask(t.Context(), fmt.Sprintf("{new%d}", i)), rratelimiter.ErrUnavailable)
			})
			assert.Less(t, time.Since(start), 10*time.Millisecond)
			time.Sleep(time.Minute)
		})
	})
}

// A cluster of which a master hangs answers for the others. A client that is new, and does not
// know yet who serves what, still ends its callers' calls in time.
func TestHungServer_ClusterAnswersForOtherMasters(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	for _, punctual := range []bool{false, true} {
		opt := &redistest.Options{ContextTimeoutEnabled: punctual, ReadTimeout: 5 * time.Second} // go-redis' own
		rdb := cluster.Client(t, opt)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(15*time.Second)) // three attempts
		var bad, good []*rratelimiter.RateLimiter
		hangs, _ := cluster.Owner(t, cluster.Slot(t, "a"))
		for i := range 60 {
			l := limitertest.ByDefault(client, fmt.Sprintf("%s:%d", redistest.Name(t), i), rratelimiter.PerHour(1000))
			require.NoError(t, l.Acquire(t.Context(), 1))
			if owner, _ := cluster.Owner(t, cluster.Slot(t, l.Name())); owner == hangs {
				bad = append(bad, l)
			} else {
				good = append(good, l)
			}
		}
		hangs.Freeze(t)
		over := limitertest.Go(func() {
			limitertest.Together(len(bad), func(i int) {
				assert.ErrorIs(t, limitertest.Second(bad[i].TryAcquire(t.Context(), 1, 200*time.Millisecond)), rratelimiter.ErrUnavailable)
				assert.ErrorIs(t, limitertest.Second(bad[i].AvailablePermits(t.Context())), rratelimiter.ErrUnavailable)
			})
		})
		time.Sleep(500 * time.Millisecond)
		for _, l := range good {
			limitertest.MustAcquire(t, l, 1)
			limitertest.Available(t, l)
			require.NoError(t, l.Release(t.Context(), 1))
		}
		<-over
		fresh, names := limitertest.NewClient(t, cluster.Client(t, opt)), []string{bad[0].Name(), good[0].Name()}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		limitertest.Together(40, func(i int) {
			ok, err := fresh.RateLimiter(names[i%2]).TryAcquire(ctx, 1, 200*time.Millisecond)
			assert.NoError(t, ctx.Err(), "the call ends by itself")
			assert.Equal(t, ok, err == nil)
			if err != nil {
				assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
			}
		})
		cancel()
		hangs.Thaw(t)
		answers := func() bool { return limitertest.Second(bad[0].Exists(t.Context())) == nil }
		require.Eventually(t, answers, time.Minute, 10*time.Millisecond)
	}
}

// A cluster that is down costs a caller no more than the time of a call, what its client
// needs to learn of that included. Once the policy decides, no caller waits.
func TestClusterDown_CallsEndInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:7000", "10.0.0.2:7000"}, PoolSize: 256,
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done() // no packet comes back
				return nil, ctx.Err()
			},
		})
		defer func() {
			assert.NoError(t, rdb.Close())
			time.Sleep(time.Minute)
		}()
		const callTime = 500 * time.Millisecond
		client := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(callTime))
		slowest := func(calls int, ask func() error) (slowest time.Duration) {
			for range calls {
				start := time.Now()
				assert.NoError(t, ask())
				slowest = max(slowest, time.Since(start))
				time.Sleep(10 * time.Millisecond)
			}
			return slowest
		}
		plain := client.RateLimiter("plain", rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
		assert.LessOrEqual(t, slowest(5, func() error {
			assert.ErrorIs(t, limitertest.Second(plain.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrUnavailable)
			assert.ErrorIs(t, limitertest.Second(plain.Config(t.Context())), rratelimiter.ErrUnavailable)
			return nil
		}), 2*callTime, "two calls")
		guarded := client.RateLimiter("guarded", rratelimiter.WithFailure(limit.FailOpen()))
		ask := func() error { return limitertest.Second(guarded.TryAcquire(t.Context(), 1, 0)) }
		assert.LessOrEqual(t, slowest(5, ask), callTime)
		assert.LessOrEqual(t, slowest(200, ask), 5*time.Millisecond, "a probe's begin at most")
	})
}
