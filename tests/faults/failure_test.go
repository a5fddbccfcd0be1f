package faults_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// A scene is a Client that is observed, whose server can hang, and another Client whose server never does.
type scene struct {
	client *rratelimiter.Client
	other  *rratelimiter.Client
	hook   *hanging
	rdb    redistest.Client
	told   *limitertest.Recorder
}

// observed runs test in a bubble, with a Client of these options.
func observed(t *testing.T, test func(t *testing.T, s *scene), opts ...rratelimiter.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		s := &scene{rdb: rdb, told: &limitertest.Recorder{}}
		s.client = limitertest.NewClient(t, rdb, append(opts, rratelimiter.WithObserver(s.told))...)
		s.other = limitertest.NewClient(t, redistest.MiniClient(t, m, nil))
		s.hook = newHanging(rdb)
		test(t, s)
		s.hook.hang(false)
		time.Sleep(time.Minute) // go-redis comes back from what hung
	})
}

func (s *scene) limiter(name string, rate int64) *rratelimiter.RateLimiter {
	return limitertest.ByDefault(s.client, name, rratelimiter.PerHour(rate))
}

func taking(ctx context.Context, l limit.Limiter) func() (bool, error) {
	return func() (bool, error) {
		d, err := l.Take(ctx, "ann", 1)
		return d.Granted, err
	}
}

// fail makes calls until the policy answers at once.
func (s *scene) fail(t *testing.T, l *rratelimiter.RateLimiter) {
	t.Helper()
	s.hook.hang(true)
	for range 3 {
		start := time.Now()
		_, _ = l.TryAcquire(t.Context(), 1, 0)
		assert.LessOrEqual(t, time.Since(start), 3*time.Second)
	}
}

func (s *scene) recover() {
	s.hook.hang(false)
	time.Sleep(5 * time.Second) // earlier requests have come back
}

// events returns the events of some kinds, once those under way have come.
func (s *scene) events(kinds ...limit.EventKind) (told []limit.Event) {
	synctest.Wait()
	for _, e := range s.told.Events() {
		if slices.Contains(kinds, e.Kind) {
			told = append(told, e)
		}
	}
	return told
}

// checkAskedAgain checks that the observer was told of one outage, and of its end.
func (s *scene) checkAskedAgain(t *testing.T) {
	t.Helper()
	told := s.events(limit.AskedNoMore, limit.AskedAgain)
	require.Len(t, told, 2)
	assert.Equal(t, []limit.EventKind{limit.AskedNoMore, limit.AskedAgain}, []limit.EventKind{told[0].Kind, told[1].Kind})
}

// atOnce checks that a call takes no more than it takes to begin a probe.
func atOnce(t *testing.T, call func() (bool, error)) bool {
	t.Helper()
	start := time.Now()
	granted := limitertest.Must(call())(t)
	assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
	return granted
}

// An outageTest is made by a Client with that policy.
type outageTest struct {
	how limit.Failure
	run func(t *testing.T, s *scene)
}

var outageTests = map[string]outageTest{
	"FailOpen": {limit.FailOpen(), func(t *testing.T, s *scene) {
		l := s.limiter("orders", 5)
		limitertest.MustAcquire(t, l, 5)
		limitertest.MustRefuse(t, l, 1)
		s.fail(t, l)
		for range 1000 {
			assert.True(t, atOnce(t, func() (bool, error) { return l.TryAcquire(t.Context(), 5, time.Minute) }))
		}
		require.NoError(t, l.Acquire(t.Context(), 1))
		assert.LessOrEqual(t, s.hook.now.Load(), int64(4), "the three calls, and one probe")
		require.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 0, 0)), rratelimiter.ErrInvalidPermits, "a mistake is no outage")

		open := 3 + 1000 + 1
		for range 300 {
			limitertest.MustAcquire(t, l, 1)
			open++
			time.Sleep(100 * time.Millisecond)
		}
		s.hook.hang(false) // it is asked again within a second or two
		for back := time.Now(); limitertest.Try(t, l, 1); time.Sleep(100 * time.Millisecond) {
			require.Less(t, time.Since(back), 5*time.Second)
			open++
		}
		s.checkAskedAgain(t)
		assert.Equal(t, open, s.told.Sources()[limit.FromOpen])
	}},
	"FailClosed answers at once": {limit.FailClosed(), func(t *testing.T, s *scene) {
		l := s.limiter("orders", 5)
		s.fail(t, l)
		atOnce(t, func() (bool, error) {
			_, err := l.TryAcquire(t.Context(), 1, time.Minute)
			require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
			require.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
			assert.ErrorContains(t, err, `"orders"`)
			return false, nil
		})
		s.recover()
		limitertest.MustAcquire(t, l, 1)
	}},
	// A local limiter has its share of the rate, in any span of the interval.
	"FailLocal": {limit.FailLocal(0.25), func(t *testing.T, s *scene) {
		l := limitertest.ByDefault(s.client, "orders", limitertest.Every(40, time.Minute))
		same := limitertest.ByDefault(s.client, "orders", limitertest.Every(40, time.Minute))
		s.fail(t, l) // three of ten
		taken := 3
		for atOnce(t, func() (bool, error) { return same.TryAcquire(t.Context(), 1, 0) }) {
			taken++
		}
		assert.Equal(t, 10, taken)
		d := limitertest.Take(t, l, 1)
		assert.Equal(t, int64(10), d.Limit)
		assert.Positive(t, d.RetryAfter)
		limitertest.MustRefuse(t, l, 11)

		start := time.Now()
		assert.False(t, limitertest.Must(l.TryAcquire(t.Context(), 1, 10*time.Second))(t))
		assert.Equal(t, 10*time.Second, time.Since(start))
		require.NoError(t, l.Acquire(t.Context(), 1))
		assert.InDelta(t, 60, time.Since(start).Seconds(), 15)
	}},
	"waiters go back to Redis": {limit.FailLocal(0.5), func(t *testing.T, s *scene) {
		l := s.limiter("orders", 2)
		s.fail(t, l)
		s.hook.hang(false)
		start := time.Now()
		require.NoError(t, l.Acquire(t.Context(), 1))
		assert.Less(t, time.Since(start), 5*time.Second)
	}},
	"FailLocal knows the rate": {limit.FailLocal(1), func(t *testing.T, s *scene) {
		for _, name := range []string{"told", "untold"} {
			limitertest.MustTrySetRate(t, s.other.RateLimiter(name), limitertest.Every(7, time.Hour))
		}
		told := limitertest.ByDefault(s.client, "told", limitertest.Every(1000, time.Hour))
		require.Equal(t, int64(7), limitertest.Take(t, told, 1).Limit)
		synctest.Wait()
		untold := s.client.RateLimiter("untold")
		s.hook.hang(true)
		for range 3 {
			require.ErrorIs(t, limitertest.Second(untold.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrUnavailable)
		}
		limitertest.MustAcquire(t, told, 7)
		limitertest.MustRefuse(t, told, 1)
	}},
	"FailLocal asks for the rate once": {limit.FailLocal(1), func(t *testing.T, s *scene) {
		limitertest.MustTrySetRate(t, s.other.RateLimiter("orders"), rratelimiter.PerHour(1000))
		l, asked := s.client.RateLimiter("orders"), 0
		s.rdb.AddHook(limitertest.BeforeScript(lua.Config, func() {
			asked++
			time.Sleep(time.Second)
		}))
		for range 10 {
			limitertest.Together(10, func(int) { limitertest.MustAcquire(t, l, 1) })
		}
		synctest.Wait()
		assert.Equal(t, 1, asked)
	}},
	"TryAcquireAll": {limit.FailLocal(0.5), func(t *testing.T, s *scene) {
		few := limitertest.ByDefault(s.client, "{shop}few", limitertest.Every(4, time.Hour))
		many := limitertest.ByDefault(s.client, "{shop}many", limitertest.Every(100, time.Hour))
		s.hook.hang(true)
		all := func() (bool, error) { return s.client.TryAcquireAll(t.Context(), 0, many.Claim(1), few.Claim(1)) }
		for i := range 3 {
			assert.Equal(t, i < 2, limitertest.Must(all())(t))
		}
		for range 100 {
			assert.False(t, atOnce(t, all))
		}
		limitertest.MustAcquire(t, many, 48)
		limitertest.MustRefuse(t, many, 1)
	}},
	// The rate is known by TryAcquireAll too, which tells who decided.
	"TryAcquireAll knows the rate": {limit.FailLocal(1), func(t *testing.T, s *scene) {
		var limiters []*rratelimiter.RateLimiter
		for _, name := range []string{"{s}a", "{s}b"} {
			limitertest.MustTrySetRate(t, s.other.RateLimiter(name), limitertest.Every(7, time.Hour))
			limiters = append(limiters, s.client.RateLimiter(name))
		}
		require.True(t, limitertest.TryAll(t, s.client, 1, limiters...))
		synctest.Wait()
		s.told.Decisions()
		s.hook.hang(true)
		for range 4 {
			assert.True(t, limitertest.TryAll(t, s.client, 1, limiters...))
		}
		assert.Equal(t, map[limit.Source]int{limit.FromLocal: 8}, s.told.Sources())
		start := time.Now()
		granted := limitertest.Must(s.client.TryAcquireAll(t.Context(), 2*time.Second, limitertest.Claims(8, limiters...)...))(t)
		assert.False(t, granted, "more than there ever are")
		assert.Equal(t, 2*time.Second, time.Since(start))
	}},
	// What one limiter of a Client has found out about a server, all of them know.
	"limiters of a Client share a breaker": {limit.FailOpen(), func(t *testing.T, s *scene) {
		orders := s.limiter("orders", 5)
		take := taking(t.Context(), fixedwindow.New(s.client, fixedwindow.Config{Limit: 5, Window: time.Hour}))
		assert.True(t, atOnce(t, take))
		s.fail(t, orders)
		assert.True(t, atOnce(t, take), "three calls of the other have failed")
		s.recover()
		limitertest.MustAcquire(t, orders, 5)
		assert.True(t, atOnce(t, take))
		s.checkAskedAgain(t)
	}},
	// Refusals, callers who go, limiters without a rate, and deadlines that end while a caller waits for permits are no outage.
	"the breaker stays closed": {limit.FailOpen(), func(t *testing.T, s *scene) {
		l := limitertest.ByDefault(s.client, "{s}a", limitertest.Every(1, time.Hour))
		other := limitertest.ByDefault(s.client, "{s}b", limitertest.Every(9, time.Hour))
		limitertest.MustAcquire(t, l, 1)
		for range 10 {
			limitertest.MustRefuse(t, l, 1)
			require.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 2, 0)), rratelimiter.ErrPermitsExceedRate)
			none := s.client.RateLimiter("none")
			require.ErrorIs(t, limitertest.Second(none.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrNotInitialized)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			require.ErrorIs(t, l.Acquire(ctx, 1), context.Canceled)
		}
		limitertest.MustRefuse(t, l, 1)
		for range 4 {
			_, err := within(t, time.Second, func(ctx context.Context) (any, error) { return nil, l.Acquire(ctx, 1) })
			require.ErrorIs(t, err, context.DeadlineExceeded)
			_, err = within(t, time.Second, func(ctx context.Context) (any, error) {
				return s.client.TryAcquireAll(ctx, time.Minute, l.Claim(1), other.Claim(1))
			})
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		limitertest.MustRefuse(t, l, 1)
	}},
	// Calls go to a server that answers probes and decides nothing ever more rarely, and soon again once it has decided one.
	"the breaker backs off": {limit.FailOpen(), func(t *testing.T, s *scene) {
		l := s.limiter("orders", 1)
		limitertest.MustAcquire(t, l, 1)
		down := true
		s.refuse("READONLY no", func(sha any) bool { return down && sha == lua.Acquire.SHA })
		waits(t, l, 10*time.Second)
		synctest.Wait()
		assert.Less(t, len(s.told.Events()), 30)
		assert.Less(t, waits(t, l, 10*time.Minute), 0.12)

		down = false
		for back := time.Now(); limitertest.Try(t, l, 1); time.Sleep(10 * time.Millisecond) {
			require.Less(t, time.Since(back), 31*time.Second)
		}
		down = true
		require.Equal(t, 3, limitertest.Grants(t, l, 3))
		down = false
		time.Sleep(200 * time.Millisecond)
		limitertest.MustRefuse(t, l, 1)
	}},
	// What Redis was not charged for is not given back there: it would be others' permits.
	"Release skips what was not charged": {limit.FailOpen(), func(t *testing.T, s *scene) {
		l, other := s.client.RateLimiter("orders"), s.other.RateLimiter("orders")
		limitertest.MustTrySetRate(t, other, limitertest.Every(20, 10*time.Hour))
		limitertest.MustAcquire(t, other, 5)
		limitertest.MustAcquire(t, l, 2)
		s.fail(t, l) // three that are not charged, as these:
		limitertest.MustAcquire(t, l, 4)
		require.Error(t, l.Release(t.Context(), 9))
		s.recover()
		time.Sleep(time.Minute)
		before := limitertest.Available(t, other)
		require.NoError(t, l.Release(t.Context(), 7))
		assert.Equal(t, before, limitertest.Available(t, other), "none of these was charged")
		require.NoError(t, l.Release(t.Context(), 2))
		assert.Equal(t, before+2, limitertest.Available(t, other))
	}},
	// What one handle lets through, another one with other options does not release: its callers hold permits that were charged.
	"Release skips what another handle let through": {limit.FailClosed(), func(t *testing.T, s *scene) {
		rate := rratelimiter.WithDefault(limitertest.Every(6, time.Hour))
		handle := func(opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
			return s.client.RateLimiter("orders", append(opts, rate)...)
		}
		plain := handle()
		limitertest.MustAcquire(t, plain, 3)
		limitertest.MustAcquire(t, plain, 3)
		limitertest.MustAcquire(t, handle(rratelimiter.WithShadow()), 3)
		s.fail(t, handle(rratelimiter.WithFailure(limit.FailOpen()))) // three more
		s.recover()

		require.NoError(t, plain.Release(t.Context(), 3))
		assert.Equal(t, int64(3), limitertest.Available(t, plain))
		for _, other := range []rratelimiter.SharedOption{rratelimiter.WithShadow(), rratelimiter.WithFailure(limit.FailOpen())} {
			require.NoError(t, handle(other).Release(t.Context(), 3), "by a new handle")
			assert.Equal(t, int64(3), limitertest.Available(t, plain), "not charged")
		}
		require.NoError(t, handle(rratelimiter.WithShadow()).Release(t.Context(), 3))
		assert.Equal(t, int64(6), limitertest.Available(t, plain))
	}},
	// Close fails those who wait for a local limiter, and returns when they are done. What a policy granted is not released after it.
	"Close": {limit.FailLocal(0.5), func(t *testing.T, s *scene) {
		l, other := s.limiter("{s}a", 6), s.limiter("{s}b", 6)
		s.fail(t, l)
		var ended redistest.List[error]
		calls := []func() error{
			func() error { return l.Acquire(t.Context(), 1) },
			func() error { return limitertest.Second(l.TryAcquire(t.Context(), 1, time.Minute)) },
			func() error {
				return limitertest.Second(s.client.TryAcquireAll(t.Context(), time.Minute, l.Claim(1), other.Claim(1)))
			},
		}
		for _, call := range calls {
			go func() { ended.Add(call()) }()
		}
		time.Sleep(10 * time.Millisecond)
		closed := time.Now()
		require.NoError(t, s.client.Close(t.Context()))
		assert.Less(t, time.Since(closed), 5*time.Second, "a probe may be under way")
		synctest.Wait()
		assert.Len(t, ended.All(), len(calls))
		for _, err := range ended.All() {
			require.ErrorIs(t, err, rratelimiter.ErrClosed)
		}
		require.ErrorIs(t, l.Release(t.Context(), 1), rratelimiter.ErrClosed)
	}},
}

func TestOutage(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, outageTests, func(t *testing.T, test outageTest) { observed(t, test.run, rratelimiter.WithFailure(test.how)) })
}

type ofKeys func(c *rratelimiter.Client, rate int64, how rratelimiter.LimiterOption) limit.Returner

// limitersOfKeys are limiters of that many permits an hour for each key.
var limitersOfKeys = map[string]ofKeys{
	"Keyed": func(c *rratelimiter.Client, rate int64, how rratelimiter.LimiterOption) limit.Returner {
		return c.Keyed("k:", rratelimiter.PerHour(rate), how)
	},
	"fixedwindow": func(c *rratelimiter.Client, rate int64, how rratelimiter.LimiterOption) limit.Returner {
		return fixedwindow.New(c, fixedwindow.Config{Limit: rate, Window: time.Hour}, how)
	},
	"slidinglog": func(c *rratelimiter.Client, rate int64, how rratelimiter.LimiterOption) limit.Returner {
		return slidinglog.New(c, slidinglog.Config{Limit: rate, Window: time.Hour}, how)
	},
	"tokenbucket": func(c *rratelimiter.Client, rate int64, how rratelimiter.LimiterOption) limit.Returner {
		return tokenbucket.New(c, tokenbucket.Config{Capacity: rate, Refill: rate, Interval: time.Hour}, how)
	},
}

func eachOfKeys(t *testing.T, rate int64, how limit.Failure, test func(t *testing.T, s *scene, l limit.Returner)) {
	t.Helper()
	limitertest.Each(t, limitersOfKeys, func(t *testing.T, open ofKeys) {
		policy := rratelimiter.WithFailure(how)
		observed(t, func(t *testing.T, s *scene) { test(t, s, open(s.client, rate, policy)) }, policy)
	})
}

func TestTakeUpToDuringAnOutage(t *testing.T) {
	t.Parallel()
	type row struct {
		how  limit.Failure
		want []int64
	}
	limitertest.Each(t, map[string]row{
		"open":  {limit.FailOpen(), []int64{3, 3, 3, 3, 3}},
		"local": {limit.FailLocal(0.5), []int64{3, 1, 0, 0, 0}},
	}, func(t *testing.T, test row) {
		policy := rratelimiter.WithFailure(test.how)
		observed(t, func(t *testing.T, s *scene) {
			l, keys := s.limiter("orders", 8), fixedwindow.New(s.client, fixedwindow.Config{Limit: 8, Window: time.Hour}, policy)
			s.hook.hang(true)
			for i, want := range test.want {
				n, d, err := l.TakeUpTo(t.Context(), 3)
				ofKey, dOfKey, errOfKey := keys.TakeUpTo(t.Context(), "ann", 3)
				require.NoError(t, errors.Join(err, errOfKey))
				assert.Equal(t, []int64{want, want}, []int64{n, ofKey}, "call %d", i)
				assert.Equal(t, []bool{want > 0, want > 0}, []bool{d.Granted, dOfKey.Granted})
			}
		}, policy)
	})
}

func TestFailureOptions(t *testing.T) {
	t.Parallel()
	for _, share := range []float64{0, -1, 1.5, math.NaN(), math.Inf(1)} {
		rdb := redistest.NewClient("127.0.0.1:0", nil)
		how := limit.FailLocal(share)
		_, ofClient := rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithFailure(how)).RateLimiter("a").Take(t.Context(), 1)
		_, ofHandle := rratelimiter.New(rdb, limitertest.Patient()).RateLimiter("a", rratelimiter.WithFailure(how)).Take(t.Context(), 1)
		keys := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 1, Window: time.Second}, rratelimiter.WithFailure(how))
		_, ofKeys := keys.Take(t.Context(), "a", 1)
		for _, err := range []error{ofClient, ofHandle, ofKeys} {
			require.ErrorIs(t, err, limit.ErrInvalidConfig, "share %v", share)
			assert.ErrorContains(t, err, "WithFailure")
		}
	}
}

func TestFailLocalFollowsTheRate(t *testing.T) {
	t.Parallel()
	take := func(t *testing.T, l *rratelimiter.RateLimiter) { limitertest.Take(t, l, 1) }
	try := func(t *testing.T, l *rratelimiter.RateLimiter) { limitertest.MustAcquire(t, l, 1) }
	type row struct {
		before, after time.Duration
		call          func(*testing.T, *rratelimiter.RateLimiter)
		pause         time.Duration // until the call that tells of the change
	}
	limitertest.Each(t, map[string]row{
		"a longer interval":                       {time.Minute, time.Hour, take, 0},
		"a shorter interval, by and by":           {time.Hour, time.Minute, take, time.Minute},
		"a longer interval, by calls of no words": {time.Minute, time.Hour, try, time.Minute},
	}, func(t *testing.T, test row) {
		observed(t, func(t *testing.T, s *scene) {
			admin := limitertest.NewLimiterOf(t, s.other, "orders", limitertest.Every(20, test.before))
			l := s.client.RateLimiter("orders")
			test.call(t, l)
			synctest.Wait()
			require.NoError(t, admin.SetRate(t.Context(), limitertest.Every(20, test.after)))
			time.Sleep(test.pause)
			test.call(t, l)
			synctest.Wait()
			s.fail(t, l)
			limitertest.MustAcquire(t, l, 17)
			limitertest.MustRefuse(t, l, 1)
			time.Sleep(test.after - 5*time.Second) // the first three took some
			limitertest.MustRefuse(t, l, 18)
			time.Sleep(10 * time.Second)
			limitertest.MustAcquire(t, l, 20)
		}, rratelimiter.WithFailure(limit.FailLocal(1)))
	})
}
