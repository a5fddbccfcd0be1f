package concurrency_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestTryAcquireAllRepairsWhatWasLost(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, tt := range map[string]struct {
			spoil func(t *testing.T, l *rratelimiter.RateLimiter) error
			free  int64 // of 10, 6 of which were taken
		}{
			"value lost": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Del(t.Context(), limitertest.KeysOf(l).Value).Err()
			}, 4},
			"set lost": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Del(t.Context(), limitertest.KeysOf(l).Permits).Err()
			}, 10},
			"both lost": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Del(t.Context(), limitertest.KeysOf(l).Value, limitertest.KeysOf(l).Permits).Err()
			}, 10},
			"permits leaked": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.DecrBy(t.Context(), limitertest.KeysOf(l).Value, 4).Err()
			}, 4},
			"value above the rate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.IncrBy(t.Context(), limitertest.KeysOf(l).Value, 50).Err()
			}, 10},
			"all has run out": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return makeOlder(t, rdb, l, 2*time.Hour)
			}, 10},
			"dated in the future": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return makeOlder(t, rdb, l, -2*time.Hour)
			}, 4},
		} {
			for place := range 2 {
				f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
				require.True(t, f.Try(t, 6))
				require.NoError(t, f.Limiters[1-place].Release(t.Context(), 6))
				require.NoError(t, tt.spoil(t, f.Limiters[place]), name)
				got := int64(0)
				if name == "set lost" {
					require.True(t, f.Try(t, 1))
					f.CheckSums(t, rdb, 10, 10)
					got++
				}
				for range 11 {
					if f.Try(t, 1) {
						got++
					}
				}
				assert.Equal(t, tt.free, got, name)
				value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(f.Limiters[place]).Value)
				assert.Zero(t, value, name)
				assert.Equal(t, got, limitertest.InUse(t, rdb, limitertest.KeysOf(f.Limiters[1-place]).Permits), name)
			}
		}
	})
}

// makeOlder dates what is in use back.
func makeOlder(t testing.TB, rdb redis.UniversalClient, l *rratelimiter.RateLimiter, age time.Duration) error {
	t.Helper()
	for _, member := range rdb.ZRange(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Val() {
		if err := rdb.ZIncrBy(t.Context(), limitertest.KeysOf(l).Permits, -float64(age.Milliseconds()), member).Err(); err != nil {
			return err
		}
	}
	return nil
}

// A window of Redisson before 3.13.3 is left as it is: no call fills it or moves
// its end.
func TestTryAcquireAllBesideAWindow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Minute), limitertest.Every(100, time.Hour))
		require.True(t, limitertest.AsRedisson3123(t, rdb, f.Limiters[0], 7))
		time.Sleep(20 * time.Second)
		assert.True(t, f.Try(t, 2))
		assert.False(t, f.Try(t, 2))
		assert.Equal(t, 40*time.Second, rdb.PTTL(t.Context(), limitertest.KeysOf(f.Limiters[0]).Value).Val())
		start := time.Now()
		ok, err := f.Client.TryAcquireAll(t.Context(), 2, time.Hour, f.Limiters...)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.InDelta(t, 40*time.Second, time.Since(start), float64(2*time.Millisecond))
	})
}

func TestTryAcquireAllKeepsTimesToLive(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Minute),
			rratelimiter.Config{Rate: 1, Interval: time.Minute, KeepAlive: 10 * time.Minute}, limitertest.PerClient(10, time.Minute))
		_, err := f.Limiters[0].Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		for _, granted := range []bool{true, false} {
			assert.Equal(t, granted, f.Try(t, 1))
			for i, want := range []time.Duration{time.Hour, 10 * time.Minute, time.Minute} {
				for key, ttl := range limitertest.TTLs(t, rdb, f.Limiters[i].Name()) {
					if i == 2 && key == f.Limiters[i].Name() {
						want = -1
					}
					assert.Equal(t, want, ttl, "%s, granted %v", key, granted)
					want = []time.Duration{time.Hour, 10 * time.Minute, time.Minute}[i]
				}
			}
			_, err := f.Limiters[0].Expire(t.Context(), time.Hour)
			require.NoError(t, err)
			time.Sleep(time.Second)
			_, err = f.Limiters[0].Expire(t.Context(), time.Hour)
			require.NoError(t, err)
		}
	})
}

// Notes of attempts that nobody needs any more go, as by TryAcquire.
func TestTryAcquireAllForgetsOldNotes(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
		note := fmt.Sprintf("%d:00;", time.Now().UnixMilli())
		for _, l := range f.Limiters {
			require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", note).Err())
		}
		for _, noted := range []bool{true, false} {
			assert.True(t, f.Try(t, 1))
			for _, l := range f.Limiters {
				exists, err := rdb.HExists(t.Context(), l.Name(), "answered").Result()
				require.NoError(t, err)
				assert.Equal(t, noted, exists)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// Much that has run out, in many limiters, is a bounded piece of work a call.
func TestTryAcquireAllDoesBoundedWork(t *testing.T) {
	t.Parallel()
	const limiters, crowd = 16, 2000
	for name, tt := range map[string]struct {
		age     map[time.Duration]int // members of one permit each
		value   int64                 // below 0: missing
		version string
		permits int64
		want    bool
		wait    time.Duration
	}{
		"half has run out":                        {map[time.Duration]int{2 * time.Hour: crowd / 2, time.Hour / 2: crowd / 2}, 0, "4.7.0", 900, true, 0},
		"half has run out, beside an old release": {map[time.Duration]int{2 * time.Hour: crowd / 2, time.Hour / 2: crowd / 2}, 10, "3.15.5", 5, true, 0},
		"all in use":                              {map[time.Duration]int{time.Hour / 2: crowd}, 0, "4.7.0", 100, false, time.Hour / 2},
		"all in use, no value":                    {map[time.Duration]int{time.Hour / 2: crowd}, -1, "4.7.0", 10, false, time.Hour / 2},
		"dated in the future":                     {map[time.Duration]int{-time.Hour: crowd}, 0, "4.7.0", 1, false, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartRedis(t)
			rdb := server.Client(t, nil)
			cfgs := make([]rratelimiter.Config, limiters)
			for i := range cfgs {
				cfgs[i] = limitertest.Every(crowd, time.Hour)
			}
			f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(tt.version)), cfgs...)
			for _, l := range f.Limiters {
				for age, count := range tt.age {
					limitertest.AddGrants(t, rdb, limitertest.KeysOf(l).Permits, age, count, 1)
				}
				if tt.value >= 0 {
					require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, tt.value, 0).Err())
				}
			}
			watch := monitor(t, server.Addr())
			ok, err := f.Client.TryAcquireAll(t.Context(), tt.permits, 0, f.Limiters...)
			require.NoError(t, err)
			assert.Equal(t, tt.want, ok)
			watch(t)
			if !tt.want {
				return
			}
			for _, l := range f.Limiters {
				assert.Equal(t, crowd/2-tt.permits, limitertest.Available(t, l)-tt.value)
			}
		})
	}
}

// What is taken between the calls of one decision is missing in it.
func TestTryAcquireAllSeesWhatIsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		taken int64 // of the first of 1000, from which 600 are wanted
		want  bool
	}{"too many": {401, false}, "as many as it can bear": {400, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				f := newFamily(t, rdb, limitertest.Every(1000, time.Hour), limitertest.Every(1000, time.Hour))
				others := f.SeenBy(limitertest.NewClient(t, rdb))
				limitertest.AddGrants(t, rdb, limitertest.KeysOf(f.Limiters[1]).Permits, 2*time.Hour, 800, 1)
				limitertest.AddGrants(t, rdb, limitertest.KeysOf(f.Limiters[1]).Permits, time.Minute, 200, 1)
				require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(f.Limiters[1]).Value, 0, 0).Err())
				require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
				calls := 0
				rdb.AddHook(limitertest.BeforeScript(lua.AcquireAll, func() {
					if calls++; calls == 2 {
						limitertest.MustAcquire(t, others.Limiters[0], tt.taken)
					}
				}))
				assert.Equal(t, tt.want, f.Try(t, 600))
				assert.GreaterOrEqual(t, calls, 2)
				f.CheckSums(t, rdb, 1000, 1000)
				free := []int64{1000 - tt.taken, 800}
				if tt.want {
					free = []int64{0, 200}
				}
				assert.Equal(t, free, f.Free(t))
			})
		})
	}
}

// One limiter is brought up to date before another turns out to be damaged.
func TestAValueMadeBesideAnErrorEndsToo(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t, nil)
	f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
	require.True(t, f.Try(t, 1))
	first, second := limitertest.KeysOf(f.Limiters[0]), limitertest.KeysOf(f.Limiters[1])
	_, err := f.Limiters[0].Expire(t.Context(), time.Minute)
	require.NoError(t, err)
	require.NoError(t, rdb.Del(t.Context(), first.Value).Err())
	require.NoError(t, rdb.ZAdd(t.Context(), second.Permits, redis.Z{Score: 1, Member: "junk"}).Err())
	_, err = f.Client.TryAcquireAll(t.Context(), 10, 0, f.Limiters...)
	require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
	if rdb.Exists(t.Context(), first.Value).Val() == 1 {
		assert.Positive(t, rdb.PTTL(t.Context(), first.Value).Val())
	}
}
