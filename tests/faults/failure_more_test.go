package faults_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Callers whom Redis refused, and whose deadlines end while they wait for permits, say
// nothing of Redis.
func TestDeadlinesOfWaitersAreNoOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("{s}a", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)))
		other := s.client.RateLimiter("{s}b", rratelimiter.WithDefault(limitertest.Every(9, time.Hour)))
		limitertest.MustAcquire(t, l, 1)
		for range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			require.ErrorIs(t, l.Acquire(ctx, 1), context.DeadlineExceeded)
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			_, err := s.client.TryAcquireAll(ctx, 1, time.Minute, l, other)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		limitertest.MustRefuse(t, l, 1)
	})
}

// A Release that fails is made again by its caller: what was not charged stays so.
func TestReleaseThatFailsDuringAnOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l, other := s.client.RateLimiter("orders"), s.other.RateLimiter("orders")
		limitertest.MustTrySetRate(t, other, limitertest.Every(20, 10*time.Hour))
		limitertest.MustAcquire(t, other, 5)
		limitertest.MustAcquire(t, l, 2)
		s.fail(t, l) // three that are not charged
		require.Error(t, l.Release(t.Context(), 5))
		s.recover()
		time.Sleep(time.Minute)
		before := limitertest.Available(t, other)
		require.NoError(t, l.Release(t.Context(), 5))
		assert.LessOrEqual(t, limitertest.Available(t, other)-before, int64(2))
	})
}

func TestTakeUpToDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		how  limit.Failure
		want []int64
	}{
		"open":  {limit.FailOpen(), []int64{3, 3, 3, 3, 3}},
		"local": {limit.FailLocal(0.5), []int64{3, 1, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			duringOutages(t, test.how, func(t *testing.T, s *outageScene) {
				l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(8, time.Hour)))
				keys := fixedwindow.New(s.rdb, fixedwindow.Config{Limit: 8, Window: time.Hour}, limit.WithFailure(test.how))
				s.hook.hang(true)
				for i, want := range test.want {
					n, d, err := l.TakeUpTo(t.Context(), 3)
					require.NoError(t, err)
					assert.Equal(t, want, n, "call %d", i)
					assert.Equal(t, want > 0, d.Granted)
					n, d, err = keys.TakeUpTo(t.Context(), "ann", 3)
					require.NoError(t, err)
					assert.Equal(t, want, n, "call %d of a key", i)
					assert.Equal(t, want > 0, d.Granted)
				}
			})
		})
	}
}

// Where nothing is free, TakeUpTo tells when one permit is, however many were wanted.
func TestTakeUpToTellsWhenTheNextPermitIsFreeDuringAnOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailLocal(1), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(4, time.Minute)))
		limitertest.MustTrySetRate(t, l, limitertest.Every(4, time.Minute))
		s.fail(t, l) // three permits
		time.Sleep(20 * time.Second)
		limitertest.MustAcquire(t, l, 1)
		for _, permits := range []int64{1, 4} {
			taken, d, err := l.TakeUpTo(t.Context(), permits)
			require.NoError(t, err)
			assert.Zero(t, taken)
			one, err := l.Take(t.Context(), 1)
			require.NoError(t, err)
			assert.Equal(t, one.RetryAfter, d.RetryAfter)
		}
	})
}

// A hook of the Redis client's that panics ends no program, whoever makes the call.
func TestHooksThatPanicDuringAnOutage(t *testing.T) {
	t.Parallel()
	for _, inline := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			_, m := redistest.Mini(t)
			rdb := redistest.MiniClient(t, m, &redis.Options{ContextTimeoutEnabled: inline})
			hook := &hanging{}
			rdb.AddHook(hook)
			client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailLocal(1)))
			l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(50, time.Hour)))
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

// The rate is known by TryAcquireAll too, which tells who decided.
func TestTryAcquireAllKnowsTheRate(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailLocal(1), func(t *testing.T, s *outageScene) {
		var limiters []*rratelimiter.RateLimiter
		for _, name := range []string{"{s}a", "{s}b"} {
			limitertest.MustTrySetRate(t, s.other.RateLimiter(name), limitertest.Every(7, time.Hour))
			limiters = append(limiters, s.client.RateLimiter(name))
		}
		granted, err := s.client.TryAcquireAll(t.Context(), 1, 0, limiters...)
		require.NoError(t, err)
		require.True(t, granted)
		synctest.Wait()
		s.told.Decisions()
		s.hook.hang(true)
		for range 4 {
			granted, err := s.client.TryAcquireAll(t.Context(), 1, 0, limiters...)
			require.NoError(t, err)
			assert.True(t, granted)
		}
		for _, d := range s.told.Decisions() {
			assert.Equal(t, limit.FromLocal, d.Source)
		}
		start := time.Now()
		granted, err = s.client.TryAcquireAll(t.Context(), 8, 2*time.Second, limiters...)
		require.NoError(t, err)
		assert.False(t, granted, "more than there ever are")
		assert.Equal(t, 2*time.Second, time.Since(start))
	})
}

// outOfMemory is a hook that makes of a client's server one that answers, and decides
// nothing.
type outOfMemory struct{ redistest.Hook }

type oom struct{}

func (oom) Error() string { return "OOM command not allowed when used memory > 'maxmemory'." }
func (oom) RedisError()   {}

func (outOfMemory) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && cmd.Args()[1] == lua.Acquire.SHA {
			cmd.SetErr(oom{})
			return oom{}
		}
		return next(ctx, cmd)
	}
}

// A server that answers probes and decides nothing is not asked again and again.
func TestAServerThatAnswersProbesOnly(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(7, time.Hour)))
		limitertest.MustAcquire(t, l, 1)
		s.rdb.AddHook(outOfMemory{})
		for range 1000 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		assert.Less(t, len(s.told.Events()), 30)
	})
}
