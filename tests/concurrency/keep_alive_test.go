package concurrency_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// alive returns a Config of which nobody who waits for it may stop asking.
func alive(kind rratelimiter.RateType, rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Type: kind, Rate: rate, Interval: interval, KeepAlive: interval}
}

// waits are the ways to wait for one permit of one limiter.
var waits = map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error){
	"Acquire": func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) {
		err := l.Acquire(ctx, 1)
		return err == nil, err
	},
	"TryAcquire": func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) {
		return l.TryAcquire(ctx, 1, limitertest.Forever)
	},
}

func TestDefectAWaitingCallerLosesItsLimiter(t *testing.T) {
	t.Parallel()
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					l := limitertest.NewLimiter(t, rdb, alive(kind, 1, time.Second))
					limitertest.MustAcquire(t, l, 1)
					sent, start := limitertest.CountCommands(rdb), time.Now()
					for i := range 5 {
						granted, err := wait(t.Context(), l)
						require.NoError(t, err)
						assert.True(t, granted)
						assert.Equal(t, time.Duration(i+1)*time.Second, time.Since(start))
					}
					assert.LessOrEqual(t, sent.Scripts(), 5*3, "two questions for each permit, and the first")
				})
			})
		})
	}
}

func TestALineKeepsItsLimiterAlive(t *testing.T) {
	t.Parallel()
	keeping := alive(rratelimiter.Overall, 2, time.Second)
	for name, test := range map[string]struct {
		version string
		cfg     rratelimiter.Config
		opts    []rratelimiter.LimiterOption
	}{
		"newest":              {"4.7.0", keeping, nil},
		"windows":             {"3.12.0", keeping, nil},
		"lease":               {"4.7.0", keeping, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{Permits: 10})}},
		"refusals remembered": {"4.7.0", keeping, []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}},
		"a client's pair":     {"4.7.0", limitertest.PerClient(2, time.Second), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(test.version))
				l := client.RateLimiter(redistest.Name(t), test.opts...)
				limitertest.MustTrySetRate(t, l, test.cfg)
				limitertest.MustAcquire(t, l, 2)
				sent, start := limitertest.CountCommands(rdb), time.Now()
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() { assert.NoError(t, l.Acquire(t.Context(), 1)) })
				}
				wg.Wait()
				// A server keeps the value of a window to the end of its last millisecond.
				assert.InDelta(t, 10*time.Second, time.Since(start), float64(10*time.Millisecond))
				assert.LessOrEqual(t, sent.Scripts(), 10*5)
			})
		})
	}
}

func TestWaitersKeepTheirLimiterAliveOnAServer(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := limitertest.NewLimiter(t, rdb, alive(rratelimiter.Overall, 1, 2*time.Second))
		limitertest.MustAcquire(t, l, 1)
		require.NoError(t, l.Acquire(t.Context(), 1))
	})
}

// Redisson sets any keep-alive time.
func TestAKeepAliveTimeBelowTheInterval(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, 10*time.Second))
		require.NoError(t, rdb.HSet(t.Context(), limitertest.KeysOf(l).Config, "keepAliveTime", 1000).Err())
		limitertest.MustAcquire(t, l, 1)
		sent, start := limitertest.CountCommands(rdb), time.Now()
		require.NoError(t, l.Acquire(t.Context(), 1))
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.LessOrEqual(t, sent.Scripts(), 2*10+2)
	})
}

// waitForAll has callers wait for a slow limiter beside one that lives a second
// after each question.
func waitForAll(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, callers int) {
	t.Helper()
	name := redistest.Name(t)
	slow, brief := client.RateLimiter(name), client.RateLimiter(limitertest.Besides(name))
	limitertest.MustTrySetRate(t, slow, limitertest.Every(int64(callers), time.Minute))
	limitertest.MustTrySetRate(t, brief, alive(rratelimiter.Overall, 1000, time.Second))
	limitertest.MustAcquire(t, slow, int64(callers))
	sent, start := limitertest.CountCommands(rdb), time.Now()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			ok, err := client.TryAcquireAll(t.Context(), 1, limitertest.Forever, brief, slow)
			assert.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, time.Minute, time.Since(start))
		})
	}
	wg.Wait()
	// Each asks at first and at last, and some of those who wake at once both ask.
	assert.LessOrEqual(t, sent.Scripts(), 3*callers+2*60+10, "one asks for all")
}

func TestThoseThatWaitForAllKeepThemAlive(t *testing.T) {
	t.Parallel()
	for name, callers := range map[string]int{"one": 1, "many": 50} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) { waitForAll(t, rdb, limitertest.NewClient(t, rdb), callers) })
		})
	}
}

// The question that is to keep a limiter alive does not get there: another
// caller's does.
func TestASecondTryKeepsThemAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		proxy := redistest.MiniProxy(t, m)
		stuck := make(chan struct{})
		client := limitertest.NewClient(t, proxy.Client(t, nil))
		name := redistest.Name(t)
		slow, brief := client.RateLimiter(name), client.RateLimiter(limitertest.Besides(name))
		limitertest.MustTrySetRate(t, slow, limitertest.Every(2, 3*time.Second))
		limitertest.MustTrySetRate(t, brief, alive(rratelimiter.Overall, 1000, time.Second))
		limitertest.MustAcquire(t, slow, 2)
		proxy.OnCommand(redistest.Nth(3, lua.AcquireAll.SHA, redistest.Late.When(stuck)))
		start := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				ok, err := client.TryAcquireAll(t.Context(), 1, limitertest.Forever, brief, slow)
				assert.NoError(t, err)
				assert.True(t, ok)
			})
		}
		time.Sleep(2 * time.Second)
		ttl, _, err := brief.TTL(t.Context())
		require.NoError(t, err)
		assert.Positive(t, ttl, "the other caller asks")
		close(stuck)
		wg.Wait()
		assert.Less(t, time.Since(start), 4*time.Second)
	})
}

func TestWaitersLearnThatTheirLimiterIsGone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cfg    rratelimiter.Config
		remove func(t *testing.T, s *limitertest.Scene)
		at     time.Duration
	}{
		"deleted by its Client": {alive(rratelimiter.Overall, 1, 10*time.Second), func(t *testing.T, s *limitertest.Scene) {
			_, err := s.Delete(t.Context())
			require.NoError(t, err)
		}, time.Second},
		"deleted by another program": {alive(rratelimiter.Overall, 1, 10*time.Second), func(t *testing.T, s *limitertest.Scene) {
			_, err := s.Other.Delete(t.Context())
			require.NoError(t, err)
		}, 5 * time.Second},
		"given an end by another program": {limitertest.Every(1, 10*time.Second), func(t *testing.T, s *limitertest.Scene) {
			_, err := s.Other.Expire(t.Context(), 2*time.Second)
			require.NoError(t, err)
		}, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limitertest.NewScene(t, test.cfg)
				beside := s.Client.RateLimiter(limitertest.Besides(s.Name()))
				limitertest.MustTrySetRate(t, beside, limitertest.Every(1, time.Hour))
				limitertest.MustAcquire(t, s.RateLimiter, 1)
				before := s.Sent.Scripts()
				var all []*limitertest.Caller
				for range 2 {
					all = append(all, s.Go(func() (bool, error) { return waits["Acquire"](t.Context(), s.RateLimiter) }))
				}
				all = append(all, s.Go(func() (bool, error) {
					return s.Client.TryAcquireAll(t.Context(), 1, limitertest.Forever, beside, s.RateLimiter)
				}))
				s.Until(time.Second)
				test.remove(t, s)
				s.Until(20 * time.Second)
				for _, c := range all {
					c.RequireEnd(t, rratelimiter.ErrNotInitialized, test.at)
				}
				assert.LessOrEqual(t, s.Sent.Scripts()-before, 8, "no polling")
			})
		})
	}
}

func TestWaitersWithADefaultMakeTheirLimiterAnew(t *testing.T) {
	t.Parallel()
	cfg := alive(rratelimiter.Overall, 1, 10*time.Second)
	for name, test := range map[string]struct {
		defaults [2]bool // of the first in line, and the second
		want     [2]string
	}{
		"both":       {[2]bool{true, true}, [2]string{"true at 5s", "true at 15s"}},
		"the first":  {[2]bool{true, false}, [2]string{"true at 5s", "true at 15s"}},
		"the second": {[2]bool{false, true}, [2]string{"", "true at 5s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limitertest.NewScene(t, cfg)
				limitertest.MustAcquire(t, s.RateLimiter, 1)
				var all []*limitertest.Caller
				for _, has := range test.defaults {
					l := s.RateLimiter
					if has {
						l = s.Client.RateLimiter(s.Name(), rratelimiter.WithDefault(cfg))
					}
					all = append(all, s.Go(func() (bool, error) { return waits["Acquire"](t.Context(), l) }))
				}
				s.Until(time.Second)
				_, err := s.Other.Delete(t.Context())
				require.NoError(t, err)
				s.Until(20 * time.Second)
				for i, c := range all {
					if test.want[i] == "" {
						c.RequireEnd(t, rratelimiter.ErrNotInitialized, 5*time.Second)
						continue
					}
					assert.Equal(t, test.want[i], c.Outcome())
				}
			})
		})
	}

	t.Run("several limits", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewScene(t, cfg, rratelimiter.WithDefault(cfg))
			slow := s.Client.RateLimiter(limitertest.Besides(s.Name()))
			limitertest.MustTrySetRate(t, slow, limitertest.Every(1, 20*time.Second))
			limitertest.MustAcquire(t, slow, 1)
			c := s.Go(func() (bool, error) {
				return s.Client.TryAcquireAll(t.Context(), 1, limitertest.Forever, s.RateLimiter, slow)
			})
			s.Until(time.Second)
			_, err := s.Other.Delete(t.Context())
			require.NoError(t, err)
			s.Until(5 * time.Second)
			assert.Len(t, limitertest.LimiterKeys(t, s.Redis, s.Name()), 1, "the configuration")
			s.Until(30 * time.Second)
			assert.Equal(t, "true at 20s", c.Outcome())
		})
	})
}

// Take asks a second time how long to wait, where the oldest members don't tell.
func TestTakeOfALimiterThatGoesBetweenItsQuestions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts []rratelimiter.LimiterOption
		want error
	}{
		"with a default":    {[]rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(300, time.Hour))}, nil},
		"without a default": {nil, rratelimiter.ErrNotInitialized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limitertest.NewScene(t, limitertest.Every(300, time.Hour), test.opts...)
				limitertest.AddGrants(t, s.Redis, limitertest.KeysOf(s.RateLimiter).Permits, time.Minute, 300, 1)
				require.NoError(t, s.Redis.Set(t.Context(), limitertest.KeysOf(s.RateLimiter).Value, 0, 0).Err())
				s.Redis.AddHook(limitertest.BeforeScript(lua.Wait, func() {
					_, err := s.Other.Delete(t.Context())
					assert.NoError(t, err)
				}))
				d, err := s.Take(t.Context(), 290)
				require.ErrorIs(t, err, test.want)
				assert.False(t, d.Granted)
			})
		})
	}
}
