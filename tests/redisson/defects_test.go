package redisson_test

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
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// The tests of the defects*_test.go files are each named after something that
// Redisson 4.7.0 does wrong: they would fail on it, and where it leaves wrong
// state behind they show that we get along with that.

func TestDefectDuplicatedAcquireTakesItsPermitsTwice(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]redistest.Action{
		"a copy behind it": redistest.Duplicate, "no answer": redistest.DropAnswer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				proxy := redistest.MiniProxy(t, m)
				l := limitertest.NewLimiter(t, proxy.Client(t, nil), limitertest.Every(10, time.Hour))
				limitertest.MustAcquire(t, l, 1)
				for i := range 9 {
					proxy.OnCommand(redistest.Nth(1, "evalsha", action))
					limitertest.MustAcquire(t, l, 1)
					proxy.Settle(t)
					value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
					require.EqualValues(t, 8-i, value)
					require.EqualValues(t, 2+i, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
				}
				limitertest.MustRefuse(t, l, 1)
			})
		})
	}
}

func TestDefectPermitsLeakedByDuplicatesAreLostForGood(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*testing.T, *rratelimiter.RateLimiter){
		"TryAcquire":       func(t *testing.T, l *rratelimiter.RateLimiter) { limitertest.MustAcquire(t, l, 9) },
		"one by one":       func(t *testing.T, l *rratelimiter.RateLimiter) { assert.Equal(t, 9, limitertest.Grants(t, l, 20)) },
		"AvailablePermits": func(t *testing.T, l *rratelimiter.RateLimiter) { assert.EqualValues(t, 9, limitertest.Available(t, l)) },
		"KeepState": func(t *testing.T, l *rratelimiter.RateLimiter) {
			require.NoError(t, l.SetRate(t.Context(), limitertest.Every(20, time.Hour), rratelimiter.KeepState()))
			assert.EqualValues(t, 19, limitertest.Available(t, l))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
				peer := limitertest.Java{Redis: rdb, Name: l.Name()}
				member := limitertest.NewMember(t, codec.LayoutD2, 1)
				for range 9 {
					_, _, err := peer.Resend(t, 1, member)
					require.NoError(t, err)
				}
				ask(t, l)
			})
		})
	}
}

func TestDefectLeakedPermitsWithNothingInUse(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
		require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, 1, 0).Err())
		limitertest.MustAcquire(t, l, 10)
	})
}

func TestDefectReleasedPermitsComeBackTwice(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: 10 * time.Second})
			limitertest.MustAcquire(t, l, 3)
			require.NoError(t, l.Release(t.Context(), 2))
			time.Sleep(time.Second)
			limitertest.MustAcquire(t, l, 5)
			time.Sleep(9 * time.Second)
			assert.EqualValues(t, 5, limitertest.Available(t, l))
			time.Sleep(time.Second)
			assert.EqualValues(t, 10, limitertest.Available(t, l))
		})
	})
}

func TestDefectReleaseTakesFromTheNewestMembers(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, 10*time.Second))
		limitertest.MustAcquire(t, l, 2)
		time.Sleep(5 * time.Second)
		limitertest.MustAcquire(t, l, 3)
		require.NoError(t, l.Release(t.Context(), 4))
		assert.EqualValues(t, 9, limitertest.Available(t, l))
		time.Sleep(4 * time.Second)
		assert.EqualValues(t, 9, limitertest.Available(t, l))
		time.Sleep(time.Second)
		assert.EqualValues(t, 10, limitertest.Available(t, l), "what is left in use is of the oldest grant")
	})
}

// overfull leaves a value of 13 in a limiter of rate 10, as Redisson does.
func overfull(t *testing.T, rdb redis.UniversalClient, l *rratelimiter.RateLimiter) {
	t.Helper()
	peer := limitertest.Java{Redis: rdb, Name: l.Name()}
	granted, _, err := peer.TryAcquire(t, 3)
	require.NoError(t, err)
	require.True(t, granted)
	peer.Release(t, 3)
	time.Sleep(10 * time.Second)
	require.EqualValues(t, 13, peer.AvailablePermits(t))
}

func TestDefectValueAboveTheRate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, call := range map[string]func(*testing.T, *rratelimiter.RateLimiter){
		"TryAcquire": func(t *testing.T, l *rratelimiter.RateLimiter) { assert.Equal(t, 10, limitertest.Grants(t, l, 13)) },
		"AvailablePermits": func(t *testing.T, l *rratelimiter.RateLimiter) {
			assert.EqualValues(t, 10, limitertest.Available(t, l))
		},
		"Release": func(t *testing.T, l *rratelimiter.RateLimiter) { assert.NoError(t, l.Release(ctx, 1)) },
		"SetRate": func(t *testing.T, l *rratelimiter.RateLimiter) {
			assert.NoError(t, l.SetRate(ctx, limitertest.Every(10, time.Hour)))
		},
		"KeepState": func(t *testing.T, l *rratelimiter.RateLimiter) {
			assert.NoError(t, l.SetRate(ctx, limitertest.Every(10, time.Hour), rratelimiter.KeepState()))
		},
		"Take": func(t *testing.T, l *rratelimiter.RateLimiter) {
			d, err := l.Take(ctx, 1)
			require.NoError(t, err)
			assert.EqualValues(t, 9, d.Remaining)
		},
	} {
		for _, inUse := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "/nothing in use", true: "/something in use"}[inUse], func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, 10*time.Second))
					overfull(t, rdb, l)
					if inUse {
						limitertest.AddGrants(t, rdb, limitertest.KeysOf(l).Permits, time.Second, 1, 2)
					}
					call(t, l)
					value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
					assert.LessOrEqual(t, value, int64(10))
					assert.LessOrEqual(t, limitertest.Grants(t, l, 20), 10)
				})
			})
		}
	}
}

func TestDefectAValueThatRedissonRaisedIsNotLowered(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, 10*time.Second))
		limitertest.MustAcquire(t, l, 6)
		limitertest.Java{Redis: rdb, Name: l.Name()}.Release(t, 6)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
		limitertest.MustAcquire(t, l, 10)
		limitertest.MustRefuse(t, l, 1)
	})
}

func TestDefectKeepStateForgetsWhatIsOwed(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: 10 * time.Second})
			limitertest.MustAcquire(t, l, 4)
			time.Sleep(5 * time.Second)
			limitertest.MustAcquire(t, l, 4)
			updated, err := l.UpdateRate(t.Context(),
				rratelimiter.Config{Type: kind, Rate: 5, Interval: 10 * time.Second}, rratelimiter.KeepState())
			require.NoError(t, err)
			require.True(t, updated)
			assert.EqualValues(t, 0, limitertest.Available(t, l))
			d, err := l.Take(t.Context(), 1)
			require.NoError(t, err)
			assert.False(t, d.Granted)
			assert.EqualValues(t, 0, d.Remaining)
			assert.Equal(t, 5*time.Second, d.RetryAfter)
			time.Sleep(5 * time.Second)
			assert.EqualValues(t, 1, limitertest.Available(t, l))
			assert.Equal(t, 1, limitertest.Grants(t, l, 4))
		})
	})
}

// KeepState counts by the new interval, as Redisson does: what was granted within
// it is in use, even what the old interval had let go of.
func TestKeepStateCountsByTheNewInterval(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
		limitertest.MustAcquire(t, l, 4)
		time.Sleep(1500 * time.Millisecond)
		limitertest.MustAcquire(t, l, 1)
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(10, time.Minute), rratelimiter.KeepState()))
		assert.EqualValues(t, 5, limitertest.Available(t, l), "5 were granted within the last minute")
	})
}

func TestDefectValueWithoutSetFailsForGood(t *testing.T) {
	t.Parallel()
	for _, value := range []int64{-3, 0, 2, 10, 13} {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
			require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, value, 0).Err())
			d, err := l.Take(t.Context(), 5)
			require.NoError(t, err)
			assert.True(t, d.Granted)
			assert.EqualValues(t, 5, d.Remaining)
		})
	}
}

func TestDefectAGrantAfterTheSetWasLostLeaksPermits(t *testing.T) {
	t.Parallel()
	for _, value := range []int64{3, 37, 60, 100} {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, limitertest.Every(100, time.Hour))
			require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, value, 0).Err())
			limitertest.MustAcquire(t, l, 1)
			limitertest.MustAcquire(t, l, 1)
			left, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
			assert.EqualValues(t, 98, left)
		})
	}
}

func TestDefectSetWithoutValueGrantsAnotherRate(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, 10*time.Second))
		limitertest.MustAcquire(t, l, 5)
		time.Sleep(time.Second)
		limitertest.MustAcquire(t, l, 3)
		require.NoError(t, rdb.Del(t.Context(), limitertest.KeysOf(l).Value).Err())
		d, err := l.Take(t.Context(), 3)
		require.NoError(t, err)
		assert.False(t, d.Granted)
		assert.EqualValues(t, 2, d.Remaining)
		assert.Equal(t, 9*time.Second, d.RetryAfter)
		assert.Equal(t, 2, limitertest.Grants(t, l, 5))
	})
}

func TestDefectPermitsOutOfRangeReachRedis(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(rratelimiter.MaxRate, time.Hour))
		limitertest.MustAcquire(t, l, 3)
		for _, permits := range []int64{math.MinInt64, -5, 0, 1 << 32, math.MaxInt64} {
			limitertest.RequireUntouched(t, rdb, l.Name(), func() {
				_, err := l.TryAcquire(t.Context(), permits, 0)
				require.ErrorIs(t, err, rratelimiter.ErrInvalidPermits)
			})
		}
	})
}

func TestDefectLargeRatesBreakTheValue(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(rratelimiter.MaxRate, time.Hour))
		free := int64(rratelimiter.MaxRate)
		for range 3 {
			d, err := l.Take(t.Context(), rratelimiter.MaxPermits)
			require.NoError(t, err)
			assert.True(t, d.Granted)
			free -= rratelimiter.MaxPermits
			assert.Equal(t, free, d.Remaining)
			assert.Equal(t, free, limitertest.Available(t, l))
			value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
			assert.Equal(t, free, value)
		}
		require.NoError(t, rdb.Del(t.Context(), limitertest.KeysOf(l).Value).Err())
		assert.Equal(t, free, limitertest.Available(t, l), "rebuilt from the set")
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(1, time.Hour), rratelimiter.KeepState()))
		value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
		assert.Equal(t, int64(1-3*rratelimiter.MaxPermits), value)
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(rratelimiter.MaxRate, time.Hour), rratelimiter.KeepState()))
		assert.Equal(t, free, limitertest.Available(t, l))
		require.NoError(t, l.Release(t.Context(), rratelimiter.MaxRate))
		assert.Equal(t, int64(rratelimiter.MaxRate), limitertest.Available(t, l))
		require.ErrorIs(t, l.SetRate(t.Context(), limitertest.Every(rratelimiter.MaxRate+1, time.Hour)), rratelimiter.ErrInvalidConfig)
		require.ErrorIs(t, l.SetRate(t.Context(), limitertest.Every(math.MaxInt64, time.Hour)), rratelimiter.ErrInvalidConfig)
	})
}

func TestDefectConfigIsReadFromAReplica(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, time.Hour))
		sent := limitertest.CountCommands(rdb)
		_, err := l.Config(t.Context())
		require.NoError(t, err)
		limitertest.Available(t, l)
		_, _, err = l.TTL(t.Context())
		require.NoError(t, err)
		assert.Equal(t, sent.Total(), sent.Scripts(), "commands that only read may go to a replica, scripts do not")
	})
}

func TestDefectRenameMovesTheConfigAlone(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			client := limitertest.NewClient(t, rdb)
			from, to := client.RateLimiter("from"), client.RateLimiter("to")
			limitertest.MustTrySetRate(t, from, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
			limitertest.MustAcquire(t, from, 8)
			limitertest.MustTrySetRate(t, to, limitertest.Every(3, time.Minute))
			limitertest.MustAcquire(t, to, 3)
			require.NoError(t, from.Rename(t.Context(), "to"))
			assert.Equal(t, "from", from.Name())
			assert.EqualValues(t, 2, limitertest.Available(t, to))
			assert.Empty(t, limitertest.LimiterKeys(t, rdb, "from"))
			_, err := from.TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
		})
	})
}
