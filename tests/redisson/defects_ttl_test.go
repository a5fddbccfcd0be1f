package redisson_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestDefectSetRateLeavesAnOldTTL(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, set := range map[string]func(*rratelimiter.RateLimiter) error{
		"SetRate": func(l *rratelimiter.RateLimiter) error { return l.SetRate(ctx, limitertest.Every(20, time.Second)) },
		"KeepState": func(l *rratelimiter.RateLimiter) error {
			return l.SetRate(ctx, limitertest.Every(20, time.Second), rratelimiter.KeepState())
		},
		"UpdateRate": func(l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(ctx, limitertest.Every(20, time.Second), rratelimiter.KeepState())
			return err
		},
	} {
		for _, first := range []rratelimiter.Config{
			{Rate: 10, Interval: time.Second, KeepAlive: 5 * time.Second}, limitertest.Every(10, time.Second),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					l := limitertest.NewLimiter(t, rdb, first)
					limitertest.MustAcquire(t, l, 1)
					_, err := l.Expire(t.Context(), 5*time.Second)
					require.NoError(t, err)
					require.NoError(t, set(l))
					limitertest.MustAcquire(t, l, 1)
					for key, ttl := range limitertest.TTLs(t, rdb, l.Name()) {
						assert.Less(t, ttl, time.Duration(0), key)
					}
					time.Sleep(10 * time.Second)
					cfg, err := l.Config(t.Context())
					require.NoError(t, err)
					assert.Equal(t, limitertest.Every(20, time.Second), cfg)
				})
			})
		}
	}
}

// The config went alone, as Redisson's unlink takes it.
func TestDefectAnOldTTLOfThePairEndsPermitsInUse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, set := range map[string]func(*rratelimiter.RateLimiter) error{
		"TrySetRate": func(l *rratelimiter.RateLimiter) error {
			return limitertest.Second(l.TrySetRate(ctx, limitertest.Every(10, time.Hour)))
		},
		"SetRate": func(l *rratelimiter.RateLimiter) error {
			return l.SetRate(ctx, limitertest.Every(10, time.Hour), rratelimiter.KeepState())
		},
		"WithDefault": func(*rratelimiter.RateLimiter) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
				limitertest.MustAcquire(t, l, 6)
				require.NoError(t, limitertest.Second(l.Expire(ctx, time.Minute)))
				require.NoError(t, rdb.Del(ctx, l.Name()).Err())
				require.NoError(t, set(l))
				limitertest.MustAcquire(t, l, 4)
				time.Sleep(2 * time.Minute)
				limitertest.MustRefuse(t, l, 1)
			})
		})
	}
}

func TestDefectTrySetRateAddsAKeepAliveTimeToAnOlderLimiter(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := limitertest.NewHandle(t, rdb)
		require.NoError(t, rdb.HSet(t.Context(), l.Name(), "rate", 10, "interval", 1000, "type", 0).Err())
		limitertest.RequireUntouched(t, rdb, l.Name(), func() {
			set, err := l.TrySetRate(t.Context(), rratelimiter.Config{Rate: 20, Interval: time.Second, KeepAlive: time.Hour})
			require.NoError(t, err)
			assert.False(t, set)
		})
	})
}

func TestDefectAvailablePermitsLeavesAValueWithoutTTL(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
			_, err := l.Expire(t.Context(), time.Minute)
			require.NoError(t, err)
			assert.EqualValues(t, 10, limitertest.Available(t, l))
			all := limitertest.TTLs(t, rdb, l.Name())
			assert.Len(t, all, 2)
			for key, ttl := range all {
				assert.Equal(t, time.Minute, ttl, key)
			}
		})
	})
}

func TestDefectKeysThatOutliveTheConfig(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, call := range map[string]func(*rratelimiter.RateLimiter) error{
		"TryAcquire": func(l *rratelimiter.RateLimiter) error {
			_, err := l.TryAcquire(ctx, 1, 0)
			return err
		},
		"a refusal": func(l *rratelimiter.RateLimiter) error {
			_, err := l.TryAcquire(ctx, 10, 0)
			return err
		},
		"Take": func(l *rratelimiter.RateLimiter) error {
			_, err := l.Take(ctx, 1)
			return err
		},
		"AvailablePermits": func(l *rratelimiter.RateLimiter) error {
			_, err := l.AvailablePermits(ctx)
			return err
		},
		"Release": func(l *rratelimiter.RateLimiter) error { return l.Release(ctx, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"))
					l := client.RateLimiter(redistest.Name(t))
					limitertest.MustTrySetRate(t, l, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
					limitertest.MustAcquire(t, l, 5)
					for key := range limitertest.TTLs(t, rdb, l.Name()) {
						rdb.Persist(ctx, key)
					}
					require.NoError(t, rdb.PExpire(ctx, l.Name(), time.Minute).Err())
					require.NoError(t, call(l))
					all := limitertest.TTLs(t, rdb, l.Name())
					assert.Len(t, all, 3)
					for key, ttl := range all {
						assert.Equal(t, time.Minute, ttl, key)
					}
				})
			})
		})
	}
}

func TestDefectKeepAliveCoversAllKeys(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Second, KeepAlive: time.Minute})
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(59 * time.Second)
			limitertest.MustAcquire(t, l, 1)
			all := limitertest.TTLs(t, rdb, l.Name())
			assert.Len(t, all, 3)
			for key, ttl := range all {
				assert.Equal(t, time.Minute, ttl, key)
			}
			time.Sleep(61 * time.Second)
			assert.Empty(t, rdb.Keys(t.Context(), "*").Val())
		})
	})
}

func TestDefectClientKeysStayForEver(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		cfg := limitertest.PerClient(10, 10*time.Second)
		limitertest.MustTrySetRate(t, limitertest.NewClient(t, rdb).RateLimiter("name"), cfg)
		for range 20 {
			limitertest.MustAcquire(t, limitertest.NewClient(t, rdb).RateLimiter("name"), 3)
			assert.EqualValues(t, 10, limitertest.Available(t, limitertest.NewClient(t, rdb).RateLimiter("name")))
		}
		assert.Len(t, limitertest.LimiterKeys(t, rdb, "name"), 1+20*3)

		l := limitertest.NewClient(t, rdb).RateLimiter("name")
		limitertest.MustAcquire(t, l, 4)
		time.Sleep(9 * time.Second)
		assert.EqualValues(t, 6, limitertest.Available(t, l), "its keys live as long as its permits are in use")
		limitertest.MustAcquire(t, l, 6)
		time.Sleep(9 * time.Second)
		assert.EqualValues(t, 4, limitertest.Available(t, l))
		time.Sleep(11 * time.Second)
		assert.Equal(t, []string{"name"}, limitertest.LimiterKeys(t, rdb, "name"))
		assert.EqualValues(t, 10, limitertest.Available(t, l))
	})
}

func TestDefectAClientCannotHaveAStableID(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		name := redistest.Name(t)
		handle := func(opts ...rratelimiter.Option) *rratelimiter.RateLimiter {
			return limitertest.NewClient(t, rdb, opts...).RateLimiter(name)
		}
		one, same := handle(rratelimiter.WithClientID("pod-1")), handle(rratelimiter.WithClientID("pod-1"))
		other, random := handle(rratelimiter.WithClientID("pod-2")), handle()
		limitertest.MustTrySetRate(t, one, limitertest.PerClient(10, time.Hour))
		limitertest.MustAcquire(t, one, 4)
		assert.EqualValues(t, 6, limitertest.Available(t, same))
		limitertest.MustAcquire(t, same, 6)
		limitertest.MustRefuse(t, one, 1)
		limitertest.MustAcquire(t, other, 10)
		limitertest.MustAcquire(t, random, 10)
		set := redisson.KeysOf(name, "pod-1")
		assert.Subset(t, limitertest.LimiterKeys(t, rdb, name), []string{set.Config, set.ClientValue, set.ClientPermits})
		assert.NotContains(t, limitertest.LimiterKeys(t, rdb, name), set.Value)

		require.NoError(t, same.Release(t.Context(), 3))
		assert.EqualValues(t, 3, limitertest.Available(t, one))
	})
}

func TestDefectANewRateReachesTheCallersPairAlone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ rate, free int64 }{{20, 17}, {10, 7}, {5, 5}} {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			caller, other := limitertest.NewClient(t, rdb).RateLimiter("name"), limitertest.NewClient(t, rdb).RateLimiter("name")
			limitertest.MustTrySetRate(t, caller, limitertest.PerClient(10, time.Hour))
			limitertest.MustAcquire(t, other, 3)
			require.NoError(t, caller.SetRate(t.Context(), limitertest.PerClient(tc.rate, time.Hour)))
			assert.Equal(t, tc.free, limitertest.Available(t, other))
		})
	}
}

func TestDefectAnotherTypeLeavesTheOldKeys(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewHandle(t, rdb)
		kinds := []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient, rratelimiter.Overall}
		for _, opts := range [][]rratelimiter.RateOption{nil, {rratelimiter.KeepState()}} {
			for _, kind := range kinds {
				cfg := rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour}
				require.NoError(t, l.SetRate(t.Context(), cfg, opts...))
				if kind == rratelimiter.PerClient {
					assert.Equal(t, []string{l.Name()}, limitertest.LimiterKeys(t, rdb, l.Name()))
				}
				require.NoError(t, l.SetRate(t.Context(), cfg))
				limitertest.MustAcquire(t, l, 4)
				assert.Len(t, limitertest.LimiterKeys(t, rdb, l.Name()), 3)
				assert.EqualValues(t, 6, limitertest.Available(t, l))
			}
		}
	})
}

func TestDefectADeniedRequestOfRedissonFailsBesideAnEmptySet(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	calls := map[string]func(*testing.T, *rratelimiter.RateLimiter){
		"AvailablePermits": func(t *testing.T, l *rratelimiter.RateLimiter) { limitertest.Available(t, l) },
		"a refusal":        func(t *testing.T, l *rratelimiter.RateLimiter) { limitertest.Try(t, l, 10) },
		"Release of all":   func(t *testing.T, l *rratelimiter.RateLimiter) { require.NoError(t, l.Release(ctx, 100)) },
		"Release of some":  func(t *testing.T, l *rratelimiter.RateLimiter) { require.NoError(t, l.Release(ctx, 2)) },
		"Release by one": func(t *testing.T, l *rratelimiter.RateLimiter) {
			for range 10 {
				require.NoError(t, l.Release(ctx, 1))
			}
		},
		"KeepState": func(t *testing.T, l *rratelimiter.RateLimiter) {
			require.NoError(t, l.SetRate(ctx, limitertest.Every(10, time.Second), rratelimiter.KeepState()))
		},
		"SetRate": func(t *testing.T, l *rratelimiter.RateLimiter) {
			require.NoError(t, l.SetRate(ctx, limitertest.Every(10, time.Second)))
		},
	}
	states := map[string]func(*testing.T, *redis.Client, *rratelimiter.RateLimiter){
		"in use":  func(*testing.T, *redis.Client, *rratelimiter.RateLimiter) {},
		"run out": func(*testing.T, *redis.Client, *rratelimiter.RateLimiter) { time.Sleep(time.Second) },
		"no set": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter) {
			require.NoError(t, rdb.Del(ctx, limitertest.KeysOf(l).Permits).Err())
		},
		"no value": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter) {
			require.NoError(t, rdb.Del(ctx, limitertest.KeysOf(l).Value).Err())
		},
		"leaked": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter) {
			require.NoError(t, rdb.DecrBy(ctx, limitertest.KeysOf(l).Value, 2).Err())
		},
		"raised": func(t *testing.T, rdb *redis.Client, l *rratelimiter.RateLimiter) {
			limitertest.Java{Redis: rdb, Name: l.Name()}.Release(t, 4)
		},
	}
	for what, prepare := range states {
		for name, call := range calls {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
					limitertest.MustAcquire(t, l, 2)
					limitertest.MustAcquire(t, l, 3)
					prepare(t, rdb, l)
					call(t, l)
					_, _, err := limitertest.Java{Redis: rdb, Name: l.Name()}.TryAcquire(t, 10)
					assert.NoError(t, err)
				})
			})
		}
	}
}

// A peer of Redisson must sweep what we leave, in one go.
func TestDefectRunOutMembersPileUp(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		const rate = 800
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(rate, time.Second))
		most := int64(0)
		for i := range 2 * rate {
			limitertest.MustAcquire(t, l, 1)
			if i%8 == 0 {
				time.Sleep(20 * time.Millisecond)
			}
			if i%50 == 0 {
				edge := strconv.FormatInt(limitertest.ServerNow(t, rdb)-1000, 10)
				out, err := rdb.ZCount(t.Context(), limitertest.KeysOf(l).Permits, "-inf", edge).Result()
				require.NoError(t, err)
				most = max(most, out)
			}
		}
		assert.LessOrEqual(t, most, int64(32), "about one sixty-fourth of the rate, or 16")
	})
}

func TestDefectOlderLayoutsAreUnreadable(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(100, time.Hour))
		layouts := []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2}
		now := limitertest.ServerNow(t, rdb)
		add := func(age time.Duration) {
			for i, layout := range layouts {
				require.NoError(t, rdb.ZAdd(t.Context(), limitertest.KeysOf(l).Permits, redis.Z{
					Score: float64(now - age.Milliseconds() - int64(i)), Member: limitertest.NewMember(t, layout, uint32(i+1)),
				}).Err())
			}
		}
		add(30 * time.Minute)
		assert.EqualValues(t, 90, limitertest.Available(t, l), "a value rebuilt from members side by side")
		add(2 * time.Hour)
		add(time.Minute)
		require.NoError(t, rdb.DecrBy(t.Context(), limitertest.KeysOf(l).Value, 20).Err())
		assert.EqualValues(t, 80, limitertest.Available(t, l), "what has run out comes back")
		assert.EqualValues(t, 8, rdb.ZCard(t.Context(), limitertest.KeysOf(l).Permits).Val())
		require.NoError(t, l.Release(t.Context(), 15))
		assert.EqualValues(t, 95, limitertest.Available(t, l))
		assert.EqualValues(t, 5, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
		for _, member := range rdb.ZRange(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Val() {
			m, err := codec.Parse(member)
			require.NoError(t, err)
			assert.True(t, slices.Contains(layouts, m.Layout))
		}
		d, err := l.Take(t.Context(), 96)
		require.NoError(t, err)
		assert.False(t, d.Granted)
		assert.EqualValues(t, 95, d.Remaining)
	})
}
