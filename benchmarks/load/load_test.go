package load_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
)

func TestRunCountsWhatItMeasures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		seen := make([]atomic.Int64, 10)
		failed := errors.New("failed")
		r := load.Run(t.Context(), load.Load{Callers: 4, Limiters: 10, Length: 20 * time.Millisecond},
			func(_ context.Context, i int) (bool, error) {
				seen[i].Add(1)
				time.Sleep(100 * time.Microsecond)
				switch n := calls.Add(1); n % 4 {
				case 0:
					return false, failed
				case 1:
					return false, nil
				}
				return true, nil
			})
		assert.Positive(t, r.Refused)
		assert.Greater(t, r.Granted, r.Refused)
		assert.Positive(t, r.Errors)
		assert.Equal(t, failed.Error(), r.FirstError)
		assert.GreaterOrEqual(t, r.All, r.Granted+r.Refused)
		assert.GreaterOrEqual(t, r.Elapsed, 20*time.Millisecond)
		assert.GreaterOrEqual(t, r.Latencies.Percentile(1), 100*time.Microsecond*127/128)
		assert.InEpsilon(t, float64(r.Granted+r.Refused)/r.Elapsed.Seconds(), r.Rate(), 1e-9)
		for i := range seen {
			assert.Positive(t, seen[i].Load(), "limiter %d was never drawn", i)
		}
	})
}

func TestRunDrawsAsAsked(t *testing.T) {
	t.Parallel()
	const limiters = 100
	drawn := func(t *testing.T, draw load.Draw, callers int) []int64 {
		t.Helper()
		counts := make([]int64, limiters)
		synctest.Test(t, func(t *testing.T) {
			asked := make([]atomic.Int64, limiters)
			load.Run(t.Context(), load.Load{Callers: callers, Limiters: limiters, Draw: draw, Length: time.Second},
				func(_ context.Context, i int) (bool, error) {
					asked[i].Add(1)
					time.Sleep(100 * time.Microsecond)
					return true, nil
				})
			for i := range asked {
				counts[i] = asked[i].Load()
			}
		})
		return counts
	}
	uniform := drawn(t, load.Uniform, 2)
	assert.Greater(t, 3*uniform[limiters-1], uniform[0])
	zipf := drawn(t, load.Zipf, 2)
	assert.Greater(t, zipf[0], 20*zipf[limiters-1])
	assert.Greater(t, zipf[0], zipf[9])
	own := drawn(t, load.Own, 3)
	for i, n := range own {
		assert.Equal(t, i < 3, n > 0, i)
	}
}

func TestRunPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := load.Run(t.Context(), load.Load{Callers: 1, Limiters: 1, Pause: 4 * time.Millisecond, Length: 400 * time.Millisecond},
			func(context.Context, int) (bool, error) { return true, nil })
		assert.InDelta(t, 100, r.All, 35)
		assert.Zero(t, r.Latencies.Percentile(50).Truncate(time.Millisecond), "pauses are no part of what a caller waits")
	})
}

func TestRunCountsTheProcessTime(t *testing.T) {
	t.Parallel()
	r := load.Run(t.Context(), load.Load{Callers: 1, Limiters: 1, Length: 50 * time.Millisecond},
		func(context.Context, int) (bool, error) { return true, nil })
	assert.Positive(t, r.CPU)
}

func TestRunGivesUpOnCallersThatHang(t *testing.T) {
	t.Parallel()
	r := load.Run(t.Context(), load.Load{Callers: 2, Limiters: 1, Length: time.Millisecond, Patience: time.Millisecond},
		func(ctx context.Context, _ int) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		})
	assert.Zero(t, r.All)
	assert.EqualValues(t, 2, r.Failed)
}

func TestEach(t *testing.T) {
	t.Parallel()
	var asked [100]atomic.Int64
	n, err := load.Each(t.Context(), len(asked), func(_ context.Context, i int) (bool, error) {
		asked[i].Add(1)
		return i%2 == 0, nil
	})
	require.NoError(t, err)
	assert.Equal(t, 50, n)
	for i := range asked {
		assert.EqualValues(t, 1, asked[i].Load())
	}
	failed := errors.New("failed")
	_, err = load.Each(t.Context(), 3, func(context.Context, int) (bool, error) { return false, failed })
	assert.ErrorIs(t, err, failed)
}

func TestFullest(t *testing.T) {
	t.Parallel()
	at := func(sent, answered int) load.Grant {
		return load.Grant{Sent: time.Duration(sent), Answered: time.Duration(answered)}
	}
	for name, test := range map[string]struct {
		grants []load.Grant
		want   int
	}{
		"none":                      {nil, 0},
		"one":                       {[]load.Grant{at(0, 1)}, 1},
		"all in one interval":       {[]load.Grant{at(0, 1), at(5, 6), at(8, 9)}, 3},
		"two intervals":             {[]load.Grant{at(0, 1), at(5, 6), at(20, 21)}, 2},
		"across a window's edge":    {[]load.Grant{at(0, 1), at(8, 9), at(11, 12), at(13, 14)}, 3},
		"answered too late to tell": {[]load.Grant{at(0, 1), at(9, 11)}, 1},
		"as long as an interval":    {[]load.Grant{at(0, 20)}, 0},
	} {
		assert.Equal(t, test.want, load.Fullest(test.grants, 10), name)
	}
}

func TestCrowdAndDrain(t *testing.T) {
	t.Parallel()
	var left atomic.Int64
	left.Store(7)
	take := func(context.Context, int) (bool, error) { return left.Add(-1) >= 0, nil }
	grants := load.Crowd{Callers: 3, From: 2 * time.Millisecond, To: 10 * time.Millisecond}.Run(t.Context(), take)
	require.GreaterOrEqual(t, len(grants), 4, "each asks once at least")
	assert.LessOrEqual(t, len(grants), 7)
	assert.Less(t, grants[0].Sent, grants[1].Sent)
	assert.GreaterOrEqual(t, grants[1].Sent, 2*time.Millisecond)

	left.Store(5)
	n, err := load.Drain(t.Context(), 100, take)
	require.NoError(t, err)
	assert.Equal(t, 5, n)
	left.Store(5)
	n, err = load.Drain(t.Context(), 3, take)
	require.NoError(t, err)
	assert.Equal(t, 3, n)
}
