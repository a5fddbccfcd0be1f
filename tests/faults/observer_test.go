package faults_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
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
)

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
		for _, d := range s.told.Decisions() {
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
