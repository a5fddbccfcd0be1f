package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
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

// A change goes in a flight of its own, and may take all of a call's time. Who waits behind it for a flight has a call's
// time too, from when the caller came.
func TestHung_CallerBehindAChangeEndsInTime(t *testing.T) {
	t.Parallel()
	const callTime = 900 * time.Millisecond
	type calls struct {
		take, reset func(key string) error
		first       time.Duration // how long the flight before takes
	}
	limitertest.Each(t, kinds, func(t *testing.T, opt redistest.Options) {
		limitertest.Bubbles(t, map[string]func(t *testing.T, rdb redistest.Client) calls{
			"RateLimiter": func(t *testing.T, rdb redistest.Client) calls {
				t.Helper()
				c := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(callTime))
				of := func(key string) *rratelimiter.RateLimiter {
					return limitertest.ByDefault(c, key, limitertest.Hourly(100))
				}
				return calls{
					take:  func(key string) error { return limitertest.Second(of(key).TryAcquire(context.Background(), 1, 0)) },
					reset: func(key string) error { return of(key).Reset(context.Background()) },
					first: callTime * 3 / 10,
				}
			},
			"fixedwindow": func(_ *testing.T, rdb redistest.Client) calls {
				l := fixedwindow.New(rratelimiter.New(rdb, rratelimiter.WithCallTimeout(callTime)), fixedwindow.Config{Limit: 100, Window: time.Hour})
				return calls{
					take:  func(key string) error { return limitertest.Second(l.Take(context.Background(), key, 1)) },
					reset: func(key string) error { return l.Reset(context.Background(), key) },
					first: callTime * 8 / 10,
				}
			},
		}, func(t *testing.T, open func(t *testing.T, rdb redistest.Client) calls) {
			_, m := redistest.Mini(t)
			opt := opt
			opt.PoolSize, opt.MaxRetries = 2, -1
			rdb := redistest.MiniClient(t, m, &opt)
			c := open(t, rdb)
			var hangs atomic.Bool
			rdb.AddHook(redistest.Hook(func(ctx context.Context, cmds []redis.Cmder, next func() error) error {
				switch {
				case !hangs.Load():
				case strings.Contains(fmt.Sprint(cmds), "first"):
					time.Sleep(c.first)
				default:
					select {
					case <-ctx.Done():
					case <-time.After(3 * time.Second):
					}
					return redistest.Fail(cmds, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded})
				}
				return next()
			}))
			for _, key := range []string{"first", "behind"} {
				assert.NoError(t, c.take(key))
			}
			hangs.Store(true)
			go func() { _ = c.take("first") }()
			go func() {
				time.Sleep(c.first - 5*time.Millisecond)
				assert.Error(t, c.reset("changed"))
			}()
			time.Sleep(time.Millisecond)
			start := time.Now()
			assert.ErrorIs(t, c.take("behind"), limit.ErrUnavailable)
			assert.LessOrEqual(t, time.Since(start), callTime)
			time.Sleep(10 * time.Second) // calls under way end
		})
	})
}

// go-redis with ContextTimeoutEnabled closes a connection at the deadline. So that of a caller who has less time than an
// attempt does not reach it: the caller leaves, and the connection stays for those that come.
func TestShortDeadlines_EndNoConnection(t *testing.T) {
	t.Parallel()
	const windows = "windows of Redissons before 3.13.3"
	eachName(t, func(t *testing.T, name string) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{ContextTimeoutEnabled: true})
		var left redistest.List[time.Duration]
		rdb.AddHook(redistest.Hook(func(ctx context.Context, _ []redis.Cmder, next func() error) error {
			deadline, _ := ctx.Deadline()
			left.Add(time.Until(deadline))
			time.Sleep(100 * time.Millisecond)
			return next()
		}))
		ask := questions(limitertest.NewClient(t, rdb), rdb, "thresholds")[name]
		if name == windows {
			c := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.12.0"))
			ask = func(ctx context.Context, key string) error {
				return limitertest.Second(limitertest.ByDefault(c, key, rratelimiter.PerHour(1000)).TryAcquire(ctx, 1, 0))
			}
		}
		for range 5 {
			start := time.Now()
			_, err := within(t, 50*time.Millisecond, func(ctx context.Context) (any, error) { return nil, ask(ctx, "{key}") })
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, 50*time.Millisecond, time.Since(start))
			time.Sleep(time.Second)
		}
		assert.GreaterOrEqual(t, slices.Min(left.All()), 900*time.Millisecond, "a third of a call's time")
	}, windows)
}
