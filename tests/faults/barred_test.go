package faults_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A server that decides nothing for this program is asked no more, whatever it answers.
func TestFailOpen_ServerRefusesEveryCall(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]string{
		"password": "WRONGPASS invalid username-password pair or user is disabled.",
		"rights":   "NOPERM this user has no permissions to run the 'evalsha' command",
		"proxy":    "ERR Connection refused",
		"upstream": "upstream failure",
		"unknown":  "UNAVAILABLE upstream is not available",
	}, func(t *testing.T, answer string) {
		duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
			sent := 0
			s.rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
				sent++
				return redistest.Fail(cmds, answered(answer))
			}))
			l := s.limiter(1)
			for range 100 {
				limitertest.MustAcquire(t, l, 1)
			}
			assert.LessOrEqual(t, sent, 15, "at most five attempts of three calls")
			synctest.Wait()
			require.NotEmpty(t, s.told.Events())
			assert.Equal(t, limit.AskedNoMore, s.told.Events()[0].Kind)
			assert.ErrorContains(t, s.told.Events()[0].Err, answer)
		})
	})
}

// A password that was changed is met at connecting.
func TestFailLocal_WrongPassword(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		m.RequireAuth("new")
		rdb := redistest.MiniClient(t, m, &redistest.Options{Password: "old"})
		client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailLocal(1)))
		l := limitertest.ByDefault(client, "orders", limitertest.Every(5, time.Hour))
		limitertest.MustAcquire(t, l, 5)
		limitertest.MustRefuse(t, l, 1)
		closed := client.RateLimiter("orders", rratelimiter.WithFailure(limit.FailClosed()))
		require.ErrorIs(t, limitertest.Second(closed.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrUnavailable)
		m.RequireAuth("old")
		time.Sleep(5 * time.Second)
		assert.Equal(t, int64(4), limitertest.Take(t, l, 1).Remaining, "Redis was not charged")
	})
}

// A node of a cluster sends its client to another node: one that can't follow is a mistake, not an outage. A proxy that refuses
// scripts for their text will refuse them always.
func TestFailOpen_MistakeIsNoOutage(t *testing.T) {
	t.Parallel()
	const text = "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array"
	eachOfKeys(t, 3, limit.FailOpen(), func(t *testing.T, s *outageScene, l limit.Returner) {
		var says string
		s.rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
			return redistest.Fail(cmds, answered(says))
		}))
		for answer, cure := range map[string]string{
			"MOVED 3999 127.0.0.1:6381": "redis.NewClusterClient", "ASK 3999 127.0.0.1:6381": "redis.NewClusterClient", text: "script_check_enable to 0",
		} {
			says = answer
			for range 10 {
				start := time.Now()
				_, err := l.Take(t.Context(), "ann", 1)
				require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
				require.NotErrorIs(t, err, rratelimiter.ErrUnavailable)
				require.ErrorContains(t, err, cure)
				assert.Zero(t, time.Since(start))
			}
		}
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
