package concurrency_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// Requests beyond one batch's bounds go in the next, and all are answered.
func TestBatch_OverflowGoesInNext(t *testing.T) {
	t.Parallel()
	type row struct {
		count   int
		permits func(i int) int64
	}
	limitertest.Bubbles(t, map[string]row{
		"requests": {lane.MaxRequests + 10, func(int) int64 { return 1 }},
		"runs":     {300, func(i int) int64 { return int64(i%2 + 1) }},
		"permits":  {300, func(int) int64 { return 1 << 30 }},
	}, func(t *testing.T, row row) {
		rdb, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		c := rratelimiter.New(proxy.Client(t, nil), limitertest.Patient())
		l := limitertest.ByDefault(c, redistest.Name(t), rratelimiter.PerHour(1<<40))
		gate := make(chan struct{})
		proxy.OnCommand(redistest.Nth(1, l.Name(), redistest.Pass.When(gate)))
		go func() {
			synctest.Wait()
			close(gate)
		}()
		limitertest.Together(row.count, func(i int) { limitertest.MustAcquire(t, l, row.permits(i)) })
		sum := int64(0)
		for i := range row.count {
			sum += row.permits(i)
		}
		require.NoError(t, c.Close(t.Context()))
		value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
		assert.Equal(t, int64(1<<40)-sum, value)
		assert.Equal(t, sum, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits), "the members hold what was granted")
	})
}

// answering is a Redis that knows no limiter and answers every script at once.
type answering struct{}

func (answering) Pipeline() redis.Pipeliner { panic("no pipeline is wanted") }

func (answering) Process(_ context.Context, cmd redis.Cmder) error {
	reply := any(int64(0))
	switch cmd.Args()[1] {
	case lua.Available.SHA:
		reply = []any{int64(0), int64(0)}
	case lua.Acquire.SHA:
		taken := int64(0)
		// The sum stands behind the keys and the member, except for one permit.
		if args := cmd.Args()[4+cmd.Args()[2].(int):]; len(args) == 0 || args[0] == "1" {
			taken = 1
		}
		reply = []any{int64(9), int64(1), taken, int64(1000), int64(1000), int64(0), int64(0), int64(50)}
	}
	cmd.(interface{ SetVal(val any) }).SetVal(reply)
	return nil
}

func TestNamesUsedOnceAreForgotten(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	synctest.Test(t, func(t *testing.T) {
		const names, still = 1000, 64 + 10 // the last ones are known for the next call, one in each shard of the queues
		var known [names]weak.Pointer[byte]
		var mapped string
		c := rratelimiter.New(answering{}, limitertest.Patient(), rratelimiter.WithNameMapper(func(string) string { return mapped }))
		plain, cancellable := context.WithoutCancel(t.Context()), t.Context()
		for i := range names {
			mapped = "a name of more bytes than share a block " + strconv.Itoa(i)
			known[i] = weak.Make(unsafe.StringData(mapped))
			l := c.RateLimiter("name", rratelimiter.WithExact()) // names whose members are merged are remembered
			ctx := cancellable
			if i%2 == 0 {
				ctx = plain
			}
			require.NoError(t, limitertest.Granted(l.TryAcquire(ctx, 1, 0)))
			if i%10 > 2 {
				continue
			}
			ok, err := l.TryAcquire(ctx, 2, time.Duration(i%3)*40*ms)
			require.NoError(t, err)
			require.False(t, ok)
			require.NoError(t, l.Release(ctx, 1))
			require.NoError(t, l.SetRate(ctx, rratelimiter.PerHour(1)))
			require.NoError(t, limitertest.Second(l.AvailablePermits(ctx)))

			ended, cancel := context.WithTimeout(ctx, ms)
			require.ErrorIs(t, l.Acquire(ended, 2), context.DeadlineExceeded)
			cancel()
		}
		// A last worker may still be on its way out; it needs no time for that.
		synctest.Wait()
		runtime.GC()
		left := slices.DeleteFunc(known[:], func(name weak.Pointer[byte]) bool { return name.Value() == nil })
		assert.LessOrEqual(t, len(left), still, "names that the Client remembers")
		limitertest.CheckIdle(t, c)
	})
}

// What a call allocates of its own: a closure that comes to need the heap shows
// here. The race detector adds one or two.
//
//nolint:paralleltest // others' allocations would count
func TestTryAcquire_Allocations(t *testing.T) {
	l := rratelimiter.New(answering{}, limitertest.Patient()).RateLimiter("orders", rratelimiter.WithExact())
	for _, ctx := range []context.Context{context.WithoutCancel(t.Context()), t.Context()} {
		for _, timeout := range []time.Duration{0, time.Minute} {
			allocations := math.Inf(1)
			for range 3 { // what tests before leave to end may allocate meanwhile
				allocations = min(allocations, testing.AllocsPerRun(1000, func() {
					if ok, err := l.TryAcquire(ctx, 1, timeout); err != nil || !ok {
						t.Error(ok, err)
					}
				}))
			}
			assert.LessOrEqual(t, allocations, 13.0, "timeout %v", timeout)
		}
	}
}

// crowdOn makes callers ask limiters at random. It returns how many permits each granted.
func crowdOn(t *testing.T, limiters []*rratelimiter.RateLimiter, callers, tries int) []int64 {
	t.Helper()
	granted := make([]int64, len(limiters))
	limitertest.Together(callers, func(int) {
		for range tries {
			i := rand.IntN(len(limiters))
			permits := 1 + rand.Int64N(3)
			ok, err := limiters[i].TryAcquire(context.Background(), permits, 0)
			assert.NoError(t, err)
			if ok {
				atomic.AddInt64(&granted[i], permits)
			}
		}
	})
	return granted
}

func limitersOf(t *testing.T, rdb redistest.Client, n int, cfg rratelimiter.Config) []*rratelimiter.RateLimiter {
	t.Helper()
	client := limitertest.NewClient(t, rdb)
	limiters := make([]*rratelimiter.RateLimiter, n)
	for i := range limiters {
		limiters[i] = limitertest.ByDefault(client, redistest.Name(t), cfg)
	}
	return limiters
}

// Callers of several limiters share script calls, and are granted what they would be one by one.
func TestCallersOfManyLimitersShareCalls(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		var calls, together atomic.Int64 // that decide about several limiters, and how many those are
		rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
			for _, cmd := range cmds {
				if args := cmd.Args(); len(args) > 2 && (args[1] == lua.AcquireMany.SHA || args[1] == lua.AcquireMany.Source) {
					calls.Add(1)
					n, _ := args[2].(int)
					together.Add(int64(n / 3))
				}
			}
		}))
		const rate = 100
		limiters := limitersOf(t, rdb, 10, limitertest.Every(rate, time.Hour))
		for i, granted := range crowdOn(t, limiters, 32, 60) {
			keys := limitertest.KeysOf(limiters[i])
			assert.LessOrEqual(t, granted, int64(rate))
			assert.Greater(t, granted, int64(rate-3), "what fits is granted")
			assert.Equal(t, granted, limitertest.InUse(t, rdb, keys.Permits))
			assert.Equal(t, fmt.Sprint(rate-granted), rdb.Get(t.Context(), keys.Value).Val())
		}
		if _, isCluster := rdb.(*redis.ClusterClient); isCluster {
			assert.Zero(t, calls.Load(), "keys of different slots can't share a call")
		} else {
			assert.Positive(t, calls.Load())
			assert.Greater(t, together.Load(), calls.Load())
		}
	})
}

// A damaged limiter fails its own callers, and puts no others in doubt.
func TestJointCall_DamagedLimiterFailsOnlyItsCallers(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		limiters := limitersOf(t, rdb, 8, limitertest.Every(10_000, time.Hour))
		crowdOn(t, limiters, 8, 10)
		damaged := limiters[3]
		limitertest.Damage(t, rdb, damaged, "SET permits text")
		limitertest.Together(32, func(int) {
			for range 20 {
				l := limiters[rand.IntN(len(limiters))]
				_, err := l.TryAcquire(context.Background(), 1, 0)
				if l == damaged {
					assert.ErrorIs(t, err, rratelimiter.ErrCorrupt)
				} else {
					assert.NoError(t, err)
				}
			}
		})
		for _, l := range limiters {
			assert.False(t, rdb.HExists(t.Context(), limitertest.KeysOf(l).Config, "answered").Val(), "no attempt was in doubt")
		}
	})
}

var releaseTests = map[string]limitertest.SceneTest[*limitertest.HeldScene]{
	// Releases that wait for a doubtful call go as one call, and hold back the requests behind them.
	"releases that gather go as one call": {Cfg: limitertest.Every(100, time.Hour), Run: func(t *testing.T, s *limitertest.HeldScene) {
		limitertest.MustAcquire(t, s.RateLimiter, 50)
		letGo := s.Hold(t, lua.Acquire, 1)
		before := s.Sent.Scripts()
		held := s.StartTryAcquire(t.Context(), 1, 0)
		var all []*limitertest.Caller
		for i := range 6 {
			all = append(all, s.Go(func() (bool, error) { return true, s.Release(t.Context(), int64(1+i)) }))
		}
		behind := s.StartTryAcquire(t.Context(), 2, 0)
		assert.Equal(t, "waits", behind.Outcome())
		s.Until(500 * ms)
		assert.Equal(t, 1, s.Sent.Scripts()-before)
		letGo()
		assert.Equal(t, "true at 500ms", held.Outcome())
		limitertest.CheckOutcome(t, "true at 500ms", all...)
		assert.Equal(t, "true at 500ms", behind.Outcome())
		assert.Equal(t, 3, s.Sent.Scripts()-before, "the request, the releases and what was behind them")
		s.CheckInUse(t, 100, 50+1-21+2)
	}},
	// Requests behind a Release whose caller goes away need not wait for what that waited for.
	"requests go on after a cancelled release": {Cfg: limitertest.Every(100, time.Hour), Run: func(t *testing.T, s *limitertest.HeldScene) {
		letGo := s.Hold(t, lua.Acquire, 1)
		held := s.StartTryAcquire(t.Context(), 1, 0)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) {
			err := s.Release(ctx, 1)
			assert.ErrorIs(t, err, context.Canceled)
			assert.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome, "it had not been sent")
			return false, err
		})
		behind := s.StartTryAcquire(t.Context(), 2, 0)
		other := limitertest.ByDefault(s.Client, limitertest.Besides(s.Name()), limitertest.Every(100, time.Hour))
		both := s.Go(func() (bool, error) {
			return s.Client.TryAcquireAll(t.Context(), 0, limitertest.Claims(4, s.RateLimiter, other)...)
		})
		limitertest.CheckOutcome(t, "waits", behind, both)
		s.Until(100 * ms)
		leave()
		limitertest.CheckOutcome(t, "true at 100ms", behind, both)
		s.Until(200 * ms)
		letGo()
		assert.Equal(t, "true at 200ms", held.Outcome())
		s.CheckInUse(t, 100, 1+2+4)
	}},
	// A Release waits for its own limiter's flights, and holds up no one else.
	"a release waits for its limiter only": {Cfg: limitertest.Every(100, time.Hour), Run: func(t *testing.T, s *limitertest.HeldScene) {
		other := s.Client.RateLimiter("another", rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
		limitertest.MustAcquire(t, s.RateLimiter, 10)
		limitertest.MustAcquire(t, other, 10)
		letGo := s.Hold(t, lua.Acquire, 1)
		held := s.StartTryAcquire(t.Context(), 1, 0)
		release := s.Go(func() (bool, error) { return true, s.Release(t.Context(), 1) })
		s.Until(100 * ms)
		require.NoError(t, other.Release(t.Context(), 3))
		limitertest.MustAcquire(t, other, 1)
		assert.True(t, limitertest.TryAll(t, s.Client, 1, other))
		assert.Equal(t, 100*ms, s.Now())
		assert.Equal(t, "waits", release.Outcome())
		letGo()
		limitertest.CheckOutcome(t, "true at 100ms", held, release)
		s.CheckInUse(t, 100, 10)
	}},
}

func TestReleases(t *testing.T) {
	t.Parallel()
	// Several flights may be under way.
	limitertest.OnScenes(t, releaseTests, func(t *testing.T, cfg rratelimiter.Config) *limitertest.HeldScene {
		return limitertest.NewHeldSceneOf(t, cfg, &redistest.Options{ReadTimeout: time.Minute, PoolSize: 256})
	})
}

// Permits of callers that have gone are free within the time of a call, however many went.
func TestContext_HundredsOfCancelledCallersGiveBack(t *testing.T) {
	t.Parallel()
	const callers, waves, trip, callTime = 300, 3, 100 * ms, 1500 * ms
	type row struct {
		beside string
		names  int
		log    bool // they are keys of a sliding log
	}
	limitertest.Bubbles(t, map[string]row{
		"one limiter":                     {"3.35.0", 1, false},
		"as many limiters":                {"3.35.0", callers, false},
		"one limiter beside old releases": {"3.15.5", 1, false},
		"keys of a sliding log":           {"3.35.0", callers, true},
	}, func(t *testing.T, row row) {
		near, m := redistest.Mini(t)
		far := limitertest.FarAwayOf(t, m, trip)
		client := limitertest.NewClient(t, far, rratelimiter.WithRedissonVersion(row.beside), rratelimiter.WithCallTimeout(callTime))
		log := slidinglog.New(client, slidinglog.Config{Limit: 10, Window: time.Hour})
		for wave := range waves {
			ctx, cancel := context.WithTimeout(t.Context(), trip/2)
			limitertest.Together(callers/waves, func(i int) {
				name := strconv.Itoa((wave*callers/waves + i) % row.names)
				if row.log {
					_, _ = log.Take(ctx, name, 1)
				} else {
					_, _ = limitertest.ByDefault(client, name, limitertest.Every(100_000, time.Hour)).TryAcquire(ctx, 1, 0)
				}
			})
			cancel()
			time.Sleep(trip / 2)
		}
		time.Sleep(callTime)
		for i := range row.names {
			key := redisson.KeysOf(strconv.Itoa(i), "").Permits
			if row.log {
				key = strconv.Itoa(i)
			}
			assert.Zero(t, near.ZCard(t.Context(), key).Val(), "permits in use that no caller has")
		}
	})
}

// doubt draws what becomes of a call.
func doubt(dice *rand.Rand, cmd redistest.Command) redistest.Action {
	late := time.Duration(1+dice.IntN(20)) * ms
	switch n := dice.IntN(12); {
	case cmd.Name() != "evalsha":
		return redistest.Pass
	case n == 0:
		return redistest.DropAnswer.After(late)
	case n == 1:
		return redistest.Cut.After(late)
	case n == 2:
		return redistest.Swallow
	}
	return redistest.Pass.After(late)
}

// callAny makes a random call, and returns how long it may take.
func callAny(ctx context.Context, draw *rand.Rand, f *limitertest.Family) (bound time.Duration) {
	l, call := f.Limiters[draw.IntN(3)], 3*time.Second
	switch draw.IntN(9) {
	case 0, 1:
		_, _ = l.TryAcquire(ctx, 1+draw.Int64N(4), 0)
	case 2:
		_, _ = l.TryAcquire(ctx, 1+draw.Int64N(40), 300*ms)
		return 400 * ms
	case 3:
		_, _ = l.Take(ctx, 1)
		return 2 * call // a second question may be what its figures take
	case 4, 5:
		_ = l.Release(ctx, 1+draw.Int64N(8))
		return 3 * call // in several calls, behind the end of a lease
	case 6:
		order := draw.Perm(3)
		timeout := time.Duration(draw.IntN(2)) * 200 * ms
		_, _ = f.Client.TryAcquireAll(ctx, timeout, f.Limiters[order[0]].Claim(1), f.Limiters[order[1]].Claim(1))
	case 7:
		_ = l.SetRate(ctx, limitertest.Every(100, time.Minute), rratelimiter.KeepState())
		return 2 * call // behind the end of a lease
	case 8:
		_, _ = l.Migrate(ctx)
		return 2 * call
	}
	return call
}

// Whatever is in doubt at the same time, nothing waits for another that waits for
// it: each call ends in time, and all that was granted and not given back is in use.
func TestCalls_InDoubtDoNotDeadlock(t *testing.T) {
	t.Parallel()
	count := uint64(5)
	if testing.Short() {
		count = 3
	}
	limitertest.Bubbles(t, limitertest.Seeds(count), func(t *testing.T, seed uint64) {
		_, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		c := limitertest.NewClient(t, proxy.Client(t, &redistest.Options{PoolSize: 256, ReadTimeout: 700 * ms}))
		hundred := limitertest.Every(100, time.Minute)
		f := limitertest.NewFamilyOf(t, c, hundred, hundred, hundred)
		f.Limiters[2] = c.RateLimiter(f.Limiters[2].Name(), rratelimiter.WithLease(rratelimiter.Lease{Permits: 8, Life: time.Second}))
		require.True(t, f.Try(t, 1))
		dice := rand.New(rand.NewPCG(seed, 0))
		proxy.OnCommand(func(cmd redistest.Command) redistest.Action { return doubt(dice, cmd) })
		limitertest.Together(24, func(worker int) {
			draw := rand.New(rand.NewPCG(seed, 1+uint64(worker)))
			for range 12 {
				ctx, cancel := context.WithCancel(t.Context())
				if draw.IntN(3) == 0 {
					time.AfterFunc(time.Duration(draw.IntN(100))*ms, cancel)
				}
				start := time.Now()
				bound := callAny(ctx, draw, f)
				assert.LessOrEqual(t, time.Since(start), bound)
				cancel()
			}
		})
		proxy.OnCommand(nil)
		time.Sleep(10 * time.Second)
		for _, l := range f.Limiters {
			start := time.Now()
			require.NoError(t, l.SetRate(t.Context(), hundred))
			limitertest.MustAcquire(t, l, 100)
			require.NoError(t, l.Release(t.Context(), 100))
			assert.Less(t, time.Since(start), 10*ms)
		}
	})
}
