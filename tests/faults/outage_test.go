package faults_test

import (
	"context"
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
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
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

// refuse answers some scripts with an error.
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
	for _, inline := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			_, m := redistest.Mini(t)
			rdb := redistest.MiniClient(t, m, &redistest.Options{ContextTimeoutEnabled: inline})
			hook := newHanging(rdb)
			client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailLocal(1)))
			l := limitertest.ByDefault(client, "orders", limitertest.Every(50, time.Hour))
			hook.hang(true)
			for range 3 {
				limitertest.MustAcquire(t, l, 1)
			}
			hook.hang(false)
			for _, script := range []*lua.Script{lua.Probe, lua.Config} {
				rdb.AddHook(limitertest.BeforeScript(script, func() { panic("a hook") }))
			}
			time.Sleep(5 * time.Second)
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(time.Minute)
		})
	}
}

func TestDefectAFastClockDelaysOthersByMoreThanAnInterval(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"))
			l := client.RateLimiter(redistest.Name(t))
			limitertest.MustTrySetRate(t, l, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Second})
			peer := limitertest.Java{Redis: rdb, Name: l.Name(), ID: "id", Fast: time.Minute}
			granted, err := peer.TryAcquire(t, 10)
			require.NoError(t, err)
			require.True(t, granted)

			d, err := l.Take(t.Context(), 1)
			require.NoError(t, err)
			assert.False(t, d.Granted)
			assert.Equal(t, time.Second, d.RetryAfter)
			assert.Equal(t, time.Second, d.ResetAfter)
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
		together := func() {
			limitertest.Together(20, func(int) { limitertest.MustAcquire(t, l, 1) })
		}
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
	for name, open := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
}
