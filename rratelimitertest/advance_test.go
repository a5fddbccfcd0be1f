package rratelimitertest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// both runs test outside a bubble and in one.
func both(t *testing.T, test func(t *testing.T, env *rratelimitertest.Env)) {
	t.Helper()
	bothWith(t, nil, test)
}

func bothWith(t *testing.T, opts []rratelimiter.Option, test func(t *testing.T, env *rratelimitertest.Env)) {
	t.Helper()
	t.Run("outside", func(t *testing.T) {
		t.Parallel()
		test(t, rratelimitertest.New(t, opts...))
	})
	t.Run("in a bubble", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(t, rratelimitertest.New(t, opts...)) })
	})
}

// log keeps the callers' answers.
type log struct {
	wg    sync.WaitGroup
	lines redistest.List[string]
}

// call has f called beside the test. The channel is closed when it has returned.
func (l *log) call(name string, f func() (bool, error)) <-chan struct{} {
	done := make(chan struct{})
	l.wg.Go(func() {
		defer close(done)
		ok, err := f()
		l.lines.Add(fmt.Sprint(name, " ", ok, " ", err))
	})
	return done
}

func (l *log) answers() []string { return l.lines.All() }

func exhausted(t *testing.T, env *rratelimitertest.Env, cfg rratelimiter.Config, opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
	t.Helper()
	l := env.Client.RateLimiter("{shop}:orders", append(opts, rratelimiter.WithDefault(cfg))...)
	limitertest.MustAcquire(t, l, cfg.Rate)
	return l
}

// exists reports whether Redis has the limiter.
func exists(t *testing.T, l *rratelimiter.RateLimiter) bool {
	t.Helper()
	found, err := l.Exists(t.Context())
	require.NoError(t, err)
	return found
}

func TestPermitsComeBackAsTheTimeMoves(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, env *rratelimitertest.Env) {
		l := exhausted(t, env, rratelimiter.PerMinute(2))
		assert.Equal(t, limit.Decision{Limit: 2, RetryAfter: time.Minute, ResetAfter: time.Minute}, limitertest.Take(t, l, 1))
		env.Advance(time.Minute - time.Millisecond)
		assert.Equal(t, limit.Decision{Limit: 2, RetryAfter: time.Millisecond, ResetAfter: time.Millisecond}, limitertest.Take(t, l, 1))
		env.Advance(time.Millisecond)
		assert.True(t, limitertest.Take(t, l, 2).Granted)
		server, err := env.Redis.Time(t.Context()).Result()
		require.NoError(t, err)
		assert.True(t, server.Equal(env.Now()), "%v, %v", server, env.Now())
	})
}

func TestACallerWakesUpOrIsRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ patience, end time.Duration }{
		"permits": {time.Hour, time.Minute}, "timeout": {20 * time.Second, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, env *rratelimitertest.Env) {
				l, calls := exhausted(t, env, rratelimiter.PerMinute(1)), &log{}
				calls.call("it", func() (bool, error) { return l.TryAcquire(t.Context(), 1, tc.patience) })
				env.AwaitWaiting(1)
				env.Advance(tc.end - 1)
				assert.Empty(t, calls.answers())
				env.Advance(1)
				calls.wg.Wait()
				assert.Equal(t, []string{fmt.Sprintf("it %t <nil>", name == "permits")}, calls.answers())
				assert.Zero(t, limitertest.Available(t, l))
				env.Advance(time.Minute)
				assert.EqualValues(t, 1, limitertest.Available(t, l))
			})
		})
	}
}

// Callers whose moments lie in one Advance are served in the order of the moments:
// a, b and c at 1, 2 and 3 minutes, while d's patience ends before its turn.
func TestCallersAreServedInTheOrderOfTheirMoments(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, env *rratelimitertest.Env) {
		l := exhausted(t, env, rratelimiter.PerMinute(1))
		calls := &log{}
		for i, timeout := range []time.Duration{10 * time.Minute, 150 * time.Second, 10 * time.Minute, 200 * time.Second} {
			calls.call(string(rune('a'+i)), func() (bool, error) { return l.TryAcquire(t.Context(), 1, timeout) })
			env.AwaitWaiting(i + 1)
		}
		env.Advance(10 * time.Minute)
		calls.wg.Wait()
		assert.ElementsMatch(t, []string{"a true <nil>", "b true <nil>", "c true <nil>", "d false <nil>"}, calls.answers())
		assert.EqualValues(t, 1, limitertest.Available(t, l))
	})
}

func TestSeveralLimitsAtOnce(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, env *rratelimitertest.Env) {
		minute := exhausted(t, env, rratelimiter.PerMinute(1))
		hour := env.Client.RateLimiter("{shop}:hour", rratelimiter.WithDefault(rratelimiter.PerHour(1)))
		calls := &log{}
		calls.call("first", func() (bool, error) { return env.Client.TryAcquireAll(t.Context(), 1, 10*time.Hour, minute, hour) })
		env.AwaitWaiting(1)
		assert.Empty(t, calls.answers())
		env.Advance(time.Minute)
		calls.wg.Wait()
		assert.Equal(t, []string{"first true <nil>"}, calls.answers())
		calls.call("second", func() (bool, error) { return env.Client.TryAcquireAll(t.Context(), 1, 2*time.Minute, minute, hour) })
		env.AwaitWaiting(1)
		env.Advance(2 * time.Minute)
		calls.wg.Wait()
		assert.Equal(t, []string{"first true <nil>", "second false <nil>"}, calls.answers())
	})
}

// What a lease took ahead goes back when it ends, and a refusal is remembered until
// its moment.
func TestLeasesAndRefusalsEnd(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, env *rratelimitertest.Env) {
		l := env.Client.RateLimiter("leased", rratelimiter.WithDefault(rratelimiter.PerMinute(1000)), rratelimiter.WithLease(rratelimiter.Lease{Permits: 50}))
		taken := int64(0)
		for range 40 {
			limitertest.MustAcquire(t, l, 1)
			taken++
		}
		look := env.Client.RateLimiter("leased")
		assert.Less(t, limitertest.Available(t, look), 1000-taken, "some are taken ahead")
		env.Advance(10 * time.Second)
		assert.Equal(t, 1000-taken, limitertest.Available(t, look))

		r := exhausted(t, env, rratelimiter.PerMinute(1), rratelimiter.WithRefusalCache())
		for range 3 {
			limitertest.MustRefuse(t, r, 1)
		}
		env.Advance(time.Minute)
		limitertest.MustAcquire(t, r, 1)
	})
}

func TestOtherLimiters(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, env *rratelimitertest.Env) {
		for name, l := range map[string]limit.Limiter{
			"window": fixedwindow.New(env.Redis, fixedwindow.Config{Limit: 1, Window: time.Minute}),
			"log":    slidinglog.New(env.Redis, slidinglog.Config{Limit: 1, Window: time.Minute}),
			"bucket": tokenbucket.New(env.Redis, tokenbucket.Config{Capacity: 1, Refill: 1, Interval: time.Minute}),
			"keyed":  env.Client.Keyed("keyed:", rratelimiter.PerMinute(1)),
		} {
			for range 3 {
				assert.True(t, limittest.Take(t, l, name, 1).Granted, name)
				want := limit.Decision{Limit: 1, RetryAfter: time.Minute, ResetAfter: time.Minute}
				assert.Equal(t, want, limittest.Take(t, l, name, 1), name)
				env.Advance(time.Minute - time.Millisecond)
				assert.False(t, limittest.Take(t, l, name, 1).Granted, name)
				env.Advance(time.Millisecond)
			}
		}
	})
}

// A limiter that is kept alive stays while a caller waits for it, and keys expire.
func TestTimesToLive(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, env *rratelimitertest.Env) {
		cfg := rratelimiter.PerMinute(1)
		cfg.KeepAlive = time.Minute
		l := exhausted(t, env, cfg)
		calls := &log{}
		two := calls.call("two", func() (bool, error) { return l.TryAcquire(t.Context(), 1, time.Hour) })
		env.AwaitWaiting(1)
		calls.call("three", func() (bool, error) { return l.TryAcquire(t.Context(), 1, time.Hour) })
		env.AwaitWaiting(2)
		env.Advance(2*time.Minute - time.Millisecond)
		<-two
		assert.Equal(t, []string{"two true <nil>"}, calls.answers())
		env.Advance(time.Millisecond)
		calls.wg.Wait()
		assert.Equal(t, []string{"two true <nil>", "three true <nil>"}, calls.answers())
		env.Advance(time.Minute - time.Millisecond)
		assert.True(t, exists(t, l))
		env.Advance(time.Millisecond)
		assert.False(t, exists(t, l))
	})
}

// Releases wake callers at once, without an Advance; a second Client goes by the same time.
func TestTwoClients(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, env *rratelimitertest.Env) {
		l := exhausted(t, env, rratelimiter.PerMinute(1))
		second := rratelimiter.New(env.Redis)
		defer func() { assert.NoError(t, second.Close(context.Background())) }()
		calls := &log{}
		calls.call("own", func() (bool, error) { return l.TryAcquire(t.Context(), 1, time.Hour) })
		env.AwaitWaiting(1)
		require.NoError(t, l.Release(t.Context(), 1))
		calls.wg.Wait()
		calls.call("other", func() (bool, error) { return second.RateLimiter("{shop}:orders").TryAcquire(t.Context(), 1, time.Hour) })
		env.AwaitWaiting(1)
		env.Advance(time.Minute)
		calls.wg.Wait()
		assert.Equal(t, []string{"own true <nil>", "other true <nil>"}, calls.answers())
	})
}

func TestContextsEndTheWait(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, env *rratelimitertest.Env) {
		l := exhausted(t, env, rratelimiter.PerMinute(1))
		ctx, cancel := context.WithCancel(t.Context())
		calls := &log{}
		calls.call("it", func() (bool, error) { return false, l.Acquire(ctx, 1) })
		env.AwaitWaiting(1)
		cancel()
		calls.wg.Wait()
		assert.Equal(t, []string{`it false rratelimiter: Acquire "{shop}:orders": context canceled`}, calls.answers())
	})
}

// Callers with timeouts of all lengths get the same answers outside a bubble as in one.
func TestOutsideABubbleItIsAsInOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			outside := history(t, seed)
			var inside []string
			synctest.Test(t, func(t *testing.T) { inside = history(t, seed) })
			assert.Equal(t, inside, outside)
		})
	}
}

// history returns the answers of an exhausted limiter, and whether it is left.
func history(t *testing.T, seed uint64) []string {
	t.Helper()
	draw := rand.New(rand.NewPCG(seed, 0))
	env := rratelimitertest.New(t, rratelimiter.WithCallTimeout(time.Minute))
	l := exhausted(t, env, rratelimiter.Config{Rate: 5, Interval: 10 * time.Second, KeepAlive: 15 * time.Second})
	calls := &log{}
	const callers = 30
	for i := range callers {
		// No two moments are the same: those of one moment have no order.
		permits, timeout := 1+draw.Int64N(5), time.Duration(1+draw.IntN(60))*time.Second+time.Duration(i+1)*time.Millisecond
		calls.call(fmt.Sprintf("%02d", i), func() (bool, error) { return l.TryAcquire(t.Context(), permits, timeout) })
		env.AwaitWaiting(i + 1)
	}
	for range 20 {
		env.Advance(time.Duration(draw.IntN(8000)) * time.Millisecond)
	}
	env.Advance(time.Minute)
	calls.wg.Wait()
	all := calls.answers()
	slices.Sort(all)
	return append(all, fmt.Sprint(exists(t, l)))
}

// quick is a call timeout for tests by the machine's time, which may stall for some seconds.
const quick = 4 * time.Second

// outages are the ways in which a server may fail.
var outages = map[string]func(*rratelimitertest.Env){
	"down": (*rratelimitertest.Env).Down, "hung": (*rratelimitertest.Env).Hang,
}

// during runs test outside a bubble and in one, for each way to fail.
func during(t *testing.T, test func(t *testing.T, env *rratelimitertest.Env, fail func()), opts ...rratelimiter.Option) {
	t.Helper()
	for name, fail := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothWith(t, append(opts, rratelimiter.WithCallTimeout(quick)), func(t *testing.T, env *rratelimitertest.Env) {
				test(t, env, func() { fail(env) })
			})
		})
	}
}

func TestAServerThatIsAway(t *testing.T) {
	t.Parallel()
	during(t, func(t *testing.T, env *rratelimitertest.Env, fail func()) {
		l := exhausted(t, env, rratelimiter.PerMinute(2))
		window := fixedwindow.New(env.Redis, fixedwindow.Config{Limit: 1, Window: time.Minute}, limit.WithCallTimeout(quick))
		fail()
		for range 3 {
			_, err := l.TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
			_, err = window.Take(t.Context(), "ann", 1)
			require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		}
		require.ErrorIs(t, l.Acquire(t.Context(), 1), rratelimiter.ErrUnavailable)
		env.Up()
		assert.False(t, limitertest.Try(t, l, 1), "what it kept is there")
		env.Advance(time.Minute)
		limitertest.MustAcquire(t, l, 1)
	})
}

// The policy for outages goes by the test's time: its local limiter, and its looks for
// the server.
func TestALocalLimiterInATestsTime(t *testing.T) {
	t.Parallel()
	during(t, func(t *testing.T, env *rratelimitertest.Env, fail func()) {
		l := exhausted(t, env, rratelimiter.PerMinute(4))
		fail()
		for i := range 6 {
			assert.Equal(t, i < 2, limitertest.Try(t, l, 1), "call %d", i)
		}
		env.Advance(50 * time.Second)
		limitertest.MustRefuse(t, l, 1)
		env.Advance(20 * time.Second)
		assert.True(t, limitertest.Try(t, l, 1), "the local limiter's permits came back")
		env.Up()
		env.Advance(time.Second)
		for i := range 5 {
			assert.Equal(t, i < 4, limitertest.Try(t, l, 1), "call %d of Redis", i)
		}
	}, rratelimiter.WithFailure(limit.FailLocal(0.5)))
}

// A caller that the local limiter refuses waits for it, or for the server.
func TestACallerWaitsDuringAnOutage(t *testing.T) {
	t.Parallel()
	during(t, func(t *testing.T, env *rratelimitertest.Env, fail func()) {
		l := exhausted(t, env, rratelimiter.PerMinute(1))
		fail()
		for range 3 {
			limitertest.Try(t, l, 1)
		}
		var calls log
		short := calls.call("short", func() (bool, error) { return l.TryAcquire(t.Context(), 1, 5*time.Second) })
		env.AwaitWaiting(1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := calls.call("gone", func() (bool, error) { return true, l.Acquire(ctx, 1) })
		env.AwaitWaiting(2)
		env.Advance(4 * time.Second)
		assert.Empty(t, calls.answers())
		env.Advance(time.Second)
		<-short
		cancel()
		<-gone
		assert.Equal(t, []string{"short false <nil>", `gone true rratelimiter: Acquire "{shop}:orders": context canceled`}, calls.answers())

		long := calls.call("long", func() (bool, error) { return true, l.Acquire(t.Context(), 1) })
		env.AwaitWaiting(1)
		env.Up()
		env.Advance(2 * time.Second) // Redis has refused: that permit was taken in the same minute
		assert.Len(t, calls.answers(), 2)
		env.Advance(time.Minute)
		<-long
		assert.Equal(t, "long true <nil>", calls.answers()[2])
	}, rratelimiter.WithFailure(limit.FailLocal(1)))
}
