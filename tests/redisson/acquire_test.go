package redisson_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// The tests of the redisson_*_test.go files are the behaviours that Redisson's
// own test suite asks of its rate limiter, under its order's numbers.

func TestRedisson04TheSetHoldsTheRateUnderManyCallers(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		assert.GreaterOrEqual(t, fullSamples(t, rdb, 10_000, 10*time.Second, 20), 16)
	})
}

func TestRedisson04TheSetHoldsTheRateUnderManyCallersOnRedis(t *testing.T) {
	t.Parallel()
	assert.GreaterOrEqual(t, fullSamples(t, redistest.Client(t), 1_000, time.Second, 20), 10, "on a busy machine")
}

// fullSamples has 200 callers take permits for two intervals and looks at the
// set so often meanwhile. It returns how often the set held the whole rate.
func fullSamples(t *testing.T, rdb redis.UniversalClient, rate int64, interval time.Duration, samples int) int {
	l := limitertest.NewLimiter(t, rdb, limitertest.Every(rate, interval))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := l.Acquire(ctx, 1); ctx.Err() == nil && !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	full := 0
	for range samples {
		if limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits) == rate {
			full++
		}
		time.Sleep(2 * interval / time.Duration(samples))
	}
	cancel()
	wg.Wait()
	return full
}

func TestRedisson05APermitComesBackOneIntervalAfterItsOwnGrant(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(2, 5*time.Second))
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(4 * time.Second)
		limitertest.MustAcquire(t, l, 1)
		time.Sleep(1050 * time.Millisecond)
		limitertest.MustAcquire(t, l, 1)
		limitertest.MustRefuse(t, l, 1)
	})
}

func TestRedisson08AvailablePermits(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, 5*time.Second))
		assert.EqualValues(t, 10, limitertest.Available(t, l))
		require.NoError(t, l.Acquire(t.Context(), 1))
		assert.EqualValues(t, 9, limitertest.Available(t, l))
		time.Sleep(6 * time.Second)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
	})
}

func TestRedisson09MorePermitsThanTheRateAreAnError(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.PerClient(1, time.Second))
		_, err := l.TryAcquire(t.Context(), 20, 0)
		require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
		limitertest.MustAcquire(t, l, 1)
	})
}

func TestRedisson10ATimeoutOfZeroAsksOnce(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(5, time.Second))
		start := time.Now()
		assert.EqualValues(t, 5, limitertest.Available(t, l))
		assert.Equal(t, 2, limitertest.Grants(t, l, 2))
		assert.EqualValues(t, 3, limitertest.Available(t, l))
		assert.Equal(t, 3, limitertest.Grants(t, l, 3))
		assert.EqualValues(t, 0, limitertest.Available(t, l))
		assert.Zero(t, limitertest.Grants(t, l, 5))
		assert.Zero(t, time.Since(start))
		time.Sleep(time.Second)
		assert.Equal(t, 5, limitertest.Grants(t, l, 10))
	})
}

func TestRedisson11ATimeoutIsTheLongestWait(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, 5*time.Second))
		start := time.Now()
		ok, err := l.TryAcquire(t.Context(), 1, time.Second)
		require.NoError(t, err)
		assert.True(t, ok)
		ok, err = l.TryAcquire(t.Context(), 1, time.Second)
		require.NoError(t, err)
		assert.False(t, ok)
		assert.Equal(t, time.Second, time.Since(start))
		limitertest.MustRefuse(t, l, 1)
	})
}

func TestRedisson12AcquireWaitsForEachPermit(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, 5*time.Second))
		start := time.Now()
		for range 10 {
			require.NoError(t, l.Acquire(t.Context(), 1))
		}
		assert.Equal(t, 9*5*time.Second, time.Since(start))
		limitertest.MustRefuse(t, l, 1)
	})
}

func TestRedisson13TheFirstRateStays(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
		set, err := l.TrySetRate(t.Context(), limitertest.Every(20, time.Second))
		require.NoError(t, err)
		assert.False(t, set)
		for range 3 {
			assert.Equal(t, 10, limitertest.Grants(t, l, 10))
			assert.Zero(t, limitertest.Grants(t, l, 10))
			time.Sleep(1050 * time.Millisecond)
		}
	})
}

func TestRedisson15EightThreadsThatWait(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(18, time.Second))
		all := grantsOf(t, 8, 1000, l.Acquire)
		for i := 18; i < len(all); i++ {
			require.GreaterOrEqual(t, all[i].to.Sub(all[i-18].to), time.Second, "grants %d and %d", i-18, i)
		}
		assert.Equal(t, 55*time.Second, all[999].to.Sub(all[0].to), "no interval is wasted")
	})
}

func TestRedisson15EightThreadsThatWaitOnRedis(t *testing.T) {
	t.Parallel()
	l := limitertest.NewLimiter(t, redistest.Client(t), limitertest.Every(18, 200*time.Millisecond))
	all := grantsOf(t, 8, 150, l.Acquire)
	requireWindows(t, all, 18, 200*time.Millisecond)
	assert.GreaterOrEqual(t, all[149].to.Sub(all[0].from), 8*200*time.Millisecond-clockSlack)
}

func TestRedisson16EightThreadsThatPoll(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
		all := grantsOf(t, 8, 500, poll(l, 40*time.Millisecond))
		for i := 10; i < len(all); i++ {
			require.GreaterOrEqual(t, all[i].to.Sub(all[i-10].to), time.Second, "grants %d and %d", i-10, i)
		}
		assert.Equal(t, 49*time.Second, all[499].to.Sub(all[0].to).Truncate(time.Second), "no interval is wasted")
	})
}

func TestRedisson16EightThreadsThatPollOnRedis(t *testing.T) {
	t.Parallel()
	l := limitertest.NewLimiter(t, redistest.Client(t), limitertest.Every(10, 200*time.Millisecond))
	all := grantsOf(t, 8, 100, poll(l, 7*time.Millisecond))
	requireWindows(t, all, 10, 200*time.Millisecond)
	assert.GreaterOrEqual(t, all[99].to.Sub(all[0].from), 9*200*time.Millisecond-clockSlack)
}

// poll returns a function that asks until it is granted.
func poll(l *rratelimiter.RateLimiter, pause time.Duration) func(context.Context, int64) error {
	return func(ctx context.Context, permits int64) error {
		for {
			ok, err := l.TryAcquire(ctx, permits, 0)
			if ok || err != nil {
				return err
			}
			time.Sleep(pause)
		}
	}
}

// grant is a permit that was granted, no earlier than from and no later than
// to.
type grant struct{ from, to time.Time }

// grantsOf has so many threads take count permits together, and returns them in
// the order in which they came.
func grantsOf(t *testing.T, threads, count int, acquire func(context.Context, int64) error) []grant {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   []grant
		taken atomic.Int64
	)
	for range threads {
		wg.Go(func() {
			for taken.Add(1) <= int64(count) {
				g := grant{from: time.Now()}
				if !assert.NoError(t, acquire(t.Context(), 1)) {
					return
				}
				g.to = time.Now()
				mu.Lock()
				all = append(all, g)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, all, count)
	slices.SortFunc(all, func(a, b grant) int { return a.to.Compare(b.to) })
	return all
}

// clockSlack is what this program's clock and the server's, which counts
// milliseconds, may differ by.
const clockSlack = 5 * time.Millisecond

// requireWindows checks that no interval holds more grants than the rate,
// counting those that lie in it for certain.
func requireWindows(t *testing.T, all []grant, rate int, interval time.Duration) {
	t.Helper()
	for _, first := range all {
		held := 0
		for _, g := range all {
			if !g.from.Before(first.from) && g.to.Before(first.from.Add(interval-clockSlack)) {
				held++
			}
		}
		require.LessOrEqual(t, held, rate)
	}
}

func TestRedisson14DeleteLeavesNothing(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewHandle(t, rdb)
			deleted, err := l.Delete(t.Context())
			require.NoError(t, err)
			assert.False(t, deleted)

			limitertest.MustTrySetRate(t, l, rratelimiter.Config{Type: kind, Rate: 5, Interval: 5 * time.Minute})
			assert.Equal(t, []string{l.Name()}, rdb.Keys(t.Context(), "*").Val())
			require.NoError(t, l.Acquire(t.Context(), 1))
			assert.Len(t, rdb.Keys(t.Context(), "*").Val(), 3)
			deleted, err = l.Delete(t.Context())
			require.NoError(t, err)
			assert.True(t, deleted)
			assert.Empty(t, rdb.Keys(t.Context(), "*").Val())
		})
	})
}

func TestRedisson30Release(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Second})
			require.NoError(t, l.Acquire(t.Context(), 3))
			assert.EqualValues(t, 7, limitertest.Available(t, l))
			for _, permits := range []int64{3, 10, 0} {
				require.NoError(t, l.Release(t.Context(), permits))
				assert.EqualValues(t, 10, limitertest.Available(t, l))
			}
			require.ErrorIs(t, l.Release(t.Context(), -1), rratelimiter.ErrInvalidPermits)
			assert.EqualValues(t, 10, limitertest.Available(t, l))
		})
	})
}
