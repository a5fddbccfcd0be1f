package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
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
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

type answered = redistest.AnswerError

// outages are errors that say that Redis did not decide, by whether it may have done what it was asked.
var outages = map[bool][]error{
	false: {
		answered("LOADING Redis is loading the dataset in memory"),
		answered("CLUSTERDOWN The cluster is down"), answered("READONLY You can't write against a read only replica."),
		answered("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
		answered("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."),
		answered("NOREPLICAS Not enough good replicas to write."),
		answered("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."),
		answered("OOM command not allowed when used memory > 'maxmemory'."), answered("TRYAGAIN Multiple keys request during rehashing of slot"),
		answered("NOAUTH Authentication required."), answered("WRONGPASS invalid username-password pair or user is disabled."),
		answered("DENIED Redis is running in protected mode because protected mode is enabled"),
		answered("NOPERM this user has no permissions to run the 'evalsha' command"), answered("ERR invalid password"),
		answered("ERR AUTH <password> called without any password configured for the default user."),
		answered("ERR Client sent AUTH, but no password is set"), answered("ERR Protocol error: unauthenticated multibulk length"),
		answered("ERR Connection refused"), answered("ERR No route to host"), // twemproxy
		answered("no upstream host"),                   // Envoy
		answered("ERR no server connection avaliable"), //nolint:misspell // as Predixy writes it
		answered("ERR max number of clients reached"), answered("ERR upstream said: You can't write against a read-only replica."),
		answered("ERR LOADING Redis is loading the dataset in memory"), answered("NOPERM the user has no rights any more"),
		answered("ERR Error running script (call to f_1): @user_script:1: Script killed by user with SCRIPT KILL..."),
		redis.ErrPoolTimeout, redis.ErrPoolExhausted,
		&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		errors.New("redis: all sentinels specified in configuration are unreachable"), errors.New("redis: all ring shards are down"),
		errors.New("redis: cluster has no nodes"),
	},
	true: {
		io.EOF,
		&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded},
		&net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)},
		net.ErrClosed,
		answered("ERR Connection timed out"),                      // twemproxy
		answered("upstream failure"),                              // Envoy
		answered("ERR server connection close"),                   // Predixy
		answered("ERR handle response, backend conn reset"),       // Codis
		answered("ERR Cluster node disconnected: 127.0.0.1:7001"), // redis-cluster-proxy
		answered("ERR proxy upstream not available"),              // Camellia
		answered("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"),
		answered("Can't write to slot being migrated which is in write forbidden phase"), // Kvrocks
		answered(""),
	},
}

// mistakes are answers that are no outage.
var mistakes = []error{
	answered("MOVED 3999 127.0.0.1:6381"), // to a client that follows nowhere
	answered("ASK 3999 127.0.0.1:6381"),
	answered("NOPERM this user has no permissions to access one of the keys used as arguments"),
	answered("NOPERM The user executing the script can't access at least one of the keys mentioned in the command arguments"),
	answered("ERR unknown command 'evalsha'"),
	answered("ERR unknown command `evalsha`, with args beginning with: `5f`, `1`, `UNAVAILABLE`"),
	answered("unsupported command 'evalsha'"),                        // Envoy
	answered("ERR handle request, command 'EVALSHA' is not allowed"), // Codis
	answered("ERR command 'evalsha' not support for normal user"),    // Alibaba Cloud's proxy
	answered("ERR eval/evalsha command keys must be in same slot"),   // the same
	answered("ERR wrong number of arguments for 'evalsha' command"), answered("ERR value is not an integer or out of range"),
	answered("ERR DB index is out of range"), answered("ERR Protocol error: invalid bulk length"),
	answered("ERR user_script:1: Script attempted to access nonexistent global variable 'x' script: 5f, on @user_script:1."),
	answered("ERR Error compiling script (new function): user_script:1: '=' expected near 'x'"),
	answered("ERR Error running script (call to f_1): @user_script:1: user_script:1: attempt to index a nil value"),
	answered("WRONGTYPE Operation against a key holding the wrong kind of value"),
	answered("CROSSSLOT Keys in request don't hash to the same slot"),
	answered("ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array"), // Alibaba Cloud's proxy
	redis.ErrClosed,
}

func TestErrUnavailable_Outages(t *testing.T) {
	t.Parallel()
	eachQuestion(t, nil, func(t *testing.T, q *question) {
		var fault atomic.Pointer[error] // by which all commands fail
		q.rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			if err := fault.Load(); err != nil {
				return redistest.Fail(cmds, *err)
			}
			return next()
		}))
		limitertest.MustAcquire(t, q.limiter("{key}"), 1)
		require.NoError(t, q.ask(t.Context(), "{key}"))
		fails := func(err error) error {
			fault.Store(&err)
			defer fault.Store(nil)
			start := time.Now()
			err = q.ask(t.Context(), "{key}")
			require.LessOrEqual(t, time.Since(start), 3*time.Second)
			return err
		}
		for ran, errs := range outages {
			for _, cause := range errs {
				err := fails(cause)
				require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
				assert.Equal(t, ran && !isRead(q.name), errors.Is(err, rratelimiter.ErrUnknownOutcome), "%v", err)
				assert.ErrorIs(t, err, cause)
			}
		}
		for _, cause := range mistakes {
			err := fails(cause)
			require.Error(t, err)
			require.NotErrorIs(t, err, rratelimiter.ErrUnavailable)
			assert.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
		}
		err := fails(mistakes[0]) // as a node of a cluster answers a client that knows no other
		require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
		assert.ErrorContains(t, err, "redis.NewClusterClient")
	})
}

func isRead(name string) bool {
	return limitertest.Reads[name] || strings.HasSuffix(name, ", Threshold")
}

// A panic reaches those in whose flight it happens, whatever limiter they ask, whatever their contexts and wherever it is
// recovered. It leaves nothing behind that later calls would wait for.
func TestHookPanic_ReachesAllInItsFlight(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, kinds, func(t *testing.T, opt redistest.Options) {
		eachQuestion(t, &opt, func(t *testing.T, q *question) {
			q.rdb.AddHook(limitertest.Slow(time.Millisecond))
			var panics atomic.Bool
			q.rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
				if panics.Load() && strings.Contains(fmt.Sprint(cmds), "{bad}") {
					panic("a hook")
				}
			}))
			if strings.HasSuffix(q.name, "Threshold") {
				q.ask = q.questions("{bad}")[q.name]
			}
			for range 3 {
				for _, key := range []string{"{bad}", "{good}"} {
					require.NoError(t, q.limiter(key).Acquire(t.Context(), 1))
					require.NoError(t, q.limiter(key).Release(t.Context(), 1))
					require.NoError(t, q.ask(t.Context(), key))
				}
				require.NoError(t, q.limiter("{bad}").Acquire(t.Context(), 1))
				panics.Store(true)
				limitertest.Together(40, func(i int) { q.askBesideAPanic(t, i) })
				panics.Store(false)
				synctest.Wait()
			}
			time.Sleep(5 * time.Second)
			start := time.Now()
			require.NoError(t, q.limiter("{good}").Acquire(t.Context(), 1))
			require.NoError(t, q.ask(t.Context(), "{good}"))
			assert.Less(t, time.Since(start), 100*time.Millisecond)
			time.Sleep(time.Second) // members may be merged
			limitertest.CheckIdle(t, q.client)
			assert.EqualValues(t, 1, q.rdb.Exists(t.Context(), "{bad}").Val())
		})
	})
}

// askBesideAPanic asks as the i-th caller: of one of three keys, with one of four contexts.
func (q *question) askBesideAPanic(t *testing.T, i int) {
	key := []string{"{bad}", "{good}", "{other}"}[i%3]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	switch i % 4 {
	case 0:
		ctx = context.WithoutCancel(ctx)
	case 1:
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	time.Sleep(time.Duration(i/8) * time.Millisecond)
	start := time.Now()
	var err error
	panicked := func() (with any) {
		defer func() { with = recover() }()
		if i%3 < 2 {
			err = q.ask(ctx, key)
		} else {
			err = limitertest.Second(q.limiter("{other}").TryAcquire(ctx, 1, 0))
		}
		return nil
	}()
	assert.LessOrEqual(t, time.Since(start), 3*time.Second)
	switch {
	case panicked != nil:
		assert.Equal(t, "a hook", panicked)
	case err != nil && !errors.Is(err, rratelimiter.ErrNotInitialized):
		assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		assert.ErrorContains(t, err, "a hook")
		assert.Equal(t, i%3 == 2 || !isRead(q.name), errors.Is(err, rratelimiter.ErrUnknownOutcome), "%v", err)
	default:
		assert.False(t, key == "{bad}" && err == nil)
	}
}

// A call's time runs from when its caller came, also while it waits for a change of a server that hangs, or for many calls
// of a Release each of which is answered in time.
func TestHung_ChangeDoesNotExtendCallsBehindIt(t *testing.T) {
	t.Parallel()
	const rows = 1200
	type change struct {
		connections int
		hang        func(t *testing.T, s *limitertest.HeldScene)
		before      time.Duration // the call, it began
		fails       bool          // the call does
		do          func(t *testing.T, s *limitertest.HeldScene)
	}
	swallow := func(_ *testing.T, s *limitertest.HeldScene) {
		s.Proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Swallow })
	}
	limitertest.Each(t, map[string]change{
		"Release": {20, swallow, script.DefaultTimeout * 8 / 10, true, func(t *testing.T, s *limitertest.HeldScene) {
			assert.ErrorIs(t, s.Release(t.Context(), 1), rratelimiter.ErrUnknownOutcome)
		}},
		"SetRate of another, and connections for one flight": {3, swallow, 0, true, func(t *testing.T, s *limitertest.HeldScene) {
			other := s.Client.RateLimiter(limitertest.Besides(s.Name()))
			assert.ErrorIs(t, other.SetRate(t.Context(), limitertest.Hourly(1)), rratelimiter.ErrUnknownOutcome)
		}},
		"Release of many calls": {20, func(t *testing.T, s *limitertest.HeldScene) {
			keys := limitertest.KeysOf(s.RateLimiter)
			limitertest.AddGrants(t, s.Mini, keys.Permits, 0, rows, 1)
			require.NoError(t, s.Mini.DecrBy(t.Context(), keys.Value, rows).Err())
			s.Redis.AddHook(limitertest.BeforeScript(lua.Release, func() { time.Sleep(script.DefaultTimeout / 2) }))
		}, 0, false, func(t *testing.T, s *limitertest.HeldScene) {
			start := time.Now()
			if err := s.Release(t.Context(), rows); !errors.Is(err, rratelimiter.ErrNotInitialized) {
				assert.NoError(t, err)
			}
			leaveNothing := []string{"SetRate", "Reset", "Delete", "Rename"}
			if !slices.Contains(leaveNothing, t.Name()[strings.LastIndex(t.Name(), "/")+1:]) {
				assert.Greater(t, time.Since(start), 2*script.DefaultTimeout)
			}
		}},
	}, func(t *testing.T, c change) {
		limitertest.Bubbles(t, limitertest.Calls(), func(t *testing.T, open limitertest.Call) {
			opt := &redistest.Options{ReadTimeout: time.Minute, PoolSize: c.connections}
			s := limitertest.NewHeldSceneOf(t, limitertest.Hourly(10_000), opt)
			call := open(t, s.Client, s.RateLimiter)
			c.hang(t, s)
			over := limitertest.Go(func() { c.do(t, s) })
			time.Sleep(c.before)
			synctest.Wait()
			start := time.Now()
			ctx := t.Context()
			if c.connections < 20 {
				ctx = context.WithoutCancel(ctx)
			}
			if err := call(ctx); err != nil || c.fails {
				require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
			}
			assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout+time.Millisecond)
			<-over
		})
	})
}

// A repeat searches among the members that others made since, in as many steps as that takes. What is lost
// of it meanwhile goes on where it was; the whole call ends within twice its time, whatever is lost.
func TestRepeat_SearchForFirstAttemptEnds(t *testing.T) {
	t.Parallel()
	const rows = 3000
	for _, name := range []string{"TryAcquire", "Take", "TakeUpTo", "Reserve", "TryAcquireAll"} {
		for lost, want := range map[int]error{3: nil, 1: rratelimiter.ErrUnknownOutcome} { // one in so many
			synctest.Test(t, func(t *testing.T) {
				s := limitertest.NewHeldScene(t, limitertest.Hourly(1_000_000))
				limitertest.MustAcquire(t, s.Other, 1)
				add := func(members int) {
					keys := limitertest.KeysOf(s.RateLimiter)
					limitertest.AddGrants(t, s.Mini, keys.Permits, 0, members, 1)
					require.NoError(t, s.Mini.DecrBy(t.Context(), keys.Value, int64(members)).Err())
				}
				add(rows)
				call, calls := limitertest.Calls()[name](t, s.Client, s.RateLimiter), 0
				s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
					if c.Name() != "evalsha" {
						return redistest.Pass
					}
					add(100) // others go on
					switch calls++; {
					case calls == 1:
						return redistest.Cut // so that nothing is found
					case calls%lost == 0:
						return redistest.DropAnswer
					}
					return redistest.Pass
				})
				start := time.Now()
				require.ErrorIs(t, call(t.Context()), want, "%s, one of %d lost", name, lost)
				assert.LessOrEqual(t, time.Since(start), 2*script.DefaultTimeout)
				assert.LessOrEqual(t, calls, 2*rows/256, "calls")
			})
		}
	}
}

// go-redis with ContextTimeoutEnabled closes a connection at the deadline. So that of a caller who has less time than an
// attempt does not reach it: the caller leaves, and the connection stays for those that come.
func TestShortDeadlines_EndNoConnection(t *testing.T) {
	t.Parallel()
	eachQuestion(t, &redistest.Options{ContextTimeoutEnabled: true}, func(t *testing.T, q *question) {
		var left redistest.List[time.Duration]
		q.rdb.AddHook(redistest.Hook(func(ctx context.Context, _ []redis.Cmder, next func() error) error {
			deadline, _ := ctx.Deadline()
			left.Add(time.Until(deadline))
			time.Sleep(100 * time.Millisecond)
			return next()
		}))
		for range 5 {
			start := time.Now()
			_, err := within(t, 50*time.Millisecond, func(ctx context.Context) (any, error) { return nil, q.ask(ctx, "{key}") })
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, 50*time.Millisecond, time.Since(start))
			time.Sleep(time.Second)
		}
		assert.GreaterOrEqual(t, slices.Min(left.All()), 900*time.Millisecond, "a third of a call's time")
	})
}

// What answers is no Redis that runs our scripts: a RateLimiter grants nothing, calls end with their contexts, and nothing panics.
func TestAnswers_OfAServerThatIsNone(t *testing.T) {
	t.Parallel()
	answers := []any{
		redis.Nil, "", "1e3", "again", true, 1.5, map[any]any{"again": int64(1)}, []any{}, []any{int64(1)}, []any{"again"}, []any{"taken", int64(1)},
		[]any{int64(9), "1", nil}, int64(77),
		[]any{int64(9), int64(1), int64(77), int64(1000), int64(1000), int64(0), int64(0), int64(50)}, // more taken than asked for
		[]any{int64(10), int64(-1), int64(1 << 60), int64(1), int64(1), int64(1), "x"},
		answered("CORRUPT 0 a b"), answered("CORRUPT 99999999999999999999 x"), answered("CORRUPT"), answered("NOTINIT 77"), answered("LATE"), answered("ASK"),
	}
	eachQuestion(t, nil, func(t *testing.T, q *question) {
		var says atomic.Pointer[any]
		q.rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
			time.Sleep(time.Millisecond)
			for _, cmd := range cmds {
				if err, is := (*says.Load()).(error); is {
					return redistest.Fail(cmds, err)
				}
				cmd.(interface{ SetVal(v any) }).SetVal(*says.Load())
			}
			return nil
		}))
		for _, answer := range answers {
			says.Store(&answer)
			start := time.Now()
			_, err := within(t, 10*time.Second, func(ctx context.Context) (any, error) { return nil, q.ask(ctx, "{key}") })
			took := time.Since(start)
			assert.LessOrEqual(t, took, 10*time.Second, "%v", answer)
			if limitertest.Acquires[q.name] || strings.HasPrefix(q.name, "TryAcquire") {
				assert.Error(t, err, "%v", answer)
				assert.LessOrEqual(t, took, 6*time.Second, "%v: not again and again", answer)
			}
			if err != nil {
				assert.NotContains(t, err.Error(), "panic", "%v", answer)
			}
		}
	})
}

// checkTold checks that an event of that kind came once, or never.
func (s *scene) checkTold(t *testing.T, kind limit.EventKind, limiter string, once bool) {
	t.Helper()
	var want []limit.Event
	if once {
		want = []limit.Event{{Kind: kind, Limiter: limiter}}
	}
	assert.Equal(t, want, s.events(kind))
}

func TestObserverReceivesAHang(t *testing.T) {
	t.Parallel()
	said := &bytes.Buffer{}
	observed(t, func(t *testing.T, s *scene) {
		l := s.limiter("orders", 100)
		limitertest.MustAcquire(t, l, 1)
		s.told.Decisions()
		s.hook.hang(true)
		for range 3 {
			require.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrUnavailable)
		}
		decided := s.told.Decisions()
		assert.Len(t, decided, 3)
		for _, d := range decided {
			assert.Equal(t, limit.Failed, d.Outcome)
			assert.Equal(t, limit.KindUnknownOutcome, d.Kind)
			assert.LessOrEqual(t, d.Waited, 3*time.Second)
		}
		s.hook.hang(false)
		time.Sleep(time.Minute)
		limitertest.MustAcquire(t, l, 1)
		synctest.Wait()
		failed := func(f limit.Flight) bool { return f.Err != nil }
		assert.True(t, slices.ContainsFunc(s.told.Flights(), failed))
		assert.Equal(t, []limit.Event{{Kind: limit.ServerSilent}, {Kind: limit.ServerAnswers}}, s.told.Events())
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		require.Len(t, lines, 2)
		assert.Contains(t, lines[0], `level=WARN msg="rratelimiter: server silent"`)
		assert.Contains(t, lines[1], `level=INFO msg="rratelimiter: server answers"`)
	}, limitertest.LogTo(said))
}

// The observer learns of permits that can't be given back, since their server hangs: of those that were granted when their
// caller had gone, and of those of which that is unknown.
func TestObserverReceivesPermitsGivenUp(t *testing.T) {
	t.Parallel()
	type call = func(ctx context.Context, s *scene, window *fixedwindow.Limiter) error
	acquire := func(ctx context.Context, s *scene, _ *fixedwindow.Limiter) error {
		return s.limiter("orders", 100).Acquire(ctx, 7)
	}
	type row struct {
		limiter string
		granted bool // which its caller does not learn; otherwise that is in doubt
		ask     call
	}
	limitertest.Each(t, map[string]row{
		"granted":  {"orders", true, acquire},
		"in doubt": {"orders", false, acquire},
		"in doubt, of several": {"{s}a", false, func(ctx context.Context, s *scene, _ *fixedwindow.Limiter) error {
			return limitertest.Second(s.client.TryAcquireAll(ctx, 0, s.limiter("{s}a", 100).Claim(7), s.limiter("{s}b", 100).Claim(7)))
		}},
		"in doubt, of a window": {"keys", false, func(ctx context.Context, _ *scene, window *fixedwindow.Limiter) error {
			return limitertest.Second(window.Take(ctx, "ann", 7))
		}},
	}, func(t *testing.T, r row) {
		observed(t, func(t *testing.T, s *scene) {
			window := fixedwindow.New(s.client, fixedwindow.Config{Limit: 100, Window: time.Hour}, rratelimiter.WithName("keys"))
			if r.granted {
				limitertest.MustAcquire(t, s.limiter("orders", 100), 1)
				synctest.Wait() // its flight is over
				var once sync.Once
				s.rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
					err := next()
					once.Do(func() {
						s.hook.hang(true)
						time.Sleep(700 * time.Millisecond) // the attempt has a second
					})
					return err
				}))
			}
			s.hook.hang(!r.granted)
			_, err := within(t, time.Second/2, func(ctx context.Context) (any, error) { return nil, r.ask(ctx, s, window) })
			require.ErrorIs(t, err, context.DeadlineExceeded)
			time.Sleep(time.Minute)
			s.hook.hang(false)
			time.Sleep(time.Minute)
			found := map[string]int64{}
			for _, e := range s.events(limit.PermitsGivenUp) {
				assert.Error(t, e.Err)
				assert.True(t, r.granted || errors.Is(e.Err, limit.ErrUnknownOutcome), e.Err)
				found[e.Limiter] += e.Permits
			}
			assert.Equal(t, int64(7), found[r.limiter], "%v", found)
		})
	})
}

// The observer learns what a call found damaged, and mended, by the limiter's name.
func TestObserverReceivesRepairs(t *testing.T) {
	t.Parallel()
	const value, set = "{orders}:value", "{orders}:permits"
	lose := func(keys ...string) func(*testing.T, redistest.Client) {
		return func(t *testing.T, rdb redistest.Client) { require.NoError(t, rdb.Del(t.Context(), keys...).Err()) }
	}
	later := func(ms float64) func(*testing.T, redistest.Client) {
		return func(t *testing.T, rdb redistest.Client) {
			row := rdb.ZRange(t.Context(), set, 0, 0).Val()[0]
			require.NoError(t, rdb.ZIncrBy(t.Context(), set, ms, row).Err())
		}
	}
	type call = func(*testing.T, *scene, *rratelimiter.RateLimiter)
	try := func(permits int64) call {
		return func(t *testing.T, _ *scene, l *rratelimiter.RateLimiter) { limitertest.Try(t, l, permits) }
	}
	tryAll := func(permits int64) call {
		return func(t *testing.T, s *scene, l *rratelimiter.RateLimiter) {
			limitertest.TryAll(t, s.client, permits, s.limiter("{orders}:whole", 100), l)
		}
	}
	reads := func(t *testing.T, _ *scene, l *rratelimiter.RateLimiter) { limitertest.Available(t, l) }
	type row struct {
		damage func(*testing.T, redistest.Client)
		call   call
		told   bool
	}
	limitertest.Each(t, map[string]row{
		"none":                    {lose("another"), try(1), false},
		"a lost value":            {lose(value), try(1), true},
		"a lost set, and refused": {lose(set), try(97), true},
		"both are lost":           {lose(value, set), try(1), false},
		"leaked permits": {func(t *testing.T, rdb redistest.Client) {
			require.NoError(t, rdb.DecrBy(t.Context(), value, 9).Err())
		}, try(90), true},
		"a grant of the future":       {later(10_000), try(97), true},
		"clocks that differ a little": {later(500), try(97), false},

		"AvailablePermits, a lost value":           {lose(value), reads, true},
		"TryAcquireAll":                            {lose("another"), tryAll(1), false},
		"TryAcquireAll, a lost value, and refused": {lose(value), tryAll(98), true},
		"TryAcquireAll, a lost set, and refused":   {lose(set), tryAll(98), true},
	}, func(t *testing.T, r row) {
		observed(t, func(t *testing.T, s *scene) {
			l := s.limiter("{orders}", 100)
			limitertest.MustAcquire(t, l, 4)
			for range 2 {
				r.damage(t, s.rdb)
				r.call(t, s, l)
			}
			s.checkTold(t, limit.StateRepaired, "{orders}", r.told) // the second comes too soon
			time.Sleep(time.Minute)
			limitertest.Try(t, l, 1)
			lose(value)(t, s.rdb)
			reads(t, s, l)
			assert.Len(t, s.events(limit.StateRepaired), map[bool]int{false: 1, true: 2}[r.told], "a minute later")
		})
	})
}

func TestObserverReceivesIncompatibleLayouts(t *testing.T) {
	t.Parallel()
	type row struct {
		ours, theirs string
		told         bool
	}
	limitertest.Each(t, map[string]row{
		"ids of 8 bytes and of 16":  {"4.7.0", "3.20.1", false},
		"one of 3.16.8":             {"4.7.0", "3.16.8", true},
		"a fixed window":            {"4.7.0", "3.12.3", true},
		"ours are fixed windows":    {"3.12.3", "4.7.0", true},
		"ours are old, theirs also": {"3.16.8", "3.16.8", false},
	}, func(t *testing.T, test row) {
		said := &bytes.Buffer{}
		observed(t, func(t *testing.T, s *scene) {
			other := limitertest.NewClient(t, s.rdb, rratelimiter.WithRedissonVersion(test.theirs)).RateLimiter("orders")
			limitertest.MustTrySetRate(t, other, limitertest.Every(100, time.Hour))
			limitertest.MustAcquire(t, other, 4)
			l := s.client.RateLimiter("orders")
			for range 3 {
				limitertest.Take(t, l, 1)
			}
			s.checkTold(t, limit.LayoutsExclude, "orders", test.told)
			const logged = `msg="rratelimiter: layouts exclude each other" limiter=orders cure="name the oldest Redisson that shares it in WithRedissonVersion"`
			assert.Equal(t, test.told, strings.Contains(said.String(), logged))
		}, rratelimiter.WithRedissonVersion(test.ours), limitertest.LogTo(said))
	})
}
