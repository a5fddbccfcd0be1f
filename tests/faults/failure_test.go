package faults_test

import (
	"context"
	"math"
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
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// An outageScene is a Client with a policy, whose server can hang, and another Client
// whose server never does.
type outageScene struct {
	client *rratelimiter.Client
	other  *rratelimiter.Client
	hook   *hanging
	rdb    *redis.Client
	told   *limitertest.Recorder
}

func duringOutages(t *testing.T, how limit.Failure, test func(t *testing.T, s *outageScene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		s := &outageScene{hook: &hanging{}, rdb: rdb, told: &limitertest.Recorder{}}
		s.client = limitertest.NewClient(t, rdb, rratelimiter.WithFailure(how), rratelimiter.WithObserver(s.told))
		s.other = limitertest.NewClient(t, redistest.MiniClient(t, m, nil))
		rdb.AddHook(s.hook)
		test(t, s)
		s.hook.hang(false)
		time.Sleep(time.Minute) // go-redis comes back from what hung
	})
}

// failing makes calls until the policy answers at once.
func (s *outageScene) fail(t *testing.T, l *rratelimiter.RateLimiter) {
	t.Helper()
	s.hook.hang(true)
	for range 3 {
		start := time.Now()
		_, _ = l.TryAcquire(t.Context(), 1, 0)
		assert.LessOrEqual(t, time.Since(start), 3*time.Second)
	}
}

// recover has the server answer again.
func (s *outageScene) recover() {
	s.hook.hang(false)
	time.Sleep(5 * time.Second) // what was sent before has come back
}

// atOnce checks that a call takes no more than it takes to begin a probe.
func atOnce(t *testing.T, call func() (bool, error)) bool {
	t.Helper()
	start := time.Now()
	granted, err := call()
	require.NoError(t, err)
	assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
	return granted
}

func TestFailOpen(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(5, time.Hour)))
		limitertest.MustAcquire(t, l, 5)
		limitertest.MustRefuse(t, l, 1)
		s.fail(t, l)
		for range 1000 {
			assert.True(t, atOnce(t, func() (bool, error) { return l.TryAcquire(t.Context(), 5, time.Minute) }))
		}
		require.NoError(t, l.Acquire(t.Context(), 1))
		_, now, _ := s.hook.seen()
		assert.LessOrEqual(t, now, 4, "the three calls, and one probe")
		_, err := l.TryAcquire(t.Context(), 0, 0)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidPermits, "a mistake is no outage")

		s.recover()
		limitertest.MustRefuse(t, l, 1)
		synctest.Wait()
		var kinds []limit.EventKind
		for _, e := range s.told.Events() {
			if e.Kind == limit.AskedNoMore || e.Kind == limit.AskedAgain {
				kinds = append(kinds, e.Kind)
			}
		}
		assert.Equal(t, []limit.EventKind{limit.AskedNoMore, limit.AskedAgain}, kinds)
		sources := map[limit.Source]int{}
		for _, d := range s.told.Decisions() {
			sources[d.Source]++
		}
		assert.Equal(t, 1004, sources[limit.FromOpen])
	})
}

// A server that is back is asked again within a second or two.
func TestTheEndOfAnOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)))
		limitertest.MustAcquire(t, l, 1)
		s.fail(t, l)
		for range 300 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(100 * time.Millisecond)
		}
		s.hook.hang(false)
		back := time.Now()
		for limitertest.Try(t, l, 1) {
			time.Sleep(100 * time.Millisecond)
			require.Less(t, time.Since(back), 5*time.Second)
		}
	})
}

// Callers whose deadlines end before an answer have the policy answer those after them.
func TestDeadlinesOpenTheBreaker(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(5, time.Hour)))
		limitertest.MustAcquire(t, l, 5)
		s.hook.hang(true)
		for range 7 { // the fifth ends after 50 ms of silence
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, err := l.TryAcquire(ctx, 1, 0)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		assert.True(t, atOnce(t, func() (bool, error) { return l.TryAcquire(t.Context(), 1, 0) }))
	})
}

// Refusals, callers who go and limiters without a rate are no outage.
func TestWhatIsNoOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)))
		limitertest.MustAcquire(t, l, 1)
		for range 10 {
			limitertest.MustRefuse(t, l, 1)
			_, err := l.TryAcquire(t.Context(), 2, 0)
			require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
			_, err = s.client.RateLimiter("none").TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			require.ErrorIs(t, l.Acquire(ctx, 1), context.Canceled)
		}
		limitertest.MustRefuse(t, l, 1)
	})
}

func TestFailClosedAnswersAtOnce(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailClosed(), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(5, time.Hour)))
		s.fail(t, l)
		start := time.Now()
		_, err := l.TryAcquire(t.Context(), 1, time.Minute)
		require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		require.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
		assert.ErrorContains(t, err, `"orders"`)
		assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
		s.recover()
		limitertest.MustAcquire(t, l, 1)
	})
}

// A local limiter has its share of the rate, in any span of the interval.
func TestFailLocal(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailLocal(0.25), func(t *testing.T, s *outageScene) {
		rate := rratelimiter.WithDefault(limitertest.Every(40, time.Minute))
		l, same := s.client.RateLimiter("orders", rate), s.client.RateLimiter("orders", rate)
		s.fail(t, l) // three of ten
		taken := 3
		for atOnce(t, func() (bool, error) { return same.TryAcquire(t.Context(), 1, 0) }) {
			taken++
		}
		assert.Equal(t, 10, taken)
		d, err := l.Take(t.Context(), 1)
		require.NoError(t, err)
		assert.Equal(t, int64(10), d.Limit)
		assert.Positive(t, d.RetryAfter)
		limitertest.MustRefuse(t, l, 11)

		start := time.Now()
		granted, err := l.TryAcquire(t.Context(), 1, 10*time.Second)
		require.NoError(t, err)
		assert.False(t, granted)
		assert.Equal(t, 10*time.Second, time.Since(start))
		require.NoError(t, l.Acquire(t.Context(), 1))
		assert.InDelta(t, 60, time.Since(start).Seconds(), 15)
	})
}

// Those that wait at a local limiter go on with Redis once that is back.
func TestWaitersGoBackToRedis(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailLocal(0.5), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(2, time.Hour)))
		s.fail(t, l)
		s.hook.hang(false)
		start := time.Now()
		require.NoError(t, l.Acquire(t.Context(), 1))
		assert.Less(t, time.Since(start), 5*time.Second)
	})
}

// The rate is the one that Redis told last, and none is known without that.
func TestFailLocalKnowsTheRate(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailLocal(1), func(t *testing.T, s *outageScene) {
		for _, name := range []string{"told", "untold"} {
			limitertest.MustTrySetRate(t, s.other.RateLimiter(name), limitertest.Every(7, time.Hour))
		}
		told := s.client.RateLimiter("told", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
		d, err := told.Take(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, int64(7), d.Limit)
		synctest.Wait()
		untold := s.client.RateLimiter("untold")
		s.hook.hang(true)
		for range 3 {
			_, err := untold.TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		}
		limitertest.MustAcquire(t, told, 7)
		limitertest.MustRefuse(t, told, 1)
	})
}

// What Redis was not charged for is not given back there: it would be others' permits.
func TestReleaseAfterAnOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l, other := s.client.RateLimiter("orders"), s.other.RateLimiter("orders")
		limitertest.MustTrySetRate(t, other, limitertest.Every(20, 10*time.Hour))
		limitertest.MustAcquire(t, other, 5)
		limitertest.MustAcquire(t, l, 2)
		s.fail(t, l)
		limitertest.MustAcquire(t, l, 4)
		s.recover()
		time.Sleep(time.Minute)
		before := limitertest.Available(t, other)
		require.NoError(t, l.Release(t.Context(), 7))
		assert.Equal(t, before, limitertest.Available(t, other), "none of these was charged")
		require.NoError(t, l.Release(t.Context(), 2))
		assert.Equal(t, before+2, limitertest.Available(t, other))
	})
}

func TestTryAcquireAllDuringAnOutage(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailLocal(0.5), func(t *testing.T, s *outageScene) {
		few := s.client.RateLimiter("{shop}few", rratelimiter.WithDefault(limitertest.Every(4, time.Hour)))
		many := s.client.RateLimiter("{shop}many", rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
		s.hook.hang(true)
		all := func() (bool, error) { return s.client.TryAcquireAll(t.Context(), 1, 0, many, few) }
		for i := range 3 {
			granted, err := all()
			require.NoError(t, err)
			assert.Equal(t, i < 2, granted)
		}
		for range 100 {
			assert.False(t, atOnce(t, all))
		}
		limitertest.MustAcquire(t, many, 48)
		limitertest.MustRefuse(t, many, 1)
	})
}

func TestLimitersOfKeysDuringAnOutage(t *testing.T) {
	t.Parallel()
	type maker func(rdb *redis.Client, opts ...limit.Option) limit.Returner
	for name, open := range map[string]maker{
		"fixedwindow": func(rdb *redis.Client, opts ...limit.Option) limit.Returner {
			return fixedwindow.New(rdb, fixedwindow.Config{Limit: 8, Window: time.Hour}, opts...)
		},
		"slidinglog": func(rdb *redis.Client, opts ...limit.Option) limit.Returner {
			return slidinglog.New(rdb, slidinglog.Config{Limit: 8, Window: time.Hour}, opts...)
		},
		"tokenbucket": func(rdb *redis.Client, opts ...limit.Option) limit.Returner {
			return tokenbucket.New(rdb, tokenbucket.Config{Capacity: 8, Refill: 8, Interval: time.Hour}, opts...)
		},
	} {
		for policy, how := range map[string]limit.Failure{"open": limit.FailOpen(), "local": limit.FailLocal(0.5)} {
			t.Run(name+", "+policy, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rdb, _ := redistest.Mini(t)
					hook := &hanging{}
					rdb.AddHook(hook)
					l := open(rdb, limit.WithFailure(how))
					hook.hang(true)
					for range 3 {
						d, back, err := l.TakeReturnable(t.Context(), "ann", 1)
						require.NoError(t, err)
						require.True(t, d.Granted)
						require.NoError(t, back(t.Context()))
					}
					granted := 0
					for range 20 {
						if atOnce(t, func() (bool, error) {
							d, err := l.Take(t.Context(), "ann", 1)
							return d.Granted, err
						}) {
							granted++
						}
					}
					assert.Equal(t, map[string]int{"open": 20, "local": 4}[policy], granted)
					hook.hang(false)
					time.Sleep(5 * time.Second)
					d, err := l.Take(t.Context(), "ann", 1)
					require.NoError(t, err)
					assert.Equal(t, int64(8), d.Limit)
				})
			})
		}
	}
}

func TestFailureOptions(t *testing.T) {
	t.Parallel()
	for _, share := range []float64{0, -1, 1.5, math.NaN(), math.Inf(1)} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
		how := limit.FailLocal(share)
		_, ofClient := rratelimiter.New(rdb, rratelimiter.WithFailure(how)).RateLimiter("a").Take(t.Context(), 1)
		_, ofHandle := rratelimiter.New(rdb).RateLimiter("a", rratelimiter.WithFailure(how)).Take(t.Context(), 1)
		_, ofKeys := fixedwindow.New(rdb, fixedwindow.Config{Limit: 1, Window: time.Second}, limit.WithFailure(how)).Take(t.Context(), "a", 1)
		for _, err := range []error{ofClient, ofHandle, ofKeys} {
			require.ErrorIs(t, err, limit.ErrInvalidConfig, "share %v", share)
			assert.ErrorContains(t, err, "WithFailure")
		}
	}
}
