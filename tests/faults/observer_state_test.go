package faults_test

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
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// watched runs test in a bubble, with a Client that has an observer.
func watched(t *testing.T, test func(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, told func(limit.EventKind) []limit.Event), opts ...rratelimiter.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, append(opts, rratelimiter.WithObserver(r))...)
		test(t, rdb, client, func(kind limit.EventKind) (told []limit.Event) {
			synctest.Wait()
			for _, e := range r.Events() {
				if e.Kind == kind {
					told = append(told, e)
				}
			}
			return told
		})
	})
}

// What a request for permits finds damaged, and mends, is told of.
func TestObserverIsToldOfRepairs(t *testing.T) {
	t.Parallel()
	lose := func(keys ...string) func(*testing.T, *redis.Client) {
		return func(t *testing.T, rdb *redis.Client) { require.NoError(t, rdb.Del(t.Context(), keys...).Err()) }
	}
	const value, set = "{orders}:value", "{orders}:permits"
	for name, test := range map[string]struct {
		damage  func(*testing.T, *redis.Client)
		permits int64
		told    bool
	}{
		"none":                    {lose("another"), 1, false},
		"none, and refused":       {lose("another"), 97, false},
		"a lost value":            {lose(value), 1, true},
		"a lost set":              {lose(set), 1, true},
		"a lost set, and refused": {lose(set), 97, true},
		"both are lost":           {lose(value, set), 1, false},
		"leaked permits": {func(t *testing.T, rdb *redis.Client) {
			require.NoError(t, rdb.DecrBy(t.Context(), value, 9).Err())
		}, 90, true},
		"a grant of the future": {func(t *testing.T, rdb *redis.Client) {
			row := rdb.ZRange(t.Context(), set, 0, 0).Val()[0]
			require.NoError(t, rdb.ZIncrBy(t.Context(), set, 10_000, row).Err())
		}, 97, true},
		"clocks that differ a little": {func(t *testing.T, rdb *redis.Client) {
			row := rdb.ZRange(t.Context(), set, 0, 0).Val()[0]
			require.NoError(t, rdb.ZIncrBy(t.Context(), set, 500, row).Err())
		}, 97, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, told func(limit.EventKind) []limit.Event) {
				l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
				limitertest.MustAcquire(t, l, 4)
				for range 2 {
					test.damage(t, rdb)
					_, err := l.TryAcquire(t.Context(), test.permits, 0)
					require.NoError(t, err)
				}
				var want []limit.Event
				if test.told { // once: the second comes too soon
					want = []limit.Event{{Kind: limit.StateRepaired, Limiter: "orders"}}
				}
				assert.Equal(t, want, told(limit.StateRepaired))
			})
		})
	}
}

// So is what AvailablePermits and TryAcquireAll find damaged, by the limiter's name.
func TestObserverIsToldOfRepairsByOtherCalls(t *testing.T) {
	t.Parallel()
	tryAll := func(permits int64) func(*testing.T, *rratelimiter.Client, *rratelimiter.RateLimiter) {
		return func(t *testing.T, client *rratelimiter.Client, l *rratelimiter.RateLimiter) {
			whole := client.RateLimiter("{orders}:whole", rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
			_, err := client.TryAcquireAll(t.Context(), permits, 0, whole, l)
			require.NoError(t, err)
		}
	}
	for name, ask := range map[string]func(*testing.T, *rratelimiter.Client, *rratelimiter.RateLimiter){
		"AvailablePermits": func(t *testing.T, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) {
			limitertest.Available(t, l)
		},
		"TryAcquireAll of few":               tryAll(1),
		"TryAcquireAll of more than is left": tryAll(98),
	} {
		for lost, told := range map[string]bool{"{orders}:value": true, "{orders}:permits": true, "nothing": false} {
			t.Run(name+", "+lost, func(t *testing.T) {
				t.Parallel()
				watched(t, func(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, events func(limit.EventKind) []limit.Event) {
					l := client.RateLimiter("{orders}", rratelimiter.WithDefault(limitertest.Every(100, time.Hour)))
					limitertest.MustAcquire(t, l, 4)
					require.NoError(t, rdb.Del(t.Context(), lost).Err())
					ask(t, client, l)
					var want []limit.Event
					if told {
						want = []limit.Event{{Kind: limit.StateRepaired, Limiter: "{orders}"}}
					}
					assert.Equal(t, want, events(limit.StateRepaired))
				})
			})
		}
	}
}

// Of damage that lasts the observer is told once a minute, and of each limiter of those
// that are asked for together.
func TestObserverIsToldOfRepairsNowAndThen(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, told func(limit.EventKind) []limit.Event) {
		var all []*rratelimiter.RateLimiter
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			all = append(all, client.RateLimiter(name, rratelimiter.WithDefault(limitertest.Every(100, time.Hour))))
		}
		for range 3 {
			for range 3 {
				for _, l := range all {
					require.NoError(t, rdb.Del(t.Context(), limitertest.KeysOf(l).Permits).Err())
				}
				var together sync.WaitGroup
				for _, l := range all {
					together.Go(func() { limitertest.MustAcquire(t, l, 1) })
				}
				together.Wait()
			}
			time.Sleep(time.Minute)
		}
		assert.Len(t, told(limit.StateRepaired), 3*len(all))
	})
}

func TestObserverIsToldOfLayoutsThatExclude(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ours, theirs string
		told         bool
	}{
		"the same":                  {"4.7.0", "4.7.0", false},
		"ids of 8 bytes and of 16":  {"4.7.0", "3.20.1", false},
		"ids of 16 bytes and of 8":  {"3.20.1", "4.7.0", false},
		"one of 3.16.8":             {"4.7.0", "3.16.8", true},
		"one of 3.15.5":             {"4.7.0", "3.15.5", true},
		"a fixed window":            {"4.7.0", "3.12.3", true},
		"ours are fixed windows":    {"3.12.3", "4.7.0", true},
		"layouts of the old ones":   {"3.16.8", "3.15.5", true},
		"ours are old, theirs also": {"3.16.8", "3.16.8", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, rdb *redis.Client, client *rratelimiter.Client, told func(limit.EventKind) []limit.Event) {
				other := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(test.theirs)).RateLimiter("orders")
				limitertest.MustTrySetRate(t, other, limitertest.Every(100, time.Hour))
				limitertest.MustAcquire(t, other, 4)
				l := client.RateLimiter("orders")
				for range 3 {
					_, err := l.Take(t.Context(), 1)
					require.NoError(t, err)
				}
				var want []limit.Event
				if test.told {
					want = []limit.Event{{Kind: limit.LayoutsExclude, Limiter: "orders"}}
				}
				assert.Equal(t, want, told(limit.LayoutsExclude))
			}, rratelimiter.WithRedissonVersion(test.ours))
		})
	}
}

// Where nobody knows whether the permits of callers who have gone were taken, that is
// told of.
func TestObserverIsToldOfPermitsInDoubt(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(ctx context.Context, client *rratelimiter.Client, window *fixedwindow.Limiter) error{
		"orders": func(ctx context.Context, client *rratelimiter.Client, _ *fixedwindow.Limiter) error {
			return client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(100, time.Hour))).Acquire(ctx, 7)
		},
		"{s}a": func(ctx context.Context, client *rratelimiter.Client, _ *fixedwindow.Limiter) error {
			with := rratelimiter.WithDefault(limitertest.Every(100, time.Hour))
			return limitertest.Second(client.TryAcquireAll(ctx, 7, 0, client.RateLimiter("{s}a", with), client.RateLimiter("{s}b", with)))
		},
		"keys": func(ctx context.Context, _ *rratelimiter.Client, window *fixedwindow.Limiter) error {
			return limitertest.Second(window.Take(ctx, "ann", 7))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				hook, r := &hanging{}, &limitertest.Recorder{}
				client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(r))
				window := fixedwindow.New(rdb, fixedwindow.Config{Limit: 100, Window: time.Hour}, limit.WithObserver(r), limit.WithName("keys"))
				rdb.AddHook(hook)
				hook.hang(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
				defer cancel()
				require.ErrorIs(t, call(ctx, client, window), context.DeadlineExceeded)
				time.Sleep(time.Minute)
				hook.hang(false)
				time.Sleep(time.Minute)
				found := map[string]int64{}
				for _, e := range r.Events() {
					if e.Kind == limit.PermitsGivenUp {
						assert.ErrorIs(t, e.Err, limit.ErrUnknownOutcome)
						found[e.Limiter] += e.Permits
					}
				}
				assert.Equal(t, int64(7), found[name], "%v", found)
			})
		})
	}
}
